"""Tenants with their quotas, ACLs and trust (quantumqtt §§8.2–8.3, 11)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.objects import ControlObject, key_of
from clustor.control.overrides import require_override
from clustor.control.rbac import CallerAuthority
from clustor.control.types import Count, Name, OverrideScope, RefusalCode, Text
from clustor.kv import Key

# quantumqtt §§8.2.1, 11.5: beyond the first of each pair only with an override.
TENANTS_MAX: Final = 5_000
TENANTS_HARD_MAX: Final = 10_000
PARTITIONS_MAX: Final = 2_000
TENANT_PARTITIONS_MAX: Final = 512
TENANT_PARTITIONS_HARD_MAX: Final = 1_024

GIB: Final = 1 << 30
ACL_RULES_MAX: Final = 4_096
CERTIFICATE_BYTES_MAX: Final = 256 * 1024

HostName = Annotated[
    str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$(?!\n)", max_length=253)
]


class TenantTier(StrEnum):
    PRODUCTION = "Production"
    DEVELOPMENT = "Development"


class TenantSpec(ControlObject, frozen=True, kw_only=True):
    """A tenant. Its namespace and its SNI entry are its alone."""

    PREFIX: ClassVar[str] = "tenant/"
    tenant_id: Name
    sni: HostName
    namespace: Text
    tier: TenantTier
    group_fsync_allowed: bool
    dr_shipping: bool
    suspended: bool
    created_at: Count
    changed_at: Count

    def key(self) -> Key:
        return key_of(TenantSpec, self.tenant_id)


class SniEntry(ControlObject, frozen=True, kw_only=True):
    """Finds a tenant by the host name of a handshake, and keeps two from sharing one."""

    PREFIX: ClassVar[str] = "sni/"
    sni: HostName
    tenant_id: Name

    def key(self) -> Key:
        return key_of(SniEntry, self.sni)


class QuotaPolicy(ControlObject, frozen=True, kw_only=True):
    """The quotas of quantumqtt §11.2, with its defaults; `QUOTA_MAXIMA` bounds them."""

    PREFIX: ClassVar[str] = "quota/"
    tenant_id: Name
    version: Count = 0
    connections_max: Count = 1_048_576
    retained_bytes_max: Count = 64 * GIB
    session_store_bytes_max: Count = 128 * GIB
    offline_queue_bytes_max: Count = 64 << 20
    offline_queue_messages_max: Count = 1_000
    subscription_filters_max: Count = 1_000_000
    shared_groups_max: Count = 50_000
    publish_rate_max: Count = 0  # per second; 0: no bound of its own
    overage_grace_ms: Count = 86_400_000

    def key(self) -> Key:
        return key_of(QuotaPolicy, self.tenant_id)


QUOTA_MAXIMA: Final = {
    "connections_max": 1_048_576,
    "retained_bytes_max": 1024 * GIB,
    "session_store_bytes_max": 2048 * GIB,
    "offline_queue_bytes_max": GIB,
    "offline_queue_messages_max": 50_000,
    "subscription_filters_max": 10_000_000,
    "shared_groups_max": 500_000,
}


class AclEffect(StrEnum):
    ALLOW = "Allow"
    DENY = "Deny"


class AclAction(StrEnum):
    PUBLISH = "Publish"
    SUBSCRIBE = "Subscribe"
    CONNECT = "Connect"
    ANY = "Any"
    PRODUCE = "Produce"
    CONSUME = "Consume"
    MANAGE = "Manage"
    DESCRIBE = "Describe"


class AclResource(StrEnum):
    TOPIC = "Topic"
    STREAM = "Stream"
    QUEUE = "Queue"
    GROUP = "Group"
    TRANSACTIONAL_ID = "TransactionalId"
    CLUSTER = "Cluster"


class TenantAclRule(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """Rules have no order: one that denies wins, and what none allows is refused.

    Of `Connect` the filter is of client ids; where no rule names it, everybody may connect. A rule
    about another resource than topics has a name, or what names begin with, or neither: all of it.
    What the first release did not know is absent where it is not said, so that its bytes stay.
    """

    effect: AclEffect
    action: AclAction
    principal: Text = "*"
    filter: Text = "#"
    resource: AclResource | msgspec.UnsetType = msgspec.UNSET
    name: Text | msgspec.UnsetType = msgspec.UNSET
    prefix: Text | msgspec.UnsetType = msgspec.UNSET


class AclPolicy(ControlObject, frozen=True, kw_only=True):
    PREFIX: ClassVar[str] = "acl/"
    tenant_id: Name
    version: Count
    rules: tuple[TenantAclRule, ...]
    disconnect_on_refusal: bool = False  # ruling C14

    def key(self) -> Key:
        return key_of(AclPolicy, self.tenant_id)


class CertificateBundle(ControlObject, frozen=True, kw_only=True):
    """Trust roots (PEM): of one tenant, confined to its SNI, or of the cluster itself."""

    PREFIX: ClassVar[str] = "certificate/"
    owner: str  # a tenant, or CLUSTER
    version: Count
    roots: tuple[str, ...]
    revoked: tuple[Name, ...]  # serial numbers
    published_at: Count
    region: Name | None = None  # quantumqtt §17.6

    def key(self) -> Key:
        return key_of(CertificateBundle, self.owner)


CLUSTER: Final = "_cluster"  # no tenant has this name


class CreateTenant(Command, frozen=True, kw_only=True):
    """Create a tenant with its SNI entry and default quotas."""

    tenant_id: Name
    sni: HostName
    tier: TenantTier = TenantTier.PRODUCTION
    group_fsync_allowed: bool = False
    dr_shipping: bool = True
    override_ref: Name | None = None  # from the 5,001st on


class UpdateTenant(Command, frozen=True, kw_only=True):
    """Change a tenant's tier, suspend it, or let it go on."""

    tenant_id: Name
    tier: TenantTier
    group_fsync_allowed: bool
    dr_shipping: bool
    suspended: bool


class DeleteTenant(Command, frozen=True, kw_only=True):
    """Delete a tenant, with its policies. One that has partitions must be suspended first.

    Its partitions are retired; what nodes keep of them on their disks stays there. Its ring stays,
    empty: it tells that there was a tenant, and a later one goes on with its routing epochs.
    """

    tenant_id: Name


class SetQuotas(Command, frozen=True, kw_only=True):
    """Replace a tenant's quotas; what is left out takes its default."""

    tenant_id: Name
    expected_version: Count
    quotas: dict[Name, Count]


class SetAcls(Command, frozen=True, kw_only=True):
    """Replace a tenant's ACLs as a whole."""

    tenant_id: Name
    expected_version: Count
    rules: Annotated[tuple[TenantAclRule, ...], msgspec.Meta(max_length=ACL_RULES_MAX)]
    disconnect_on_refusal: bool = False


class SetTrust(Command, frozen=True, kw_only=True):
    """Replace the trust roots and revoked serials of a tenant; without one, of the cluster."""

    tenant_id: Name | None = None
    expected_version: Count
    roots: Annotated[tuple[str, ...], msgspec.Meta(max_length=64)]
    revoked: Annotated[tuple[Name, ...], msgspec.Meta(max_length=4_096)] = ()
    region: Name | None = None


def on_create_tenant(
    draft: Draft, _authority: CallerAuthority, command: CreateTenant
) -> dict[str, Any]:
    draft.absent(TenantSpec, command.tenant_id)
    draft.absent(SniEntry, command.sni)
    count = draft.indexes.tenants
    if count >= TENANTS_HARD_MAX:
        raise Refuse(RefusalCode.CAPACITY_EXCEEDED, "the cluster is full of tenants", count=count)
    if count >= TENANTS_MAX:
        require_override(draft, command.override_ref, OverrideScope.CAPACITY)
    draft.put(
        TenantSpec(
            tenant_id=command.tenant_id,
            sni=command.sni,
            namespace=f"tenant/{command.tenant_id}/",
            tier=command.tier,
            group_fsync_allowed=command.group_fsync_allowed,
            dr_shipping=command.dr_shipping,
            suspended=False,
            created_at=draft.now_ms,
            changed_at=draft.now_ms,
        )
    )
    draft.put(SniEntry(sni=command.sni, tenant_id=command.tenant_id))
    draft.put(QuotaPolicy(tenant_id=command.tenant_id))
    return {"tenant_id": command.tenant_id}


def on_update_tenant(
    draft: Draft, _authority: CallerAuthority, command: UpdateTenant
) -> dict[str, Any]:
    held = draft.need(TenantSpec, command.tenant_id)
    draft.put(
        msgspec.structs.replace(
            held,
            tier=command.tier,
            group_fsync_allowed=command.group_fsync_allowed,
            dr_shipping=command.dr_shipping,
            suspended=command.suspended,
            changed_at=draft.now_ms,
        )
    )
    return {}


def _require_version(held: int, expected: int) -> None:
    if held != expected:
        raise Refuse(RefusalCode.CONFLICT, "another version stands", version=held)


def on_set_quotas(draft: Draft, authority: CallerAuthority, command: SetQuotas) -> dict[str, Any]:
    authority.require_tenant(command.tenant_id)
    held = draft.need(QuotaPolicy, command.tenant_id)
    _require_version(held.version, command.expected_version)
    fresh = QuotaPolicy(tenant_id=command.tenant_id, version=held.version + 1)
    known = set(QuotaPolicy.__struct_fields__) - {"tenant_id", "version"}
    for name, value in command.quotas.items():
        if name not in known:
            raise Refuse(RefusalCode.INVALID, "no such quota", quota=name)
        limit = QUOTA_MAXIMA.get(name)
        if limit is not None and value > limit:
            raise Refuse(RefusalCode.CAPACITY_EXCEEDED, "above the maximum", quota=name, max=limit)
    fresh = msgspec.structs.replace(fresh, **command.quotas)
    draft.put(fresh)
    return {"version": fresh.version}


def on_set_acls(draft: Draft, authority: CallerAuthority, command: SetAcls) -> dict[str, Any]:
    authority.require_tenant(command.tenant_id)
    draft.need(TenantSpec, command.tenant_id)
    held = draft.find(AclPolicy, command.tenant_id)
    version = held.version if held is not None else 0
    _require_version(version, command.expected_version)
    draft.put(
        AclPolicy(
            tenant_id=command.tenant_id,
            version=version + 1,
            rules=command.rules,
            disconnect_on_refusal=command.disconnect_on_refusal,
        )
    )
    return {"version": version + 1}


def on_set_trust(draft: Draft, _authority: CallerAuthority, command: SetTrust) -> dict[str, Any]:
    owner = command.tenant_id if command.tenant_id is not None else CLUSTER
    if command.tenant_id is not None:
        draft.need(TenantSpec, command.tenant_id)
    if sum(map(len, command.roots)) > CERTIFICATE_BYTES_MAX:
        raise Refuse(RefusalCode.INVALID, "the bundle is too large", limit=CERTIFICATE_BYTES_MAX)
    held = draft.find(CertificateBundle, owner)
    version = held.version if held is not None else 0
    _require_version(version, command.expected_version)
    draft.put(
        CertificateBundle(
            owner=owner,
            version=version + 1,
            roots=command.roots,
            revoked=tuple(sorted(set(command.revoked))),
            published_at=draft.now_ms,
            region=command.region,
        )
    )
    return {"version": version + 1}
