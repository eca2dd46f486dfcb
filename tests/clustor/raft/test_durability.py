"""Watermarks exactly by §10.4.1, against a computation by brute force; quorums by counting."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from clustor.log.compaction import CompactionState, compaction_floor
from clustor.log.types import LogId, LogIndex, PartitionId, Term
from clustor.raft.core import Core
from clustor.raft.durability import Durability
from clustor.raft.errors import MembershipRefused
from clustor.raft.hard_state import HardState
from clustor.raft.membership import (
    Change,
    ChangeKind,
    Membership,
    MembershipEntry,
    change_simply,
    decode_membership,
    encode_membership,
    enter_joint,
    leave_joint,
)
from clustor.raft.memory_log import MemoryLog
from clustor.raft.profiles import CONSISTENCY_PROFILE
from clustor.raft.progress import adopt_members
from clustor.raft.quorum import reached_by_majority
from clustor.raft.types import ReplicaId, ReplicaIdentity, Role, RoutingEpoch


def _majorities(voters: frozenset[ReplicaId]) -> list[set[ReplicaId]]:
    need = len(voters) // 2 + 1
    return [set(some) for some in combinations(sorted(voters), need)]


def _naive(
    config: Membership, reached: dict[ReplicaId, int], terms: list[int], term: int, most: int
) -> int:
    """Return max{m ≤ most | term(m) is current and each half has a majority at or above m}."""
    for index in range(most, 0, -1):
        enough = all(
            any(all(reached[v] >= index for v in some) for some in _majorities(half))
            for half in (config.voters, config.outgoing)
            if half
        )
        if enough and terms[index - 1] == term:
            return index
    return 0


@pytest.mark.parametrize("seed", range(100))
def test_commit_and_wal_committed_index_by_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    ids = [ReplicaId(n) for n in range(1, 6)]
    config = Membership(
        voters=frozenset(rng.sample(ids, rng.randint(1, 5))),
        outgoing=frozenset(rng.sample(ids, rng.randint(0, 5))),
    )
    terms = sorted(rng.choices((1, 2, 3), k=10))
    term = terms[-1]
    log = MemoryLog()
    for entry_term in terms:
        log.append_payloads(Term(entry_term), [b""])
    identity = ReplicaIdentity(ids[0], PartitionId(1), LogId(b"x" * 16), holds_data=True)
    hard = HardState(term=Term(term), membership=config)
    core = Core(identity, CONSISTENCY_PROFILE, hard=hard, log=log, draw=rng.randint, now_ms=0)
    core.role = Role.LEADER
    core.term_start = LogIndex(terms.index(term) + 1)
    core.local_wal_durable_index = LogIndex(rng.randint(0, 10))
    adopt_members(core.progress, config, log.last_index, 0)
    for progress in core.progress.values():
        progress.match_index = LogIndex(rng.randint(0, 10))
        progress.durable_index = LogIndex(rng.randint(0, progress.match_index))
    matched = {i: int(p.match_index) for i, p in core.progress.items()}
    attested = {i: int(p.durable_index) for i, p in core.progress.items()}
    matched[core.id] = attested[core.id] = int(core.local_wal_durable_index)
    commit = _naive(config, matched, terms, term, 10)
    bound = min(commit, int(core.local_wal_durable_index))
    Durability(core).advance()
    assert core.commit_index == commit
    assert core.wal_committed_index == _naive(config, attested, terms, term, bound)


@pytest.mark.parametrize("seed", range(100))
def test_a_majority_has_reached_what_more_than_half_have(seed: int) -> None:
    rng = random.Random(seed)
    reached = {ReplicaId(n): rng.randint(0, 20) for n in range(1, rng.randint(2, 9))}
    index = reached_by_majority(list(reached), reached.__getitem__)
    assert sum(value >= index for value in reached.values()) > len(reached) // 2
    assert sum(value > index for value in reached.values()) <= len(reached) // 2


@pytest.mark.parametrize("seed", range(100))
def test_each_step_of_a_change_overlaps_the_one_before(seed: int) -> None:
    """Two configurations in a row never have quorums that do not meet."""
    rng = random.Random(seed)
    config = Membership(voters=frozenset(ReplicaId(n) for n in range(1, rng.randint(2, 5))))
    for _ in range(6):
        kinds = (ChangeKind.ADD_VOTER, ChangeKind.ADD_LEARNER, ChangeKind.REMOVE)
        changes = [
            Change(rng.choice(kinds), ReplicaId(rng.randint(1, 5)))
            for _ in range(rng.randint(1, 3))
        ]
        try:
            joint = enter_joint(config, changes)
        except MembershipRefused:
            continue  # it would have left no voters
        after = leave_joint(joint)
        assert _overlap(config, joint) and _overlap(joint, after)
        if len(config.voters ^ after.voters) <= 1:
            assert change_simply(config, changes).voters == after.voters
        config = after


def _overlap(a: Membership, b: Membership) -> bool:
    return all(one & two for one in _quorums(a) for two in _quorums(b))


def _quorums(config: Membership) -> list[set[ReplicaId]]:
    incoming = _majorities(config.voters)
    if not config.outgoing:
        return incoming
    return [one | two for one in incoming for two in _majorities(config.outgoing)]


def test_a_membership_entry_comes_back_as_it_was() -> None:
    joint = Membership(
        voters=frozenset((ReplicaId(1), ReplicaId(4))),
        outgoing=frozenset((ReplicaId(1), ReplicaId(2))),
        learners_next=frozenset((ReplicaId(2),)),
        observers=frozenset((ReplicaId(9),)),
        auto_leave=True,
    )
    entry = MembershipEntry(
        before=joint,
        after=leave_joint(joint),
        goal=None,
        routing_epoch=RoutingEpoch(7),
        placement_digest=b"\0digest",
        reason="structural lag",
        failing=(ReplicaId(4),),
        override_ref="ticket",
    )
    assert decode_membership(encode_membership(entry)) == entry


@pytest.mark.parametrize("seed", range(100))
def test_c5_compaction_never_deletes_what_is_still_needed(seed: int) -> None:
    """C5: nothing above the snapshot, and nothing before a quorum's state is durable."""
    rng = random.Random(seed)
    state = CompactionState(*(LogIndex(rng.randint(0, 50)) for _ in range(4)))
    floor = compaction_floor(state)
    assert floor <= state.snapshot_base_index
    if state.quorum_sm_durable_index < state.snapshot_base_index:
        assert floor == 0
    else:
        assert floor <= max(state.learner_slack_floor or 0, state.quorum_applied_index)
