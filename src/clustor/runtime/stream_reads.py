"""Reads streams for a loop that must not wait: in a few threads, so many at a time and no more.

The loop takes a view, which costs it no disk. What the view has in memory is served at once, since
a hop to a thread and back is dearer than the read; that is where most consumers are. Everything
else is read by a thread with descriptors of its own, and its files are pinned meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from clustor.log.errors import AuthenticationFailed, ChecksumMismatch
from clustor.log.steps import FileName, Storage
from clustor.runtime.disk import DirectoryStorage
from clustor.runtime.disk.paths import open_file
from clustor.runtime.disk.storage import read_within
from clustor.runtime.errors import NodeError
from clustor.runtime.group import HostedGroup
from clustor.streams import (
    StreamChunk,
    StreamFileReader,
    StreamIndex,
    StreamView,
    UnknownStream,
    ViewExpired,
)

T = TypeVar("T")

_VIEWS_MAX: Final = 5  # that may expire under one read before it is given up
_LOOKS_MAX: Final = 8


class ReaderBusy(NodeError):
    """More reads wait than this reader takes; the caller answers its client to come again."""


class StreamStorage(DirectoryStorage):
    """A `Storage` that keeps the partition files it reads open, at most so many.

    A number names one partition file for ever, so a descriptor cannot become another file's. Kept
    open, a file also keeps the kernel's read-ahead, without which a cold read in sequence takes
    twice as long. A file that was removed reads as missing, and its room on the disk is freed
    when it is next looked at. One thread at a time.
    """

    def __init__(self, root: Path, *, files_max: int = 64) -> None:
        super().__init__(root)
        self._files_max = files_max
        self._opened: OrderedDict[FileName, int] = OrderedDict()

    def read(self, file: FileName, offset: int, length: int) -> bytes:
        """Return up to `length` bytes from `offset`; fewer only at the end of the file."""
        if not file.endswith(".seg"):
            return super().read(file, offset, length)
        descriptor = self._opened.get(file)
        if descriptor is None:
            descriptor = self._open(file)
        status = os.fstat(descriptor)
        if not status.st_nlink:
            self._close(file)
            raise FileNotFoundError(file)
        self._opened.move_to_end(file)
        return read_within(descriptor, offset, length, status.st_size)

    def close(self) -> None:
        """Close every file and the root."""
        for file in list(self._opened):
            self._close(file)
        super().close()

    def _open(self, file: FileName) -> int:
        for oldest in list(self._opened)[:_LOOKS_MAX]:
            removed = not os.fstat(self._opened[oldest]).st_nlink
            if removed or len(self._opened) >= self._files_max:
                self._close(oldest)
        descriptor = open_file(self._root, file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self._opened[file] = descriptor
        return descriptor

    def _close(self, file: FileName) -> None:
        os.close(self._opened.pop(file))


class StreamReads:
    """Serves the reads of one hosted group. The loop owns it; close it when they are over."""

    def __init__(
        self, group: HostedGroup, *, threads: int = 2, reads_max: int = 64, files_max: int = 64
    ) -> None:
        self._group = group
        self._files_max = files_max
        self._reads_max = reads_max
        self._reads = 0
        self._opened: list[StreamStorage] = []  # one for each thread
        self._in_memory = self._reader_of(group.storage)  # which it never asks
        self._own = threading.local()
        self._pool = ThreadPoolExecutor(threads, "stream-reads", self._start_thread)

    async def read(self, partition: int, from_index: int, bytes_max: int) -> list[StreamChunk]:
        """Return whole batches from the one that holds `from_index`, in about `bytes_max` bytes.

        None come back where `from_index` is the next to come. Raises UnknownStream,
        StreamOutOfRange (its facts give `start` and `next`) and ReaderBusy.
        """
        view = self._group.replica.stream_view(partition, from_index, bytes_max)
        if not view.segments:
            return self._in_memory.read(view, from_index, bytes_max)
        return await self._elsewhere(
            lambda: self._group.replica.stream_view(partition, from_index, bytes_max),
            lambda reader, seen: reader.read(seen, from_index, bytes_max),
        )

    async def find_time(self, partition: int, timestamp: int) -> StreamIndex | None:
        """Return the first index whose batch is as new as `timestamp`; None where none is."""

        def take() -> StreamView:
            streams = self._group.replica.streams
            if streams is None:
                raise UnknownStream("this group has no streams", partition=partition)
            return streams.whole_view(partition)

        return await self._elsewhere(take, lambda reader, view: reader.find_time(view, timestamp))

    def close(self) -> None:
        """Wait for the reads that run, give up those that wait, and close every file."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for storage in self._opened:
            storage.close()

    async def _elsewhere(
        self, take: Callable[[], StreamView], read: Callable[[StreamFileReader, StreamView], T]
    ) -> T:
        """Read in a thread; with a new view where files went before they could be pinned."""
        if self._reads >= self._reads_max:
            raise ReaderBusy("too many reads wait", reads=self._reads)
        self._reads += 1
        replica = self._group.replica  # a repair may put another in its place meanwhile
        try:
            for _ in range(_VIEWS_MAX - 1):
                try:
                    return await self._pinned(take(), read)
                except ViewExpired:
                    continue
            return await self._pinned(take(), read)
        except (ChecksumMismatch, AuthenticationFailed) as damage:
            replica.damaged("a stream", str(damage))
            raise
        finally:
            self._reads -= 1

    async def _pinned(
        self, view: StreamView, read: Callable[[StreamFileReader, StreamView], T]
    ) -> T:
        streams = self._group.replica.streams
        assert streams is not None
        pin = streams.pin(view)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._run, read, view)
        finally:
            streams.unpin(pin)

    def _run(self, read: Callable[[StreamFileReader, StreamView], T], view: StreamView) -> T:
        own = self._own
        if own.store_id != view.store_id:
            # A replica that rejoined has a new store, whose files may have the names of old ones.
            self._start_thread()
            own.store_id = view.store_id
        return read(own.reader, view)

    def _start_thread(self) -> None:
        own = self._own
        if getattr(own, "storage", None) is not None:
            self._opened.remove(own.storage)
            own.storage.close()
        own.store_id = None
        own.storage = StreamStorage(self._group.directory, files_max=self._files_max)
        self._opened.append(own.storage)
        own.reader = self._reader_of(own.storage)

    def _reader_of(self, storage: Storage) -> StreamFileReader:
        settings = self._group.replica.settings
        return StreamFileReader(storage, settings.keys, settings.stream_config)
