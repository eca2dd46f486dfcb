"""A completed Sync leaves no dirty page behind: the kernel itself is asked."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest
from tests.clustor.runtime.disk.harness import succeed

from clustor.log.steps import Create, FileName, Plan, Sync, Write
from clustor.runtime.disk import Disk, Partition

_CACHESTAT = 451
WAL = FileName("wal")
LEDGER = FileName("ledger")


class _Range(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint64), ("length", ctypes.c_uint64)]


class _CacheStat(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("cache", "dirty", "writeback", "evicted", "recently")
    ]


def unwritten_pages(path: Path) -> int:
    """Count the file's pages that are dirty or on their way to the disk."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = _CacheStat()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        whole = _Range(0, 0)
        result = libc.syscall(_CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(found), 0)
        if result != 0 and ctypes.get_errno() in {errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP}:
            pytest.skip("the kernel has no cachestat for this file")
        assert result == 0, os.strerror(ctypes.get_errno())
        return int(found.dirty) + int(found.writeback)
    finally:
        os.close(descriptor)


def append_plan(turn: int) -> Plan:
    return (
        Write(WAL, turn * 4096, b"w" * 4096),
        Sync(WAL),
        Write(LEDGER, turn * 64, b"l" * 64),
        Sync(LEDGER),
    )


def test_nothing_is_dirty_when_an_append_completes(
    disk: Disk, partition: Partition, root: Path
) -> None:
    succeed(disk, partition, (Create(WAL), Create(LEDGER)))
    for turn in range(10):
        succeed(disk, partition, append_plan(turn))
        assert (unwritten_pages(root / WAL), unwritten_pages(root / LEDGER)) == (0, 0)


PLANS: dict[str, Plan] = {
    "bytes of an earlier plan": (Write(WAL, 8192, b"b"), Sync(WAL)),
    "two writes, one sync": (Write(WAL, 8192, b"b"), Write(WAL, 0, b"c"), Sync(WAL)),
    "a sync alone": (Sync(WAL),),
    "a write to another file between": (Write(WAL, 0, b"b"), Write(LEDGER, 0, b"c"), Sync(WAL)),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_sync_covers_every_earlier_write(
    disk: Disk, partition: Partition, root: Path, plan: Plan
) -> None:
    succeed(disk, partition, (Create(WAL), Create(LEDGER), Write(WAL, 0, b"x" * 20_000)))
    assert unwritten_pages(root / WAL) > 0
    succeed(disk, partition, plan)
    assert unwritten_pages(root / WAL) == 0


def test_what_someone_left_dirty_is_synced_too(disk: Disk, root: Path) -> None:
    for name in (WAL, LEDGER):
        (root / name).write_bytes(b"x" * 20_000)
    assert unwritten_pages(root / WAL) > 0
    partition = disk.open_partition(root)
    succeed(disk, partition, append_plan(0))
    assert (unwritten_pages(root / WAL), unwritten_pages(root / LEDGER)) == (0, 0)
