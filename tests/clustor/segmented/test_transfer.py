"""All partitions of a group travel with a snapshot, at one raft index, and arrive whole or not."""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from random import Random

import pytest

from clustor.log.errors import ChecksumMismatch, LogError, UnsupportedFormat
from clustor.log.recovery import recover
from clustor.log.steps import Delete
from clustor.log.types import Entry, LogIndex, PartitionId, Term
from clustor.replica.machine import StateMachine
from clustor.segmented import (
    Automatic,
    Import,
    Majority,
    MetadataBehindLog,
    PartitionReader,
    PolicyRegistry,
    SegmentedConfig,
    SegmentedFenced,
    SegmentedGroup,
    SegmentedMisuse,
    StoreId,
    TopicPartitionId,
    create_group,
    open_for_import,
    recover_group,
)
from clustor.segmented.exchange import (
    EXPORT_RUN_BYTES,
    ExportedPartition,
    FrameKind,
    FrameWriter,
)
from clustor.segmented.metadata import Definition
from clustor.segmented.runs import PARTS_DIRECTORY
from clustor.sim.disk import SimDisk
from tests.clustor.log.harness import MODE, new_keys
from tests.clustor.segmented.harness import (
    ALONE,
    GROUP,
    ME,
    SMALL,
    SMALL_LOG,
    Moment,
    Operation,
    World,
    append,
    batch,
    check_after_crash,
    checkpoint,
    compact,
    crash_points,
    cut_log,
    define,
    draw_operation,
    flush,
    install,
    now,
    read_back,
    remove,
    retain,
    rotate_key,
    run,
    seal_log,
)

LONG = b"x" * 300


def reader(world: World, config: SegmentedConfig = SMALL) -> PartitionReader:
    return PartitionReader(world.disk, world.keys, config)


def exported(world: World) -> list[bytes]:
    return list(world.group.export(reader(world)))


def twin(world: World) -> World:
    """Another replica with the same history, on a disk of its own."""
    moment = now(world)
    return check_after_crash(moment.crashed(world.disk.copy()))


def history() -> World:
    """Partitions with several files, compacted, retained, removed, and a tail in memory."""
    world = World.new()
    first = append(batch(0, b"a=1" + LONG), batch(0, b"b=1" + LONG), batch(1, LONG, timestamp=5))
    second = append(batch(0, b"a=2" + LONG, timestamp=7), batch(0, b"a=3" + LONG), batch(1, b"n"))
    for operation in (first, second, checkpoint(), compact(0), define(7), append(batch(7, b"v"))):
        run(world, operation)
    for operation in (checkpoint(), remove(7), rotate_key(), append(batch(2, b"z=1", count=3))):
        run(world, operation)
    return world


def taken_in(world: World, pieces: Iterable[bytes]) -> World:
    """Import into an empty replica, install its log, and open it."""
    keys = world.keys
    disk = SimDisk()
    group, plan = create_group(
        GROUP, StoreId(b"another replica!"), keys, SMALL, members=ALONE, registry=PolicyRegistry()
    )
    disk.execute(plan)
    incoming = group.start_import()
    for piece in pieces:
        disk.execute(incoming.feed(piece))
    disk.execute(incoming.plan_commit())
    fresh = World.new(partitions=0)
    fresh.log.plan_install(LogIndex(incoming.raft_index or 0), Term(1))
    found = recover_group(
        disk,
        keys,
        SMALL,
        fresh.log,
        members=ALONE,
        registry=PolicyRegistry(),
        committed_index=fresh.log.durable_index,
        now=world.clock,
    )
    assert found is not None and not found.damaged
    disk.execute(found.plan)
    found.replay()
    contents = read_back(disk, keys, found.group)
    return World(disk, fresh.log, found.group, keys, fresh.witness, contents, world.clock)


def test_what_is_imported_is_what_was_exported_at_its_raft_index() -> None:
    world = history()
    export = world.group.export(reader(world))
    assert export.raft_index == world.group.applied_index == world.log.durable_index
    other = taken_in(world, export)
    assert other.contents == world.contents
    assert other.group.applied_index == export.raft_index
    for at in world.group.partitions():
        mine, theirs = world.group.store.files(at), other.group.store.files(at)
        assert (mine.start_index, mine.next_index) == (theirs.start_index, theirs.next_index)
        assert (mine.clean_next, mine.definition) == (theirs.clean_next, theirs.definition)
    with pytest.raises(SegmentedMisuse):
        other.group.plan_define({TopicPartitionId(7): (Majority(), Automatic())})
    following = [batch(0, b"more"), batch(2, b"more")]
    assert other.group.propose(following) == world.group.propose(following)


@pytest.mark.parametrize("run_bytes", [100, 1000, EXPORT_RUN_BYTES])
def test_replicas_with_the_same_batches_export_the_same_bytes(
    run_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they flushed, checkpointed, restarted and rotated keys."""
    monkeypatch.setattr("clustor.segmented.export.EXPORT_RUN_BYTES", run_bytes)
    calm, busy = World.new(), World.new()
    rng = Random(3)
    for nth in range(30):
        drawn = append(*(batch(at % 3, b"%d" % nth * rng.randrange(90)) for at in range(5)))
        run(calm, drawn)
        run(busy, drawn)
        run(busy, rng.choice([flush(), checkpoint(), checkpoint(1), rotate_key(), cut_log()]))
    assert exported(twin(busy)) == exported(busy) == exported(calm)


def test_what_happens_while_an_export_is_read_does_not_show_in_it() -> None:
    world = history()
    before = world.contents
    export = world.group.export(reader(world))
    pieces = list(islice(export, 2))
    later: list[Operation] = [
        append(batch(0, b"a=9" + LONG * 3), batch(1, LONG), batch(2, b"later")),
        checkpoint(),
        append(batch(0, b"b=9" + LONG), batch(1, LONG * 2)),
        checkpoint(),
        compact(0, tombstone_ms=0),
        retain(size_bytes=0),
        remove(1),
    ]
    for operation in later:
        run(world, operation)
    pieces += list(export)
    assert taken_in(world, pieces).contents == before


@pytest.mark.parametrize("how", ["read to its end", "closed", "forgotten"])
def test_files_that_an_export_kept_go_when_it_is_over(how: str) -> None:
    world = history()
    export = world.group.export(reader(world))
    next(export)
    kept = set(world.disk.names(PARTS_DIRECTORY))
    run(world, append(batch(0, LONG * 3)))
    run(world, checkpoint())
    run(world, remove(0))
    assert kept <= set(world.disk.names(PARTS_DIRECTORY))
    assert world.group.store.dek_epochs() >= {1}, "and so do their keys"
    if how == "closed":
        export.close()
    elif how == "forgotten":
        del export
        gc.collect()
    else:
        list(export)
    run(world, checkpoint())
    named = {f"{at:016x}" for at in world.contents}
    assert {name[:16] for name in world.disk.names(PARTS_DIRECTORY)} <= named
    assert not check_findings(world)


def check_findings(world: World) -> list[str]:
    moment = now(world)
    found = recover_group(
        moment.disk,
        moment.keys,
        SMALL,
        world.log,
        members=ALONE,
        registry=PolicyRegistry(),
        committed_index=world.log.durable_index,
        now=0,
    )
    assert found is not None
    return [finding.detail for finding in found.findings]


def test_memory_is_bounded_by_a_run_and_bytes_may_be_cut_anywhere() -> None:
    config = SegmentedConfig()
    world = World.new(partitions=2, config=config)
    for nth in range(12):
        run(world, append(*(batch(nth % 2, bytes([nth]) * 9000, count=2) for _ in range(20))))
        run(world, checkpoint())
    pieces = list(world.group.export(reader(world, config)))
    assert sum(map(len, pieces)) > 8 * EXPORT_RUN_BYTES
    assert max(map(len, pieces)) < EXPORT_RUN_BYTES + 100
    whole, rng, cuts = b"".join(pieces), Random(5), []
    while whole:
        cuts.append(whole[: rng.choice((1, 15, 17, 4000, 300_000))])
        whole = whole[len(cuts[-1]) :]
    assert taken_in(world, cuts).contents == world.contents


class PartitionsMachine:
    """A machine of a replica whose whole state is its partitions: each command is a batch."""

    def __init__(self, store_id: bytes) -> None:
        self.keys, self.disk = new_keys(), SimDisk()
        self.group, plan = create_group(
            GROUP, StoreId(store_id), self.keys, SMALL, members=ALONE, registry=PolicyRegistry()
        )
        self.disk.execute(plan)
        wanted = {TopicPartitionId(at): (Majority(), Automatic()) for at in range(2)}
        defined = self.group.plan_define(wanted)
        self.disk.execute(defined.steps)
        self.group.stored(defined.receipt)

    def apply_batch(self, index: int, commands: Sequence[bytes], /) -> list[bytes]:
        drawn = [batch(at[0] % 2, bytes(at)) for at in commands]
        entry = Entry(Term(1), LogIndex(index), self.group.propose(drawn))
        self.group.appended([entry], 0)
        self.group.apply([entry])
        self.group.committed(entry.index)
        if index % 3 == 0:
            plan = self.group.plan_checkpoint()
            self.disk.execute(plan.steps)
            self.group.stored(plan.receipt)
        return [b"ok"] * len(commands)

    def snapshot(self) -> Iterator[bytes]:
        return self.group.export(PartitionReader(self.disk, self.keys, SMALL))

    def restore(self, chunks: Iterable[bytes], /) -> None:
        incoming = self.group.start_import()
        for chunk in chunks:
            self.disk.execute(incoming.feed(chunk))
        self.disk.execute(incoming.plan_commit())
        log = World.new(partitions=0).log
        log.plan_install(LogIndex(incoming.raft_index or 0), Term(1))
        found = recover_group(
            self.disk,
            self.keys,
            SMALL,
            log,
            members=ALONE,
            registry=PolicyRegistry(),
            committed_index=log.durable_index,
            now=0,
        )
        assert found is not None
        self.disk.execute(found.plan)
        self.group = found.group

    def digest(self) -> bytes:
        return sha256(b"".join(self.snapshot())).digest()

    @property
    def applied_index(self) -> int:
        return self.group.applied_index


def test_a_machine_of_a_replica_can_be_made_of_it() -> None:
    first: StateMachine = PartitionsMachine(b"the first one...")
    second: StateMachine = PartitionsMachine(b"the second one..")
    for index in range(1, 20):
        first.apply_batch(index, [bytes([index]) * (index * 7), b"%d" % index])
    snapshot = first.snapshot()
    for index in range(20, 30):
        first.apply_batch(index, [b"later"])
    second.restore(snapshot)
    assert second.applied_index == 19
    for index in range(20, 30):
        second.apply_batch(index, [b"later"])
    assert second.digest() == first.digest()
    assert second.applied_index == first.applied_index == 29


# Crashes


def take_in(world: World, incoming: Import, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        plan = incoming.feed(piece)
        world.witness.watch(plan)
        world.disk.execute(plan)
    world.disk.execute(incoming.plan_commit())


def crash_an_import(seed: int, *, samples: int) -> None:
    rng = Random(seed)
    world = World.new(reorder=seed % 2 == 1)
    for tag in range(12):
        run(world, draw_operation(rng, world, tag))
    source = twin(world)
    for tag in range(12, 30):
        run(source, draw_operation(rng, source, tag))
    pieces, old, new = exported(source), world.contents, source.contents
    outcomes = set()
    for moment in crash_points(world, install(pieces, new)):
        for disk in moment.disk.crashes(rng, max_exhaustive=samples, samples=samples):
            after = check_after_crash(moment.crashed(disk))
            outcomes.add("new" if after.contents == new else "old")
            if after.group.applied_index > after.log.last_index:
                after.disk.execute(after.log.plan_install(after.group.applied_index, Term(1)))
                after = check_after_crash(now(after))
            partition = min(after.contents)
            run(after, append(batch(partition, b"after=1")))
            run(after, checkpoint())
            check_after_crash(now(after))
    assert outcomes == {"old", "new"} or old == new
    assert world.contents == new
    run(world, append(batch(min(new), b"goes on")))
    check_after_crash(now(world))


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_anywhere_in_an_import_leaves_the_old_set_or_the_new(seed: int) -> None:
    crash_an_import(seed, samples=2)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_crashes_in_imports(seed: int) -> None:
    crash_an_import(seed, samples=8)


def test_a_log_that_ends_before_the_partitions_gets_its_entries_again() -> None:
    """Power was lost between the import and the log's installation, and a leader sends entries."""
    world = World.new()
    run(world, append(batch(0, b"a"), batch(1, b"b")))
    source = twin(world)
    lost: list[Entry] = []
    for nth in range(4):
        index = LogIndex(source.log.last_index + 1)
        drawn = [batch(2, b"%d" % nth), batch(nth % 2, b"more %d" % nth)]
        lost.append(Entry(Term(1), index, source.group.propose(drawn)))
        run(source, append(*drawn))
    incoming = world.group.start_import()
    take_in(world, incoming, exported(source))
    moment = Moment(world.disk, world.keys, world.witness, [source.contents], world.clock)
    after = check_after_crash(moment)
    assert after.group.applied_index > after.log.last_index
    for nth, entry in enumerate(lost):
        if nth == 2:  # one that Raft never committed stood here, and is replaced
            never = Entry(Term(1), entry.index, after.group.propose([batch(0, b"never")]))
            after.group.appended([never], 0)
            after.group.truncated(entry.index)
        after.group.appended([entry], 0)
        plan = after.log.plan_append([entry])
        after.disk.execute(plan.steps)
        after.log.stored(plan.receipt)
        after.group.fsynced(ME, entry.index)
        after.group.apply([entry])
        assert read_back(after.disk, after.keys, after.group) == source.contents
    run(after, append(batch(2, b"new"), batch(0, b"new")))
    assert [at[3] for at in after.contents[2]] == [b"0", b"1", b"2", b"3", b"new"]
    run(after, checkpoint())
    check_after_crash(now(after))


def test_a_log_that_moved_first_is_refused_until_its_snapshot_is_in() -> None:
    world = World.new()
    run(world, append(batch(0, b"a")))
    source = twin(world)
    run(source, append(batch(0, b"b"), batch(1, b"c")))
    pieces = exported(source)
    world.disk.execute(world.log.plan_install(source.log.durable_index, Term(1)))
    moment = Moment(world.disk, world.keys, world.witness, [source.contents], world.clock)
    with pytest.raises(MetadataBehindLog):
        check_after_crash(moment)
    opened = open_for_import(world.disk, world.keys, SMALL)
    assert opened is not None
    incoming, plan = opened
    world.disk.execute(plan)
    take_in(world, incoming, pieces)
    check_after_crash(moment)
    assert open_for_import(SimDisk(), world.keys, SMALL) is None


def test_an_older_snapshot_brings_back_what_was_removed_behind_it() -> None:
    """For a store that must be filled anew: the log then removes it a second time."""
    world = World.new()
    run(world, append(batch(0, b"a"), batch(1, b"b")))
    older, before = exported(world), world.contents
    run(world, remove(1))
    take_in(world, world.group.start_import(), older)
    moment = Moment(world.disk, world.keys, world.witness, [before], world.clock)
    after = check_after_crash(moment)
    run(after, append(batch(1, b"goes on")))
    run(after, remove(1))
    check_after_crash(now(after))


def test_after_its_commit_a_store_plans_no_more() -> None:
    world = history()
    incoming = world.group.start_import()
    take_in(world, incoming, exported(world))
    with pytest.raises(SegmentedFenced):
        world.group.plan_checkpoint()
    with pytest.raises(SegmentedFenced):
        incoming.plan_commit()


# What is not believed


def empty_group() -> tuple[SegmentedGroup, SimDisk]:
    group, plan = create_group(
        GROUP, StoreId(bytes(16)), new_keys(), SMALL, members=ALONE, registry=PolicyRegistry()
    )
    disk = SimDisk()
    disk.execute(plan)
    return group, disk


def refused(data: bytes) -> type[Exception]:
    """Import bytes that must not be believed; return how that was said."""
    group, disk = empty_group()
    incoming = Import(group.store)
    with pytest.raises(LogError) as caught:  # noqa: PT012  # either may say it
        disk.execute(incoming.feed(data))
        incoming.plan_commit()
    group.plan_checkpoint()  # the store is as it was
    disk.execute(incoming.plan_abandon())
    assert disk.names(PARTS_DIRECTORY) == []
    return caught.type


def small_export() -> bytes:
    world = World.new(partitions=2)
    run(world, append(batch(0, b"hello", 2, 7), batch(1, b"")))
    run(world, checkpoint())
    run(world, remove(1))
    return b"".join(exported(world))


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_an_export_is_noticed(bit: int) -> None:
    data = small_export()
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= 1 << bit
        refused(bytes(bad))


def test_an_export_that_is_cut_short_or_goes_on_is_refused() -> None:
    data = small_export()
    for length in range(len(data)):
        refused(data[:length])
    assert refused(data + data) is ChecksumMismatch
    assert refused(data + b"?") is ChecksumMismatch


def test_frames_that_are_lost_repeated_or_swapped_are_noticed() -> None:
    world = World.new(partitions=3)
    run(world, append(batch(0, b"a"), batch(1, b"b"), batch(2, b"c")))
    pieces = exported(world)
    for nth in range(len(pieces)):
        refused(b"".join(pieces[:nth] + pieces[nth + 1 :]))
        refused(b"".join(pieces[: nth + 1] + pieces[nth:]))
    refused(b"".join([pieces[0], *pieces[3:5], *pieces[1:3], *pieces[5:]]))


def definition() -> Definition:
    return Definition.of(Majority(), Automatic(), ME)


def test_frames_that_no_export_writes_are_refused() -> None:
    """Whole and well-formed, and still not what a store may become."""

    def frames() -> tuple[FrameWriter, bytes]:
        writer = FrameWriter()
        return writer, writer.begin(GROUP, 5)

    writer = FrameWriter()
    assert refused(writer.begin(PartitionId(1), 5)) is SegmentedMisuse
    writer, begin = frames()
    assert refused(begin + writer.begin(GROUP, 5)) is ChecksumMismatch
    writer, begin = frames()
    backwards = ExportedPartition(1, 9, 3, 0, definition())
    assert refused(begin + writer.partition(backwards)) is ChecksumMismatch
    writer, begin = frames()
    one = ExportedPartition(1, 0, 3, 0, definition())
    assert refused(begin + writer.partition(one) + writer.partition(one)) is ChecksumMismatch
    writer, begin = frames()
    later = Definition("Unanimity", 0, (), "", "Automatic", None)
    odd = ExportedPartition(1, 0, 3, 0, later)
    assert refused(begin + writer.partition(odd)) is UnsupportedFormat
    writer, begin = frames()
    assert refused(begin + writer.end(1, 0)) is ChecksumMismatch
    for impossible in (
        ExportedPartition(-1, 0, 3, 0, definition()),
        ExportedPartition(1, 0, 3, 4, definition()),
    ):
        writer, begin = frames()
        assert refused(begin + writer.partition(impossible)) is ChecksumMismatch
    writer, begin = frames()
    whole = begin + writer.partition(one) + writer.gone([1]) + writer.end(1, 0)
    assert refused(whole) is ChecksumMismatch
    writer, begin = frames()
    assert refused(begin + writer.gone([-1])) is ChecksumMismatch


ROW_OF = struct.Struct("<QIIq")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        struct.pack("<I", 0),
        struct.pack("<I", 2) + ROW_OF.pack(0, 1, 0, 0),  # fewer rows than it says
        struct.pack("<I", 1) + ROW_OF.pack(0, 1, 5, 0) + b"1234",  # fewer bytes
        struct.pack("<I", 1) + ROW_OF.pack(0, 1, 3, 0) + b"1234",  # more bytes
        struct.pack("<I", 1) + ROW_OF.pack(0, 0, 1, 0) + b"1",  # takes no index
        struct.pack("<I", 1) + ROW_OF.pack(2, 2, 1, 0) + b"1",  # behind the partition's end
        struct.pack("<I", 2) + ROW_OF.pack(1, 1, 0, 0) + ROW_OF.pack(0, 1, 0, 0),  # goes back
    ],
)
def test_runs_that_no_export_writes_are_refused(body: bytes) -> None:
    writer = FrameWriter()
    begin = writer.begin(GROUP, 5)
    one = writer.partition(ExportedPartition(1, 0, 3, 0, definition()))
    assert refused(begin + one + writer._frame(FrameKind.RUN, body)) is ChecksumMismatch


def test_an_import_that_is_abandoned_leaves_no_trace() -> None:
    world = history()
    before = set(world.disk.names(PARTS_DIRECTORY))
    incoming = world.group.start_import()
    for piece in exported(world)[:-1]:
        world.disk.execute(incoming.feed(piece))
    assert set(world.disk.names(PARTS_DIRECTORY)) > before
    plan = incoming.plan_abandon()
    assert all(isinstance(step, Delete) for step in plan)
    world.disk.execute(plan)
    assert set(world.disk.names(PARTS_DIRECTORY)) == before
    run(world, append(batch(0, b"goes on")))
    check_after_crash(now(world))


def test_the_log_is_recovered_where_an_import_left_it() -> None:
    """The harness installs a log as the replica does: its base is the export's raft index."""
    world = history()
    run(world, seal_log())
    source = twin(world)
    run(source, append(batch(0, b"last")))
    run(world, install(exported(source), source.contents))
    opened = recover(world.disk, world.keys, SMALL_LOG, MODE)
    assert opened is not None
    assert opened.log.entries.base_index == source.log.durable_index
    assert world.group.min_required_raft_index() == source.log.durable_index + 1
