"""What a disk does when the kernel says no: nothing is hidden, nothing is tried twice."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clustor.log.steps import Create, FileName, Plan, Sync, SyncDirectory, WriteFile
from clustor.log.types import IoWriterMode
from clustor.runtime.disk import (
    Disk,
    DiskFull,
    FileFenced,
    Partition,
    PlanAbandoned,
    PlanFailed,
    PlanToken,
    RingBroken,
    SyncFailed,
    UringDisk,
    detect,
    open_disk,
    probe,
)
from clustor.runtime.disk import partition as reserving
from clustor.runtime.disk.kernel_ring import KernelRing
from tests.clustor.runtime.disk.harness import contents, opened, run, succeed, take

WAL = FileName("wal")
LEDGER = FileName("ledger")
LIMIT = 1 << 20

APPEND: Plan = (WriteFile(WAL, 0, b"w" * 100), Sync(WAL), WriteFile(LEDGER, 0, b"l"), Sync(LEDGER))


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Let the kernel refuse to grow any file beyond `size_bytes`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def replace_behind(partition: Partition, name: FileName, device: str, *, dirty: bool) -> None:
    """Put a device behind the partition's open descriptor of `name`."""
    file = partition.file(name)
    descriptor = os.open(device, os.O_RDWR)
    os.dup2(descriptor, file.descriptor)
    os.close(descriptor)
    file.dirty = dirty


@pytest.fixture
def files(root: Path) -> None:
    (root / WAL).touch()
    (root / LEDGER).touch()


@pytest.mark.parametrize("warm", [False, True])
def test_a_write_that_does_not_fit_ends_the_plan(
    disk: Disk, partition: Partition, root: Path, files: None, warm: bool
) -> None:
    if warm:
        succeed(disk, partition, (Sync(WAL), Sync(LEDGER)))
    plan = (
        WriteFile(WAL, LIMIT - 100, b"w" * 300),
        Sync(WAL),
        WriteFile(LEDGER, 0, b"l"),
        Sync(LEDGER),
    )
    with file_size_limit(LIMIT):
        failure = run(disk, partition, plan).error
    assert isinstance(failure, PlanFailed)
    assert (failure.step_number, failure.step, failure.file) == (0, "WriteFile", "wal")
    assert failure.errno == errno.EFBIG
    assert contents(root) == {"wal": bytes(LIMIT - 100) + b"w" * 100, "ledger": b""}
    assert partition.fenced == ()
    succeed(disk, partition, plan)
    assert contents(root) == {"wal": bytes(LIMIT - 100) + b"w" * 300, "ledger": b"l"}


@pytest.mark.parametrize("warm", [False, True])
def test_a_full_disk_is_named_so(
    disk: Disk, partition: Partition, root: Path, files: None, warm: bool
) -> None:
    replace_behind(partition, WAL, "/dev/full", dirty=not warm)
    failure = run(disk, partition, APPEND).error
    assert isinstance(failure, DiskFull)
    assert (failure.step_number, failure.file, failure.errno) == (0, "wal", errno.ENOSPC)
    assert contents(root) == {"wal": b"", "ledger": b""}
    assert partition.fenced == ()


def test_after_a_failed_sync_nothing_more_of_the_plan_is_run(
    disk: Disk, partition: Partition, root: Path, files: None
) -> None:
    """The kernel does not break a chain at a failed fsync: the ledger must not follow it."""
    replace_behind(partition, WAL, "/dev/null", dirty=True)
    succeed(disk, partition, (Sync(LEDGER),))
    failure = run(disk, partition, APPEND).error
    assert isinstance(failure, SyncFailed)
    assert (failure.step_number, failure.step, failure.file) == (1, "Sync", "wal")
    assert failure.errno == errno.EINVAL
    assert contents(root) == {"wal": b"", "ledger": b""}


def test_a_write_that_could_not_be_synced_counts_as_a_failed_sync(
    ring_disk: UringDisk, root: Path, files: None
) -> None:
    """Where write and sync are one call, its EIO may come from either: the file is fenced."""
    partition = ring_disk.open_partition(root)
    replace_behind(partition, WAL, "/proc/self/mem", dirty=False)
    failure = run(ring_disk, partition, APPEND).error
    assert isinstance(failure, SyncFailed)
    assert (failure.step_number, failure.errno) == (1, errno.EIO)
    assert contents(root) == {"wal": b"", "ledger": b""}
    assert partition.fenced == ("wal",)


def test_a_fenced_file_is_refused_from_then_on(
    disk: Disk, partition: Partition, root: Path, files: None
) -> None:
    replace_behind(partition, WAL, "/dev/null", dirty=True)
    assert isinstance(run(disk, partition, APPEND).error, SyncFailed)
    for plan in (APPEND, (Sync(WAL),), (WriteFile(LEDGER, 0, b"x"), WriteFile(WAL, 0, b"x"))):
        refusal = run(disk, partition, plan).error
        assert isinstance(refusal, FileFenced)
        assert refusal.file == "wal"
        with pytest.raises(FileFenced):
            disk.execute(partition, plan)
    succeed(disk, partition, (WriteFile(LEDGER, 0, b"still well"), Sync(LEDGER)))
    assert contents(root) == {"wal": b"", "ledger": b"still well"}


def test_plans_behind_a_failed_one_are_not_run(
    disk: Disk, partition: Partition, root: Path, tmp_path: Path, files: None
) -> None:
    (tmp_path / "other").mkdir()
    other = disk.open_partition(tmp_path / "other")
    disk.submit(partition, (WriteFile(FileName("missing"), 0, b"x"),), PlanToken(0))
    for token in range(1, 1500):
        disk.submit(partition, (WriteFile(WAL, 0, b"no"), Sync(WAL)), PlanToken(token))
    disk.submit(other, (Create(WAL),), PlanToken(0))
    completions = take(disk, 1501)
    errors = {each.token: each.error for each in completions if each.partition is partition}
    assert isinstance(errors[PlanToken(0)], PlanFailed)
    assert all(isinstance(errors[PlanToken(token)], PlanAbandoned) for token in range(1, 1500))
    assert [each.error for each in completions if each.partition is other] == [None]
    assert contents(root) == {"wal": b"", "ledger": b""}
    succeed(disk, partition, (WriteFile(WAL, 0, b"yes"), Sync(WAL)))


def test_a_reservation_without_room_leaves_no_file(
    disk: Disk, partition: Partition, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = probe(root).free_bytes * 4
    monkeypatch.setattr(reserving, "RESERVE_STEP_BYTES", wanted)
    plan = (Create(WAL, reserve_bytes=wanted),)
    failure = run(disk, partition, plan).error
    assert isinstance(failure, PlanFailed)
    assert failure.errno in {errno.ENOSPC, errno.EFBIG}
    assert contents(root) == {}


def break_ring(disk: UringDisk) -> None:
    assert disk._ring is not None
    descriptor = os.open("/dev/null", os.O_RDONLY)
    os.dup2(descriptor, disk._ring._ring.descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("mode", [IoWriterMode.REGISTERED_URING, IoWriterMode.FIXED_URING])
def test_a_broken_ring_fails_what_was_under_way_and_goes_on_without(
    mode: IoWriterMode, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with opened(mode) as disk:
        assert isinstance(disk, UringDisk)
        partition, other = disk.open_partition(root), disk.open_partition(tmp_path / "other")
        for each in (partition, other):
            succeed(disk, each, (Create(WAL), Create(LEDGER), *APPEND, SyncDirectory("")))
        break_ring(disk)
        assert isinstance(run(disk, partition, APPEND).error, RingBroken)
        assert disk.mode == IoWriterMode.BLOCKING
        assert [downgrade.mode for downgrade in disk.downgrades] == [mode]
        assert "takes no submissions" in disk.downgrades[0].reason
        assert isinstance(run(disk, partition, APPEND).error, FileFenced)
        succeed(
            disk,
            other,
            (WriteFile(WAL, 0, b"on"), Sync(WAL), WriteFile(LEDGER, 0, b"!"), Sync(LEDGER)),
        )
        assert contents(tmp_path / "other")["wal"] == b"on" + b"w" * 98


def test_a_ring_that_takes_no_files_is_given_up_before_anything_is_written(root: Path) -> None:
    with opened(IoWriterMode.REGISTERED_URING) as disk:
        assert isinstance(disk, UringDisk)
        partition = disk.open_partition(root)
        break_ring(disk)
        succeed(disk, partition, (Create(WAL), Create(LEDGER), *APPEND))
        assert disk.mode == IoWriterMode.BLOCKING
        assert partition.fenced == ()
        assert contents(root) == {"wal": b"w" * 100, "ledger": b"l"}


def refuse(code: int) -> object:
    def refused(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return refused


def test_detection_takes_the_best_that_reads_back_and_leaves_nothing(root: Path) -> None:
    detection = detect(root)
    assert len(detection.downgrades) == detection.mode - 1
    assert os.listdir(root) == []


def test_without_registered_buffers_files_are_still_registered(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if detect(root).mode != IoWriterMode.FIXED_URING:
        pytest.skip("the kernel refuses io_uring")
    monkeypatch.setattr(KernelRing, "register_buffers", refuse(errno.ENOMEM))
    disk = open_disk(root)
    assert disk.mode == IoWriterMode.REGISTERED_URING
    assert [each.mode for each in disk.downgrades] == [IoWriterMode.FIXED_URING]
    assert os.strerror(errno.ENOMEM) in disk.downgrades[0].reason
    disk.close()


def test_without_io_uring_a_thread_writes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KernelRing, "__init__", refuse(errno.EPERM))
    disk = open_disk(root)
    assert disk.mode == IoWriterMode.BLOCKING
    modes = [each.mode for each in disk.downgrades]
    assert modes == [IoWriterMode.FIXED_URING, IoWriterMode.REGISTERED_URING]
    disk.close()


def test_a_mode_can_be_asked_for(root: Path) -> None:
    disk = open_disk(root, best=IoWriterMode.BLOCKING)
    assert disk.mode == IoWriterMode.BLOCKING
    disk.close()


def test_a_root_that_cannot_be_written_is_an_error(root: Path) -> None:
    with file_size_limit(0), pytest.raises(PlanFailed):
        detect(root)


def test_the_probe_reports_what_the_kernel_knows(root: Path) -> None:
    found = probe(root)
    assert found.fs_block_bytes == root.stat().st_blksize
    assert 0 < found.free_bytes <= os.statvfs(root).f_blocks * os.statvfs(root).f_frsize
    assert found.kind in Path("/proc/filesystems").read_text()
