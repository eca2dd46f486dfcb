"""Who follows whom when a group and its placement differ: a table of one step each."""

from __future__ import annotations

import pytest

from clustor.control import (
    Members,
    MembershipFacts,
    MembershipRecord,
    Placement,
    PlacePartition,
    RecordMembership,
)
from clustor.control.placement import digest_of
from clustor.log.types import DurabilityModeEpoch
from clustor.raft.membership import Membership, membership_digest
from clustor.raft.reconfiguration import MembershipRequest
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.runtime.control.placement import Step, plan_step

PARTITION = 7
NODE = 1


def facts(
    voters: tuple[int, ...],
    epoch: int,
    *,
    is_idle: bool = True,
    wants_record: bool = False,
    outgoing: tuple[int, ...] = (),
) -> MembershipFacts:
    return MembershipFacts(
        Membership(voters=_ids(voters), outgoing=_ids(outgoing)),
        RoutingEpoch(epoch),
        DurabilityModeEpoch(0),
        is_idle=is_idle,
        wants_record=wants_record,
    )


def _ids(nodes: tuple[int, ...]) -> frozenset[ReplicaId]:
    return frozenset(map(ReplicaId, nodes))


def placement(
    voters: tuple[int, ...], epoch: int, previous: tuple[int, ...] | None = None
) -> Placement:
    return Placement(
        partition_id=PARTITION,
        tenant_id=None,
        members=Members(voters=voters),
        load=1,
        routing_epoch=epoch,
        placement_digest=b"d" * 32,
        utilization=1,
        survivable=True,
        profile="ConsistencyProfile",
        previous=Members(voters=previous) if previous is not None else None,
    )


def record(voters: tuple[int, ...], epoch: int) -> MembershipRecord:
    return MembershipRecord(
        partition_id=PARTITION,
        routing_epoch=epoch,
        membership_digest=digest_of(Members(voters=voters)),
        durability_mode_epoch=0,
        proof_term=0,
        proof_index=0,
        recorded_at=0,
    )


OLD, NEW = (1, 2, 3), (1, 2, 4)
STEPS: dict[str, tuple[Placement, MembershipRecord | None, MembershipFacts, type | None]] = {
    "they agree": (placement(OLD, 3), record(OLD, 3), facts(OLD, 0), None),
    "they agree and it was never recorded": (
        placement(OLD, 3),
        None,
        facts(OLD, 0),
        RecordMembership,
    ),
    "they agree and the group asks for its record": (
        placement(OLD, 3),
        record(OLD, 3),
        facts(OLD, 0, wants_record=True),
        RecordMembership,
    ),
    "a move was placed": (
        placement(NEW, 4, OLD),
        record(OLD, 3),
        facts(OLD, 0),
        MembershipRequest,
    ),
    "a placed move is under way": (
        placement(NEW, 4, OLD),
        record(OLD, 3),
        facts(OLD, 0, is_idle=False),
        None,
    ),
    "a placed move has arrived": (
        placement(NEW, 4, OLD),
        record(OLD, 3),
        facts(NEW, 4),
        RecordMembership,
    ),
    "a placed move was rolled back": (
        placement(NEW, 4, OLD),
        record(OLD, 3),
        facts(OLD, 4),
        RecordMembership,
    ),
    "the group changed itself": (
        placement(OLD, 3),
        record(OLD, 3),
        facts(NEW, 4),
        PlacePartition,
    ),
    "the group changes itself": (
        placement(OLD, 3),
        record(OLD, 3),
        facts(NEW, 4, outgoing=OLD),
        None,
    ),
    "a deposed leader sees what its successor did": (
        placement(NEW, 5),
        record(NEW, 5),
        facts(OLD, 3),
        None,
    ),
    "what was placed first was an old view of the group": (
        placement(OLD, 9),
        None,
        facts(NEW, 2),
        PlacePartition,
    ),
}


@pytest.mark.parametrize(("placed", "recorded", "group", "kind"), STEPS.values(), ids=STEPS)
def test_each_step(
    placed: Placement,
    recorded: MembershipRecord | None,
    group: MembershipFacts,
    kind: type[Step] | None,
) -> None:
    step = plan_step(placed, recorded, group, NODE)
    assert (None if step is None else type(step)) == kind
    if isinstance(step, PlacePartition):
        assert step.expected_routing_epoch == placed.routing_epoch
        assert frozenset(step.members.voters) == group.committed.voters
    if isinstance(step, RecordMembership):
        assert step.membership_digest == membership_digest(group.committed)
        assert step.routing_epoch == placed.routing_epoch
