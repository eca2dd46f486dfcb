"""The end of a partition: everything that the control plane says of it goes at once."""

from __future__ import annotations

from typing import Any, Final

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.durability import DurabilityState
from clustor.control.objects import ControlObject
from clustor.control.placement import (
    MembershipRecord,
    Placement,
    advance_ring,
    require_epoch,
    ring_of,
)
from clustor.control.proofs import ConflictCleared, ProofConflict, PublishedProof
from clustor.control.quarantine import Quarantine, QuarantineCleared
from clustor.control.rbac import Authority
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
    draft: Draft, _authority: Authority, command: RetirePartition
) -> dict[str, Any]:
    held = draft.need(Placement, command.partition_id)
    require_epoch(held.routing_epoch, command.expected_routing_epoch)
    if command.partition_id in ring_of(draft, held.tenant_id).partitions:
        raise Refuse(RefusalCode.IN_USE, "take it out of the tenant's ring first")
    for kind in _BY_PARTITION:
        draft.delete(kind, command.partition_id)
    for record in draft.scan(Quarantine, command.partition_id):
        draft.delete(Quarantine, record.partition_id, record.node_id)
    for cleared in draft.scan(QuarantineCleared, command.partition_id):
        draft.delete(QuarantineCleared, cleared.partition_id, cleared.node_id)
    advance_ring(draft, held.tenant_id)
    return {}
