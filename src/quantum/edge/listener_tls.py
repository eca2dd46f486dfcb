"""MQTTS: a connection that is nobody until its certificate is believed."""

from __future__ import annotations

import asyncio
from typing import Final

from clustor.runtime.containment import guarded
from clustor.runtime.pki.peer_trust import ChainReader, Disbelief, Shown
from clustor.wall_clock import wall_clock_ms
from quantum.edge.errors import (
    CertificatesUnusable,
    ClientAuthorityGone,
    ClientCertificateExpired,
    ClientCertificateRevoked,
    ClientRefused,
)
from quantum.edge.listener import PLACE, Listener, ListenerConnection
from quantum.edge.lobby import Lobby
from quantum.edge.peer import identity_of, tenant_of_identity
from quantum.edge.ports import ConnectionPeer, Expelling, NewHandler
from quantum.edge.tls import ServerCertificates, TenantOf, TenantTrust
from quantum.edge.tls_session import TlsSession

_NEVER_MS: Final = 1 << 62
_EXPELLED_PER_TURN: Final = 200
"""A whole authority's clients may have to go at once; the others' messages go on meanwhile."""
_REFUSALS: Final[dict[Disbelief, type[ClientRefused]]] = {
    Disbelief.REVOKED: ClientCertificateRevoked,
    Disbelief.AUTHORITY: ClientAuthorityGone,
    Disbelief.EXPIRED: ClientCertificateExpired,
}


class TlsConnection(ListenerConnection):
    """One TLS connection; its TLS state is made when its first bytes come."""

    __slots__ = ("_is_leaving", "session", "shown")

    _listener: TlsListener

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.session: TlsSession | None = None
        """None before the first bytes, and when nothing may be said any more."""
        self._is_leaving = False
        """Whether the client is shown out: what it says is not heard any more."""
        self.shown: Shown | None = None
        """What its certificate was, once that was believed."""

    def write(self, data: bytes) -> None:
        if self._is_leaving:
            self.write_early(data)  # the time that it has to leave goes on
        else:
            super().write(data)

    def write_early(self, data: bytes) -> None:
        if self.session is not None and not self._closing:
            super().write_early(self.session.send(data))

    def close(self) -> None:
        if self.session is not None and self.session.established and not self._closing:
            super().write_early(self.session.end())
        super().close()

    @guarded(PLACE)
    def data_received(self, data: bytes) -> None:
        if self._held is not None:
            self._hold(data)
            return
        if self._is_leaving:
            return
        try:
            if self._handler is None:
                self._shake_hands(data)
            else:
                self._deliver(data)
        except ClientRefused as refusal:
            self._refuse(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)  # contains its own errors
        self.session = None

    def _shake_hands(self, data: bytes) -> None:
        if self.session is None:
            certificates = self._listener.certificates
            self.session = TlsSession(certificates.terms.context, certificates.secrets)
        listener = self._listener
        self.session.shake_hands(data, listener.tenant_of, listener.certificates)
        self._write_out()
        if self.session.established:
            peer = self._identified(self.session)
            self.shown = self._listener.believe(self.session)
            self.session.settle()
            self._open(peer)
            self._deliver(b"")

    def _deliver(self, data: bytes) -> None:
        assert self.session is not None and self._handler is not None
        plain, ended = self.session.receive(data)
        self._write_out()
        if plain:
            self._handler.received(plain)
        if ended:
            self.close()

    def _identified(self, session: TlsSession) -> ConnectionPeer:
        certificate = session.certificate()
        if certificate is None and self._listener.certificates.lets_unnamed(session.tenant):
            return ConnectionPeer(
                "tls", self.address, session.tenant, server_name=session.server_name
            )
        identity = identity_of(certificate)
        named = tenant_of_identity(identity.name)
        if named is None and self._listener.certificates.has_own_roots(session.tenant):
            named = session.tenant
        return ConnectionPeer(
            "tls",
            self.address,
            session.tenant,
            identity.name,
            session.server_name,
            identity.not_after_ms,
            named,
        )

    @property
    def tenant(self) -> str:
        return "" if self.session is None else self.session.tenant

    @guarded(PLACE)
    def expel(self, refusal: ClientRefused) -> None:
        """Show out a client that is believed no more; its handler may still say why."""
        if self._closing or self._is_leaving:
            return
        self._is_leaving = True
        self._listener.refuse(self, refusal)
        self._listener.lobby.counts.expelled += 1
        self.expect_end()
        if isinstance(self._handler, Expelling):
            self._handler.expelled(refusal.reason)
        else:
            self.close()

    def _refuse(self, refusal: ClientRefused) -> None:
        """Say why on our side, let the alert leave for theirs, and close."""
        self._listener.refuse(self, refusal)
        self._write_out()
        self.session = None  # whatever it would say now is not for this client
        self.close()

    def _write_out(self) -> None:
        if self.session is not None and (data := self.session.take_outgoing()):
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
    ) -> None:
        super().__init__(name, lobby, new_handler, connection=TlsConnection)
        self.certificates = certificates
        self.tenant_of = tenant_of
        self._chains = ChainReader()
        self._next_end_ms = _NEVER_MS
        """When the first certificate of a client that is here ends."""

    def reload(self) -> None:
        """Take new certificates from their files; nobody is disconnected."""
        self.certificates.reload()
        self.judge_again()

    def trust_tenant(self, tenant: str, trust: TenantTrust | None) -> None:
        """Judge a tenant's clients by its own trust from now on, those that are here as well.

        None: by the common one. Raises CertificatesUnusable, and then nobody is believed there: it
        fails closed, because whom the tenant believed before it need not believe now.
        """
        try:
            self.certificates.trust_tenant(tenant, trust)
        except CertificatesUnusable:
            self.certificates.trust_tenant(tenant, TenantTrust(is_unusable=True))
            raise
        finally:
            self.judge_again()

    def believe(self, session: TlsSession) -> Shown | None:
        """Note what a client has shown; raises ClientRefused for what OpenSSL does not know."""
        shown = session.shown(self._chains)
        if shown is not None:
            refusal = self._refusal(session.tenant, shown, wall_clock_ms())
            if refusal is not None:
                raise refusal
            self._next_end_ms = min(self._next_end_ms, shown.not_after_ms)
        return shown

    def look(self) -> None:
        """Show out the clients whose certificates have ended."""
        if wall_clock_ms() >= self._next_end_ms:
            self.judge_again()

    def judge_again(self) -> None:
        """Show out whoever would not be believed now, some in each turn of the loop."""
        now_ms = wall_clock_ms()
        refused: list[tuple[TlsConnection, ClientRefused]] = []
        next_end_ms = _NEVER_MS
        for connection in self._connections:
            if isinstance(connection, TlsConnection) and connection.shown is not None:
                refusal = self._refusal(connection.tenant, connection.shown, now_ms)
                if refusal is not None:
                    refused.append((connection, refusal))
                else:
                    next_end_ms = min(next_end_ms, connection.shown.not_after_ms)
        self._next_end_ms = next_end_ms
        self._expel_some(refused)

    def _expel_some(self, refused: list[tuple[TlsConnection, ClientRefused]]) -> None:
        for connection, refusal in refused[:_EXPELLED_PER_TURN]:
            connection.expel(refusal)
        rest = refused[_EXPELLED_PER_TURN:]
        if rest:
            asyncio.get_running_loop().call_soon(self._expel_some, rest)

    def _refusal(self, tenant: str, shown: Shown, now_ms: int) -> ClientRefused | None:
        why = self.certificates.terms_of(tenant).trust.disbelief(shown, now_ms)
        if why is None:
            return None
        return _REFUSALS[why](why.value, certificate=f"{shown.serial:x}")
