"""Runs a segmented group beside its log on a simulated disk, and keeps a naive twin of it.

The twin is a dict of lists of batches. The checks know nothing of how the room works: they see
the steps that were planned, what was acknowledged, and what can be read afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from clustor.log.config import LogConfig
from clustor.log.keys import KeyRing
from clustor.log.ledger import LedgerIdentity
from clustor.log.log import Log, create_log
from clustor.log.recovery import recover
from clustor.log.steps import Plan, Step, Write
from clustor.log.types import DekEpoch, Entry, LogId, LogIndex, LogState, PartitionId, Term
from clustor.segmented import (
    Automatic,
    Batch,
    Compaction,
    Majority,
    PartitionReader,
    PolicyRegistry,
    RecordKey,
    ReplicaId,
    RetentionPolicy,
    SegmentedConfig,
    SegmentedGroup,
    StoredBatch,
    StoreId,
    StorePlan,
    TimestampMs,
    TopicPartitionId,
    create_group,
    recover_group,
)
from clustor.segmented.recovery import GroupRecovery
from clustor.segmented.runs import FILE_HEADER_BYTES, PARTS_DIRECTORY, RUN_HEAD_BYTES
from clustor.sim.disk import SimDisk
from tests.clustor.log.harness import MODE, new_keys

GROUP = PartitionId(9)
IDENTITY = LedgerIdentity(GROUP, LogId(bytes(range(16))))
STORE_ID = StoreId(bytes(range(100, 116)))
ME = ReplicaId(1)
ALONE = (ME,)

SMALL_LOG = LogConfig(
    segment_bytes=4096,
    reservation_blocks=4,
    zero_ahead_bytes=512,
    fs_block_bytes=512,
    ledger_zero_ahead_bytes=128,
    ledger_rewrite_bytes=1024,
)
SMALL = SegmentedConfig(
    segment_bytes=900,
    run_bytes=200,
    index_interval_bytes=300,
    metadata_rewrite_bytes=1500,
    compaction_chunk_bytes=400,
)

Held = tuple[tuple[int, int, int, bytes], ...]
"""What a partition holds: `(first_index, count, timestamp, payload)` of each batch."""
Contents = dict[int, Held]


def keys_of(payload: bytes) -> Sequence[RecordKey]:
    """Read the keys of the tests' batches: `key=value;key=value`, an empty value is a tombstone."""
    records = []
    for record in payload.split(b";"):
        key, _, value = record.partition(b"=")
        records.append(RecordKey(key if key else None, tombstone=not value))
    return records


def batch(partition: int, payload: bytes, count: int = 1, timestamp: int = 0) -> Batch:
    return Batch(TopicPartitionId(partition), payload, count, TimestampMs(timestamp))


class NonceWitness:
    """Sees every run that was sent to a disk, and that no nonce sealed two of them."""

    def __init__(self) -> None:
        self.sealed: dict[tuple[int, int, int, int], bytes] = {}
        self._epochs: dict[str, int] = {}

    def copy(self) -> NonceWitness:
        twin = NonceWitness()
        twin.sealed = self.sealed.copy()
        twin._epochs = self._epochs.copy()
        return twin

    def watch(self, plan: Plan) -> None:
        for step in plan:
            if (
                isinstance(step, Write)
                and step.file.startswith(PARTS_DIRECTORY)
                and step.file.endswith(".seg")
            ):
                self._watch(step)

    def _watch(self, step: Write) -> None:
        if step.offset == 0:
            assert len(step.data) == FILE_HEADER_BYTES
            self._epochs[step.file] = struct.unpack_from("<I", step.data, 12)[0]
            return
        assert step.data[:4] == b"SRUN"
        count, writer_seq, counter = struct.unpack_from("<IQQ", step.data, 4)
        assert count > 0
        partition = int(step.file.rpartition("/")[2][:16], 16)
        place = (partition, self._epochs[step.file], writer_seq, counter)
        run = step.data[RUN_HEAD_BYTES:]
        assert self.sealed.setdefault(place, run) == run, f"nonce used twice: {place}"


@dataclass
class World:
    """A log and its partitions on one disk, in a group of one, and what its user was told."""

    disk: SimDisk
    log: Log
    group: SegmentedGroup
    keys: KeyRing
    witness: NonceWitness
    contents: Contents = field(default_factory=dict)
    clock: int = 1000

    @classmethod
    def new(
        cls, partitions: int = 3, *, config: SegmentedConfig = SMALL, reorder: bool = False
    ) -> World:
        keys = new_keys()
        disk = SimDisk(reorder_directory_ops=reorder)
        log, plan = create_log(IDENTITY, keys, SMALL_LOG, MODE)
        disk.execute(plan)
        group, plan = create_group(
            GROUP, STORE_ID, keys, config, members=ALONE, registry=PolicyRegistry()
        )
        disk.execute(plan)
        world = cls(disk, log, group, keys, NonceWitness())
        world.define(*range(partitions))
        return world

    def define(self, *partitions: int) -> None:
        wanted = {TopicPartitionId(at): (Majority(), Automatic()) for at in partitions}
        self.carry_out(self.group.plan_define(wanted))
        self.contents |= dict.fromkeys(partitions, ())

    def carry_out(self, plan: StorePlan | None) -> None:
        if plan is not None:
            self.witness.watch(plan.steps)
            self.disk.execute(plan.steps)
            self.group.stored(plan.receipt)

    def read(self, partition: int, from_index: int | None = None) -> list[StoredBatch]:
        return read_all(self.disk, self.keys, self.group, partition, from_index)


def read_all(
    disk: SimDisk,
    keys: KeyRing,
    group: SegmentedGroup,
    partition: int,
    from_index: int | None = None,
    config: SegmentedConfig = SMALL,
) -> list[StoredBatch]:
    """Read a partition in small bites, as a consumer would."""
    reader = PartitionReader(disk, keys, config)
    view = group.view(TopicPartitionId(partition))
    index = view.start_index if from_index is None else from_index
    found: list[StoredBatch] = []
    while True:
        chunks = reader.read(view, index, 150)
        if not chunks:
            return found
        for chunk in chunks:
            found += chunk.batches()
        index = found[-1].next_index


def held(batches: Sequence[StoredBatch]) -> Held:
    return tuple((at.first_index, at.count, at.timestamp, at.payload) for at in batches)


def read_back(disk: SimDisk, keys: KeyRing, group: SegmentedGroup) -> Contents:
    return {
        int(partition): held(read_all(disk, keys, group, partition))
        for partition in group.partitions()
    }


@dataclass
class Moment:
    """A disk between two steps, and what it may hold after a crash."""

    disk: SimDisk
    keys: KeyRing
    witness: NonceWitness
    allowed: list[Contents]
    clock: int

    def crashed(self, disk: SimDisk) -> Moment:
        return replace(self, disk=disk)


Phase = tuple[Plan, Callable[[], None], list[Contents]]
"""A plan, what to do when it is done, and what a crash in the middle of it may leave."""
Operation = Callable[[World], Iterator[Phase]]


def append(*batches: Batch) -> Operation:
    """Propose, log, acknowledge, commit and apply batches as one entry."""

    def phases(world: World) -> Iterator[Phase]:
        entry = Entry(
            Term(1), LogIndex(world.log.last_index + 1), world.group.propose(list(batches))
        )
        planned = world.log.plan_append([entry])
        before = world.contents
        after = dict(before)
        for at in batches:
            first = next_of(world, after, at.partition)
            after[at.partition] += ((first, at.count, at.timestamp, at.payload),)

        def done() -> None:
            world.log.stored(planned.receipt)
            world.group.appended([entry], world.clock)
            world.group.fsynced(ME, world.log.durable_index)
            world.log.protect(world.log.durable_index)
            world.group.apply([entry])
            world.contents = after

        yield planned.steps, done, [before, after]

    return phases


def next_of(world: World, contents: Contents, partition: int) -> int:
    """Return the next index of a partition, whose newest batches may have been compacted away."""
    mine = world.contents[partition]
    known = world.group.store.files(partition).next_index
    added = contents[partition][len(mine) :]
    return known + sum(count for _, count, _, _ in added)


def store_plan(make: Callable[[World], StorePlan | None]) -> Operation:
    """An operation that changes no contents: flushes and checkpoints."""

    def phases(world: World) -> Iterator[Phase]:
        plan = make(world)
        if plan is not None:
            yield plan.steps, lambda: world.group.stored(plan.receipt), [world.contents]

    return phases


def flush() -> Operation:
    return store_plan(lambda world: world.group.plan_flush())


def checkpoint(partitions_max: int | None = None) -> Operation:
    return store_plan(lambda world: world.group.plan_checkpoint(partitions_max))


def cut_log() -> Operation:
    def phases(world: World) -> Iterator[Phase]:
        floor = world.group.truncation_floor(LogIndex(world.log.durable_index + 1))
        yield world.log.plan_compact(floor), lambda: None, [world.contents]

    return phases


def seal_log() -> Operation:
    return lambda world: iter([(world.log.plan_seal(), lambda: None, [world.contents])])


def retain(**bounds: int) -> Operation:
    def phases(world: World) -> Iterator[Phase]:
        policy = RetentionPolicy(**bounds)
        policies = dict.fromkeys(world.group.partitions(), policy)
        plan = world.group.plan_retention(policies, TimestampMs(world.clock))
        if plan is None:
            return
        before = world.contents
        after = {
            at: tuple(b for b in batches if b[0] >= world.group.store.files(at).start_index)
            for at, batches in before.items()
        }

        def done() -> None:
            world.group.stored(plan.receipt)
            world.contents = after

        yield plan.steps, done, [before, after]

    return phases


def compact(partition: int, tombstone_ms: int = 100) -> Operation:
    """Compact by key; a crash leaves all of it or nothing."""

    def phases(world: World) -> Iterator[Phase]:
        job = world.group.start_compaction(
            TopicPartitionId(partition),
            keys_of,
            now=TimestampMs(world.clock),
            tombstone_ms=tombstone_ms,
        )
        if job is None:
            return
        for steps in job.plans(PartitionReader(world.disk, world.keys, SMALL)):
            yield steps, lambda: None, [world.contents]
        yield _commit(world, job, partition, tombstone_ms)

    return phases


def _commit(world: World, job: Compaction, partition: int, tombstone_ms: int) -> Phase:
    end = job.clean_next
    commit = job.plan_commit()
    assert commit is not None
    before = world.contents
    after = dict(before)
    after[partition] = naively_compacted(before[partition], end, world.clock - tombstone_ms)

    def done() -> None:
        world.group.stored(commit.receipt)
        world.contents = after

    return commit.steps, done, [before, after]


def naively_compacted(batches: Held, end: int, expired_before: int) -> Held:
    """Compact a list: drop a batch below `end` that holds no wanted record."""
    newest: dict[bytes, int] = {}
    for first, count, _, payload in batches:
        if first + count <= end:
            for nth, record in enumerate(keys_of(payload)):
                if record.key is not None:
                    newest[record.key] = first + nth
    kept: list[tuple[int, int, int, bytes]] = []
    for first, count, timestamp, payload in batches:
        wanted = first + count > end
        for nth, record in enumerate(keys_of(payload)):
            if record.key is None:
                wanted = True
            elif newest.get(record.key, -1) == first + nth:
                older = any(
                    record.key == at.key
                    for _, _, _, held_payload in kept
                    for at in keys_of(held_payload)
                )
                expired = record.tombstone and timestamp < expired_before and not older
                wanted = wanted or not expired
        if wanted:
            kept.append((first, count, timestamp, payload))
    return tuple(kept)


def define(partition: int) -> Operation:
    def phases(world: World) -> Iterator[Phase]:
        wanted = {TopicPartitionId(partition): (Majority(), Automatic())}
        plan = world.group.plan_define(wanted)
        before, after = world.contents, {**world.contents, partition: ()}

        def done() -> None:
            world.group.stored(plan.receipt)
            world.contents = after

        yield plan.steps, done, [before, after]

    return phases


def remove(partition: int) -> Operation:
    def phases(world: World) -> Iterator[Phase]:
        plan = world.group.plan_remove(TopicPartitionId(partition))
        before = world.contents
        after = {at: batches for at, batches in before.items() if at != partition}

        def done() -> None:
            world.group.stored(plan.receipt)
            world.contents = after

        yield plan.steps, done, [before, after]

    return phases


def install(source: list[bytes], after: Contents) -> Operation:
    """Import an export beside the running group, then let the log stand on it."""

    def phases(world: World) -> Iterator[Phase]:
        incoming = world.group.start_import()
        for piece in source:
            yield incoming.feed(piece), lambda: None, [world.contents]
        yield incoming.plan_commit(), lambda: None, [world.contents, after]
        index = LogIndex(incoming.raft_index or 0)

        def done() -> None:
            opened = check_after_crash(
                Moment(world.disk, world.keys, world.witness, [after], world.clock)
            )
            world.log, world.group, world.contents = opened.log, opened.group, after

        yield world.log.plan_install(index, Term(1)), done, [after]

    return phases


def reinstall() -> Operation:
    """Take in what the group itself exports: another set of files, and nothing else is new."""

    def phases(world: World) -> Iterator[Phase]:
        source = list(world.group.export(PartitionReader(world.disk, world.keys, SMALL)))
        return install(source, world.contents)(world)

    return phases


def rotate_key() -> Operation:
    def phases(world: World) -> Iterator[Phase]:
        epoch = world.keys.dek_epoch + 1
        world.keys.add_dek(DekEpoch(epoch), bytes([epoch % 256]) * 32)
        return iter(())

    return phases


def run(world: World, operation: Operation) -> None:
    """Carry an operation out without a fault."""
    for steps, done, _ in operation(world):
        world.witness.watch(steps)
        world.disk.execute(steps)
        done()
    world.clock += 10


def crash_points(world: World, operation: Operation) -> Iterator[Moment]:
    """Carry an operation out, yielding the moment before its first step and after each."""
    for steps, done, allowed in operation(world):
        for nth, disk in enumerate(world.disk.crash_points(steps)):
            world.witness.watch(steps[max(nth - 1, 0) : nth])
            possible = allowed if nth < len(steps) else [allowed[-1]]
            yield Moment(disk, world.keys, world.witness.copy(), possible, world.clock)
        done()
    world.clock += 10


def start(moment: Moment, config: SegmentedConfig = SMALL) -> tuple[Log, GroupRecovery]:
    """Open the log and the group that a crash left; both are mended by their own plans."""
    opened = recover(moment.disk, moment.keys, SMALL_LOG, MODE)
    assert opened is not None and opened.state is LogState.HEALTHY
    moment.disk.execute(opened.plan)
    log = opened.log
    found = recover_group(
        moment.disk,
        moment.keys,
        config,
        log,
        members=ALONE,
        registry=PolicyRegistry(),
        committed_index=log.durable_index,
        now=moment.clock,
    )
    assert found is not None, "a store that was created is gone"
    assert not found.damaged, found.findings
    return log, found


def check_after_crash(moment: Moment, config: SegmentedConfig = SMALL) -> World:
    """Start on the disk, mend it, and see that it holds one of the allowed contents."""
    log, recovery = start(moment, config)
    return finish(moment, log, recovery)


def finish(moment: Moment, log: Log, recovery: GroupRecovery) -> World:
    witness = moment.witness.copy()
    witness.watch(recovery.plan)
    moment.disk.execute(recovery.plan)
    recovery.replay()
    group = recovery.group
    if log.durable_index > 0:
        group.acknowledge_through(ME, log.durable_index)
    found = read_back(moment.disk, moment.keys, group)
    assert found in moment.allowed, (found, moment.allowed, recovery.findings)
    assert log.entries.base_index <= group.min_required_raft_index() - 1
    return World(moment.disk, log, group, moment.keys, witness, found, moment.clock)


def now(world: World) -> Moment:
    """The world at rest: a crash may leave only what it holds."""
    return Moment(world.disk, world.keys, world.witness, [world.contents], world.clock)


def draw_batches(rng: Random, world: World, tag: int) -> list[Batch]:
    """Draw batches whose bytes no other draw makes, with few keys and some tombstones."""
    drawn = []
    for nth in range(rng.randint(1, 4)):
        count = rng.choice((1, 1, 1, 2, 3))
        records = []
        for at in range(count):
            key = rng.choice((b"a", b"b", b"c", b"d"))
            value = f"{tag}.{nth}.{at}".encode() * rng.choice((1, 1, 3, 40))
            records.append(key + b"=" + (b"" if rng.random() < 0.2 else value))
        partition = rng.choice(sorted(world.contents))
        drawn.append(batch(partition, b";".join(records), count, world.clock))
    return drawn


def draw_operation(rng: Random, world: World, tag: int) -> Operation:
    """Draw an operation; appends are the most likely."""
    partition = rng.choice(sorted(world.contents))
    others = [define(100 + tag)] if len(world.contents) < 4 else [remove(partition)]
    return rng.choice(
        [append(*draw_batches(rng, world, tag))] * 8
        + others
        + [flush(), checkpoint(), checkpoint(), checkpoint(1), cut_log(), cut_log(), seal_log()]
        + [
            retain(age_ms=rng.choice((50, 200))),
            retain(size_bytes=rng.choice((500, 1500))),
            compact(partition, tombstone_ms=rng.choice((0, 100))),
            compact(partition, tombstone_ms=rng.choice((0, 100))),
            rotate_key(),
            reinstall(),
        ]
    )


def step_names(plan: Plan) -> list[str]:
    """Name the steps of a plan, for tests of their order."""

    def name(step: Step) -> str:
        target = getattr(step, "file", getattr(step, "directory", ""))
        return f"{type(step).__name__} {target}".strip()

    return [name(step) for step in plan]
