"""What the tests of real disks share."""

from __future__ import annotations

import ctypes
import errno
import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clustor.log.steps import FileName, Plan, Storage
from clustor.log.types import IoWriterMode
from clustor.runtime.disk import (
    Completion,
    DirectoryStorage,
    Disk,
    Partition,
    PlanToken,
    RingBroken,
    open_mode,
)

ALL_BYTES = 1 << 40
_CACHESTAT = 451


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


@contextmanager
def opened(mode: IoWriterMode) -> Iterator[Disk]:
    """Open a disk in just this mode, or skip where the kernel refuses it."""
    try:
        disk = open_mode(mode)
    except RingBroken as broken:
        pytest.skip(f"{mode.name}: {broken}")
    try:
        yield disk
    finally:
        disk.close()


def take(disk: Disk, count: int) -> list[Completion]:
    """Wait on the eventfd, as a loop would, until `count` plans are over."""
    taken: list[Completion] = []
    while len(taken) < count:
        ready, _, _ = select.select([disk.fileno()], [], [], 60)
        assert ready, f"only {len(taken)} of {count} plans are over after a minute"
        taken += disk.completions()
    assert len(taken) == count
    return taken


def run(disk: Disk, partition: Partition, plan: Plan) -> Completion:
    """Submit one plan and wait for it."""
    disk.submit(partition, plan, PlanToken(7))
    (completion,) = take(disk, 1)
    assert completion.token == 7
    assert completion.partition is partition
    return completion


def succeed(disk: Disk, partition: Partition, plan: Plan) -> Completion:
    completion = run(disk, partition, plan)
    assert completion.error is None, completion.error
    return completion


def visible(storage: Storage, directory: str = "") -> dict[str, bytes | None]:
    """Read everything below `directory`: a file's bytes, or None for a directory."""
    found: dict[str, bytes | None] = {}
    for name in storage.names(directory):
        path = f"{directory}/{name}" if directory else name
        try:
            found[path] = storage.read(FileName(path), 0, ALL_BYTES)
        except IsADirectoryError:
            found[path] = None
            found |= visible(storage, path)
    return found


def contents(root: Path) -> dict[str, bytes | None]:
    storage = DirectoryStorage(root)
    try:
        return visible(storage)
    finally:
        storage.close()


def open_descriptors() -> set[str]:
    """List this process's descriptors by what they lead to, so that a leak has a name."""
    found: set[str] = set()
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{entry} {os.readlink(f'/proc/self/fd/{entry}')}")
        except FileNotFoundError:
            continue  # the descriptor that listed the directory
    return found
