"""Finding the best way to write to a disk, by writing to it."""

from __future__ import annotations

import os
import select
from dataclasses import dataclass
from pathlib import Path

from clustor.log.steps import Create, Delete, FileName, Sync, SyncDirectory, Write
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
    downgrades: list[Downgrade] = []
    for mode in (IoWriterMode.FIXED_URING, IoWriterMode.REGISTERED_URING):
        try:
            _try(mode, root)
        except DiskError as error:
            downgrades.append(Downgrade(mode, str(error)))
        else:
            return Detection(mode, tuple(downgrades))
    _try(IoWriterMode.BLOCKING, root)
    return Detection(IoWriterMode.BLOCKING, tuple(downgrades))


def open_disk(root: Path, *, best: IoWriterMode = IoWriterMode.FIXED_URING) -> Disk:
    """Open the disk that holds `root` in the best mode that works, but none better than `best`."""
    detection = detect(root)
    return open_mode(max(detection.mode, best), detection.downgrades)


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


def _try(mode: IoWriterMode, root: Path) -> None:
    """Write, sync and read back through the ring or the thread, twice: cold, then warm."""
    content = bytes(range(256)) * 16
    disk = open_mode(mode)
    try:
        partition = disk.open_partition(root)
        disk.execute(partition, (Delete(PROBE_FILE), Create(PROBE_FILE)))
        for turn in range(2):
            data = content[turn:] + content[:turn]
            disk.submit(partition, (Write(PROBE_FILE, 0, data), Sync(PROBE_FILE)), PlanToken(turn))
            _await_completion(disk)
            storage = DirectoryStorage(root)
            found = storage.read(PROBE_FILE, 0, len(data) + 1)
            storage.close()
            if found != data or disk.mode != mode:
                raise RingBroken("the probe did not read back what it wrote", mode=disk.mode.name)
        disk.execute(partition, (Delete(PROBE_FILE), SyncDirectory("")))
    finally:
        disk.close()


def _await_completion(disk: Disk) -> None:
    ready, _, _ = select.select([disk.fileno()], [], [], _ANSWER_SECONDS_MAX)
    completions = disk.completions() if ready else []
    if not completions:
        raise RingBroken("no answer to the probe", seconds=_ANSWER_SECONDS_MAX)
    for completion in completions:
        if completion.error is not None:
            raise completion.error
