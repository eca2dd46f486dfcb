"""The text's testing checklist on quorums: policies, and members that are late or strange."""

from __future__ import annotations

import pytest

from clustor.raft.types import ReplicaId
from clustor.streams import (
    Custom,
    FixedSet,
    Majority,
    PolicyRegistry,
    QuorumPolicy,
    StreamAppend,
    StreamDefine,
    Threshold,
    UnknownPolicy,
)
from clustor.streams.standing import PENDING_MAX, StreamQuorums, quorum_index
from tests.clustor.streams.world import World

A, B, C, D, E = (ReplicaId(at) for at in range(1, 6))
DURABLE = {A: 50, B: 40, C: 30, D: 20, E: 10}


def registry() -> PolicyRegistry:
    made = PolicyRegistry()
    made.register("both ends", lambda acked, members: {min(members), max(members)} <= acked)
    return made


@pytest.mark.parametrize(
    ("policy", "index"),
    [
        (Majority(), 30),
        (Threshold(1), 50),
        (Threshold(4), 20),
        (Threshold(5), 10),
        (Threshold(6), 0),
        (FixedSet(frozenset({A, B})), 40),
        (FixedSet(frozenset({A, E})), 10),
        (FixedSet(frozenset({A, ReplicaId(9)})), 0),
        (Custom("both ends"), 10),
    ],
)
def test_the_index_that_is_on_a_policys_quorum(policy: QuorumPolicy, index: int) -> None:
    assert quorum_index(policy, DURABLE, registry()) == index


def test_a_policy_that_nobody_registered_is_refused() -> None:
    with pytest.raises(UnknownPolicy):
        quorum_index(Custom("none"), DURABLE, registry())


def fed(policy: QuorumPolicy) -> tuple[World, StreamQuorums]:
    world, quorums = World(), StreamQuorums(registry())
    world.take(StreamDefine(0, policy))
    for _ in range(10):
        world.append(0, b"x", 2)
        change = world.changes[-1]
        assert isinstance(change, StreamAppend)
        quorums.taken(len(world.changes), change)
    return world, quorums


def test_readers_see_what_is_on_the_quorum_and_never_less_than_before() -> None:
    world, quorums = fed(Threshold(3))
    files = world.store.files(0)
    assert quorums.readable_next(files, {A: 11, B: 3, C: 0}) == 0
    assert quorums.readable_next(files, {A: 11, B: 8, C: 5}) == 8
    assert quorums.readable_next(files, {}) == 8, "who leads no more shows what it knew"
    assert quorums.readable_next(files, {A: 11, B: 2, C: 2}) == 8, "a member began anew"
    assert quorums.readable_next(files, {A: 11, B: 11, C: 11}) == 20 == files.next_index


def test_a_policy_that_any_majority_meets_waits_for_nothing() -> None:
    world, quorums = fed(Threshold(2))
    assert quorums.readable_next(world.store.files(0), {A: 0, B: 0, C: 0}) == 20


def test_what_waits_is_bounded_and_never_shown_too_early() -> None:
    world, quorums = fed(Threshold(3))
    files = world.store.files(0)
    for index in range(12, PENDING_MAX + 500):
        world.append(0, b"")
        change = world.changes[-1]
        assert isinstance(change, StreamAppend)
        quorums.taken(index, change)
        assert quorums._pending[0][-1] == (index, files.next_index), "the newest is never dropped"
    for through in (3, 100, 1_000, PENDING_MAX):
        shown = quorums.readable_next(files, {A: 10_000, B: 10_000, C: through})
        appended = [at for at in world.changes[:through] if isinstance(at, StreamAppend)]
        assert shown <= appended[-1].first + appended[-1].count
    assert quorums.readable_next(files, dict.fromkeys((A, B, C), 10_000)) == files.next_index
