"""The default fold: an append-only log of records, and the folded state in memory.

A flush is a `write` into the page cache: it survives the death of the process, not of the
machine. What power loss takes is delivered again. The only sync is in a compaction, before the
new file takes the old one's place.
"""

from __future__ import annotations

import enum
import logging
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from slipstream.errors import SnapshotIo
from slipstream.folds.lock import FoldLock
from slipstream.folds.log_format import (
    HEADER,
    decode_tail,
    encode_compact,
    encode_cursor,
    encode_delete,
    encode_put,
    encode_tail,
    encode_update,
    key_bytes,
    replay_log,
)
from slipstream.folds.store import SnapshotStore
from slipstream.types import KvEntry, KvUpdate, UpdateKind, WatchCursor

logger = logging.getLogger(__name__)

DEFAULT_COMPACT_BYTES: Final = 10 * 1024 * 1024


class WriterState(enum.Enum):
    """Where the writer stands."""

    APPENDING = "appending"
    NEEDS_COMPACT = "needs compact"
    POISONED = "poisoned"


class SnapshotWriter:
    """Appends records to a log; holds no state but what it has not flushed yet.

    The log grows to its last compacted size plus `compact_bytes` before a compaction is due, so
    that the work of compacting stays a constant share of the work of appending.
    """

    def __init__(self, path: Path, *, clean_bytes: int, compact_bytes: int) -> None:
        self._path = path
        self._compact_bytes = compact_bytes
        self._buffer = bytearray()
        self._size = clean_bytes
        self._compacted_size = clean_bytes
        self._state = WriterState.APPENDING
        self._descriptor = _open_log(path, clean_bytes)
        if clean_bytes == 0:
            self._append(HEADER)

    @property
    def state(self) -> WriterState:
        """Where the writer stands."""
        return self._state

    def write_update(self, update: KvUpdate) -> None:
        """Buffer one update."""
        self._require_usable()
        self._buffer += encode_update(update)

    def write_records(self, records: bytes) -> None:
        """Buffer records that are already encoded."""
        self._require_usable()
        self._buffer += records

    def checkpoint(self, cursor: WatchCursor) -> bool:
        """Flush what is buffered and the cursor in one write; say whether a compaction is due.

        On an error nothing of it remains, and the buffer is given up: the caller has the batch.
        """
        self._require_usable()
        records = bytes(self._buffer) + encode_cursor(cursor)
        self._buffer.clear()
        self._append(records)
        limit = max(self._compact_bytes, self._compacted_size)
        if self._size - self._compacted_size >= limit:
            self._state = WriterState.NEEDS_COMPACT
        return self._state is WriterState.NEEDS_COMPACT

    def compact(self, entries: Mapping[bytes, bytes], cursor: WatchCursor) -> None:
        """Put a compacted file, synced, in the log's place; poisoned if the new one won't open.

        When it cannot be written the log stays, and the next one is due when it has doubled.
        """
        self.postpone()
        size = write_compact(self._path, entries, cursor)
        os.close(self._descriptor)
        try:
            self._descriptor = _open_log(self._path, size)
        except SnapshotIo:
            self._descriptor, self._state = -1, WriterState.POISONED
            raise
        self._size = self._compacted_size = size

    def postpone(self) -> None:
        """Leave a due compaction until the log has doubled."""
        self._require_usable()
        self._state, self._compacted_size = WriterState.APPENDING, self._size

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._state = WriterState.POISONED

    def _append(self, records: bytes) -> None:
        try:
            written = os.write(self._descriptor, records)
            if written != len(records):
                raise OSError(f"only {written} of {len(records)} bytes were written")
        except OSError as error:
            self._take_back()
            raise SnapshotIo("cannot append to the log", file=str(self._path)) from error
        self._size += len(records)

    def _take_back(self) -> None:
        """Cut half a write off again; a log that cannot be cut must not be appended to."""
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self._state = WriterState.POISONED

    def _require_usable(self) -> None:
        if self._state is WriterState.POISONED:
            raise SnapshotIo("snapshot writer poisoned", file=str(self._path))


class AppendLogSnapshot(SnapshotStore):
    """A fold in memory with its log on disk; for folds that fit in memory."""

    backend: ClassVar[str] = "append-log"
    format_generation: ClassVar[int] = 1
    artifact_member: ClassVar[str | None] = "snapshot.log"

    def __init__(
        self,
        lock: FoldLock,
        writer: SnapshotWriter,
        entries: dict[bytes, bytes],
        cursor: WatchCursor,
    ) -> None:
        self._lock = lock
        self._writer = writer
        self._entries = entries  # key → the put's tail, as it stands in the log
        self._cursor = cursor
        self._sorted: list[bytes] | None = None  # None when keys came or went since
        self._dead_records = 0  # in the log and of no more use, since it was compacted

    @classmethod
    def load(cls, path: Path | str, *, compact_bytes: int = DEFAULT_COMPACT_BYTES) -> Self:
        """Replay the log into memory; rewrite it when it holds more than the fold."""
        path = Path(path)
        lock = FoldLock(path)
        try:
            return cls._load(path, lock, compact_bytes)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _load(cls, path: Path, lock: FoldLock, compact_bytes: int) -> Self:
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise SnapshotIo("cannot read the log", file=str(path)) from error
        log = replay_log(data)
        clean_bytes = log.clean_bytes
        if data and not log.compact:
            clean_bytes = write_compact(path, log.entries, log.cursor)
        writer = SnapshotWriter(path, clean_bytes=clean_bytes, compact_bytes=compact_bytes)
        return cls(lock, writer, log.entries, log.cursor)

    @property
    def cursor(self) -> WatchCursor:
        return self._cursor

    @property
    def writer_state(self) -> WriterState:
        """Where the log's writer stands."""
        return self._writer.state

    def apply(self, batch: Sequence[KvUpdate], cursor: WatchCursor) -> None:
        records: list[bytes] = []
        changes: list[tuple[bytes, bytes | None]] = []
        for update in batch:
            key = key_bytes(update.key)
            if update.kind is UpdateKind.PUT:
                tail = encode_tail(update.value, update.version.raw)
                records.append(encode_put(key, tail))
                changes.append((key, tail))
            else:
                records.append(encode_delete(key, update.version.raw))
                changes.append((key, None))
        self._writer.write_records(b"".join(records))
        due = self._writer.checkpoint(cursor)
        self._fold(changes)
        self._cursor = cursor
        if due:
            self._compact()

    def _compact(self) -> None:
        """Compact if at least half of the log is of no more use: a growing fold has no waste.

        A failure costs disk space and nothing else, unless it poisoned the writer.
        """
        if self._dead_records < len(self._entries):
            self._writer.postpone()
            return
        try:
            self._writer.compact(self._entries, self._cursor)
            self._dead_records = 0
        except SnapshotIo as error:
            if self._writer.state is WriterState.POISONED:
                raise
            logger.warning("the log was not compacted: %s", error)

    def _fold(self, changes: list[tuple[bytes, bytes | None]]) -> None:
        entries = self._entries
        before = len(entries)
        removed = False
        for key, tail in changes:
            if tail is None:
                removed = entries.pop(key, None) is not None or removed
            else:
                entries[key] = tail
        if removed or len(entries) != before:
            self._sorted = None
        # A record that did not add a key made one useless; the last cursor did so as well.
        self._dead_records += len(changes) - (len(entries) - before) + 1

    def get(self, key: str) -> KvEntry | None:
        tail = self._entries.get(key.encode())
        return None if tail is None else decode_tail(key, tail)

    def iterate(self, prefix: str = "") -> Iterator[KvEntry]:
        for key in self._keys_under(prefix.encode()):
            tail = self._entries.get(key)
            if tail is not None:
                yield decode_tail(key.decode(), tail)

    def keys(self, prefix: str = "") -> Iterator[str]:
        return (key.decode() for key in self._keys_under(prefix.encode()))

    def _keys_under(self, prefix: bytes) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._entries)
        if not prefix:
            return self._sorted
        start = bisect_left(self._sorted, prefix)
        end = start
        while end < len(self._sorted) and self._sorted[end].startswith(prefix):
            end += 1
        return self._sorted[start:end]

    def write_copy(self, directory: Path) -> None:
        assert self.artifact_member is not None
        write_compact(directory / self.artifact_member, self._entries, self._cursor)

    def close(self) -> None:
        self._writer.close()
        self._lock.release()


def write_compact(path: Path, entries: Mapping[bytes, bytes], cursor: WatchCursor) -> int:
    """Write a compacted log beside `path`, sync it, and rename it there; give its size."""
    data = encode_compact(entries, cursor)
    beside = path.with_name(f".{path.name}.compact")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
        sync_directory(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise SnapshotIo("cannot compact the log", file=str(path)) from error
    return len(data)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_log(path: Path, clean_bytes: int) -> int:
    """Open for appending, with a torn tail cut off."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.ftruncate(descriptor, clean_bytes)
    except OSError as error:
        raise SnapshotIo("cannot open the log", file=str(path)) from error
    return descriptor
