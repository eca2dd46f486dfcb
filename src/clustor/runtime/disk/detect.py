"""Finding the best way to write to a disk, by writing to it."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass
from pathlib import Path

from clustor.log.steps import Create, DeleteFile, FileName, Sync, SyncDirectory, WriteFile
from clustor.log.types import IoWriterMode
from clustor.runtime.disk.blocking import BlockingDisk
from clustor.runtime.disk.errors import DiskError, RingBroken
from clustor.runtime.disk.mounts import filesystem_kind
from clustor.runtime.disk.storage import DirectoryStorage
from clustor.runtime.disk.types import Disk, Downgrade, PlanToken
from clustor.runtime.disk.uring import UringDisk

PROBE_FILE = FileName(".disk-probe")
_ANSWER_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Detection:
    """The best mode that works here, and why the better ones do not."""

    mode: IoWriterMode
    downgrades: tuple[Downgrade, ...]


@dataclass(frozen=True, slots=True)
class Filesystem:
    """What is known of the filesystem below a root before anything is written."""

    fs_block_bytes: int
    """`wal.fs_block_bytes`: the filesystem's preferred block (`st_blksize`)."""
    kind: str
    """The type as the kernel mounts it, or `unknown`."""
    free_bytes: int
    """What is free for this process."""


def detect(root: Path) -> Detection:
    """Try each mode, best first, with a write, a sync and a read back in `root`.

    Raises DiskError when not even blocking writes come back.
    """
    disk = open_disk(root)
    disk.close()
    return Detection(disk.mode, tuple(disk.downgrades))


def open_disk(root: Path, *, best: IoWriterMode = IoWriterMode.FIXED_URING) -> Disk:
    """Open the disk that holds `root` in the best mode that works, but none better than `best`.

    What was tried is what is used: the kernel gives locked memory back late, so a second ring
    could be refused where the first was not. Raises DiskError as `detect` does.
    """
    downgrades: list[Downgrade] = []
    for mode in (IoWriterMode.FIXED_URING, IoWriterMode.REGISTERED_URING):
        if mode < best:
            continue
        try:
            return _tried(mode, root, tuple(downgrades))
        except DiskError as error:
            downgrades.append(Downgrade(mode, str(error)))
    return _tried(IoWriterMode.BLOCKING, root, tuple(downgrades))


def open_mode(mode: IoWriterMode, downgrades: tuple[Downgrade, ...] = ()) -> Disk:
    """Open a disk in just this mode; raise RingBroken when it is a ring that cannot be had."""
    if mode == IoWriterMode.BLOCKING:
        return BlockingDisk(downgrades=downgrades)
    return UringDisk(mode, downgrades=downgrades)


def probe(root: Path) -> Filesystem:
    """Report what the start and the disk policy must know of the filesystem below `root`."""
    status = root.stat()
    space = os.statvfs(root)
    kind = filesystem_kind(status)
    return Filesystem(status.st_blksize, kind, space.f_bavail * space.f_frsize)


def _tried(mode: IoWriterMode, root: Path, downgrades: tuple[Downgrade, ...]) -> Disk:
    """Open a disk, and return it if it proves to work."""
    disk = open_mode(mode, downgrades)
    try:
        _try(disk, root)
    except BaseException:
        disk.close()
        raise
    return disk


def _try(disk: Disk, root: Path) -> None:
    """Write, sync and read back through the ring or the thread, twice: cold, then warm."""
    content = bytes(range(256)) * 16
    mode = disk.mode
    partition = disk.open_partition(root)
    disk.execute(partition, (DeleteFile(PROBE_FILE), Create(PROBE_FILE)))
    for turn in range(2):
        data = content[turn:] + content[:turn]
        disk.submit(partition, (WriteFile(PROBE_FILE, 0, data), Sync(PROBE_FILE)), PlanToken(turn))
        _await_completion(disk)
        storage = DirectoryStorage(root)
        found = storage.read(PROBE_FILE, 0, len(data) + 1)
        storage.close()
        if found != data or disk.mode != mode:
            raise RingBroken("the probe did not read back what it wrote", mode=disk.mode.name)
    disk.execute(partition, (DeleteFile(PROBE_FILE), SyncDirectory("")))
    disk.close_partition(partition)


def _await_completion(disk: Disk) -> None:
    ready, _, _ = select.select([disk.fileno()], [], [], _ANSWER_SECONDS_MAX)
    completions = disk.completions() if ready else []
    if not completions:
        raise RingBroken("no answer to the probe", seconds=_ANSWER_SECONDS_MAX)
    for completion in completions:
        if completion.error is not None:
            raise completion.error
