"""Everything mixed: a machine that appends, checkpoints, cuts, forgets, compacts and crashes."""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from clustor.log.types import Entry, LogIndex, Term
from clustor.segmented import PartitionReader, RetentionPolicy, TimestampMs, TopicPartitionId
from tests.clustor.segmented.harness import (
    ME,
    SMALL,
    Operation,
    World,
    append,
    batch,
    check_after_crash,
    checkpoint,
    compact,
    crash_points,
    cut_log,
    flush,
    now,
    read_back,
    reinstall,
    retain,
    rotate_key,
    run,
    seal_log,
)

partitions = st.integers(0, 3)
records = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b""]), st.sampled_from([b"", b"1", b"2" * 150])),
    min_size=1,
    max_size=3,
)


class SegmentedMachine(RuleBasedStateMachine):
    """The twin is `World.contents`; every read must agree with it, and every restart too."""

    @initialize(reorder=st.booleans())
    def create(self, reorder: bool) -> None:
        self.world = World.new(partitions=4, reorder=reorder)
        self.pending: Entry | None = None

    def _do(self, operation: Operation) -> None:
        run(self.world, operation)

    @rule(partition=partitions, drawn=records, other=partitions)
    @precondition(lambda self: self.pending is None)
    def append(self, partition: int, drawn: list[tuple[bytes, bytes]], other: int) -> None:
        payload = b";".join(key + b"=" + value for key, value in drawn)
        first = batch(partition, payload, len(drawn), self.world.clock)
        self._do(append(first, batch(other, b"=x", 1, self.world.clock - 30)))

    @rule(partition=partitions)
    @precondition(lambda self: self.pending is None)
    def append_what_raft_has_not_committed(self, partition: int) -> None:
        """It is tracked and holds the log, but no reader and no file sees it."""
        payload = self.world.group.propose([batch(partition, b"pending=1")])
        self.pending = Entry(Term(1), LogIndex(self.world.log.last_index + 1), payload)
        self.world.group.appended([self.pending], self.world.clock)

    @rule()
    @precondition(lambda self: self.pending is not None)
    def truncate_what_raft_has_not_committed(self) -> None:
        assert self.pending is not None
        self.world.group.truncated(self.pending.index)
        self.pending = None

    @rule()
    def flush(self) -> None:
        self._do(flush())

    @rule(partitions_max=st.one_of(st.none(), st.integers(1, 2)))
    def checkpoint(self, partitions_max: int | None) -> None:
        self._do(checkpoint(partitions_max))

    @rule()
    def seal_and_cut_log(self) -> None:
        self._do(seal_log())
        self._do(cut_log())

    @rule(size=st.integers(0, 2000))
    def retain_by_size(self, size: int) -> None:
        self._do(retain(size_bytes=size))

    @rule(age=st.integers(0, 300))
    def retain_by_age(self, age: int) -> None:
        self._do(retain(age_ms=age))

    @rule(partition=partitions, tombstone_ms=st.sampled_from([0, 100]))
    def compact(self, partition: int, tombstone_ms: int) -> None:
        self._do(compact(partition, tombstone_ms))

    @rule()
    @precondition(lambda self: self.pending is None)
    def take_in_its_own_export(self) -> None:
        self._do(reinstall())

    @rule()
    def rotate_key(self) -> None:
        self._do(rotate_key())

    @rule(seed=st.integers(0, 2**16), what=st.integers(0, 5))
    @precondition(lambda self: self.pending is None)
    def crash_in_the_middle(self, seed: int, what: int) -> None:
        rng = Random(seed)
        operation = (
            append(batch(rng.randrange(4), b"crash=%d" % seed, 1, self.world.clock)),
            checkpoint(),
            cut_log(),
            retain(size_bytes=600),
            compact(rng.randrange(4), 0),
            flush(),
        )[what]
        moments = list(crash_points(self.world, operation)) or [now(self.world)]
        moment = rng.choice(moments)
        self.world = check_after_crash(moment.crashed(moment.disk.random_crash(rng)))

    @rule(partition=partitions, time=st.integers(900, 2000))
    def read_from_a_time(self, partition: int, time: int) -> None:
        reader = PartitionReader(self.world.disk, self.world.keys, SMALL)
        found = reader.find_time(self.world.group.view(TopicPartitionId(partition)), time)
        batches = self.world.contents[partition]
        assert found == next((at[0] for at in batches if at[2] >= time), None)

    @rule(partition=partitions, back=st.integers(0, 10))
    def read_from_an_index(self, partition: int, back: int) -> None:
        view = self.world.group.view(TopicPartitionId(partition))
        index = max(view.start_index, view.readable_next - back)
        found = [(at.first_index, at.payload) for at in self.world.read(partition, index)]
        batches = self.world.contents[partition]
        assert found == [(at[0], at[3]) for at in batches if at[0] + at[1] > index]

    @invariant()
    def every_partition_holds_what_was_acknowledged(self) -> None:
        assert read_back(self.world.disk, self.world.keys, self.world.group) == self.world.contents

    @invariant()
    def the_log_holds_what_is_required(self) -> None:
        required = self.world.group.min_required_raft_index()
        assert self.world.log.entries.base_index < required
        if self.pending is not None:
            assert required <= self.pending.index
        holds = self.world.group.holds(limit=1)
        assert not holds or holds[0].raft_index >= required

    @invariant()
    def nothing_retains_what_policies_without_bounds_keep(self) -> None:
        policies = {TopicPartitionId(0): RetentionPolicy()}
        assert self.world.group.plan_retention(policies, TimestampMs(10**12)) is None

    def teardown(self) -> None:
        if self.pending is not None:
            self.world.group.truncated(self.pending.index)
        self.world.group.acknowledge_through(ME, self.world.log.durable_index)
        check_after_crash(now(self.world))


SegmentedMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestSegmentedMachine = SegmentedMachine.TestCase
