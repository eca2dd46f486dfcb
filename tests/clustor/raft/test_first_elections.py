"""A patient cluster looks for its first leader as early as any, and only so often."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.log.types import DurabilityModeEpoch, Entry, LogId, LogIndex, PartitionId, Term
from clustor.raft.election import FIRST_DRAWS
from clustor.raft.group import Group
from clustor.raft.hard_state import HardState
from clustor.raft.membership import Membership
from clustor.raft.memory_log import MemoryLog
from clustor.raft.messages import AppendEntries, PreVoteRequest, PreVoteResponse
from clustor.raft.profiles import CONSISTENCY_PROFILE, Profile
from clustor.raft.types import LeaseEpoch, ReadSeq, ReplicaId, ReplicaIdentity

LONG = (3_000, 6_000)
SHORT = (150, 300)
PATIENT = replace(CONSISTENCY_PROFILE, election_timeout_ms=LONG, first_election_timeout_ms=SHORT)


def one_of_three(
    profile: Profile, log: MemoryLog | None = None
) -> tuple[Group, list[tuple[int, int]]]:
    """A follower that hears of nobody, and the ranges that it draws from."""
    drawn: list[tuple[int, int]] = []

    def draw(low: int, high: int) -> int:
        drawn.append((low, high))
        return low

    voters = Membership(voters=frozenset(map(ReplicaId, (1, 2, 3))))
    identity = ReplicaIdentity(ReplicaId(1), PartitionId(1), LogId(b"x" * 16), holds_data=False)
    hard = HardState(term=log.last_term if log else Term(0), membership=voters)
    group = Group.start(identity, profile, draw, now_ms=0, hard_state=hard, log=log)
    return group, drawn


def test_the_first_few_draws_are_short_and_then_it_is_patient() -> None:
    group, drawn = one_of_three(PATIENT)
    for now_ms in range(0, 20_000, 10):
        group.tick(now_ms)
        group.take()
    assert drawn[:FIRST_DRAWS] == [SHORT] * FIRST_DRAWS
    assert drawn[FIRST_DRAWS:]
    assert set(drawn[FIRST_DRAWS:]) == {LONG}


def test_whoever_is_as_patient_as_the_specification_says_draws_as_ever() -> None:
    group, drawn = one_of_three(CONSISTENCY_PROFILE)
    for now_ms in range(0, 5_000, 10):
        group.tick(now_ms)
        group.take()
    assert set(drawn) == {CONSISTENCY_PROFILE.election_timeout_ms}


def test_whoever_has_heard_a_leader_is_patient_at_once() -> None:
    group, drawn = one_of_three(PATIENT)
    nothing = LogIndex(0)
    group.receive(
        AppendEntries(
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
    )
    group.take()
    assert drawn[0] == SHORT
    assert drawn[-1] == LONG


def used_log() -> MemoryLog:
    log = MemoryLog()
    log.append([Entry(Term(1), LogIndex(1), b"")])
    return log


def test_whoever_was_led_before_it_stopped_is_patient_from_its_start() -> None:
    """Or a leader that is killed and started anew would lead again before anybody else."""
    group, drawn = one_of_three(PATIENT, used_log())
    for now_ms in range(0, 20_000, 10):
        group.tick(now_ms)
        group.take()
    assert set(drawn) == {LONG}


@pytest.mark.parametrize("log", [None, used_log()], ids=["never led", "led before"])
def test_only_who_was_never_led_grants_a_pre_vote_at_once(log: MemoryLog | None) -> None:
    group, _ = one_of_three(PATIENT, log)
    asked = PreVoteRequest(
        Term(2), ReplicaId(2), Term(1), LogIndex(1), group.core.hard.durability_mode_epoch
    )
    group.tick(1)
    group.receive(asked)
    [(_, answer)] = group.take().messages
    assert isinstance(answer, PreVoteResponse)
    assert answer.vote_granted is (log is None)
