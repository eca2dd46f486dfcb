"""Break-glass certificates: `urn:clustor:breakglass:<scope>` beside a SPIFFE URI (clustor §12.3).

The certificate says who and for what; the token of the control plane that bears its serial number
says that it may, once. Both must agree, and such a certificate opens nothing else.
"""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from clustor.control import (
    AccessRole,
    BreakGlassToken,
    DraftReading,
    KeyPurpose,
    SigningKey,
    find,
    scan,
)
from clustor.control.types import BREAK_GLASS_TTL_MS_MAX, CLOCK_SKEW_MS
from quantum.admin.errors import forbidden, unauthenticated
from quantum.admin.identity import GLASS, AdminPeer
from quantum.admin.routes import AdminRoute

LIFETIME_MS_MAX: Final = BREAK_GLASS_TTL_MS_MAX + CLOCK_SKEW_MS


def token_id_of(serial: str) -> str:
    """Return the name of the token that a certificate is registered as."""
    return f"svid-{serial}"


def scope_of(certificate: x509.Certificate) -> str | None:
    """Return the scope in a certificate, as it is written; None: it is no break-glass one."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (ValueError, x509.ExtensionNotFound):
        return None
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    return next((uri.removeprefix(GLASS) for uri in uris if uri.startswith(GLASS)), None)


def require_no_glass(peer: AdminPeer) -> None:
    """Keep break-glass certificates from pages that need none."""
    if peer.scope is not None:
        raise forbidden("a break-glass certificate is for its scope alone", scope=peer.scope)


def require_issuer(store: DraftReading, certificate_der: bytes, now_ms: int) -> None:
    """Refuse a break-glass certificate that no BreakGlassTokenCA in force has signed (§12.4).

    Where none was ever registered the cluster's own authority signs, as TLS has found.
    """
    known = list(scan(store, SigningKey, KeyPurpose.BREAK_GLASS_CA.value))
    if not known:
        return
    certificate = x509.load_der_x509_certificate(certificate_der)
    signer = next((each for each in known if _has_signed(each.public_key, certificate)), None)
    if signer is None:
        raise unauthenticated(
            "BreakGlassIssuer", "no registered authority signed the break-glass certificate"
        )
    if not signer.is_active(now_ms):
        raise unauthenticated(
            "BreakGlassIssuer",
            "the authority of the break-glass certificate has ended",
            key_id=signer.key_id,
            retired_at=signer.retires_at,
        )


def _has_signed(public_key: bytes, certificate: x509.Certificate) -> bool:
    try:
        signer = Ed25519PublicKey.from_public_bytes(public_key)
        signer.verify(certificate.signature, certificate.tbs_certificate_bytes)
    except InvalidSignature:
        return False
    return True


def require_covered(route: AdminRoute, store: DraftReading, peer: AdminPeer) -> None:
    """Refuse a break-glass certificate that is too long-lived, unknown, used, or for other things.

    The log decides again, for everybody at once: this keeps the others from it.
    """
    if peer.scope is None:
        return
    if peer.lifetime_ms > LIFETIME_MS_MAX:
        raise unauthenticated(
            "BreakGlassTooLong",
            "a break-glass certificate lives five minutes at most",
            lifetime_ms=peer.lifetime_ms,
        )
    if AccessRole.BREAK_GLASS not in route.roles:
        require_no_glass(peer)
    token = find(store, BreakGlassToken, token_id_of(peer.serial))
    if token is None or token.actor_id != peer.identity or token.scope.value != peer.scope:
        raise forbidden("no such break-glass certificate was registered", scope=peer.scope)
    if token.used_at is not None:
        raise forbidden("the break-glass certificate was used", used_at=token.used_at)
