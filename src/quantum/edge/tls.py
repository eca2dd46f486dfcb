"""The certificates of a server that speaks TLS, whom it believes, and how that changes."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeAlias

from cryptography import x509

from clustor.runtime.errors import CertificateUnusable
from clustor.runtime.peers.tls_suites import let_in_1_2, prefer_own_suites
from clustor.runtime.pki.identity import REVOCATION_FILE
from clustor.runtime.pki.peer_trust import Trust, read_trust, trust_in
from quantum.edge.errors import CertificatesUnusable
from quantum.edge.tls_secrets import SecretsFile

TenantOf: TypeAlias = Callable[[str | None], str | None]
"""Whose clients ask for this server name (None: they named none); None: nobody's."""


class TermsOf(Protocol):
    """Says how a tenant's clients are judged."""

    def terms_of(self, tenant: str) -> TlsTerms: ...


class ClientAuth(StrEnum):
    """What a listener asks of its clients' certificates."""

    NONE = "none"
    """Nothing: nobody is asked for one."""
    OPTIONAL = "optional"
    """One that is shown must be believed; who shows none must say otherwise who it is."""
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class TlsPolicy:
    """What a listener's handshakes are like; the defaults are the strictest."""

    tls_min: str = "1.3"
    client_auth: ClientAuth = ClientAuth.REQUIRED

    @property
    def verify_mode(self) -> ssl.VerifyMode:
        if self.client_auth is ClientAuth.REQUIRED:
            return ssl.CERT_REQUIRED
        return ssl.CERT_OPTIONAL if self.client_auth is ClientAuth.OPTIONAL else ssl.CERT_NONE


@dataclass(frozen=True, slots=True)
class TenantTrust:
    """Whom a tenant believes below its server names (`/v1/tenants/{id}/trust`)."""

    roots: tuple[str, ...] = ()
    """PEM; none: the authorities of everybody."""
    revoked: frozenset[int] = frozenset()
    """Serial numbers."""
    is_unusable: bool = False
    """Whether what the tenant said cannot be used: then nobody is believed there."""


@dataclass(frozen=True, slots=True)
class TlsTerms:
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
        self,
        certificate: Path,
        key: Path,
        authority: Path,
        *,
        alpn: tuple[str, ...] = ("mqtt",),
        own_records: bool = False,
        policy: TlsPolicy | None = None,
    ) -> None:
        self.policy = policy or TlsPolicy()
        self._files = (certificate, key, authority)
        self._revocations = authority.with_name(REVOCATION_FILE)
        self._alpn = alpn
        self._wishes: dict[str, TenantTrust] = {}
        self._without: frozenset[str] = frozenset()
        """Tenants whose clients may come without a certificate."""
        self._tenants: dict[str, TlsTerms] = {}
        self.secrets = SecretsFile() if own_records else None
        """Where handshakes tell their secrets; None: they tell nobody, and OpenSSL does all."""
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
        return tenant in self._without or self.policy.client_auth is not ClientAuth.REQUIRED

    def has_own_roots(self, tenant: str) -> bool:
        """Say whether nobody but a tenant's own authorities vouch for its clients."""
        return bool(self._wishes.get(tenant, TenantTrust()).roots)

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

    def terms_of(self, tenant: str) -> TlsTerms:
        """Return how a tenant's clients are judged."""
        return self._tenants.get(tenant, self.terms)

    def _read(self) -> TlsTerms:
        with _telling(self._files[0]):
            context = self._context()
            self._load_common(context)
            return TlsTerms(context, read_trust(self._files[2], self._revocations))

    def _load_common(self, context: ssl.SSLContext) -> None:
        context.load_verify_locations(self._files[2])
        if self._revocations.exists():
            context.load_verify_locations(self._revocations)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF

    def _for_tenant(self, common: TlsTerms, tenant: str) -> TlsTerms:
        wish = self._wishes.get(tenant, TenantTrust())
        if wish.is_unusable:
            return self._for_nobody(tenant)
        trust = replace(common.trust, revoked_of_any=wish.revoked)
        if not wish.roots and tenant not in self._without:
            return TlsTerms(common.context, trust)
        with _telling(self._files[0]):
            context = self._context()
            self._let_unnamed(context, tenant)
            if not wish.roots:
                self._load_common(context)
                return TlsTerms(context, trust)
            context.load_verify_locations(cadata="".join(wish.roots))
            roots = x509.load_pem_x509_certificates("".join(wish.roots).encode())
            return TlsTerms(context, trust_in(roots, revoked_of_any=wish.revoked))

    def _for_nobody(self, tenant: str) -> TlsTerms:
        """Believe no certificate; a token is another matter, where the tenant has keys for it."""
        with _telling(self._files[0]):
            context = self._context()
            self._let_unnamed(context, tenant)
            return TlsTerms(context, trust_in(()))

    def _let_unnamed(self, context: ssl.SSLContext, tenant: str) -> None:
        """Let clients come without a certificate where tokens are asked for."""
        if tenant in self._without and context.verify_mode is ssl.CERT_REQUIRED:
            context.verify_mode = ssl.CERT_OPTIONAL

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self.policy.tls_min == "1.2":
            let_in_1_2(context)
        prefer_own_suites(context)
        context.verify_mode = self.policy.verify_mode
        # A resumed session is not asked for its certificate again, so it could outlive it.
        context.num_tickets = 0
        context.set_alpn_protocols(list(self._alpn))
        context.load_cert_chain(*self._files[:2])
        if self.secrets is not None:
            self.secrets.listen_to(context)
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
