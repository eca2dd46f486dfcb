"""One store at a time: what is passed over, what is refused, what is kept for whom."""

from __future__ import annotations

import gc
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from clustor.log.steps import DeleteFile, Sync, SyncFiles
from clustor.runtime.disk import BlockingDisk, DirectoryStorage
from clustor.sim.disk import SimDisk
from clustor.streams import (
    StoreId,
    StreamAppend,
    StreamConfig,
    StreamDefine,
    StreamExtent,
    StreamFileReader,
    StreamMemory,
    StreamMisuse,
    StreamOutOfOrder,
    StreamOutOfRange,
    StreamRemove,
    StreamTrim,
    UnknownStream,
    ViewExpired,
    create_store,
    open_store,
    take_view,
)
from tests.clustor.log.harness import new_keys
from tests.clustor.streams.world import GROUP, World

NOWHERE = SimDisk()


def filled(batches: int = 40) -> World:
    world = World()
    world.define(0, 1)
    for nth in range(batches):
        world.append(nth % 2, b"%d." % nth * 20, 1 + nth % 3, nth)
    return world


def test_a_replay_is_passed_over_and_the_start_never_goes_back() -> None:
    world = filled()
    world.take(StreamTrim(0, 17))
    world.carry_out(world.store.plan_checkpoint())
    before = world.held()
    digest = world.store.files(0).digest
    for index, change in enumerate(world.changes, 1):
        world.store.take(index, change)
        assert world.store.files(0).start_index == 17
    assert world.held() == before and world.store.files(0).digest == digest
    assert not world.store.is_dirty


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (StreamAppend(0, 41, 1, 0, b"a gap"), StreamOutOfOrder),
        (StreamAppend(0, 39, 5, 0, b"over the end"), StreamOutOfOrder),
        (StreamAppend(0, 40, 0, 0, b"of nothing"), StreamMisuse),
        (StreamAppend(7, 0, 1, 0, b"nowhere"), UnknownStream),
        (StreamTrim(0, 41), StreamOutOfOrder),
        (StreamTrim(7, 0), UnknownStream),
        (StreamRemove(7), UnknownStream),
    ],
)
def test_what_no_replay_can_bring_is_refused_and_changes_nothing(
    change: StreamAppend | StreamTrim | StreamRemove, error: type[Exception]
) -> None:
    world = filled()
    assert world.twin.next_of(0) == 40
    before = world.held()
    with pytest.raises(error):
        world.store.take(100, change)
    assert world.held() == before


def test_a_removed_id_is_never_used_again_and_its_old_entries_are_passed_over() -> None:
    world = filled()
    world.take(StreamRemove(0))
    world.carry_out(world.store.plan_checkpoint())
    for index, change in enumerate(world.changes, 1):
        world.store.take(index, change)
    assert list(world.store.partitions) == [1]
    with pytest.raises(StreamMisuse):
        world.store.take(1000, StreamDefine(0))
    with pytest.raises(UnknownStream):
        world.store.take(1000, StreamAppend(0, 40, 1, 0, b"too late"))
    assert not [name for name in world.disk.names("streams/parts") if name.startswith("0" * 16)]


def test_a_trim_takes_whole_files_and_a_pinned_view_stays_readable() -> None:
    world = filled(80)
    world.carry_out(world.store.plan_checkpoint())
    world.store.window.close()
    reader = StreamFileReader(world.disk, world.keys, world.config)
    view = take_view(world.store, 0)
    pin = world.store.pins.pin(frozenset())
    files = len(world.disk.names("streams/parts"))
    world.take(StreamTrim(0, 60))
    world.carry_out(world.store.plan_checkpoint())
    assert len(world.disk.names("streams/parts")) == files, "somebody reads them"
    assert reader.read(view, 0, 100)[0].first_index == 0
    later = world.store.pins.pin(frozenset())
    world.store.pins.unpin(pin)
    assert world.store.is_dirty, "a deletion waits for those before it, not for who came later"
    plan = world.store.plan_checkpoint()
    assert any(isinstance(step, DeleteFile) for step in plan.steps)
    world.carry_out(plan)
    world.store.pins.unpin(later)
    assert len(world.disk.names("streams/parts")) < files
    with pytest.raises(ViewExpired):
        reader.read(view, 0, 100)
    with pytest.raises(StreamOutOfRange) as gone:
        take_view(world.store, 0).check(59)
    assert gone.value.facts["start"] == 60
    assert world.held() == world.twin.held()


def test_the_newest_is_read_from_memory_and_memory_is_bounded() -> None:
    memory = StreamMemory(window_bytes_max=500)
    world = World()
    world.store.window._memory = memory
    world.define(*range(6))
    for nth in range(60):
        world.append(nth % 6, b"%d." % nth * 12)
        world.carry_out(world.store.plan_flush())
        assert memory.window_bytes <= 500
        partition = nth % 6
        index = world.twin.next_of(partition) - 1
        view = take_view(world.store, partition, index, 100)
        assert not view.segments, "what was just flushed is still in memory"
        found = StreamFileReader(NOWHERE, world.keys, world.config).read(view, index, 100)
        assert [batch.payload for chunk in found for batch in chunk.batches()] == [
            b"%d." % nth * 12
        ]
    assert world.held() == world.twin.held()
    world.store.fence("over")
    assert memory.window_bytes == 0


def test_a_state_that_has_a_partition_no_more_lets_it_go_and_one_defined_later_stays() -> None:
    world = filled()  # defined at 1 and 2
    world.define(2)
    index = len(world.changes)
    extents = [StreamExtent(0, 0, 40)]
    assert world.store.reconcile(extents, index - 1) == [1]
    assert sorted(world.store.partitions) == [0, 2]
    assert world.store.lacking([StreamExtent(0, 0, 41), StreamExtent(2, 0, 0)]) == [
        StreamExtent(0, 0, 41)
    ]


def test_ten_thousand_idle_partitions_start_quickly_take_little_and_sync_as_one(
    tmp_path: Path,
) -> None:
    count, config, keys = 10_000, StreamConfig(), new_keys()
    disk = BlockingDisk()
    root = disk.open_partition(tmp_path)
    made = create_store(GROUP, StoreId(bytes(16)), keys, config)
    disk.execute(root, made.plan)
    for partition in range(count):
        made.store.take(2 * partition + 1, StreamDefine(partition))
        made.store.take(2 * partition + 2, StreamAppend(partition, 0, 1, 0, b"x" * 40))
    made.store.applied(2 * count)
    plans = 0
    while made.store.durable_raft_index < 2 * count:
        plan = made.store.plan_checkpoint(config.checkpoint_partitions)
        assert sum(isinstance(step, Sync | SyncFiles) for step in plan.steps) == 2
        disk.execute(root, plan.steps)
        made.store.stored(plan.receipt)
        plans += 1
        assert len(os.listdir("/proc/self/fd")) < 1_500
    assert plans == -(-count // config.checkpoint_partitions)
    disk.close()
    storage = DirectoryStorage(tmp_path)
    gc.collect()
    tracemalloc.start()
    began = time.monotonic()
    opened = open_store(storage, keys, config)
    took = time.monotonic() - began
    assert opened is not None and len(opened.store.partitions) == count
    gc.collect()
    each = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    storage.close()
    assert each < 4096, f"{each:.0f} bytes for each"
    assert took < 30, f"{took:.1f} s"
