"""What changes a placed partition: its ring, its durability mode, its recorded membership."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.placement import (
    REDIRECT_GRACE_MS,
    MembershipRecord,
    Placement,
    RoutingMap,
    digest_of,
    require_epoch,
    ring_of,
    voters_of,
)
from clustor.control.rbac import CallerAuthority
from clustor.control.tenants import TenantSpec, TenantTier
from clustor.control.types import Count, Digest, ModeName, Name, RefusalCode

RING_SLOTS_MAX: Final = 1_024


class SetRoutingMap(Command, frozen=True, kw_only=True):
    """Lay a tenant's ring: its partitions by slot (none: it is served no more); a new epoch."""

    tenant_id: Name
    partitions: Annotated[tuple[Count, ...], msgspec.Meta(max_length=RING_SLOTS_MAX)]
    hash_seed: Count = 0
    expected_routing_epoch: Count


class SetDurabilityMode(Command, frozen=True, kw_only=True):
    """Toggle Strict and Group-Fsync: a new durability mode epoch (clustor §7.1)."""

    partition_id: Count
    mode: ModeName
    expected_epoch: Count


class SetFollowerReads(Command, frozen=True, kw_only=True):
    """Grant or revoke follower_read_snapshot_capability."""

    partition_id: Count
    capability: bool


class RecordMembership(Command, frozen=True, kw_only=True):
    """Mirror a finalized, or rolled back, membership: the answer is the MembershipAck."""

    partition_id: Count
    node_id: Count
    routing_epoch: Count
    membership_digest: Digest
    durability_mode_epoch: Count
    proof_term: Count = 0
    proof_index: Count = 0


def on_set_routing_map(
    draft: Draft, _authority: CallerAuthority, command: SetRoutingMap
) -> dict[str, Any]:
    draft.need(TenantSpec, command.tenant_id)
    held = ring_of(draft, command.tenant_id)
    require_epoch(held.routing_epoch, command.expected_routing_epoch)
    if len(set(command.partitions)) != len(command.partitions):
        raise Refuse(RefusalCode.INVALID, "each slot has a partition of its own")
    for partition_id in command.partitions:
        if draft.need(Placement, partition_id).tenant_id != command.tenant_id:
            raise Refuse(
                RefusalCode.INVALID, "a partition of another tenant", partition_id=partition_id
            )
    epoch = held.routing_epoch + 1
    draft.put(
        RoutingMap(
            tenant_id=command.tenant_id,
            routing_epoch=epoch,
            partitions=command.partitions,
            hash_seed=command.hash_seed,
            redirect_until=draft.now_ms + REDIRECT_GRACE_MS,
            sizes=held.sizes_with(command.partitions),
        )
    )
    return {"routing_epoch": epoch}


def on_set_durability_mode(
    draft: Draft, _authority: CallerAuthority, command: SetDurabilityMode
) -> dict[str, Any]:
    held = draft.need(Placement, command.partition_id)
    if held.durability_mode_epoch != command.expected_epoch:
        raise Refuse(
            RefusalCode.MODE_CONFLICT,
            "durability_mode_epoch",
            observed=command.expected_epoch,
            held=held.durability_mode_epoch,
        )
    if held.durability_mode is command.mode:
        raise Refuse(RefusalCode.MODE_CONFLICT, "the partition is in this mode already")
    if command.mode is ModeName.GROUP_FSYNC:
        _require_group_fsync_tenant(draft, held)
    epoch = held.durability_mode_epoch + 1
    draft.put(
        msgspec.structs.replace(held, durability_mode=command.mode, durability_mode_epoch=epoch)
    )
    return {"durability_mode_epoch": epoch}


def _require_group_fsync_tenant(draft: Draft, placement: Placement) -> None:
    """Group-Fsync is for whitelisted development tenants, never for production (qq §11.5)."""
    tenant = placement.tenant_id and draft.find(TenantSpec, placement.tenant_id)
    if not tenant or tenant.tier is TenantTier.PRODUCTION or not tenant.group_fsync_allowed:
        raise Refuse(RefusalCode.MODE_CONFLICT, "Group-Fsync is not allowed for this tenant")


def on_set_follower_reads(
    draft: Draft, _authority: CallerAuthority, command: SetFollowerReads
) -> dict[str, Any]:
    held = draft.need(Placement, command.partition_id)
    draft.put(msgspec.structs.replace(held, follower_read_snapshot_capability=command.capability))
    return {"capability": command.capability}


def on_record_membership(
    draft: Draft, authority: CallerAuthority, command: RecordMembership
) -> dict[str, Any]:
    authority.require_node(command.node_id)
    held = draft.need(Placement, command.partition_id)
    require_epoch(held.routing_epoch, command.routing_epoch)
    if command.node_id not in voters_of(held):
        raise Refuse(RefusalCode.MEMBERSHIP_MISMATCH, "the node is no voter of this partition")
    if command.durability_mode_epoch > held.durability_mode_epoch:
        raise Refuse(RefusalCode.MODE_CONFLICT, "an epoch that was never given out")
    if command.membership_digest != digest_of(held.members):
        _roll_back(draft, held, command.membership_digest)
    elif held.previous is not None:
        draft.put(msgspec.structs.replace(held, previous=None))
    record = MembershipRecord(
        partition_id=command.partition_id,
        routing_epoch=command.routing_epoch,
        membership_digest=command.membership_digest,
        durability_mode_epoch=command.durability_mode_epoch,
        proof_term=command.proof_term,
        proof_index=command.proof_index,
        recorded_at=draft.now_ms,
    )
    draft.put(record)
    return {"routing_epoch": command.routing_epoch}


def _roll_back(draft: Draft, held: Placement, reported: bytes) -> None:
    """Let the manifest follow a group that rolled its change back; refuse any other members."""
    if held.previous is None or reported != digest_of(held.previous):
        raise Refuse(
            RefusalCode.MEMBERSHIP_MISMATCH,
            "these are neither the placed members nor those before",
            partition_id=held.partition_id,
        )
    draft.put(msgspec.structs.replace(held, members=held.previous, previous=None, rolled_back=True))
