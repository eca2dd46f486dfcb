"""Placing and moving partitions: the preflight of clustor §9.9, and what it allows."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Refuse
from clustor.control.nodes import ClusterConfig, NodeSpec, check_profile
from clustor.control.objects import canonical
from clustor.control.overrides import require_override
from clustor.control.placement import Members, Placement, advance_ring, require_epoch, ring_of
from clustor.control.rbac import CallerAuthority
from clustor.control.reports import is_silent, measured
from clustor.control.survival import health_ratio, quorum_ratio
from clustor.control.tenants import (
    PARTITIONS_MAX,
    TENANT_PARTITIONS_HARD_MAX,
    TENANT_PARTITIONS_MAX,
    TenantSpec,
)
from clustor.control.types import MILLION, Count, Digest, ModeName, Name, OverrideScope, RefusalCode

UTILIZATION_MAX: Final = 700_000  # clustor §9.9, in millionths
UTILIZATION_CEILING: Final = 1_000 * MILLION  # so full that it does not matter how full


class PlacePartition(Command, frozen=True, kw_only=True):
    """Place a partition, or move it: preflight first, then a new routing epoch (clustor §9.9).

    `placement_digest` is what a rehearsal gave; where it is left out none is compared.
    """

    partition_id: Count
    tenant_id: Name | None = None
    members: Members
    load: Count
    profile: Name | None = None  # the cluster's
    expected_routing_epoch: Count
    placement_digest: Digest | None = None
    override_ref: Name | None = None


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a placement would lead to. Ratios are in millionths; at least a million is good.

    `quorum_ratio` and `health_ratio` are the Q and H of `survival`. `utilization` counts what is
    placed; of a node that is new to the partition also what it says of itself, but not in
    development.
    """

    routing_epoch: int
    utilization: int  # of the fullest member, after the move
    quorum_ratio: int
    health_ratio: int
    survivable: bool
    placement_digest: bytes


def rehearse(draft: Draft, command: PlacePartition) -> Rehearsal:
    """Compute the outcome of a placement; equal state and equal command give an equal digest."""
    members = command.members.ordered()
    _check_members(members)
    nodes = {node: draft.need(NodeSpec, node) for node in members.all}
    held = draft.find(Placement, command.partition_id)
    epoch = ring_of(draft, command.tenant_id).routing_epoch + 1
    content = {
        "partition_id": command.partition_id,
        "tenant_id": command.tenant_id,
        "members": members,
        "load": command.load,
        "routing_epoch": epoch,
    }
    config = draft.need(ClusterConfig, "config")
    everybody = {node.node_id: node for node in draft.scan(NodeSpec)}
    silent = [voter for voter in members.voters if is_silent(draft, voter)]
    quorum = quorum_ratio(members.voters, everybody)
    health = health_ratio(members.voters, everybody, silent)
    enough = len(members.voters) >= config.voters_min(command.profile or config.profile)
    survives = config.development or min(quorum, health) >= MILLION
    return Rehearsal(
        routing_epoch=epoch,
        utilization=max(
            _utilization(draft, config, nodes[node], command.load, held) for node in nodes
        ),
        quorum_ratio=quorum,
        health_ratio=health,
        survivable=enough and survives,
        placement_digest=sha256(canonical(content)).digest(),
    )


def _check_members(members: Members) -> None:
    if not members.voters:
        raise Refuse(RefusalCode.INVALID, "a partition needs voters")
    if len(set(members.all)) != len(members.all):
        raise Refuse(RefusalCode.INVALID, "a node can be one member of a partition")


def _utilization(
    draft: Draft, config: ClusterConfig, node: NodeSpec, load: int, held: Placement | None
) -> int:
    carries = held is not None and node.node_id in held.occupied
    before = held.load if held is not None and carries else 0
    after = draft.indexes.node_load[node.node_id] - before + load
    if not node.capacity:
        return UTILIZATION_CEILING
    # Who carries the partition already does not get fuller by it.
    said = 0 if carries or config.development else measured(draft, node.node_id)
    return max(said, min(after * MILLION // node.capacity, UTILIZATION_CEILING))


def on_place_partition(
    draft: Draft, _authority: CallerAuthority, command: PlacePartition
) -> dict[str, Any]:
    held = draft.find(Placement, command.partition_id)
    if held is not None and held.tenant_id != command.tenant_id:
        raise Refuse(RefusalCode.INVALID, "a partition never changes its tenant")
    require_epoch(held.routing_epoch if held is not None else 0, command.expected_routing_epoch)
    _check_no_move(draft, command, held)
    if held is not None and set(held.members.voters) & set(command.members.observers):
        raise Refuse(RefusalCode.INVALID, "a voter leaves the partition before it observes it")
    profile = command.profile or draft.need(ClusterConfig, "config").profile
    check_profile(profile)
    rehearsal = rehearse(draft, command)
    if command.placement_digest not in (None, rehearsal.placement_digest):
        raise Refuse(
            RefusalCode.PLACEMENT_DIGEST_MISMATCH,
            "the rehearsal was of another state: rehearse again",
            placement_digest=rehearsal.placement_digest,
        )
    _check_capacity(draft, command, held)
    _check_preflight(draft, command, rehearsal)
    members = command.members.ordered()
    fresh = Placement(
        partition_id=command.partition_id,
        tenant_id=command.tenant_id,
        members=members,
        load=command.load,
        routing_epoch=rehearsal.routing_epoch,
        placement_digest=rehearsal.placement_digest,
        utilization=rehearsal.utilization,
        survivable=rehearsal.survivable,
        profile=profile,
        durability_mode=held.durability_mode if held else ModeName.STRICT,
        durability_mode_epoch=held.durability_mode_epoch if held else 0,
        follower_read_snapshot_capability=held is not None
        and held.follower_read_snapshot_capability,
        override_ref=command.override_ref,
        previous=held.members if held is not None else None,
        founders=held.founding if held is not None else msgspec.UNSET,
    )
    draft.put(fresh)
    advance_ring(draft, command.tenant_id)
    result: dict[str, Any] = msgspec.structs.asdict(rehearsal)
    return result


def _check_no_move(draft: Draft, command: PlacePartition, held: Placement | None) -> None:
    """Refuse a second move before the first is recorded, unless it takes the first one back."""
    if held is None or held.previous is None or command.members.ordered() == held.previous:
        return
    if command.override_ref is None:
        raise Refuse(RefusalCode.IN_USE, "the move before this one is not recorded yet")
    require_override(draft, command.override_ref, OverrideScope.SURVIVABILITY, held.partition_id)


def _check_capacity(draft: Draft, command: PlacePartition, held: Placement | None) -> None:
    if command.tenant_id is not None:
        draft.need(TenantSpec, command.tenant_id)
    if held is not None:
        return
    indexes, tenant = draft.indexes, command.tenant_id
    count = indexes.tenant_partitions[tenant] if tenant is not None else 0
    if count >= TENANT_PARTITIONS_HARD_MAX:
        raise Refuse(RefusalCode.CAPACITY_EXCEEDED, "partitions of one tenant", count=count)
    if count >= TENANT_PARTITIONS_MAX or indexes.partitions >= PARTITIONS_MAX:
        require_override(draft, command.override_ref, OverrideScope.CAPACITY, command.partition_id)


def _check_preflight(draft: Draft, command: PlacePartition, rehearsal: Rehearsal) -> None:
    too_full = rehearsal.utilization > UTILIZATION_MAX
    if not too_full and rehearsal.survivable:
        return
    if command.override_ref is not None:
        require_override(
            draft, command.override_ref, OverrideScope.SURVIVABILITY, command.partition_id
        )
        return
    code = RefusalCode.UTILIZATION_EXCEEDED if too_full else RefusalCode.NOT_SURVIVABLE
    raise Refuse(
        code,
        "choose other nodes, or cite an override",
        utilization=rehearsal.utilization,
        quorum_ratio=rehearsal.quorum_ratio,
        health_ratio=rehearsal.health_ratio,
    )
