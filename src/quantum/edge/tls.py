"""TLS without a socket, lean enough for many idle clients: bytes in, plaintext out, and back.

The loops' own TLS keeps a quarter of a megabyte per connection and is silent about failed
handshakes; over memory BIOs a connection costs a tenth of that and every refusal has a name.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from clustor.runtime.pki import REVOCATION_FILE
from quantum.edge.errors import (
    CertificatesUnusable,
    ClientCertificateExpired,
    ClientCertificateRevoked,
    ClientRefused,
    ClientUntrusted,
    TenantUnknown,
)

TenantOf: TypeAlias = Callable[[str | None], str | None]
"""Whose clients ask for this server name (None: they named none); None: nobody's."""

TrustOf: TypeAlias = "Callable[[str], TenantTrust | None]"
"""Whom a tenant believes; None: whom the provider does."""

_RECORD_BYTES_MAX: Final = 16 << 10
_SLICE_BYTES: Final = 4 << 10
"""A memory BIO never shrinks: what passes through it in one piece, the connection keeps."""

# OpenSSL's X509_V_ERR_… numbers, as `ssl` reports them.
_OUT_OF_TIME: Final = frozenset({9, 10})
_REVOKED: Final = frozenset({23})
_UNKNOWN_AUTHORITY: Final = frozenset({2, 7, 18, 19, 20, 21})


class ServerCertificates:
    """The server's certificate and the authority of its clients, read from files.

    `reload` reads them again for the connections that come after it; those that are open keep
    what they began with. Files that cannot be used change nothing.
    """

    def __init__(
        self, certificate: Path, key: Path, authority: Path, *, alpn: tuple[str, ...] = ("mqtt",)
    ) -> None:
        self._files = (certificate, key, authority)
        self._revocations = authority.with_name(REVOCATION_FILE)
        self._alpn = alpn
        self.context = self._read()

    @property
    def files(self) -> tuple[Path, ...]:
        """What `reload` reads; the last one, the list of revoked certificates, may be missing."""
        return (*self._files, self._revocations)

    def reload(self) -> None:
        """Serve new connections with what the files hold now. Raises CertificatesUnusable."""
        self.context = self._read()

    def trusting(self, roots: Sequence[str]) -> ssl.SSLContext:
        """Return a context that believes these authorities (PEM) alone, as one tenant's clients.

        Roots that cannot be read are believed in by nobody: nobody comes in then.
        """
        context = self._of_server()
        with suppress(ssl.SSLError, ValueError):
            context.load_verify_locations(cadata="\n".join(roots))
        return context

    def _read(self) -> ssl.SSLContext:
        context, authority = self._of_server(), self._files[2]
        try:
            context.load_verify_locations(authority)
            if self._revocations.exists():
                context.load_verify_locations(self._revocations)
                context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        except (OSError, ssl.SSLError) as error:
            raise _unusable(self._files[0], error) from error
        return context

    def _of_server(self) -> ssl.SSLContext:
        certificate, key, _ = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session is not asked for its certificate again, so it could outlive it.
        context.num_tickets = 0
        context.set_alpn_protocols(list(self._alpn))
        try:
            context.load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as error:
            raise _unusable(certificate, error) from error
        return context


def _unusable(certificate: Path, error: OSError) -> CertificatesUnusable:
    return CertificatesUnusable(
        "the server's certificate cannot be used",
        certificate=str(certificate),
        cause=getattr(error, "strerror", None) or error,
    )


@dataclass(frozen=True, slots=True)
class TenantTrust:
    """Whom one tenant believes: its own context (None: the provider's), and who is revoked."""

    context: ssl.SSLContext | None = None
    revoked: frozenset[str] = frozenset()
    """Serial numbers: hexadecimal, small letters, no leading zeros."""


class TlsSession:
    """The server's side of one TLS connection."""

    __slots__ = ("_incoming", "_outgoing", "_tls", "established", "server_name", "tenant")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False
        """Whether the client's certificate was believed and both sides have finished."""
        self.server_name: str | None = None
        self.tenant = ""

    def shake_hands(
        self, data: bytes, tenant_of: TenantOf, trust_of: TrustOf | None = None
    ) -> None:  # fmt: skip
        """Take bytes of the handshake; raises ClientRefused, with an alert in the outgoing."""
        self._incoming.write(data)
        refusal: ClientRefused | None = None

        def choose_tenant(_tls: ssl.SSLObject, name: str | None, _context: object) -> int | None:
            nonlocal refusal
            self.server_name, tenant = name, tenant_of(name)
            if tenant is None:
                refusal = TenantUnknown("no tenant has this server name", server_name=name)
                return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
            self.tenant = tenant
            trust = trust_of(tenant) if trust_of is not None else None
            if trust is not None and trust.context is not None:
                self._tls.context = trust.context
            return None

        context = self._tls.context
        context.sni_callback = choose_tenant
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise (refusal or refusal_of(error)) from error
        finally:
            context.sni_callback = None
        self.established = True

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
