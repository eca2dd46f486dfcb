"""TLS without a socket, lean enough for many idle clients: bytes in, plaintext out, and back.

The loops' own TLS keeps a quarter of a megabyte per connection and is silent about failed
handshakes; over memory BIOs a connection costs a tenth of that and every refusal has a name.
OpenSSL does every handshake. When one is over, `TlsSession.settle` takes its secrets and lets
OpenSSL's part go: what is left are records (`tls_records`), on a quarter of the memory.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

from clustor.runtime.tls_suites import is_permitted
from clustor.runtime.trust import ChainReader, Shown
from quantum.edge.errors import (
    ClientCertificateExpired,
    ClientCertificateRevoked,
    ClientRefused,
    ClientUntrusted,
    SuiteRefused,
    TenantUnknown,
)
from quantum.edge.tls import TenantOf, TermsOf
from quantum.edge.tls_records import SUITES, TlsRecords
from quantum.edge.tls_secrets import read_secrets

_RECORD_BYTES_MAX: Final = 16 << 10
_SLICE_BYTES: Final = 4 << 10
"""A memory BIO never shrinks: what passes through it in one piece, the connection keeps."""
_HANDSHAKE_SLICE_BYTES: Final = 256
"""Many clients say little more than their handshake, ever."""

# OpenSSL's X509_V_ERR_… numbers, as `ssl` reports them.
_OUT_OF_TIME: Final = frozenset({9, 10})
_REVOKED: Final = frozenset({23})
_UNKNOWN_AUTHORITY: Final = frozenset({2, 7, 18, 19, 20, 21})


class TlsSession:
    """The server's side of one TLS connection."""

    __slots__ = (
        "_hello",
        "_incoming",
        "_outgoing",
        "_records",
        "_tls",
        "_told",
        "established",
        "server_name",
        "tenant",
    )

    def __init__(self, context: ssl.SSLContext) -> None:
        self._begin(context)
        self._hello: bytearray | None = bytearray()
        """What the client said until its tenant is known: others may have to hear it again."""
        self._told: list[bytes] = []
        """What the handshake told of the secrets behind it."""
        self._records: TlsRecords | None = None
        """What goes on once OpenSSL's part is gone."""
        self.established = False
        """Whether the client's certificate was believed and both sides have finished."""
        self.server_name: str | None = None
        self.tenant = ""

    def _begin(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shake_hands(self, data: bytes, tenant_of: TenantOf, certificates: TermsOf) -> None:
        """Take bytes of the handshake; raises ClientRefused, with an alert in the outgoing."""
        for start in range(0, len(data), _HANDSHAKE_SLICE_BYTES):
            piece = data[start : start + _HANDSHAKE_SLICE_BYTES]
            self._incoming.write(piece)
            if not self.established:
                self._shake_on(piece, tenant_of, certificates)

    def _shake_on(self, data: bytes, tenant_of: TenantOf, certificates: TermsOf) -> None:
        if self._hello is not None:
            self._hello += data
        choice = _Choice(self, tenant_of, certificates)
        context = self._tls.context
        context.sni_callback = choice
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            if choice.elsewhere is not None:
                self._begin_again(choice.elsewhere, tenant_of, certificates)
                return
            raise (choice.refusal or refusal_of(error)) from error
        finally:
            context.sni_callback = None
            self._told += certificates.secrets.take()
        if not is_permitted(self._tls):
            raise SuiteRefused("it agreed on another suite than quantumqtt §9.2 names")
        self.established = True

    def _begin_again(
        self, context: ssl.SSLContext, tenant_of: TenantOf, certificates: TermsOf
    ) -> None:  # fmt: skip
        """Shake hands by the tenant's own rules: OpenSSL ends by those by which it began."""
        said, self._hello = bytes(self._hello or b""), None
        self._begin(context)
        self.shake_hands(said, tenant_of, certificates)

    def choose(self, name: str | None, tenant: str) -> None:
        """Note whose client it is."""
        self.server_name, self.tenant = name, tenant

    def is_judged_by(self, context: ssl.SSLContext) -> bool:
        """Say whether the handshake goes by these rules, which then stay."""
        if self._tls.context is not context:
            return False
        self._hello = None
        return True

    @property
    def can_begin_again(self) -> bool:
        return self._hello is not None

    def shown(self, chains: ChainReader) -> Shown | None:
        """Return what of the client's certificate decides whether it is believed later."""
        return chains.shown_by(self._tls)

    def settle(self) -> None:
        """Go on without OpenSSL, which keeps what only a handshake needs.

        Where the secrets or the cipher are not known, or something is under way in OpenSSL, it
        stays. What the client said behind its handshake is there with the next `receive`.
        """
        assert self.established
        secrets, self._told = read_secrets(self._told), []
        cipher = self._tls.cipher()
        suite = None if cipher is None else SUITES.get(cipher[0])
        if secrets is None or suite is None or self._tls.pending() or self._outgoing.pending:
            return
        rest = self._incoming.read()
        self._records = TlsRecords(
            suite, read_secret=secrets.client, write_secret=secrets.server, rest=rest
        )
        del self._tls, self._incoming, self._outgoing

    @property
    def is_settled(self) -> bool:
        return self._records is not None

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """Return the plaintext that the bytes complete, and whether the client has ended.

        Raises ClientRefused where the bytes are not of this session.
        """
        if self._records is not None:
            return self._records.receive(data)
        pieces: list[bytes] = []
        ended = False
        if len(data) <= _SLICE_BYTES:
            self._incoming.write(data)
            ended = self._read(pieces)
        else:
            for start in range(0, len(data), _SLICE_BYTES):
                self._incoming.write(data[start : start + _SLICE_BYTES])
                ended = self._read(pieces)
        return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), ended

    def send(self, data: bytes) -> bytes:
        """Encrypt."""
        if self._records is not None:
            return self._records.send(data)
        if len(data) <= _RECORD_BYTES_MAX:
            self._tls.write(data)
            return self._outgoing.read()
        pieces: list[bytes] = []
        for start in range(0, len(data), _RECORD_BYTES_MAX):
            self._tls.write(data[start : start + _RECORD_BYTES_MAX])
            pieces.append(self._outgoing.read())
        return b"".join(pieces)

    def end(self) -> bytes:
        """Say goodbye, so that the client knows that nothing was cut off."""
        if self._records is not None:
            return self._records.end()
        with suppress(ssl.SSLError):  # it wants the client's goodbye, for which nobody waits
            self._tls.unwrap()
        return self._outgoing.read()

    def _read(self, pieces: list[bytes]) -> bool:
        """Add what is complete; return whether the client has ended its side."""
        try:
            while piece := self._tls.read(_RECORD_BYTES_MAX):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            raise refusal_of(error) from error
        return True

    def take_outgoing(self) -> bytes:
        """Take what must be written to the network."""
        if self._records is not None:
            return self._records.take_outgoing()
        return self._outgoing.read()

    def certificate(self) -> bytes | None:
        """Return the client's certificate (DER)."""
        return self._tls.getpeercert(binary_form=True)


class _Choice:
    """What OpenSSL asks when it knows the server name: whose client is it, and who judges it?"""

    __slots__ = ("_certificates", "_session", "_tenant_of", "elsewhere", "refusal")

    def __init__(self, session: TlsSession, tenant_of: TenantOf, certificates: TermsOf) -> None:
        self._session = session
        self._tenant_of = tenant_of
        self._certificates = certificates
        self.refusal: ClientRefused | None = None
        self.elsewhere: ssl.SSLContext | None = None
        """Under whose rules the handshake must begin again."""

    def __call__(
        self, _tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        tenant = self._tenant_of(name)
        if tenant is None:
            self.refusal = TenantUnknown("no tenant has this server name", server_name=name)
            return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        context = self._certificates.terms_of(tenant).context
        if not self._session.is_judged_by(context):
            if self._session.can_begin_again:
                self.elsewhere = context
            else:  # it asked twice, for two of them
                self.refusal = TenantUnknown("it changed the server name", server_name=name)
            return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        self._session.choose(name, tenant)
        return None


def refusal_of(error: ssl.SSLError) -> ClientRefused:
    """Name why a handshake failed."""
    code = getattr(error, "verify_code", None)
    reason = str(getattr(error, "verify_message", "") or error.reason or error)
    if code in _OUT_OF_TIME:
        return ClientCertificateExpired("its certificate is out of its time", tls=reason)
    if code in _REVOKED:
        return ClientCertificateRevoked("its certificate was revoked", tls=reason)
    if code in _UNKNOWN_AUTHORITY:
        return ClientUntrusted("its certificate is of an unknown authority", tls=reason)
    if error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ClientUntrusted("it showed no certificate", tls=reason)
    return ClientRefused("the TLS handshake failed", tls=reason)
