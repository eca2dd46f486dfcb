"""Compaction: how far a log may go behind an authorised snapshot (ruling C5)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clustor.log.compaction import CompactionState, compaction_floor
from clustor.log.types import LogIndex
from tests.clustor.snapshot.support import patient

indexes = st.integers(0, 300).map(LogIndex)


@pytest.mark.parametrize(
    ("base", "applied", "durable", "learner", "floor"),
    [
        (100, 100, 100, None, 100),
        (100, 250, 250, None, 100),  # §10.8 as printed gives 250: entries no snapshot covers
        (100, 40, 100, None, 40),
        (100, 40, 100, 70, 70),
        (100, 40, 100, 170, 100),  # never above the snapshot's base
        (100, 100, 99, None, 0),  # §10.8 as printed gives 100
        (100, 100, 99, 170, 0),
        (0, 50, 50, 20, 0),
    ],
)
def test_c5_the_floor(
    base: int, applied: int, durable: int, learner: int | None, floor: int
) -> None:
    slack = None if learner is None else LogIndex(learner)
    state = CompactionState(LogIndex(base), LogIndex(applied), LogIndex(durable), slack)
    assert compaction_floor(state) == floor


@patient
@given(indexes, indexes, indexes, st.none() | indexes)
def test_c5_the_floor_is_never_above_the_snapshots_base(
    base: LogIndex, applied: LogIndex, durable: LogIndex, learner: LogIndex | None
) -> None:
    floor = compaction_floor(CompactionState(base, applied, durable, learner))
    assert 0 <= floor <= base
    assert floor == 0 or durable >= base


class Cluster(RuleBasedStateMachine):
    """Three voters and a learner behind a leader's log that is compacted as decided.

    A replica holds a prefix of the log and has applied and made durable part of it. It needs
    the entry after its last; it gets it from the leader's log, or takes the snapshot and then
    needs the entry after the snapshot's base.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = 1, 0
        self.base, self.authorized, self.acknowledged = 0, False, False
        self.stored = [0, 0, 0]
        self.applied = [0, 0, 0]
        self.durable = [0, 0, 0]
        self.learner: int | None = None

    @property
    def commit(self) -> int:
        return sorted(self.stored)[1]

    @rule(count=st.integers(1, 20))
    def append(self, count: int) -> None:
        self.last += count
        self.stored[0] = self.last

    @rule(who=st.integers(1, 2), upto=st.integers(0, 400))
    def replicate(self, who: int, upto: int) -> None:
        if self.stored[who] + 1 >= self.first:
            self.stored[who] = max(self.stored[who], min(upto, self.last))

    @rule(who=st.integers(0, 2), upto=st.integers(0, 400), durable=st.booleans())
    def apply(self, who: int, upto: int, durable: bool) -> None:
        limit = min(upto, self.stored[who], self.commit)
        self.applied[who] = max(self.applied[who], limit)
        if durable:
            self.durable[who] = self.applied[who]

    @rule(count=st.integers(1, 20))
    def everybody_catches_up(self, count: int) -> None:
        self.append(count)
        for who in range(3):
            if who:
                self.install_snapshot(who)
                self.replicate(who, self.last)
        for who in range(3):
            self.apply(who, self.last, durable=True)

    @precondition(lambda self: self.applied[0] > self.base)
    @rule(acknowledged=st.booleans())
    def snapshot(self, acknowledged: bool) -> None:
        self.base, self.authorized, self.acknowledged = self.applied[0], True, acknowledged

    @rule(floor=st.none() | st.integers(0, 400))
    def set_learner(self, floor: int | None) -> None:
        self.learner = floor

    @rule(who=st.integers(1, 2))
    def install_snapshot(self, who: int) -> None:
        if self.authorized and self.stored[who] < self.base:
            self.stored[who] = self.applied[who] = self.durable[who] = self.base

    @rule(who=st.integers(1, 2))
    def lose_disk(self, who: int) -> None:
        self.stored[who] = self.applied[who] = self.durable[who] = 0

    @precondition(lambda self: self.acknowledged)
    @rule()
    def compact(self) -> None:
        floor = compaction_floor(
            CompactionState(
                LogIndex(self.base),
                LogIndex(sorted(self.applied)[1]),
                LogIndex(sorted(self.durable)[1]),
                None if self.learner is None else LogIndex(self.learner),
            )
        )
        self.first = max(self.first, floor)

    @invariant()
    def nothing_above_the_snapshots_base_was_deleted(self) -> None:
        assert self.first - 1 <= self.base

    @invariant()
    def every_voter_can_get_what_it_needs(self) -> None:
        for stored in self.stored:
            from_the_log = stored + 1 >= self.first
            from_the_snapshot = (
                self.authorized and stored < self.base and self.base + 1 >= self.first
            )
            assert from_the_log or from_the_snapshot


TestC5NoReachableStateDeletesWhatIsNeeded = Cluster.TestCase
TestC5NoReachableStateDeletesWhatIsNeeded.settings = settings(
    deadline=None, max_examples=150, stateful_step_count=40, database=None
)
