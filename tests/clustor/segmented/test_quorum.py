"""Quorum edge cases (testing checklist 1): duplicates, stale and out-of-order acks, policies."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor.segmented import (
    AckOutcome,
    Custom,
    EntryOutOfOrder,
    FixedSet,
    HoldReason,
    Majority,
    PartitionLogIndex,
    PolicyRegistry,
    QuorumPolicy,
    ReplicaId,
    SegmentedMisuse,
    Threshold,
    TopicPartitionId,
    UnknownPartition,
    UnknownPolicy,
)
from clustor.segmented.acks import AckRuns
from clustor.segmented.envelope import Row
from clustor.segmented.quorum import Replicas, predicate_of
from clustor.segmented.tracker import Tracker

A, B, C, D, E = (ReplicaId(at) for at in range(1, 6))
P, Q = TopicPartitionId(10), TopicPartitionId(20)


def both_ends(acked: frozenset[ReplicaId], members: frozenset[ReplicaId]) -> bool:
    """A custom rule: the first and the last member."""
    return bool(members) and {min(members), max(members)} <= acked


def registry() -> PolicyRegistry:
    made = PolicyRegistry()
    made.register("both ends", both_ends)
    return made


def tracker(
    *policies: tuple[TopicPartitionId, QuorumPolicy], members: Iterable[ReplicaId] = (A, B, C)
) -> Tracker:
    made = Tracker(Replicas(members), registry(), ack_runs_max=8)
    for partition, policy in policies:
        made.define(partition, policy, 0, 0)
    return made


def row(partition: int, first: int, count: int = 1) -> Row:
    return (partition, first, count, 0, 0)


def index(value: int) -> PartitionLogIndex:
    return PartitionLogIndex(value)


@pytest.mark.parametrize(
    ("policy", "acked", "satisfied"),
    [
        (Majority(), {A}, False),
        (Majority(), {A, B}, True),
        (Threshold(1), {C}, True),
        (Threshold(3), {A, B}, False),
        (Threshold(3), {A, B, C}, True),
        (Threshold(4), {A, B, C}, False),
        (FixedSet(frozenset({B, C})), {A, B}, False),
        (FixedSet(frozenset({B, C})), {B, C}, True),
        (FixedSet(frozenset({B, D})), {A, B, C, D}, False),
        (Custom("both ends"), {A, B}, False),
        (Custom("both ends"), {A, C}, True),
    ],
)
def test_a_policy_decides_on_the_members_that_acknowledged(
    policy: QuorumPolicy, acked: set[ReplicaId], satisfied: bool
) -> None:
    known = tracker((P, policy))
    known.appended(1, [row(P, 0)], 100, 0)
    for replica in acked:
        known.acknowledge_through(replica, 1)
    assert (known.quorum_next(P) == 1) is satisfied


@given(
    st.sets(st.sampled_from([A, B, C, D, E]), min_size=1),
    st.sets(st.sampled_from([A, B, C, D, E])),
    st.sampled_from(
        [
            Majority(),
            Threshold(2),
            FixedSet(frozenset({A})),
            FixedSet(frozenset({A, D})),
            Custom("both ends"),
        ]
    ),
)
def test_masks_decide_as_sets_do_and_one_ack_more_never_hurts(
    members: set[ReplicaId], acked: set[ReplicaId], policy: QuorumPolicy
) -> None:
    replicas = Replicas(members)
    decide = predicate_of(policy, replicas, registry())
    heard = acked & members
    naive = {
        Majority: len(heard) * 2 > len(members),
        Threshold: len(heard) >= 2,
        FixedSet: isinstance(policy, FixedSet) and policy.replicas <= heard,
        Custom: both_ends(frozenset(heard), frozenset(members)),
    }[type(policy)]
    assert decide(replicas.mask_of(acked)) is naive
    if naive:
        assert all(decide(replicas.mask_of(acked | {more})) for more in members)


def test_duplicates_and_stale_acknowledgements_change_nothing() -> None:
    known = tracker((P, Majority()))
    for nth in range(5):
        known.appended(nth + 1, [row(P, nth)], 100, 0)
    assert known.acknowledge_through(A, 3) is AckOutcome.TAKEN
    assert known.acknowledge_through(A, 3) is AckOutcome.STALE
    assert known.acknowledge_through(A, 2) is AckOutcome.STALE
    assert known.quorum_next(P) == 0, "one replica, said three times, is no majority"
    assert known.acknowledge_through(B, 2) is AckOutcome.TAKEN
    assert known.quorum_next(P) == 2
    assert known.acknowledge(C, P, index(0), index(1)) is AckOutcome.STALE
    assert known.quorum_next(P) == 2


def test_replicas_may_acknowledge_single_entries_out_of_order() -> None:
    known = tracker((P, Majority()))
    for nth in range(4):
        known.appended(nth + 1, [row(P, nth)], 100, 0)
    known.acknowledge(A, P, index(3), index(3))
    known.acknowledge(B, P, index(3), index(3))
    assert known.quorum_next(P) == 0, "a later quorum does not carry an earlier entry"
    known.acknowledge(C, P, index(0), index(1))
    known.acknowledge(B, P, index(1), index(2))
    assert known.quorum_next(P) == 0
    known.acknowledge(A, P, index(0), index(0))
    assert known.quorum_next(P) == 2
    known.acknowledge(A, P, index(2), index(2))
    assert known.quorum_next(P) == 4


def test_both_forms_of_acknowledgement_add_up() -> None:
    known = tracker((P, Threshold(3)))
    for nth in range(4):
        known.appended(nth + 1, [row(P, nth)], 100, 0)
    known.acknowledge_through(A, 4)
    known.acknowledge_through(B, 2)
    known.acknowledge(C, P, index(0), index(3))
    assert known.quorum_next(P) == 2
    known.acknowledge_through(B, 3)
    assert known.quorum_next(P) == 3


def test_acknowledgements_of_strangers_and_of_unknown_entries_are_told_apart() -> None:
    known = tracker((P, Threshold(1)))
    known.appended(1, [row(P, 0)], 100, 0)
    assert known.acknowledge_through(D, 1) is AckOutcome.STRANGER
    assert known.acknowledge(D, P, index(0), index(0)) is AckOutcome.STRANGER
    assert known.acknowledge(A, Q, index(0), index(0)) is AckOutcome.UNKNOWN_ENTRY
    assert known.acknowledge(A, P, index(1), index(1)) is AckOutcome.UNKNOWN_ENTRY
    assert known.acknowledge(A, P, index(1), index(0)) is AckOutcome.UNKNOWN_ENTRY
    assert known.quorum_next(P) == 0


def test_what_a_replica_has_beyond_our_log_does_not_count_for_what_we_append_there() -> None:
    """C17: a replica may hold the entries of another leader at those indices."""
    known = tracker((P, Threshold(1)))
    known.appended(1, [row(P, 0)], 100, 0)
    known.acknowledge_through(A, 9)
    known.acknowledge(A, P, index(0), index(9))
    known.appended(2, [row(P, 1)], 100, 0)
    assert known.quorum_next(P) == 1


def test_a_truncated_suffix_takes_its_acknowledgements_with_it() -> None:
    known = tracker((P, Threshold(1)), (Q, Majority()))
    for nth in range(4):
        known.appended(nth + 1, [row(P, nth), row(Q, nth)], 100, 0)
    known.acknowledge_through(A, 4)
    known.acknowledge(B, Q, index(2), index(3))
    assert (known.quorum_next(P), known.quorum_next(Q)) == (4, 0)
    known.cut(3)
    assert known.last_index == 2
    known.appended(3, [row(P, 2)], 100, 0)
    known.appended(4, [row(Q, 2)], 100, 0)
    assert known.quorum_next(P) == 2
    known.acknowledge_through(B, 2)
    assert known.quorum_next(Q) == 2
    assert known.quorum_next(P) == 2, "what A said of entries 3 and 4 was of others"


def test_what_replaces_a_truncated_suffix_is_required_from_its_own_index() -> None:
    known = tracker((P, Majority()), (Q, Majority()))
    for nth in range(6):
        known.appended(nth + 1, [row(Q, nth)], 100, 0)
    known.appended(7, [row(P, 0)], 100, 0)
    for replica in (A, B):
        known.acknowledge_through(replica, 4)
    known.durable(Q, 4)
    assert known.min_required() == 5
    known.cut(5)
    known.appended(5, [row(P, 0)], 100, 0)
    known.appended(6, [row(Q, 4)], 100, 0)
    assert known.min_required() == 5
    assert [(hold.partition, hold.raft_index) for hold in known.holds()] == [(P, 5), (Q, 6)]


def test_a_membership_change_judges_what_is_pending_and_nothing_else() -> None:
    known = tracker((P, Majority()), members=(A, B, C, D, E))
    known.appended(1, [row(P, 0)], 100, 0)
    known.appended(2, [row(P, 1)], 100, 0)
    for replica in (A, B, C):
        known.acknowledge_through(replica, 1)
    known.acknowledge_through(A, 2)
    assert known.quorum_next(P) == 1
    known.set_members((A, D, E))
    assert known.quorum_next(P) == 1, "what was a quorum stays one"
    assert known.acknowledge_through(B, 2) is AckOutcome.STRANGER
    known.set_members((A,))
    assert known.quorum_next(P) == 2


def test_a_replica_that_left_and_is_back_speaks_for_itself_anew() -> None:
    known = tracker((P, Majority()))
    known.appended(1, [row(P, 0)], 100, 0)
    known.acknowledge_through(B, 1)
    known.set_members((A, C))
    known.set_members((A, B, C))
    known.acknowledge_through(A, 1)
    assert known.quorum_next(P) == 0
    assert known.acknowledge_through(B, 1) is AckOutcome.TAKEN
    assert known.quorum_next(P) == 1


def test_a_custom_policy_must_be_registered_and_once() -> None:
    known = Tracker(Replicas((A,)), PolicyRegistry(), ack_runs_max=8)
    with pytest.raises(UnknownPolicy) as refused:
        known.define(P, Custom("nobody's"), 0, 0)
    assert refused.value.facts == {"name": "nobody's"}
    with pytest.raises(SegmentedMisuse):
        registry().register("both ends", both_ends)


@pytest.mark.parametrize("make", [lambda: Threshold(0), lambda: FixedSet(frozenset())])
def test_a_quorum_of_nobody_is_refused(make: type) -> None:
    with pytest.raises(SegmentedMisuse):
        make()


def test_an_entry_that_does_not_continue_its_partition_changes_nothing() -> None:
    known = tracker((P, Majority()))
    known.appended(1, [row(P, 0, 3)], 100, 0)
    for bad, error in (
        ([row(P, 3), row(P, 5)], EntryOutOfOrder),
        ([row(P, 2)], EntryOutOfOrder),
        ([row(P, 3), row(Q, 0)], UnknownPartition),
    ):
        with pytest.raises(error):
            known.appended(2, bad, 100, 0)
        assert known.last_index == 1
        assert known.partition(P).next_index == 3
    with pytest.raises(SegmentedMisuse):
        known.appended(1, [row(P, 3)], 100, 0)
    known.appended(2, [row(P, 3)], 100, 0)


def test_too_many_runs_in_one_partition_are_refused_until_it_settles() -> None:
    known = tracker((P, Majority()))
    for nth in range(40):
        known.appended(nth + 1, [row(P, nth)], 100, 0)
    outcomes = [known.acknowledge(A, P, index(at), index(at)) for at in range(1, 40, 2)]
    assert outcomes[:8] == [AckOutcome.TAKEN] * 8
    assert outcomes[8] is AckOutcome.CROWDED
    known.acknowledge_through(A, 40)
    known.acknowledge_through(B, 40)
    assert known.quorum_next(P) == 40


acks = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 12)), max_size=30)


@given(acks)
def test_runs_of_acknowledgements_are_a_dict_of_sets_in_less_room(
    said: list[tuple[int, int, int]],
) -> None:
    runs, naive = AckRuns(), dict.fromkeys(range(50), 0)
    for replica, first, length in said:
        runs.add(1 << replica, first, first + length)
        for at in range(first, first + length + 1):
            naive[at] |= 1 << replica
    assert {at: runs.at(at)[0] for at in naive} == naive
    different = [mask for mask, _ in itertools.groupby(naive.values()) if mask]
    assert len(runs) == len(different), "a run of entries with the same set is one record"
    for at in naive:
        last = runs.at(at)[1]
        end = 49 if last is None else min(last, 49)
        assert all(naive[next_at] == naive[at] for next_at in range(at, end + 1))


operations = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("through"), st.integers(1, 4), st.integers(0, 12)),
        st.tuples(st.just("single"), st.integers(1, 4), st.integers(0, 12)),
        st.tuples(st.just("durable"), st.integers(0, 2), st.integers(0, 12)),
        st.tuples(st.just("cut"), st.integers(1, 4), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=400)
@given(operations)
def test_the_tracker_agrees_with_a_naive_twin(steps: list[tuple[str, int, int]]) -> None:
    """Quorum prefixes and the watermark against lists of sets, whatever happens."""
    policies: list[QuorumPolicy] = [Majority(), Threshold(1), FixedSet(frozenset({A, C}))]
    partitions = [TopicPartitionId(at) for at in range(3)]
    known = Tracker(Replicas((A, B, C)), PolicyRegistry(), ack_runs_max=10_000)
    for partition, policy in zip(partitions, policies, strict=True):
        known.define(partition, policy, 0, 0)
    twin = _NaiveTwin(policies)
    for what, who, number in steps:
        match what:
            case "append":
                first = twin.append(who, number)
                known.appended(len(twin.entries), [row(who, first, number)], 1, 0)
            case "through":
                known.acknowledge_through(ReplicaId(who), number)
                twin.through(who, number)
            case "single":
                partition = TopicPartitionId(number % 3)
                known.acknowledge(ReplicaId(who), partition, index(number), index(number + 2))
                twin.single(who, partition, number, number + 2)
            case "durable":
                reached = min(number, known.partition(who).next_index)
                known.durable(TopicPartitionId(who), reached)
                twin.durable[who] = max(twin.durable[who], reached)
            case "cut":
                if twin.may_cut(len(twin.entries) - who + 1):
                    known.cut(len(twin.entries) - who + 1)
                    twin.cut(len(twin.entries) - who + 1)
        assert [known.quorum_next(at) for at in partitions] == twin.quorum_nexts()
        assert known.min_required() == twin.min_required()


class _NaiveTwin:
    """One dict per entry. Single acks count for entries that they name from their first index."""

    def __init__(self, policies: list[QuorumPolicy]) -> None:
        self.policies = policies
        self.entries: list[tuple[int, int, int, set[int]]] = []
        self.durable = [0, 0, 0]
        self.reached = [0, 0, 0]
        self.heard: dict[int, int] = {}

    def append(self, partition: int, count: int) -> int:
        first = self._next(partition)
        self.entries.append((partition, first, count, set()))
        return first

    def _next(self, partition: int) -> int:
        return max((f + c for p, f, c, _ in self.entries if p == partition), default=0)

    def through(self, replica: int, raft_index: int) -> None:
        if replica <= 3:
            for entry in self.entries[:raft_index]:
                entry[3].add(replica)

    def single(self, replica: int, partition: int, first: int, last: int) -> None:
        if replica <= 3:
            for at, entry_first, _, acked in self.entries:
                if at == partition and first <= entry_first <= last:
                    acked.add(replica)

    def quorum_nexts(self) -> list[int]:
        for partition, policy in enumerate(self.policies):
            mine = [entry for entry in self.entries if entry[0] == partition]
            for _, first, count, acked in mine:
                if first < self.reached[partition]:
                    continue
                if not self._satisfied(policy, acked):
                    break
                self.reached[partition] = first + count
        return self.reached

    def _satisfied(self, policy: QuorumPolicy, acked: set[int]) -> bool:
        match policy:
            case Threshold(acks=needed):
                return len(acked) >= needed
            case FixedSet(replicas=wanted):
                return wanted <= acked
            case _:
                return len(acked) >= 2

    def min_required(self) -> int | None:
        for nth, (partition, first, count, _) in enumerate(self.entries):
            if first + count > min(self.reached[partition], self.durable[partition]):
                return nth + 1
        return None

    def may_cut(self, raft_index: int) -> bool:
        """What is durable in a partition was committed, and that is never truncated."""
        return raft_index >= 1 and all(
            first >= self.durable[at] for at, first, _, _ in self.entries[raft_index - 1 :]
        )

    def cut(self, raft_index: int) -> None:
        del self.entries[raft_index - 1 :]
        self.reached = [min(at, self._next(p)) for p, at in enumerate(self.reached)]


@pytest.mark.parametrize("partitions", [1, 10_000])
def test_a_million_outstanding_entries_take_tens_of_mebibytes(partitions: int) -> None:
    known = Tracker(Replicas((A, B, C)), PolicyRegistry(), ack_runs_max=8)
    for at in range(partitions):
        known.define(TopicPartitionId(at), Majority(), 0, 0)
    tracemalloc.start()
    try:
        nexts = [0] * partitions
        rows: list[Row] = []
        for raft_index in range(1, 101):
            rows.clear()
            for nth in range(10_000):
                at = nth % partitions
                rows.append(row(at, nexts[at]))
                nexts[at] += 1
            known.appended(raft_index, rows, 1, raft_index)
        rows.clear()
        known.acknowledge_through(A, 100)
        known.acknowledge(B, TopicPartitionId(0), index(1), index(nexts[0] - 1))
        assert known.min_required() == 1
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert sum(nexts) == 1_000_000
    assert used < 40 << 20, f"{used / (1 << 20):.1f} MiB"


def test_holds_say_who_keeps_the_log_since_when_and_for_how_much() -> None:
    known = tracker((P, Majority()), (Q, Majority()))
    known.appended(5, [row(Q, 0)], 1000, 70)
    known.appended(6, [row(P, 0), row(Q, 1)], 200, 80)
    known.appended(7, [row(P, 1)], 30, 90)
    known.acknowledge_through(A, 7)
    known.acknowledge_through(B, 6)
    known.durable(Q, 1)
    worst, other = known.holds()
    assert (worst.partition, worst.raft_index, worst.since, worst.held_bytes) == (P, 6, 80, 230)
    assert (other.partition, other.raft_index) == (Q, 6)
    assert worst.reason is HoldReason.APPLY
    known.durable(P, 2)
    known.durable(Q, 2)
    (left,) = known.holds()
    assert (left.partition, left.raft_index, left.since, left.held_bytes) == (P, 7, 90, 30)
    assert left.reason is HoldReason.QUORUM
    known.acknowledge_through(B, 7)
    assert known.holds() == []
    assert known.min_required() is None


def test_a_long_history_is_trimmed_and_still_tells_sizes_and_times() -> None:
    known = tracker((P, Majority()), (Q, Majority()))
    for nth in range(5000):
        known.appended(nth + 1, [row(P, nth)], 10, nth // 7)
    known.acknowledge_through(A, 5000)
    for reached in (1, 1500, 1501, 4000):
        known.acknowledge_through(B, reached)
        known.durable(P, reached)
        assert known.min_required() == reached + 1
        known.retire_history(reached + 1)
        (hold,) = known.holds()
        assert (hold.raft_index, hold.since) == (reached + 1, reached // 7)
        assert hold.held_bytes == (5000 - reached) * 10
        assert len(known.partition(P)) == 5000 - reached
    known.appended(5001, [row(P, 5000), row(Q, 0)], 10, 9999)
    assert [hold.held_bytes for hold in known.holds()] == [10_010, 10]
