"""A group follows its placement, and a node its feature gates."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from clustor.control import (
    Feature,
    GateState,
    Members,
    MembershipFacts,
    ModeName,
    Placement,
    ReportNode,
    SetFeatureGate,
    WriterMode,
    digest_of,
    durability_transition,
    feature_is_on,
    find,
    is_placed_move,
    membership_report,
    membership_request,
)
from clustor.log.types import DurabilityMode, DurabilityModeEpoch
from clustor.raft.control_plane import CacheState
from clustor.raft.membership import (
    Membership,
    enter_joint,
    leave_joint,
    membership_digest,
)
from clustor.raft.transition import Transition
from clustor.raft.types import ReplicaId, RoutingEpoch
from tests.clustor.control.plane import node_identity, settled_plane
from tests.clustor.control.samples import ROWS, manifest


def ids(*nodes: int) -> frozenset[ReplicaId]:
    return frozenset(map(ReplicaId, nodes))


def placed(members: Members, epoch: int = 5) -> Placement:
    return Placement(
        partition_id=1,
        tenant_id=None,
        members=members,
        load=1,
        routing_epoch=epoch,
        placement_digest=bytes(32),
        utilization=650_000,
        survivable=True,
        profile="ConsistencyProfile",
        override_ref="o",
    )


def facts(
    current: Membership, epoch: int, *, is_idle: bool = True, wants_record: bool = False
) -> MembershipFacts:
    return MembershipFacts(
        current, RoutingEpoch(epoch), DurabilityModeEpoch(0), is_idle, wants_record
    )


def test_a_change_that_is_not_the_placed_one_is_not_judged_by_it() -> None:
    """The control plane's own group is changed before its placement is."""
    before, after = Members(voters=(1, 2, 4, 5)), Members(voters=(1, 2, 4))
    placement = msgspec.structs.replace(placed(after), previous=before)
    assert is_placed_move(placement, Membership(voters=ids(1, 2, 4)))
    assert not is_placed_move(placement, Membership(voters=ids(1, 2, 4, 7)))
    assert not is_placed_move(placement, None)
    assert not is_placed_move(placed(after), Membership(voters=ids(1, 2, 4))), "it is recorded"


@pytest.mark.parametrize("seed", range(40))
def test_the_change_leads_from_any_members_to_any_others(seed: int) -> None:
    rng = Random(seed)

    def drawn() -> list[list[int]]:
        nodes = rng.sample(range(1, 8), rng.randint(1, 7))
        first = rng.randint(1, len(nodes))
        second = rng.randint(first, len(nodes))
        return [nodes[:first], nodes[first:second], nodes[second:]]

    before, after = drawn(), drawn()
    after[2] = [node for node in after[2] if node not in before[0]]  # the preflight refuses it
    current = Membership(
        voters=ids(*before[0]), learners=ids(*before[1]), observers=ids(*before[2])
    )
    members = Members(voters=tuple(after[0]), learners=tuple(after[1]), observers=tuple(after[2]))
    request = membership_request(placed(members), facts(current, 4))
    if request is None:
        reached = current
    else:
        reached = leave_joint(enter_joint(current, request.changes))
        assert request.routing_epoch == 5
        assert request.preflight.utilization_after == 0.65
        assert request.preflight.override_ref == "o"
    assert membership_digest(reached) == digest_of(members)


def test_an_old_placement_and_a_change_under_way_are_left_alone() -> None:
    current = Membership(voters=ids(1, 2, 3))
    goal = placed(Members(voters=(2, 3, 4)))
    assert membership_request(goal, facts(current, 5)) is None
    assert membership_request(goal, facts(current, 4, is_idle=False)) is None
    joint = Membership(voters=ids(2, 3, 4), outgoing=ids(1, 2, 3))
    assert membership_request(goal, facts(joint, 4)) is None


OLD, NEW = Members(voters=(1, 2, 3)), Members(voters=(2, 3, 4))
REPORTS = {
    # placed, before it, the group's members, the group's epoch, it asks → what is reported
    "a change not begun": (NEW, OLD, OLD, 4, False, None),
    "a change that arrived": (NEW, OLD, NEW, 5, True, NEW),
    "arrived, and its record was lost": (NEW, OLD, NEW, 5, False, NEW),
    "rolled back": (NEW, OLD, OLD, 5, False, OLD),
    "taken back before it began": (OLD, NEW, OLD, 3, False, OLD),
    "recorded": (NEW, None, NEW, 5, False, None),
    "recorded, but the group did not hear": (NEW, None, NEW, 5, True, NEW),
    "members of neither side": (NEW, OLD, Members(voters=(1, 2)), 5, True, None),
}


@pytest.mark.parametrize(
    ("goal", "before", "members", "epoch", "asks", "reported"),
    REPORTS.values(),
    ids=REPORTS.keys(),
)
def test_what_a_leader_reports(
    goal: Members,
    before: Members | None,
    members: Members,
    epoch: int,
    asks: bool,
    reported: Members | None,
) -> None:
    placement = msgspec.structs.replace(placed(goal), previous=before)
    current = Membership(voters=ids(*members.voters))
    report = membership_report(placement, facts(current, epoch, wants_record=asks), 2)
    assert (report is not None) == (reported is not None)
    if report is not None and reported is not None:
        assert report.membership_digest == digest_of(reported)
        assert (report.routing_epoch, report.node_id) == (5, 2)
    idle = facts(current, epoch, wants_record=asks, is_idle=False)
    assert membership_report(placement, idle, 2) is None


def test_a_leader_fences_the_mode_that_was_placed_once() -> None:
    placement = msgspec.structs.replace(
        placed(OLD), durability_mode=ModeName.GROUP_FSYNC, durability_mode_epoch=3
    )
    fence = durability_transition(placement, DurabilityModeEpoch(2))
    assert fence == Transition(DurabilityMode.GROUP_FSYNC, DurabilityModeEpoch(3))
    assert durability_transition(placement, DurabilityModeEpoch(3)) is None


def test_what_the_preflight_found_goes_with_the_placement() -> None:
    plane = settled_plane()
    plane.place(2, load=50)
    held = find(plane.machine.kv, Placement, 2)
    assert held is not None
    assert (held.utilization, held.survivable) == (600_000, True)


@pytest.mark.parametrize(
    ("cache", "fallback", "state", "digest", "on"),
    [
        (CacheState.FRESH, False, GateState.ENABLED, ROWS[0].predicate_digest, True),
        (CacheState.CACHED, False, GateState.ENABLED, ROWS[0].predicate_digest, True),
        (CacheState.STALE, False, GateState.ENABLED, ROWS[0].predicate_digest, False),
        (CacheState.EXPIRED, False, GateState.ENABLED, ROWS[0].predicate_digest, False),
        (CacheState.FRESH, True, GateState.ENABLED, ROWS[0].predicate_digest, False),
        (CacheState.FRESH, False, GateState.DISABLED, ROWS[0].predicate_digest, False),
        (CacheState.FRESH, False, GateState.ENABLED, bytes(32), False),
    ],
)
def test_section_14_2_a_feature_needs_its_gate_its_predicate_and_no_fallback(
    cache: CacheState, fallback: bool, state: GateState, digest: bytes, on: bool
) -> None:
    plane = settled_plane()
    name = Feature.LEADER_LEASES
    plane.done(manifest())
    for node_id in (1, 2, 3, 4):
        report = ReportNode(
            node_id=node_id,
            version="1",
            io_writer_mode=WriterMode.BLOCKING,
            features=(name,),
        )
        plane.done(report, by=node_identity(node_id))
    kv = plane.machine.kv
    own = ROWS[0].predicate_digest
    assert not feature_is_on(kv, name, own, cache=CacheState.FRESH, strict_fallback=False)
    plane.done(SetFeatureGate(name=name, state=state, predicate_digest=own))
    assert feature_is_on(kv, name, digest, cache=cache, strict_fallback=fallback) is on
