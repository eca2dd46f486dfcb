"""Reads beside the loop give what blocking reads give, and never make the loop wait."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from clustor.log.errors import ChecksumMismatch
from clustor.log.keys import KeyRing
from clustor.log.steps import FileName
from clustor.log.types import Entry, LogIndex, Term
from clustor.runtime.disk import BlockingDisk, DirectoryStorage
from clustor.runtime.segmented_reader import PartitionStorage, ReaderBusy, SegmentedReader
from clustor.segmented import (
    Automatic,
    Chunk,
    IndexOutOfRange,
    Majority,
    PartitionReader,
    PolicyRegistry,
    RetentionPolicy,
    SegmentedConfig,
    StoredBatch,
    StoreId,
    StorePlan,
    TimestampMs,
    TopicPartitionId,
    UnknownPartition,
    ViewExpired,
    create_group,
)
from tests.clustor.log.harness import new_keys
from tests.clustor.runtime.disk.harness import open_descriptors
from tests.clustor.segmented.harness import ALONE, GROUP, ME, batch

CONFIG = SegmentedConfig(segment_bytes=3000, run_bytes=600, index_interval_bytes=900)
P = TopicPartitionId(0)


class Store:
    """A group of one on a real disk; its log is left out, since nothing here starts anew."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.keys: KeyRing = new_keys()
        self._disk = BlockingDisk()
        self._files = self._disk.open_partition(root)
        self.group, plan = create_group(
            GROUP, StoreId(bytes(16)), self.keys, CONFIG, members=ALONE, registry=PolicyRegistry()
        )
        self._disk.execute(self._files, plan)
        wanted = {TopicPartitionId(at): (Majority(), Automatic()) for at in range(3)}
        self.carry_out(self.group.plan_define(wanted))
        self._index = 0

    def carry_out(self, plan: StorePlan | None) -> None:
        if plan is not None:
            self._disk.execute(self._files, plan.steps)
            self.group.stored(plan.receipt)

    def append(self, partition: int, payload: bytes, count: int = 1, timestamp: int = 0) -> None:
        self._index += 1
        proposed = self.group.propose([batch(partition, payload, count, timestamp)])
        entry = Entry(Term(1), LogIndex(self._index), proposed)
        self.group.appended([entry], 0)
        self.group.fsynced(ME, entry.index)
        self.group.apply([entry])

    def fill(self, batches: int, *, every: int = 7) -> None:
        for nth in range(batches):
            self.append(nth % 3, b"%d." % nth * (20 + nth % 40), 1 + nth % 3, 1000 + nth * 10)
            if nth % every == every - 1:
                self.carry_out(self.group.plan_checkpoint())

    def twin(self, storage: DirectoryStorage) -> PartitionReader:
        return PartitionReader(storage, self.keys, CONFIG)

    def reader(self, **options: int) -> SegmentedReader:
        return SegmentedReader(self.root, self.group, self.keys, CONFIG, **options)

    def close(self) -> None:
        self._disk.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    yield made
    made.close()


def listed(chunks: list[Chunk]) -> list[StoredBatch]:
    return [at for chunk in chunks for at in chunk.batches()]


async def test_every_read_is_that_of_the_blocking_twin(store: Store) -> None:
    store.fill(150)
    storage = DirectoryStorage(store.root)
    twin, reader = store.twin(storage), store.reader()
    rng = Random(1)
    for _ in range(300):
        partition = TopicPartitionId(rng.randrange(3))
        view = store.group.view(partition)
        index = rng.randrange(view.start_index, view.readable_next + 1)
        bytes_max = rng.choice((1, 100, 1000, 5000))
        expected = listed(twin.read(view, index, bytes_max))
        found = listed(await reader.read(partition, index, bytes_max))
        # What is in memory is cut by its own lengths, so only where the answer ends may differ.
        shared = min(len(found), len(expected))
        assert found[:shared] == expected[:shared]
        assert bool(found) == bool(expected)
        time = TimestampMs(rng.randrange(900, 2700))
        assert await reader.find_time(partition, time) == twin.find_time(view, time)
        newer = listed(await reader.read_from_time(partition, time, bytes_max))
        assert all(at.timestamp >= time for at in newer[:1])
    reader.close()
    storage.close()


async def test_a_consumer_reads_everything_once_and_in_order(store: Store) -> None:
    reader = store.reader()
    seen: list[StoredBatch] = []
    for nth in range(60):
        store.append(0, b"%d" % nth * 30, count=2)
        if nth % 5 == 0:
            store.carry_out(store.group.plan_checkpoint())
        if nth % 3 == 0:
            index = seen[-1].next_index if seen else 0
            seen += listed(await reader.read(P, index, 400))
    while more := listed(await reader.read(P, seen[-1].next_index, 400)):
        seen += more
    assert [at.payload for at in seen] == [b"%d" % nth * 30 for nth in range(60)]
    reader.close()


async def test_what_is_in_memory_is_served_without_a_thread(store: Store) -> None:
    store.fill(20, every=1000)
    reader = store.reader()
    assert listed(await reader.read(P, 0, 10_000))
    assert reader._pool._threads == set()  # none was started
    store.carry_out(store.group.plan_checkpoint())
    assert listed(await reader.read(P, 0, 10_000))
    assert len(reader._pool._threads) == 1
    reader.close()


class Gate:
    """Holds every read of a partition file until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.now = self.most = 0
        self._lock = threading.Lock()
        real = PartitionStorage.read
        gate = self

        def read(storage: PartitionStorage, file: FileName, offset: int, length: int) -> bytes:
            with gate._lock:
                gate.now += 1
                gate.most = max(gate.most, gate.now)
            gate.open.wait()
            with gate._lock:
                gate.now -= 1
            return real(storage, file, offset, length)

        monkeypatch.setattr(PartitionStorage, "read", read)


async def test_the_loop_goes_on_and_no_more_reads_run_than_there_are_threads(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.fill(60)
    gate = Gate(monkeypatch)
    reader = store.reader(threads=2, reads_max=6)
    waiting = [asyncio.ensure_future(reader.read(P, 0, 1000)) for _ in range(6)]
    await asyncio.sleep(0)  # they begin; were the loop to wait, this would never come back
    with pytest.raises(ReaderBusy):
        await reader.read(P, 0, 1000)
    gate.open.set()
    answers = [listed(found) for found in await asyncio.gather(*waiting)]
    assert answers[0] and all(answer == answers[0] for answer in answers)
    assert gate.most <= 2
    assert listed(await reader.read(P, 0, 1000)) == answers[0], "and then there is room again"
    reader.close()


async def test_a_read_that_is_given_up_frees_its_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.fill(30)
    gate = Gate(monkeypatch)
    reader = store.reader(threads=1, reads_max=1)
    task = asyncio.ensure_future(reader.read(P, 0, 1000))
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    gate.open.set()
    assert listed(await reader.read(P, 0, 1000))
    reader.close()


async def test_a_file_that_goes_while_it_is_read_costs_a_new_view_and_no_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.fill(90)
    gate = Gate(monkeypatch)
    reader = store.reader()
    task = asyncio.ensure_future(reader.read_from_time(P, TimestampMs(0), 1000))
    await asyncio.sleep(0)
    start = store.group.view(P).start_index
    policies = {P: RetentionPolicy(size_bytes=4000)}
    store.carry_out(store.group.plan_retention(policies, TimestampMs(0)))
    assert store.group.view(P).start_index > start
    gate.open.set()
    found = listed(await task)
    assert found[0].first_index == store.group.view(P).start_index
    reader.close()


async def test_what_cannot_be_read_is_said_as_the_twin_says_it(store: Store) -> None:
    store.fill(30)
    reader = store.reader()
    with pytest.raises(IndexOutOfRange):
        await reader.read(P, 10**6, 100)
    with pytest.raises(UnknownPartition):
        await reader.read(TopicPartitionId(77), 0, 100)
    part = min((store.root / "segmented/parts").glob("0000000000000000-*.seg"))
    data = bytearray(part.read_bytes())
    data[80] ^= 1
    part.write_bytes(data)
    with pytest.raises(ChecksumMismatch):
        await reader.read(P, 0, 100)
    part.unlink()
    with pytest.raises(ViewExpired):
        await reader.read(P, 0, 100)
    reader.close()


async def test_closing_leaves_no_descriptor_and_no_thread(store: Store) -> None:
    store.fill(60)
    before, threads = open_descriptors(), threading.active_count()
    reader = store.reader()
    for at in range(3):
        await reader.read(TopicPartitionId(at), 0, 100)
    reader.close()
    assert open_descriptors() == before
    assert threading.active_count() == threads


# The storage


def test_open_files_are_bounded_and_removed_ones_are_let_go(tmp_path: Path) -> None:
    storage = PartitionStorage(tmp_path, files_max=3)
    names = [FileName(f"{at}.seg") for at in range(6)]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 3)
        assert storage.read(name, 1, 4) == (name.encode() * 3)[1:5]
    held = [line for line in open_descriptors() if line.endswith(".seg")]
    assert len(held) == 3
    (tmp_path / names[5]).unlink()
    with pytest.raises(FileNotFoundError):
        storage.read(names[5], 0, 1)
    (tmp_path / names[4]).unlink()
    storage.read(names[0], 0, 1)
    assert not [line for line in open_descriptors() if "(deleted)" in line and ".seg" in line]
    storage.close()


def test_a_file_that_grows_is_read_to_its_new_end(tmp_path: Path) -> None:
    storage = PartitionStorage(tmp_path)
    name = FileName("a.seg")
    (tmp_path / name).write_bytes(b"12")
    assert storage.read(name, 0, 9) == b"12"
    with (tmp_path / name).open("ab") as file:
        file.write(b"345")
    assert storage.read(name, 1, 9) == b"2345"
    assert storage.read(name, 9, 9) == b""
    storage.close()


def test_other_files_are_opened_for_each_read(tmp_path: Path) -> None:
    """They may be replaced under the same name, as an index or the metadata is."""
    storage = PartitionStorage(tmp_path)
    name = FileName("a.idx")
    (tmp_path / name).write_bytes(b"old")
    assert storage.read(name, 0, 9) == b"old"
    (tmp_path / "b").write_bytes(b"new")
    os.rename(tmp_path / "b", tmp_path / name)
    assert storage.read(name, 0, 9) == b"new"
    storage.close()
