"""Who calls: the SPIFFE URI of a client certificate, whether it was revoked, and its roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clustor.control import (
    AccessRole,
    BreakGlassToken,
    CertificateBundle,
    DraftReading,
    NodeIdentity,
    RbacManifest,
    decode_object,
    find,
    key_of,
)
from clustor.control.nodes import identity_digest
from clustor.control.rbac import CallerAuthority
from clustor.control.tenants import CLUSTER
from clustor.runtime.errors import CertificateUnreadable
from clustor.runtime.pki.certificates import read_certificate

IDENTITY_BYTES_MAX: Final = 512
GLASS: Final = "urn:clustor:breakglass:"
_SCHEME: Final = "spiffe://"


@dataclass(frozen=True, slots=True)
class AdminPeer:
    """What a certificate says: who, and which certificate of theirs (its serial number, hex)."""

    identity: str
    serial: str
    scope: str | None = None
    """What a break-glass certificate is for; None: it is an ordinary one."""
    lifetime_ms: int = 0

    @property
    def may_look_early(self) -> bool:
        """Whether it may look at a node that has heard of no roles yet: operators, and nodes."""
        path = self.identity.removeprefix(_SCHEME).partition("/")[2]
        return path == "operator" or path.startswith(("operator/", "node/"))


def peer_of(certificate_der: bytes) -> AdminPeer | None:
    """Read the one SPIFFE URI of a certificate that TLS has verified; None: it has not one.

    Beside it there may be one URN of a break-glass scope, and nothing else.
    """
    try:
        found = read_certificate(certificate_der)
    except CertificateUnreadable:
        return None
    uris = found.uris
    named = [uri for uri in uris if uri.startswith(_SCHEME)]
    scopes = [uri.removeprefix(GLASS) for uri in uris if uri.startswith(GLASS)]
    if len(named) != 1 or len(scopes) > 1 or len(named) + len(scopes) != len(uris):
        return None
    if len(named[0]) > IDENTITY_BYTES_MAX:
        return None
    scope = scopes[0] if scopes else None
    return AdminPeer(named[0], found.serial_name, scope, found.lifetime_ms)


def serial_name(number: int) -> str:
    """Spell a serial number as revocations do: hexadecimal, small letters, no leading zeros."""
    return format(number, "x")


def is_revoked(store: DraftReading, peer: AdminPeer) -> bool:
    """Say whether the cluster's trust bundle revokes this certificate."""
    return peer.serial in revoked_serials(store)


def revoked_serials(store: DraftReading) -> frozenset[str]:
    """Return what the cluster's trust bundle revokes, spelled as `serial_name` does."""
    bundle = find(store, CertificateBundle, CLUSTER)
    return frozenset(each.lower().lstrip("0") for each in bundle.revoked) if bundle else frozenset()


def holds_token(store: DraftReading, identity: str, token_id: str) -> bool:
    """Say whether a break-glass token was issued to this caller, whatever became of it."""
    token = find(store, BreakGlassToken, token_id)
    return token is not None and token.actor_id == identity


class Authorities:
    """The roles of callers; the manifest is read anew when it changes."""

    def __init__(self) -> None:
        self._revision: int | None = None
        self._bound: dict[str, CallerAuthority] = {}

    def of(self, store: DraftReading, identity: str) -> CallerAuthority:
        """Return what a caller is by the manifest, and by the list of nodes."""
        record = store.get(key_of(RbacManifest, "manifest"))
        revision = record.mod_revision if record is not None else None
        if revision != self._revision or revision is None:
            manifest = decode_object(RbacManifest, record.value) if record is not None else None
            self._bound, self._revision = _bound(manifest), revision
        bound = self._bound.get(identity) or CallerAuthority(identity, frozenset())
        node = find(store, NodeIdentity, identity_digest(identity))
        if node is None:
            return bound
        return CallerAuthority(
            identity, bound.roles | {AccessRole.NODE}, bound.tenants, node.node_id
        )


def _bound(manifest: RbacManifest | None) -> dict[str, CallerAuthority]:
    found: dict[str, CallerAuthority] = {}
    for binding in manifest.bindings if manifest is not None else ():
        held = found.get(binding.identity) or CallerAuthority(binding.identity, frozenset())
        tenants = {binding.tenant_id} if binding.tenant_id is not None else frozenset()
        found[binding.identity] = CallerAuthority(
            binding.identity, held.roles | {binding.role}, held.tenants | tenants
        )
    return found
