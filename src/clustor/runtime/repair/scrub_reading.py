"""Reading for a scrub: past the page cache, in a thread that everybody else goes before."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from clustor.log.errors import KeyUnavailable, LogError
from clustor.log.keys import KeyRing
from clustor.log.scrub import SegmentSlice, SliceResult, read_slice, read_small_files
from clustor.log.steps import FileName
from clustor.replica import ReplicaDamaged, read_hard_state
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.disk.paths import open_file
from clustor.runtime.disk.storage import read_within
from clustor.snapshot.scrub import SnapshotFile
from clustor.snapshot.scrub import read_piece as check_piece
from clustor.streams import StreamConfig, StreamView, verify_stream

_IOPRIO_SET: Final = 251  # x86-64
_WHO_PROCESS: Final = 1
_CLASS_IDLE: Final = 3 << 13
_NICE: Final = 19


class ColdStorage:
    """A directory's files as the device has them: what the page cache holds is dropped first.

    A bit that turned on the device is invisible as long as the page that was written is still in
    memory. Pages that are not written back yet stay: they are not the device's yet.
    """

    def __init__(self, storage: DirectoryStorage) -> None:
        self._storage = storage.again()

    def names(self, directory: str) -> list[str]:
        return self._storage.names(directory)

    def size(self, file: FileName) -> int:
        return self._storage.size(file)

    def read(self, file: FileName, offset: int, length: int) -> bytes:
        descriptor = open_file(self._storage.root, file, os.O_RDONLY)
        try:
            size = os.fstat(descriptor).st_size
            os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
            return read_within(descriptor, offset, length, size)
        finally:
            with suppress(OSError):  # the log's own readers keep what they need
                os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)

    def close(self) -> None:
        self._storage.close()


def scrub_thread() -> ThreadPoolExecutor:
    """Return one thread whose reads the kernel serves when nobody else wants the disk."""
    return ThreadPoolExecutor(1, "scrub", initializer=_step_back)


def _step_back() -> None:
    """Go behind everybody else; where the kernel refuses, the pace alone must do."""
    thread = threading.get_native_id()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, _NICE)
    if platform.machine() == "x86_64":
        call = ctypes.CDLL(None, use_errno=True).syscall
        call(_IOPRIO_SET, _WHO_PROCESS, thread, _CLASS_IDLE)


def read_piece(
    storage: DirectoryStorage, keys: KeyRing, wanted: SegmentSlice
) -> SliceResult | None:
    """Read a part of a segment; None: it is gone, or its key is, and that is no damage."""
    cold = ColdStorage(storage)
    try:
        return read_slice(cold, keys, wanted)
    except (FileNotFoundError, KeyUnavailable):
        return None
    except LogError as problem:
        return SliceResult(wanted.from_offset, reached_end=False, problem=problem)
    finally:
        cold.close()


def read_snapshot_piece(storage: DirectoryStorage, piece: SnapshotFile) -> Exception | None:
    """Read a file of the snapshots; return what is wrong with it."""
    cold = ColdStorage(storage)
    try:
        return check_piece(cold, piece)
    finally:
        cold.close()


def read_stream_part(
    storage: DirectoryStorage, keys: KeyRing, config: StreamConfig, view: StreamView
) -> Exception | None:
    """Read a file of a stream; return what is wrong with it. Without its key nothing is known."""
    cold = ColdStorage(storage)
    try:
        damage = verify_stream(cold, keys, config, view)
    except KeyUnavailable:
        return None
    finally:
        cold.close()
    return None if damage is None else damage.problem


def read_rest(storage: DirectoryStorage, ledger_bytes: int | None) -> Exception | None:
    """Read what is small: ledger, metadata and hard state. Return what is wrong with them."""
    cold = ColdStorage(storage)
    try:
        read_hard_state(cold)
        return read_small_files(cold, ledger_bytes)
    except ReplicaDamaged as problem:
        return problem
    finally:
        cold.close()
