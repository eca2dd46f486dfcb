"""Compaction: rulings C5 and C6, and the six conditions of clustor §9.6."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from clustor.log.compaction import CompactionState, compaction_floor
from clustor.log.types import LogIndex
from clustor.snapshot import (
    Compact,
    CompactionClause,
    CompactionInputs,
    CompactionRefused,
    ProductBound,
    SnapshotMisuse,
    compaction_decision,
    effective_product_floor,
    quorum_index,
)
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


@pytest.mark.parametrize(
    ("bounds", "floor"),
    [
        ((), 100),
        ((("dedupe", 40, False),), 40),
        ((("dedupe", 40, True),), 100),
        ((("dedupe", 140, False),), 100),
        ((("dedupe", 90, False), ("offline", 60, False), ("forward", 10, True)), 60),
    ],
)
def test_c6_the_product_floor_is_the_minimum_of_what_no_snapshot_carries(
    bounds: tuple[tuple[str, int, bool], ...], floor: int
) -> None:
    held = [ProductBound(name, LogIndex(index), carried) for name, index, carried in bounds]
    assert effective_product_floor(LogIndex(100), held) == floor


@pytest.mark.parametrize(("count", "index"), [(1, 9), (2, 7), (3, 5), (4, 0)])
def test_the_quorum_index_is_what_so_many_have_reached(count: int, index: int) -> None:
    assert quorum_index([LogIndex(5), LogIndex(9), LogIndex(7)], count) == index
    with pytest.raises(SnapshotMisuse):
        quorum_index([LogIndex(5)], 0)


READY = CompactionInputs(
    first_index=LogIndex(1),
    snapshot_base_index=LogIndex(100),
    authorized=True,
    acknowledged=True,
    sm_durable_indexes=(LogIndex(120), LogIndex(100), LogIndex(3)),
    quorum_ack_count=2,
    quorum_applied_index=LogIndex(110),
)

REFUSALS: dict[str, tuple[dict[str, Any], list[CompactionClause]]] = {
    "a: too few durable": (
        {"sm_durable_indexes": (LogIndex(120), LogIndex(99), LogIndex(3))},
        [CompactionClause.QUORUM_SM_DURABLE, CompactionClause.FLOOR],
    ),
    "a: too few report": (
        {"sm_durable_indexes": (LogIndex(120),)},
        [CompactionClause.QUORUM_SM_DURABLE, CompactionClause.FLOOR],
    ),
    "b: nothing below the floor": ({"first_index": LogIndex(100)}, [CompactionClause.FLOOR]),
    "b: a product needs it": (
        {"product_bounds": (ProductBound("dedupe", LogIndex(1)),)},
        [CompactionClause.FLOOR],
    ),
    "c: not authorised": (
        {"authorized": False, "acknowledged": False},
        [CompactionClause.AUTHORIZATION],
    ),
    "c: not acknowledged": ({"acknowledged": False}, [CompactionClause.AUTHORIZATION]),
    "d: a learner retires": ({"learners_retiring": ("n4",)}, [CompactionClause.LEARNER_RETIREMENT]),
    "e: open nonces": ({"nonce_reservations_open": 2}, [CompactionClause.NONCE_RESERVATIONS]),
    "f: quarantine": ({"integrity_blocks": ("Quarantine",)}, [CompactionClause.INTEGRITY]),
}


def test_when_all_six_conditions_hold_the_floor_is_given() -> None:
    assert compaction_decision(READY) == Compact(LogIndex(100))


@pytest.mark.parametrize(("change", "clauses"), REFUSALS.values(), ids=REFUSALS.keys())
def test_each_condition_that_fails_is_named(
    change: dict[str, Any], clauses: list[CompactionClause]
) -> None:
    decision = compaction_decision(replace(READY, **change))
    assert isinstance(decision, CompactionRefused)
    assert [failure.clause for failure in decision.failures] == clauses
    assert all(failure.detail for failure in decision.failures)


def test_all_failures_are_named_at_once_in_the_order_of_the_text() -> None:
    everything: dict[str, Any] = {}
    for change, _ in REFUSALS.values():
        everything |= change
    decision = compaction_decision(replace(READY, **everything))
    assert isinstance(decision, CompactionRefused)
    assert [failure.clause for failure in decision.failures] == list(CompactionClause)


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

    @rule(bound=st.none() | st.integers(0, 400))
    def compact(self, bound: int | None) -> None:
        bounds = () if bound is None else (ProductBound("queue", LogIndex(bound)),)
        decision = compaction_decision(
            CompactionInputs(
                first_index=LogIndex(self.first),
                snapshot_base_index=LogIndex(self.base),
                authorized=self.authorized,
                acknowledged=self.acknowledged,
                sm_durable_indexes=tuple(LogIndex(index) for index in self.durable),
                quorum_ack_count=2,
                quorum_applied_index=LogIndex(sorted(self.applied)[1]),
                learner_slack_floor=None if self.learner is None else LogIndex(self.learner),
                product_bounds=bounds,
            )
        )
        if isinstance(decision, Compact):
            assert self.acknowledged
            assert bound is None or decision.floor <= bound
            assert decision.floor > self.first
            self.first = decision.floor

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
