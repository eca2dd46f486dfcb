"""Partition files: appends, reads by index and by time, retention, key compaction."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor.log.steps import SyncFiles
from clustor.segmented import (
    Batch,
    EntryOutOfOrder,
    IndexOutOfRange,
    PartitionReader,
    RecordKey,
    RetentionPolicy,
    SegmentedConfig,
    SegmentedFenced,
    SegmentedMisuse,
    TimestampMs,
    TopicPartitionId,
    UnknownPartition,
    ViewExpired,
)
from clustor.segmented.runs import index_file, part_file
from tests.clustor.segmented.harness import (
    SMALL,
    World,
    append,
    batch,
    check_after_crash,
    checkpoint,
    compact,
    cut_log,
    flush,
    held,
    keys_of,
    now,
    read_back,
    retain,
    rotate_key,
    run,
    step_names,
)

P = TopicPartitionId(0)


def filled(batches: int = 30, *, every: int = 5) -> World:
    """A partition with three files or so, times that go up and down, and a tail in memory."""
    world = World.new(partitions=1)
    for nth in range(batches):
        time = 1000 + nth * 10 - (nth % 3) * 15
        payload = f"{nth}:".encode() * (10 + nth % 7)
        run(world, append(batch(0, payload, count=1 + nth % 3, timestamp=time)))
        if nth % every == every - 1:
            run(world, checkpoint())
    return world


def test_what_is_read_is_what_was_appended_from_memory_and_from_files() -> None:
    world = World.new(partitions=2)
    payloads = [bytes([nth]) * (nth * 37 % 500) for nth in range(20)]
    for nth, payload in enumerate(payloads):
        run(world, append(batch(1, payload, count=2, timestamp=nth)))
        if nth in (5, 6, 13):
            run(world, flush() if nth == 6 else checkpoint())
        assert [at.payload for at in world.read(1)] == payloads[: nth + 1]
    found = world.read(1)
    assert [at.first_index for at in found] == list(range(0, 40, 2))
    assert world.read(0) == []


def test_a_chunk_hands_on_the_bytes_of_a_whole_run_without_touching_them() -> None:
    world = World.new(partitions=1, config=SegmentedConfig())
    payloads = [b"one", b"", b"three"]
    run(world, append(*(batch(0, at) for at in payloads)))
    run(world, checkpoint())
    reader = PartitionReader(world.disk, world.keys, SegmentedConfig())
    (chunk,) = reader.read(world.group.view(P), 0, 1000)
    assert isinstance(chunk.payloads, memoryview)
    assert bytes(chunk.payloads) == b"".join(payloads)


def test_reading_starts_with_the_batch_that_holds_the_index() -> None:
    world = filled()
    everything = world.read(0)
    end = everything[-1].next_index
    for index in range(end):
        found = world.read(0, index)
        assert found == [at for at in everything if at.next_index > index]
    assert world.read(0, end) == []


@pytest.mark.parametrize("index", [-1, 10_000])
def test_reading_outside_of_the_partition_says_where_it_starts_and_ends(index: int) -> None:
    world = filled()
    with pytest.raises(IndexOutOfRange) as refused:
        world.read(0, index)
    assert refused.value.facts["start"] == 0
    assert refused.value.facts["next"] == world.group.readable_next(P)


def test_reading_is_bounded() -> None:
    world = filled(every=30)
    reader = PartitionReader(world.disk, world.keys, SMALL)
    view = world.group.view(P)
    for bytes_max in (1, 100, 500):
        chunks = reader.read(view, 0, bytes_max)
        sizes = [chunk.size_bytes for chunk in chunks]
        assert sum(sizes[:-1]) < bytes_max and sum(sizes) > bytes_max * 3 // 4
        assert max(sizes) <= SMALL.run_bytes


def test_a_view_of_the_tail_copies_only_what_will_be_read() -> None:
    world = World.new(partitions=1, config=SegmentedConfig())
    for nth in range(30):
        run(world, append(batch(0, bytes([nth]) * 100, count=2)))
    out = world.group.plan_flush()  # its receipt is still to come
    for nth in range(30, 50):
        run(world, append(batch(0, bytes([nth]) * 100, count=2)))
    reader = PartitionReader(world.disk, world.keys, SegmentedConfig())
    for index in (0, 1, 40, 61, 62, 75, 99):
        view = world.group.view(P, index, 1000)
        assert sum(chunk.size_bytes for chunk in view.pieces) < 1000 + 124
        found = [at for chunk in reader.read(view, index, 1000) for at in chunk.batches()]
        assert found[0].first_index == index - index % 2
        assert found == world.read(0)[index // 2 :][: len(found)]
        assert len(found) == min(9, 50 - index // 2)
    assert world.group.view(P, 100, 1000).pieces == ()
    world.disk.execute(out.steps)
    world.group.stored(out.receipt)
    assert [at.payload[:1] for at in world.read(0)] == [bytes([nth]) for nth in range(50)]


def test_reading_from_a_time_finds_the_first_batch_that_is_as_new() -> None:
    world = filled()
    everything = world.read(0)
    for closed in (False, True):
        if closed:  # other views: a restart forgets the writer's indices, files keep theirs
            world = check_after_crash(now(world))
        reader = PartitionReader(world.disk, world.keys, SMALL)
        view = world.group.view(P)
        for time in range(900, 1400, 5):
            naive = next((at.first_index for at in everything if at.timestamp >= time), None)
            assert reader.find_time(view, time) == naive, time


def test_an_index_file_that_is_bad_or_gone_is_done_without() -> None:
    world = filled()
    everything = world.read(0)
    segments = world.group.store.files(0).segments
    assert len(segments) > 2
    names = world.disk.names("segmented/parts")
    indices = [index_file(0, at.file_seq) for at in segments if index_file(0, at.file_seq)]
    present = [name for name in indices if name.rpartition("/")[2] in names]
    assert len(present) == len(segments) - 1
    for nth, name in enumerate(present):
        world.disk.flip_bit(name, 30 + nth, 3)
    for index in (0, 17, 40):
        assert world.read(0, index) == [at for at in everything if at.next_index > index]


def test_a_view_outlives_appends_and_expires_with_its_files() -> None:
    world = filled()
    view = world.group.view(P)
    before = world.read(0)
    run(world, append(batch(0, b"later")))
    run(world, checkpoint())
    reader = PartitionReader(world.disk, world.keys, SMALL)
    found = [at for chunk in reader.chunks(view, 0, 100) for at in chunk.batches()]
    assert found == before
    run(world, retain(size_bytes=600))
    with pytest.raises(ViewExpired):
        PartitionReader(world.disk, world.keys, SMALL).read(view, 0, 100)
    assert world.group.view(P).start_index > 0


def test_a_flush_syncs_nothing_and_a_checkpoint_commits_last() -> None:
    world = World.new(partitions=2)
    run(world, append(batch(0, b"a"), batch(1, b"b")))
    plan = world.group.plan_flush()
    assert {name.split()[0] for name in step_names(plan.steps)} == {"Create", "Write"}
    world.disk.execute(plan.steps)
    world.group.stored(plan.receipt)
    names = step_names(world.group.plan_checkpoint().steps)
    assert [name.split()[0] for name in names] == ["SyncFiles", "SyncDirectory", "Write", "Sync"]
    assert names[-1] == "Sync segmented/metadata.log"


def test_a_thousand_partitions_share_one_commit_point() -> None:
    world = World.new(partitions=1000, config=SegmentedConfig())
    run(world, append(*(batch(at, b"x") for at in range(1000))))
    steps = world.group.plan_checkpoint().steps
    names = step_names(steps)
    assert sum(name == "Sync segmented/metadata.log" for name in names) == 1
    assert sum(name.startswith("SyncDirectory") for name in names) == 1
    synced = [step.files for step in steps if isinstance(step, SyncFiles)]
    assert [len(set(files)) for files in synced] == [1000]


def test_receipts_come_back_in_order_and_a_failed_plan_ends_the_store() -> None:
    world = World.new(partitions=1)
    run(world, append(batch(0, b"a")))
    first, second = world.group.plan_flush(), world.group.plan_checkpoint()
    with pytest.raises(SegmentedMisuse):
        world.group.stored(second.receipt)
    world.group.stored(first.receipt)
    world.group.store.fence("a sync failed", file="x")
    for plan in (world.group.plan_flush, world.group.plan_checkpoint):
        with pytest.raises(SegmentedFenced):
            plan()


def test_batches_that_do_not_continue_a_partition_are_refused_and_old_ones_passed_over() -> None:
    world = World.new(partitions=1)
    store = world.group.store
    store.apply(1, [(0, 0, 2, 1, 0)], b"SGE1" + bytes(36) + b"a")
    store.apply(1, [(0, 0, 2, 1, 0)], b"SGE1" + bytes(36) + b"a")
    assert store.files(0).next_index == 2
    for first, count in ((3, 1), (1, 2)):
        with pytest.raises(EntryOutOfOrder):
            store.apply(2, [(0, first, count, 1, 0)], b"SGE1" + bytes(36) + b"b")
    with pytest.raises(UnknownPartition):
        store.apply(2, [(5, 0, 1, 1, 0)], b"SGE1" + bytes(36) + b"b")


def test_a_new_key_epoch_starts_a_new_file_and_old_files_still_open() -> None:
    world = World.new(partitions=1)
    run(world, append(batch(0, b"old")))
    run(world, checkpoint())
    run(world, rotate_key())
    run(world, append(batch(0, b"new")))
    run(world, checkpoint())
    assert [at.dek_epoch for at in world.group.store.files(0).segments] == [1, 2]
    assert world.group.store.dek_epochs() == {1, 2}
    assert [at.payload for at in world.read(0)] == [b"old", b"new"]


def test_a_removed_partition_is_gone_for_good_and_its_id_too() -> None:
    world = World.new(partitions=2)
    run(world, append(batch(0, b"a"), batch(1, b"b")))
    run(world, checkpoint())
    world.carry_out(world.group.plan_remove(P))
    del world.contents[0]
    assert world.disk.names("segmented/parts") == [
        part_file(1, world.group.store.files(1).segments[0].file_seq).rpartition("/")[2]
    ]
    again = check_after_crash(now(world))  # the log still names it, and is passed over
    for found in (world, again):
        with pytest.raises(SegmentedMisuse):
            found.define(0)
        with pytest.raises(UnknownPartition):
            found.group.view(P)


# Retention


def test_retention_by_size_keeps_the_newest_whole_files() -> None:
    world = filled()
    files = world.group.store.files(0)
    before = list(files.segments)
    run(world, retain(size_bytes=files.size_bytes - 1))
    assert files.segments == before[1:]
    run(world, retain(size_bytes=0))
    assert files.segments == before[-1:], "the open file stays"
    assert read_back(world.disk, world.keys, world.group) == world.contents
    assert files.start_index == before[-1].first_index


def test_retention_by_age_takes_even_the_last_file_when_nothing_waits() -> None:
    world = filled()
    run(world, append(batch(0, b"waits", timestamp=0)))
    run(world, checkpoint())
    newest = world.group.store.files(0).segments[-1].max_timestamp
    policy = {P: RetentionPolicy(age_ms=100)}
    for time, left in ((newest + 100, True), (newest + 101, False)):
        world.carry_out(world.group.plan_retention(policy, TimestampMs(time)))
        assert bool(world.group.store.files(0).segments) is left
    end = world.group.store.files(0).next_index
    world.contents = {0: ()}
    world = check_after_crash(now(world))
    run(world, append(batch(0, b"goes on")))
    assert held(world.read(0)) == ((end, 1, 0, b"goes on"),)


def test_retention_never_takes_what_no_checkpoint_has_committed() -> None:
    world = World.new(partitions=1)
    for nth in range(8):
        run(world, append(batch(0, bytes([nth]) * 300)))
    run(world, flush())
    assert world.group.plan_retention({P: RetentionPolicy(size_bytes=0)}, TimestampMs(0)) is None
    run(world, checkpoint())
    run(world, retain(size_bytes=0))
    assert world.group.store.files(0).start_index > 0


def test_no_bound_keeps_everything_and_a_negative_one_is_refused() -> None:
    world = filled()
    assert world.group.plan_retention({P: RetentionPolicy()}, TimestampMs(10**9)) is None
    with pytest.raises(SegmentedMisuse):
        RetentionPolicy(age_ms=-1)


# Key compaction


def close_file(world: World) -> None:
    """Let the next batch start a new file, so that the ones before it can be compacted."""
    run(world, checkpoint())
    run(world, rotate_key())
    run(world, append(batch(0, b"open=1", timestamp=world.clock)))
    run(world, checkpoint())


def test_only_the_newest_record_of_a_key_is_kept() -> None:
    world = World.new(partitions=1)
    for payload in (b"a=1", b"b=1", b"a=2", b"=nokey", b"a=3", b"b=2"):
        run(world, append(batch(0, payload)))
    close_file(world)
    run(world, compact(0))
    assert [at.payload for at in world.read(0)] == [b"=nokey", b"a=3", b"b=2", b"open=1"]
    assert [at.first_index for at in world.read(0)] == [3, 4, 5, 6]
    assert world.read(0, 0) == world.read(0), "an index that was compacted away leads on"


def test_a_tombstone_stays_for_its_time_and_then_goes() -> None:
    world = World.new(partitions=1)
    run(world, append(batch(0, b"a=1", timestamp=1000)))
    run(world, append(batch(0, b"a=", timestamp=1010)))
    close_file(world)
    run(world, compact(0, tombstone_ms=10**6))
    assert [at.payload for at in world.read(0)] == [b"a=", b"open=1"]
    run(world, compact(0, tombstone_ms=0))
    assert [at.payload for at in world.read(0)] == [b"open=1"]


def test_a_tombstone_stays_while_an_older_value_lingers_in_a_batch_that_is_kept() -> None:
    """Else the value would come back from the dead."""
    world = World.new(partitions=1)
    run(world, append(batch(0, b"a=1;b=1", count=2, timestamp=1000)))
    run(world, append(batch(0, b"a=", timestamp=1010)))
    close_file(world)
    for _ in range(2):
        run(world, compact(0, tombstone_ms=0))
        assert [at.payload for at in world.read(0)] == [b"a=1;b=1", b"a=", b"open=1"]
    run(world, append(batch(0, b"b=2")))
    close_file(world)
    run(world, compact(0, tombstone_ms=0))
    assert [at.payload for at in world.read(0)] == [b"open=1", b"b=2", b"open=1"]


def test_compaction_with_little_memory_goes_on_where_it_stopped() -> None:
    config = SegmentedConfig(
        segment_bytes=900, run_bytes=200, compaction_keys_max=3, metadata_rewrite_bytes=10**6
    )
    world = World.new(partitions=1, config=config)
    for nth in range(12):
        run(world, append(batch(0, f"k{nth % 6}={nth}".encode())))
    close_file(world)
    reader = PartitionReader(world.disk, world.keys, config)
    clean: list[int] = []
    for _ in range(10):
        job = world.group.start_compaction(P, keys_of, now=TimestampMs(0), tombstone_ms=0)
        assert job is not None
        for steps in job.plans(reader):
            world.witness.watch(steps)
            world.disk.execute(steps)
        world.carry_out(job.plan_commit())
        clean.append(world.group.store.files(0).clean_next)
    assert clean[0] < 12 and clean[-1] == 12 and clean == sorted(clean)
    newest = [f"k{nth % 6}={nth}".encode() for nth in range(6, 12)]
    found = [at.payload for at in world.read(0)]
    assert [at for at in found if at in newest] == newest, "nothing newest is ever dropped"


def test_a_compaction_that_retention_overtook_is_abandoned_without_a_trace() -> None:
    world = filled()
    job = world.group.start_compaction(P, keys_of_any, now=TimestampMs(0), tombstone_ms=0)
    assert job is not None
    with pytest.raises(SegmentedMisuse):
        job.plan_commit()
    for steps in job.plans(PartitionReader(world.disk, world.keys, SMALL)):
        world.disk.execute(steps)
    run(world, retain(size_bytes=600))
    assert job.plan_commit() is None
    world.disk.execute(job.plan_abandon())
    check_after_crash(now(world))
    segments = len(world.group.store.files(0).segments)
    assert sum(name.endswith(".seg") for name in world.disk.names("segmented/parts")) == segments


def keys_of_any(payload: bytes) -> list[RecordKey]:
    return [RecordKey(payload[:1])]


def test_keys_of_must_not_invent_records() -> None:
    world = filled()
    job = world.group.start_compaction(
        P, lambda _: [RecordKey(b"k")] * 9, now=TimestampMs(0), tombstone_ms=0
    )
    assert job is not None
    with pytest.raises(SegmentedMisuse):
        list(job.plans(PartitionReader(world.disk, world.keys, SMALL)))


batches_lists = st.lists(
    st.lists(
        st.builds(
            lambda partition, keys, time: Batch(
                TopicPartitionId(partition),
                b";".join(keys),
                len(keys),
                TimestampMs(time),
            ),
            st.integers(0, 2),
            st.lists(
                st.sampled_from([b"a=1", b"a=", b"b=2", b"b=", b"=x", b"c=" + b"y" * 250]),
                min_size=1,
                max_size=3,
            ),
            st.integers(0, 2000),
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=25,
)


@settings(deadline=None)
@given(batches_lists, st.lists(st.integers(0, 6), min_size=1, max_size=8))
def test_the_store_agrees_with_a_dict_of_lists(
    entries: list[list[Batch]], between: list[int]
) -> None:
    world = World.new()
    choices = itertools.cycle(between)
    for batches in entries:
        run(world, append(*batches))
        operation = (
            None,
            flush(),
            checkpoint(),
            checkpoint(1),
            cut_log(),
            retain(size_bytes=1200),
            compact(0, tombstone_ms=50),
        )[next(choices)]
        if operation is not None:
            run(world, operation)
        assert read_back(world.disk, world.keys, world.group) == world.contents
    check_after_crash(now(world))
