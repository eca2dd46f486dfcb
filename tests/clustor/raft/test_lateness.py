"""C19 and C20: what a node's own lateness does to elections, and what is the device's alone."""

from __future__ import annotations

import pytest

from clustor.log.types import DurabilityModeEpoch, LogIndex, Term
from clustor.raft.group import Group
from clustor.raft.lateness import HEALTHY_MS, WIDEST_MS, ElectionRange
from clustor.raft.membership import Membership
from clustor.raft.messages import AppendEntries
from clustor.raft.output import NoteKind
from clustor.raft.profiles import CONSISTENCY_PROFILE
from clustor.raft.types import LeaseEpoch, ReadSeq, ReplicaId, Role
from tests.clustor.raft.test_group import IDENTITY, _win, settle

NARROW, WAN = CONSISTENCY_PROFILE.election_timeout_ms, CONSISTENCY_PROFILE.wan_election_timeout_ms


def follower() -> Group:
    """A follower of three that has just heard its leader; it draws the lowest timeout."""
    voters = frozenset(map(ReplicaId, (1, 2, 3)))
    group = Group.start(
        IDENTITY,
        CONSISTENCY_PROFILE,
        lambda low, high: low,
        now_ms=0,
        bootstrap=Membership(voters=voters),
    )
    group.tick(100)
    group.receive(heartbeat())
    settle(group)
    assert group.core.leader_id == 2
    return group


def role_of(group: Group) -> Role:
    return group.core.role


def heartbeat() -> AppendEntries:
    nothing = LogIndex(0)
    return AppendEntries(
        term=Term(1),
        sender=ReplicaId(2),
        prev_log_term=Term(0),
        prev_log_index=nothing,
        entries=[],
        commit_index=nothing,
        wal_committed_index=nothing,
        durability_mode_epoch=DurabilityModeEpoch(0),
        read_seq=ReadSeq(0),
        sent_ms=0,
        rtt_ms=1,
        lease_epoch=LeaseEpoch(0),
        quorum_applied_index=nothing,
        quorum_sm_durable_index=nothing,
    )


@pytest.mark.parametrize(
    ("measured_ms", "expected"),
    {
        "nothing": (0, NARROW),
        "a quarter of the lower bound still fits": (37, NARROW),
        "more than that is the WAN's range": (38, WAN),
        "the WAN's range holds up to half of its lower bound": (150, WAN),
        "then twice what was measured": (200, (400, 800)),
        "and never more than three seconds": (60_000, (WIDEST_MS // 2, WIDEST_MS)),
    }.values(),
)
def test_c19_the_draw_follows_what_was_measured(
    measured_ms: int, expected: tuple[int, int]
) -> None:
    drawn = ElectionRange(CONSISTENCY_PROFILE)
    drawn.measured(measured_ms, 1_000)
    assert drawn.bounds(high_rtt=False) == expected
    assert drawn.is_widened is (expected != NARROW)


def test_c19_the_draw_narrows_only_after_thirty_seconds_of_health() -> None:
    drawn = ElectionRange(CONSISTENCY_PROFILE)
    drawn.measured(200, 1_000)
    drawn.measured(60, 5_000)
    assert drawn.bounds(high_rtt=False) == (400, 800), "a lesser lateness is no health"
    drawn.measured(0, 5_000 + HEALTHY_MS - 1)
    assert drawn.is_widened
    drawn.measured(0, 5_000 + HEALTHY_MS)
    assert drawn.bounds(high_rtt=False) == NARROW
    assert drawn.bounds(high_rtt=True) == WAN


def test_c19_a_widened_draw_is_said_and_used() -> None:
    group = follower()
    group.lateness(200)
    notes = [note.kind for note in group.take().notes]
    assert notes == [NoteKind.ELECTIONS_WIDENED]
    group.receive(heartbeat())  # draws again
    group.tick(100 + 399)
    assert role_of(group) is Role.FOLLOWER
    group.tick(100 + 401)
    assert role_of(group) is Role.PRE_CANDIDATE


def test_c19_a_late_tick_is_no_silence_of_the_leader() -> None:
    group = follower()
    group.tick(1_100, missed_ms=970)
    assert role_of(group) is Role.FOLLOWER, "it had not read what its sockets held"
    assert group.election.leader_is_alive()
    group.tick(1_230)
    assert role_of(group) is Role.PRE_CANDIDATE, "time in which it ran counts"


def test_c19_the_same_tick_judged_as_if_it_had_run_elects() -> None:
    """What the rule is for: without it, this tick alone asks for votes."""
    group = follower()
    group.tick(1_100)
    assert role_of(group) is Role.PRE_CANDIDATE


def test_c19_a_leader_that_did_not_run_does_not_miss_its_quorum() -> None:
    def led() -> Group:
        group = Group.start(
            IDENTITY,
            CONSISTENCY_PROFILE,
            lambda low, high: low,
            now_ms=0,
            bootstrap=Membership(voters=frozenset(map(ReplicaId, (1, 2, 3)))),
        )
        _win(group)
        return group

    group = led()
    group.tick(1_200, missed_ms=970)
    assert group.core.leads
    group = led()
    group.tick(1_200)
    assert not group.core.leads


@pytest.mark.parametrize(
    ("device_age_ms", "leads"), [(0, True), (149, True), (150, False), (None, False)]
)
def test_c20_only_what_the_device_has_not_done_is_its_stall(
    device_age_ms: int | None, leads: bool
) -> None:
    """The batch is 900 ms old in each case; who measured the device knows whose time that was."""
    group = Group.start(
        IDENTITY,
        CONSISTENCY_PROFILE,
        lambda low, high: low,
        now_ms=0,
        bootstrap=Membership(voters=frozenset(map(ReplicaId, (1, 2, 3)))),
    )
    _win(group)
    group.propose([b"x"])
    assert group.take().appends, "handed out, and no receipt comes"
    if device_age_ms is not None:
        group.device_age(device_age_ms)
    group.tick(1_100, missed_ms=850)
    assert group.durability.oldest_write_age_ms() == 900
    assert group.core.leads is leads
