"""Many files made durable at once: by one syncfs where its word is good, else file by file.

Ten thousand fdatasyncs are ten thousand waits for the journal and the device; one syncfs is one.
It answers for a whole filesystem, so it needs care whose errors it tells, and to whom:

- The kernel notes a failed writeback twice, apart from each other: at the file, for fsync and
  fdatasync, and at the filesystem, for syncfs (since 5.8). Every open descriptor remembers what it
  was told of either. So no syncfs takes an error away from a later fdatasync, not even from that
  of another partition or of the log, and no fdatasync takes one away from syncfs.
- A *success* covers what was written since the descriptor that asks was opened. That is the
  partition's directory, opened before the first byte was written below it. A failure of our
  files can be no older than that, so success cannot have missed one. What an earlier process wrote
  and did not sync is void or applied again; nobody relies on this step for it.
- A *failure* may belong to any file of the filesystem, and may be older than us: an error that
  nobody was told of yet is told to the next who asks. It is therefore no verdict, only a reason to
  ask each file. These stay open from before their bytes were written (`OpenFile.dirty`), so their
  answers are exact: a stranger's error does not fence us, and our own is found where it is.
- Before 5.17 the kernel dropped the error of the filesystem's own commit, and other filesystems
  than those listed are not known to reach the device before they answer (network, FUSE, overlays).
  There each file is asked.

File by file, writeback is started everywhere before anything is waited for: the first wait then
commits the journal for all of them, which takes a third of the time.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from clustor.runtime.disk.mounts import filesystem_kind

WHOLE_FILES_MIN: Final = 64  # below this, what others have written may cost more than it saves
TRUSTED_KINDS: Final = frozenset({"ext4"})
_KERNEL_MIN: Final = (5, 17)
_SYNC_FILE_RANGE_WRITE: Final = 2

SyncFailure: TypeAlias = tuple[int, int] | None
"""Which file of a list failed, and its errno; None for none."""

_libc = ctypes.CDLL(None)
_syncfs = _libc.syncfs
_syncfs.argtypes = (ctypes.c_int,)
_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


def trusts_syncfs(directory: int) -> bool:
    """Say whether success of syncfs on this descriptor means that every byte is durable."""
    found = re.match(r"(\d+)\.(\d+)", platform.release())
    kernel = (int(found[1]), int(found[2])) if found else (0, 0)
    return kernel >= _KERNEL_MIN and filesystem_kind(os.fstat(directory)) in TRUSTED_KINDS


def sync_all(directory: int, descriptors: Sequence[int], *, whole: bool) -> SyncFailure:
    """Make these files durable; None when they are, else which one failed, and its errno.

    `whole` allows one syncfs through `directory`. Touches nothing but descriptors, so that any
    thread may run it.
    """
    if whole and len(descriptors) >= WHOLE_FILES_MIN and _syncfs(directory) == 0:
        return None
    for descriptor in descriptors:
        # Its result is of no use: it consumes no error, and fdatasync tells every one.
        _sync_file_range(descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE)
    for nth, descriptor in enumerate(descriptors):
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            return nth, error.errno or errno.EIO
    return None
