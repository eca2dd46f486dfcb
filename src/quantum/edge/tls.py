"""TLS without a socket, lean enough for many idle clients: bytes in, plaintext out, and back.

The loops' own TLS keeps a quarter of a megabyte per connection and is silent about failed
handshakes; over memory BIOs a connection costs a tenth of that and every refusal has a name.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from cryptography import x509

from clustor.runtime.errors import CertificateUnusable
from clustor.runtime.pki import REVOCATION_FILE
from clustor.runtime.tls_suites import is_permitted, restrict_suites
from clustor.runtime.trust import ChainReader, Shown, Trust, read_trust, trust_in
from quantum.edge.errors import (
    CertificatesUnusable,
    ClientCertificateExpired,
    ClientCertificateRevoked,
    ClientRefused,
    ClientUntrusted,
    SuiteRefused,
    TenantUnknown,
)

TenantOf: TypeAlias = Callable[[str | None], str | None]
"""Whose clients ask for this server name (None: they named none); None: nobody's."""


class TermsOf(Protocol):
    """Says how a tenant's clients are judged."""

    def terms_of(self, tenant: str) -> Terms: ...


@dataclass(frozen=True, slots=True)
class TenantTrust:
    """Whom a tenant believes below its server names (`/v1/tenants/{id}/trust`)."""

    roots: tuple[str, ...] = ()
    """PEM; none: the authorities of everybody."""
    revoked: frozenset[int] = frozenset()
    """Serial numbers."""


_RECORD_BYTES_MAX: Final = 16 << 10
_SLICE_BYTES: Final = 4 << 10
"""A memory BIO never shrinks: what passes through it in one piece, the connection keeps."""
_HANDSHAKE_SLICE_BYTES: Final = 256
"""Many clients say little more than their handshake, ever."""

# OpenSSL's X509_V_ERR_… numbers, as `ssl` reports them.
_OUT_OF_TIME: Final = frozenset({9, 10})
_REVOKED: Final = frozenset({23})
_UNKNOWN_AUTHORITY: Final = frozenset({2, 7, 18, 19, 20, 21})


@dataclass(frozen=True, slots=True)
class Terms:
    """How the handshakes of some clients are judged, and their connections afterwards."""

    context: ssl.SSLContext
    trust: Trust


class ServerCertificates:
    """The server's certificate and the authorities of its clients, read from files.

    `reload` reads them again for the connections that come after it; those that are open keep
    what they began with. Files that cannot be used change nothing. A tenant may have roots of its
    own (`trust_tenant`): they count below its server names, and nothing else counts there.
    """

    def __init__(
        self, certificate: Path, key: Path, authority: Path, *, alpn: tuple[str, ...] = ("mqtt",)
    ) -> None:
        self._files = (certificate, key, authority)
        self._revocations = authority.with_name(REVOCATION_FILE)
        self._alpn = alpn
        self._wishes: dict[str, TenantTrust] = {}
        self._without: frozenset[str] = frozenset()
        """Tenants whose clients may come without a certificate."""
        self._tenants: dict[str, Terms] = {}
        self.terms = self._read()

    @property
    def files(self) -> tuple[Path, ...]:
        """What `reload` reads; the last one, the list of revoked certificates, may be missing."""
        return (*self._files, self._revocations)

    def reload(self) -> None:
        """Serve new connections with what the files hold now. Raises CertificatesUnusable."""
        terms = self._read()
        names = {*self._wishes, *self._without}
        tenants = {name: self._for_tenant(terms, name) for name in names}
        self.terms, self._tenants = terms, tenants

    def allow_tokens(self, tenants: frozenset[str]) -> None:
        """Let clients of these tenants come without a certificate: their protocol asks for tokens.

        Raises CertificatesUnusable, and then what was in force stays in force.
        """
        if tenants != self._without:
            before, self._without = self._without, tenants
            try:
                self.reload()
            except CertificatesUnusable:
                self._without = before
                raise

    def lets_unnamed(self, tenant: str) -> bool:
        """Say whether a tenant's clients may come without a certificate."""
        return tenant in self._without

    def trust_tenant(self, tenant: str, wish: TenantTrust | None) -> None:
        """Judge a tenant's clients by its own trust; None: as everybody else's.

        Raises CertificatesUnusable, and then what was in force stays in force.
        """
        before = dict(self._wishes)
        if wish is None:
            self._wishes.pop(tenant, None)
        else:
            self._wishes[tenant] = wish
        try:
            if wish is not None or tenant in self._without:
                self._tenants[tenant] = self._for_tenant(self.terms, tenant)
            else:
                self._tenants.pop(tenant, None)
        except CertificatesUnusable:
            self._wishes = before
            raise

    def terms_of(self, tenant: str) -> Terms:
        """Return how a tenant's clients are judged."""
        return self._tenants.get(tenant, self.terms)

    def _read(self) -> Terms:
        with _telling(self._files[0]):
            context = self._context()
            self._load_common(context)
            return Terms(context, read_trust(self._files[2], self._revocations))

    def _load_common(self, context: ssl.SSLContext) -> None:
        context.load_verify_locations(self._files[2])
        if self._revocations.exists():
            context.load_verify_locations(self._revocations)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF

    def _for_tenant(self, common: Terms, tenant: str) -> Terms:
        wish = self._wishes.get(tenant, TenantTrust())
        trust = replace(common.trust, revoked_of_any=wish.revoked)
        if not wish.roots and tenant not in self._without:
            return Terms(common.context, trust)
        with _telling(self._files[0]):
            context = self._context()
            if tenant in self._without:
                context.verify_mode = ssl.CERT_OPTIONAL
            if not wish.roots:
                self._load_common(context)
                return Terms(context, trust)
            context.load_verify_locations(cadata="".join(wish.roots))
            roots = x509.load_pem_x509_certificates("".join(wish.roots).encode())
            return Terms(context, trust_in(roots, revoked_of_any=wish.revoked))

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        restrict_suites(context)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session is not asked for its certificate again, so it could outlive it.
        context.num_tickets = 0
        context.set_alpn_protocols(list(self._alpn))
        context.load_cert_chain(*self._files[:2])
        return context


@contextmanager
def _telling(certificate: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ssl.SSLError, ValueError, CertificateUnusable) as error:
        raise CertificatesUnusable(
            "the server's certificate cannot be used",
            certificate=str(certificate),
            cause=getattr(error, "strerror", None) or error,
        ) from error


class TlsSession:
    """The server's side of one TLS connection."""

    __slots__ = (
        "_hello",
        "_incoming",
        "_outgoing",
        "_tls",
        "established",
        "server_name",
        "tenant",
    )

    def __init__(self, context: ssl.SSLContext) -> None:
        self._begin(context)
        self._hello: bytearray | None = bytearray()
        """What the client said until its tenant is known: others may have to hear it again."""
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

    def receive(self, data: bytes) -> tuple[bytes, bool]:
        """Return the plaintext that the bytes complete, and whether the client has ended.

        Raises ClientRefused where the bytes are not of this session.
        """
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
