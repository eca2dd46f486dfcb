"""The end of a partition, or of a tenant: all that the control plane says of it goes at once."""

from __future__ import annotations

from typing import Any, Final

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.durability import DurabilityState
from clustor.control.objects import ControlObject
from clustor.control.placement import (
    MembershipRecord,
    Placement,
    RoutingMap,
    advance_ring,
    require_epoch,
    ring_of,
)
from clustor.control.proofs import ConflictCleared, ProofConflict, PublishedProof
from clustor.control.quarantine import Quarantine, QuarantineCleared
from clustor.control.rbac import CallerAuthority
from clustor.control.tenants import (
    AclPolicy,
    CertificateBundle,
    DeleteTenant,
    QuotaPolicy,
    SniEntry,
    TenantSpec,
)
from clustor.control.types import Count, RefusalCode

# A partition that is placed again under this number must not inherit any of these.
_BY_PARTITION: Final[tuple[type[ControlObject], ...]] = (
    Placement,
    MembershipRecord,
    DurabilityState,
    PublishedProof,
    ProofConflict,
    ConflictCleared,
)


class RetirePartition(Command, frozen=True, kw_only=True):
    """Forget a partition that no ring routes to any more."""

    partition_id: Count
    expected_routing_epoch: Count


def on_retire_partition(
    draft: Draft, _authority: CallerAuthority, command: RetirePartition
) -> dict[str, Any]:
    held = draft.need(Placement, command.partition_id)
    require_epoch(held.routing_epoch, command.expected_routing_epoch)
    if command.partition_id in ring_of(draft, held.tenant_id).partitions:
        raise Refuse(RefusalCode.IN_USE, "take it out of the tenant's ring first")
    _forget(draft, command.partition_id)
    advance_ring(draft, held.tenant_id)
    return {}


def on_delete_tenant(
    draft: Draft, _authority: CallerAuthority, command: DeleteTenant
) -> dict[str, Any]:
    held = draft.need(TenantSpec, command.tenant_id)
    count = draft.indexes.tenant_partitions[command.tenant_id]
    if count and not held.suspended:
        raise Refuse(RefusalCode.IN_USE, "suspend it, or retire its partitions", partitions=count)
    if count:
        _retire_all(draft, command.tenant_id)
    draft.delete(SniEntry, held.sni)
    for kind in (TenantSpec, QuotaPolicy, AclPolicy, CertificateBundle):
        draft.delete(kind, command.tenant_id)
    return {}


def _retire_all(draft: Draft, tenant_id: str) -> None:
    ring = ring_of(draft, tenant_id)
    for placement in draft.scan(Placement):
        if placement.tenant_id == tenant_id:
            _forget(draft, placement.partition_id)
    draft.put(RoutingMap(tenant_id=tenant_id, routing_epoch=ring.routing_epoch + 1))


def _forget(draft: Draft, partition_id: int) -> None:
    for kind in _BY_PARTITION:
        draft.delete(kind, partition_id)
    for record in draft.scan(Quarantine, partition_id):
        draft.delete(Quarantine, record.partition_id, record.node_id)
    for cleared in draft.scan(QuarantineCleared, partition_id):
        draft.delete(QuarantineCleared, cleared.partition_id, cleared.node_id)
