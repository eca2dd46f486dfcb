"""Many files are synced as one step: at once where that can be trusted, and never less surely."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from clustor.log.steps import Create, FileName, Plan, Step, Sync, SyncFiles, WriteFile
from clustor.runtime.disk import (
    BlockingDisk,
    Disk,
    FileFenced,
    Partition,
    PlanToken,
    SyncFailed,
    UringDisk,
    bulk,
)
from tests.clustor.runtime.disk.harness import contents, run, succeed, take, unwritten_pages
from tests.clustor.runtime.disk.test_faults import replace_behind

NAMES = tuple(FileName(f"part-{at:03}") for at in range(100))
CREATED: Plan = tuple(Create(name) for name in NAMES)
WRITTEN: Plan = tuple(WriteFile(name, 0, name.encode() * 100) for name in NAMES)


class Calls:
    """Counts what the kernel is asked, and can let syncfs fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, trusted: bool = True) -> None:
        self.whole = 0
        self.single: list[int] = []
        self.fails = False
        self._syncfs, self._fdatasync = bulk._syncfs, os.fdatasync
        monkeypatch.setattr(bulk, "_syncfs", self._on_syncfs)
        monkeypatch.setattr(os, "fdatasync", self._on_fdatasync)
        monkeypatch.setattr("clustor.runtime.disk.partition.trusts_syncfs", lambda _: trusted)

    def _on_syncfs(self, descriptor: int) -> int:
        self.whole += 1
        return -1 if self.fails else int(self._syncfs(descriptor))

    def _on_fdatasync(self, descriptor: int) -> None:
        self.single.append(descriptor)
        self._fdatasync(descriptor)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


def test_a_hundred_files_are_durable_by_one_call(
    disk: Disk, partition: Partition, root: Path, calls: Calls
) -> None:
    succeed(disk, partition, (*CREATED, *WRITTEN, SyncFiles(NAMES)))
    assert (calls.whole, calls.single) == (1, [])
    assert all(unwritten_pages(root / name) == 0 for name in NAMES)
    succeed(disk, partition, (SyncFiles(NAMES),))
    assert (calls.whole, calls.single) == (1, []), "what is clean asks for nothing"
    succeed(disk, partition, (WriteFile(NAMES[0], 0, b"x"), SyncFiles(NAMES)))
    assert (calls.whole, len(calls.single)) == (1, 1), "and one file is asked by itself"
    assert unwritten_pages(root / NAMES[0]) == 0


def test_where_syncfs_is_not_to_be_trusted_every_file_is_asked(
    disk: Disk, partition: Partition, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch, trusted=False)
    succeed(disk, partition, (*CREATED, *WRITTEN, SyncFiles(NAMES)))
    assert (calls.whole, len(calls.single)) == (0, len(NAMES))
    assert all(unwritten_pages(root / name) == 0 for name in NAMES)


def test_a_strangers_error_fences_nobody_because_the_files_know_better(
    disk: Disk, partition: Partition, root: Path, calls: Calls
) -> None:
    calls.fails = True
    succeed(disk, partition, (*CREATED, *WRITTEN, SyncFiles(NAMES)))
    assert (calls.whole, len(calls.single)) == (1, len(NAMES))
    assert partition.fenced == ()
    assert all(unwritten_pages(root / name) == 0 for name in NAMES)


def test_our_own_error_is_found_at_its_file_which_is_fenced(
    disk: Disk, partition: Partition, root: Path, calls: Calls
) -> None:
    calls.fails = True
    succeed(disk, partition, (*CREATED, *WRITTEN))
    replace_behind(partition, NAMES[7], "/dev/null", dirty=True)
    after: Step = WriteFile(NAMES[0], 0, b"never")
    failure = run(disk, partition, (SyncFiles(NAMES), after)).error
    assert isinstance(failure, SyncFailed)
    assert (failure.step_number, failure.step, failure.file) == (0, "SyncFiles", NAMES[7])
    assert failure.errno == errno.EINVAL
    assert partition.fenced == (NAMES[7],)
    assert contents(root)[NAMES[0]] == NAMES[0].encode() * 100
    refusal = run(disk, partition, (SyncFiles(NAMES[5:9]),)).error
    assert isinstance(refusal, FileFenced) and refusal.file == NAMES[7]


def test_only_known_filesystems_and_kernels_are_trusted(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.open(root, os.O_RDONLY)
    proc = os.open("/proc", os.O_RDONLY)
    monkeypatch.setattr(bulk, "filesystem_kind", lambda _: "ext4")
    found = []
    for release in ("5.16.9-generic", "5.17.0", "6.18.44-fc", "10.0", "strange"):
        monkeypatch.setattr("platform.release", lambda release=release: release)
        found.append(bulk.trusts_syncfs(descriptor))
    assert found == [False, True, True, True, False]
    monkeypatch.undo()
    assert not bulk.trusts_syncfs(proc)
    os.close(descriptor)
    os.close(proc)


def test_a_loop_goes_on_while_a_ring_syncs_many_files(
    ring_disk: UringDisk, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    partition, other = ring_disk.open_partition(root), ring_disk.open_partition(tmp_path / "other")
    succeed(ring_disk, partition, (*CREATED, *WRITTEN))
    gate = threading.Event()
    real = bulk.sync_all

    def slow(directory: int, descriptors: list[int], *, whole: bool) -> bulk.SyncFailure:
        gate.wait()
        return real(directory, descriptors, whole=whole)

    monkeypatch.setattr("clustor.runtime.disk.partition.sync_all", slow)
    write = (WriteFile(NAMES[0], 0, b"after"), Sync(NAMES[0]))
    ring_disk.submit(partition, (SyncFiles(NAMES), *write), PlanToken(1))
    ring_disk.submit(partition, (Create(FileName("next")),), PlanToken(2))
    ring_disk.submit(other, (Create(FileName("a")),), PlanToken(3))
    assert [each.token for each in take(ring_disk, 1)] == [3], "another partition does not wait"
    assert not (root / "next").exists(), "the same one does"
    gate.set()
    assert [(each.token, each.error) for each in take(ring_disk, 2)] == [(1, None), (2, None)]
    assert contents(root)[NAMES[0]].startswith(b"after")  # type: ignore[union-attr]


def test_closing_waits_for_a_bulk_sync(disk: Disk, root: Path) -> None:
    partition = disk.open_partition(root)
    disk.submit(partition, (*CREATED, *WRITTEN, SyncFiles(NAMES)), PlanToken(1))
    disk.close()
    assert [(each.token, each.error) for each in disk.completions()] == [(1, None)]
    assert all(unwritten_pages(root / name) == 0 for name in NAMES)


def test_thousands_of_dirty_files_are_opened_without_looking_at_each_other(root: Path) -> None:
    """A table over its limit, all of it dirty, is not searched for every file that is added."""
    disk = BlockingDisk(open_files_max=4)
    partition = disk.open_partition(root)
    succeed(disk, partition, (*CREATED, *WRITTEN))
    assert len(disk._table) == len(NAMES)
    looked: list[object] = []
    files = disk._table._files

    class Watched(type(files)):  # type: ignore[misc]
        def move_to_end(self, key: object, last: bool = True) -> None:
            looked.append(key)
            super().move_to_end(key, last)

    disk._table._files = Watched(files)
    succeed(disk, partition, (Create(FileName("one more")),))
    assert len(looked) <= 64
    succeed(disk, partition, (SyncFiles(NAMES),))
    for at in range(3):
        succeed(disk, partition, (Create(FileName(f"again {at}")),))
    assert len(disk._table) <= 4
    disk.close()
