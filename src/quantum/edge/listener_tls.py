"""MQTTS: a connection that is nobody until its certificate is believed."""

from __future__ import annotations

from quantum.edge.errors import ClientCertificateRevoked, ClientRefused
from quantum.edge.listener import Connection, Listener
from quantum.edge.lobby import Lobby
from quantum.edge.peer import identity_of
from quantum.edge.ports import NewHandler, Peer
from quantum.edge.tls import ServerCertificates, TenantOf, TlsSession, TrustOf


class TlsConnection(Connection):
    """One TLS connection; its TLS state is made when its first bytes come."""

    __slots__ = ("_session",)

    _listener: TlsListener

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._session: TlsSession | None = None

    def write_early(self, data: bytes) -> None:
        if self._session is not None and not self._closing:
            super().write_early(self._session.send(data))

    def close(self) -> None:
        if self._session is not None and self._session.established and not self._closing:
            super().write_early(self._session.end())
        super().close()

    def data_received(self, data: bytes) -> None:
        if self._held is not None:
            self._hold(data)
            return
        try:
            if self._handler is None:
                self._shake_hands(data)
            else:
                self._deliver(data)
        except ClientRefused as refusal:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._session = None

    def _shake_hands(self, data: bytes) -> None:
        if self._session is None:
            self._session = TlsSession(self._listener.certificates.context)
        self._session.shake_hands(data, self._listener.tenant_of, self._listener.trust_of)
        self._write_out()
        if self._session.established:
            self._open(self._identified(self._session))
            self._deliver(b"")

    def _deliver(self, data: bytes) -> None:
        assert self._session is not None and self._handler is not None
        plain, ended = self._session.receive(data)
        self._write_out()
        if plain:
            self._handler.received(plain)
        if ended:
            self.close()

    def _identified(self, session: TlsSession) -> Peer:
        identity = identity_of(session.certificate())
        trust = self._listener.trust_of(session.tenant) if self._listener.trust_of else None
        if trust is not None and identity.serial in trust.revoked:
            raise ClientCertificateRevoked("its tenant revoked its certificate")
        return Peer(
            "tls",
            self.address,
            session.tenant,
            identity.name,
            session.server_name,
            identity.not_after_ms,
        )

    def _refuse(self, refusal: ClientRefused) -> None:
        """Say why on our side, let the alert leave for theirs, and close."""
        self._listener.refuse(self, refusal)
        self._write_out()
        self._session = None  # whatever it would say now is not for this client
        self.close()

    def _write_out(self) -> None:
        if self._session is not None and (data := self._session.take_outgoing()):
            super().write_early(data)


class TlsListener(Listener):
    """A listener whose clients show certificates; the server name says whose they are."""

    def __init__(
        self,
        name: str,
        lobby: Lobby,
        new_handler: NewHandler,
        *,
        certificates: ServerCertificates,
        tenant_of: TenantOf,
        trust_of: TrustOf | None = None,
    ) -> None:
        super().__init__(name, lobby, new_handler, connection=TlsConnection)
        self.certificates = certificates
        self.tenant_of = tenant_of
        self.trust_of = trust_of

    def reload(self) -> None:
        """Take new certificates from their files; nobody is disconnected."""
        self.certificates.reload()
