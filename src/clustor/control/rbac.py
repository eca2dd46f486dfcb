"""Who may do what: the RBAC manifest, and the authority that a caller has by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.objects import ControlObject, key_of
from clustor.control.types import AccessRole, Count, Identity, Name, RefusalCode
from clustor.kv import Key

BINDINGS_MAX: Final = 10_000


class Binding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """An identity has a role; a TenantAdmin has it for one tenant."""

    identity: Identity
    role: AccessRole
    tenant_id: Name | None = None


Bindings = Annotated[tuple[Binding, ...], msgspec.Meta(max_length=BINDINGS_MAX)]


class RbacManifest(ControlObject, frozen=True, kw_only=True):
    """All bindings, replaced as a whole: nodes refresh them every 30 s (clustor §12.3)."""

    PREFIX: ClassVar[str] = "rbac/"
    version: Count
    bindings: Bindings
    published_at: Count

    def key(self) -> Key:
        return key_of(RbacManifest, "manifest")


@dataclass(frozen=True, slots=True)
class CallerAuthority:
    """What a caller is, as the machine found it in its own state.

    `tenants` bounds a TenantAdmin; `node_id` is set for a registered node's identity.
    """

    identity: str
    roles: frozenset[AccessRole]
    tenants: frozenset[str] = frozenset()
    node_id: int | None = None
    token_id: str | None = None  # the break-glass token that this call consumes

    def require_node(self, node_id: int) -> None:
        """Refuse a node that speaks for another."""
        if AccessRole.OPERATOR not in self.roles and node_id != self.node_id:
            raise Refuse(RefusalCode.UNAUTHORIZED, "a node speaks for itself alone", node=node_id)

    def require_tenant(self, tenant_id: str) -> None:
        """Refuse a TenantAdmin of another tenant."""
        if AccessRole.OPERATOR not in self.roles and tenant_id not in self.tenants:
            raise Refuse(RefusalCode.UNAUTHORIZED, "not this tenant's admin", tenant=tenant_id)


class PublishRbacManifest(Command, frozen=True, kw_only=True):
    """Replace the RBAC manifest. At least one Operator must stay."""

    expected_version: Count
    bindings: Bindings


def check_bindings(bindings: tuple[Binding, ...]) -> None:
    """Refuse bindings that lock everybody out, or that say nothing."""
    if not any(binding.role is AccessRole.OPERATOR for binding in bindings):
        raise Refuse(RefusalCode.INVALID, "the manifest would leave no Operator")
    for binding in bindings:
        if (binding.role is AccessRole.TENANT_ADMIN) != (binding.tenant_id is not None):
            raise Refuse(
                RefusalCode.INVALID,
                "a TenantAdmin has a tenant, and nobody else has",
                identity=binding.identity,
            )
        if binding.role in (AccessRole.NODE, AccessRole.BREAK_GLASS):
            raise Refuse(
                RefusalCode.INVALID,
                "nodes are registered and tokens issued, neither is bound",
                identity=binding.identity,
            )


def on_publish_rbac(
    draft: Draft, _authority: CallerAuthority, command: PublishRbacManifest
) -> dict[str, Any]:
    held = draft.need(RbacManifest, "manifest")
    if held.version != command.expected_version:
        raise Refuse(RefusalCode.CONFLICT, "another version stands", version=held.version)
    check_bindings(command.bindings)
    version = held.version + 1
    draft.put(RbacManifest(version=version, bindings=command.bindings, published_at=draft.now_ms))
    return {"version": version}
