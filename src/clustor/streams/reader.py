"""Reads views: walks runs through a Storage, authenticates them, and hands them on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import numpy as np

from clustor.log.cipher import TAG_BYTES
from clustor.log.errors import ChecksumMismatch
from clustor.log.keys import KeyRing
from clustor.log.steps import Storage
from clustor.streams.config import StreamConfig
from clustor.streams.errors import ViewExpired
from clustor.streams.flush import file_header, partition_key
from clustor.streams.index import SparseIndex, decode_index
from clustor.streams.metadata import SegmentMeta
from clustor.streams.piece import BatchPiece
from clustor.streams.runs import (
    FILE_HEADER_BYTES,
    ROW_BYTES,
    RUN_HEAD_BYTES,
    FileCipher,
    RunHead,
    decode_run_head,
    index_file,
    part_file,
)
from clustor.streams.types import StreamIndex
from clustor.streams.view import StreamChunk, StreamView

_HEADS_WINDOW_BYTES: Final = 4096
_SLACK_BYTES: Final = 1024


class StreamFileReader:
    """Reads the partitions of a store. One thread at a time; make one for each."""

    def __init__(
        self, storage: Storage, keys: KeyRing, config: StreamConfig, *, files_max: int = 1024
    ) -> None:
        self._storage = storage
        self._keys = keys
        self._config = config
        self._files_max = files_max
        self._files: OrderedDict[tuple[int, int], _OpenFile] = OrderedDict()

    def read(self, view: StreamView, from_index: int, bytes_max: int) -> list[StreamChunk]:
        """Return whole batches from the one that holds `from_index`, in about `bytes_max` bytes.

        At least one batch comes back if there is one, and at most one run more than asked for.
        Raises StreamOutOfRange, ViewExpired, or CorruptLog where bytes are not what was written.
        """
        view.check(from_index)
        chunks: list[StreamChunk] = []
        room = bytes_max
        for chunk in self.chunks(view, from_index, bytes_max):
            chunks.append(chunk)
            room -= chunk.size_bytes
            if room <= bytes_max // 8:  # what is left would be another read for very little
                break
        return chunks

    def chunks(self, view: StreamView, from_index: int, window_bytes: int) -> Iterator[StreamChunk]:
        """Yield everything readable from `from_index`: a run, or about a window, at a time."""
        for segment in view.segments:
            if segment.next_index > from_index:
                for chunk in self._segment_chunks(view, segment, from_index, window_bytes):
                    part = chunk.between(from_index, view.readable_next)
                    if part is not None:
                        yield part
        written = view.segments[-1].next_index if view.segments else 0
        for piece in view.pieces:
            index = max(from_index, written)
            while (joined := piece.part(index, window_bytes)) is not None:
                part = StreamChunk.of_piece(joined).between(from_index, view.readable_next)
                if part is not None:
                    yield part
                index = joined.next_index

    def find_time(self, view: StreamView, timestamp: int) -> StreamIndex | None:
        """Return the first index whose batch is as new as `timestamp`; None where none is."""
        for segment in view.segments:
            if segment.max_timestamp >= timestamp:
                file = self._open(view, segment)
                offset = self._index_of(view, file).offset_of_time(timestamp)
                if offset is not None and offset < segment.size_bytes:
                    found = _newer(file.runs(segment, offset, self._config.run_bytes), timestamp)
                    if found is not None:
                        return self._readable(view, found)
        found = _newer(iter(view.pieces), timestamp)
        return None if found is None else self._readable(view, found)

    def segment_chunks(self, view: StreamView, segment: SegmentMeta) -> Iterator[StreamChunk]:
        """Yield all runs of one file of a view, readable or not."""
        return self._open(view, segment).runs(segment, FILE_HEADER_BYTES, self._config.run_bytes)

    def _readable(self, view: StreamView, index: int) -> StreamIndex | None:
        index = max(index, view.start_index)
        return StreamIndex(index) if index < view.readable_next else None

    def _segment_chunks(
        self, view: StreamView, segment: SegmentMeta, from_index: int, window_bytes: int
    ) -> Iterator[StreamChunk]:
        file = self._open(view, segment)
        offset = FILE_HEADER_BYTES
        if from_index > segment.first_index:
            offset = self._index_of(view, file).offset_of_index(from_index, offset)
        for chunk in file.runs(segment, offset, window_bytes):
            if chunk.first_index >= view.readable_next:
                return
            if chunk.next_index > from_index:
                yield chunk

    def _open(self, view: StreamView, segment: SegmentMeta) -> _OpenFile:
        key = (view.partition, segment.file_seq)
        file = self._files.get(key)
        if file is None:
            file = _OpenFile(self._storage, self._keys, view, segment)
            self._files[key] = file
            if len(self._files) > self._files_max:
                self._files.popitem(last=False)
        self._files.move_to_end(key)
        file.segment = segment
        return file

    def _index_of(self, view: StreamView, file: _OpenFile) -> SparseIndex:
        if view.open_index is not None and file.segment is view.segments[-1]:
            return view.open_index
        return file.index(self._config.index_interval_bytes)


def _newer(batches: Iterator[StreamChunk] | Iterator[BatchPiece], timestamp: int) -> int | None:
    for some in batches:
        for first, _, _, at in some.rows():
            if at >= timestamp:
                return first
    return None


class _OpenFile:
    """One partition file: its cipher, and its index once somebody asked."""

    def __init__(
        self, storage: Storage, keys: KeyRing, view: StreamView, segment: SegmentMeta
    ) -> None:
        header = file_header(view.group, view.store_id, view.partition, segment)
        self._storage = storage
        self._cipher = FileCipher(partition_key(keys, header), header)
        self._name = part_file(view.partition, segment.file_seq)
        self._index_name = index_file(view.partition, segment.file_seq)
        self._index: SparseIndex | None = None
        self.segment = segment

    def runs(self, segment: SegmentMeta, offset: int, window_bytes: int) -> Iterator[StreamChunk]:
        """Yield the runs from `offset`, which must be the start of one."""
        end = segment.size_bytes
        budget = window_bytes
        while offset < end:
            # A little more than asked for, so that heads and tags do not cost another read.
            window = self._read(offset, min(end - offset, budget + budget // 16 + _SLACK_BYTES))
            head = self._head(window, 0, offset)
            whole = RUN_HEAD_BYTES + head.sealed_bytes
            if whole > len(window):
                window = self._read_whole(offset, whole, end)
            # One buffer for all runs of a window, not zeroed before it is filled.
            sealed, plaintext = memoryview(window), np.empty(len(window), np.uint8).data
            position = 0
            while position + whole <= len(window):
                run = slice(position, position + whole)
                yield self._chunk(head, sealed[run], offset, plaintext[run])
                position += whole
                offset += whole
                if position + RUN_HEAD_BYTES > len(window):
                    break
                head = self._head(window, position, offset)
                whole = RUN_HEAD_BYTES + head.sealed_bytes
            budget = budget - position if budget > position else window_bytes

    def _read_whole(self, offset: int, whole: int, end: int) -> bytes:
        window = self._read(offset, whole) if offset + whole <= end else b""
        if len(window) < whole:
            raise ChecksumMismatch("a run is cut short", file=self._name, offset=offset)
        return window

    def _chunk(self, head: RunHead, run: memoryview, offset: int, room: memoryview) -> StreamChunk:
        plaintext = room[: head.sealed_bytes - TAG_BYTES]
        self._cipher.open_into(head, run, offset, plaintext)
        split = head.batch_count * ROW_BYTES
        return StreamChunk(head.first_index, head.next_index, plaintext[:split], plaintext[split:])

    def index(self, interval_bytes: int) -> SparseIndex:
        """Return the sparse index of the file, as far as the segment reaches."""
        if self._index is None:
            self._index = self._load(interval_bytes)
        self._extend(self._index)
        return self._index

    def _load(self, interval_bytes: int) -> SparseIndex:
        try:
            size = self._storage.size(self._index_name)
            data = self._storage.read(self._index_name, 0, size)
            return decode_index(
                data, self.segment.file_seq, self.segment.size_bytes, interval_bytes
            )
        except (FileNotFoundError, ChecksumMismatch):
            return SparseIndex(interval_bytes, FILE_HEADER_BYTES)

    def _extend(self, index: SparseIndex) -> None:
        """Walk the heads of the runs that the index does not cover yet."""
        offset, end = index.covered_bytes, self.segment.size_bytes
        window_start, window = offset, b""
        while offset < end:
            if offset + RUN_HEAD_BYTES > window_start + len(window):
                window_start, window = offset, self._read(offset, _HEADS_WINDOW_BYTES)
            at = offset - window_start
            head = self._head(window, at, offset)
            whole = RUN_HEAD_BYTES + head.sealed_bytes
            index.add(head.first_index, head.max_timestamp, offset, offset + whole)
            offset += whole

    def _read(self, offset: int, length: int) -> bytes:
        try:
            return self._storage.read(self._name, offset, length)
        except FileNotFoundError:
            raise ViewExpired("a file of this view is gone", file=self._name) from None

    def _head(self, window: bytes, position: int, offset: int) -> RunHead:
        try:
            return decode_run_head(window[position : position + RUN_HEAD_BYTES])
        except ChecksumMismatch as problem:
            problem.facts.update(file=self._name, offset=offset)
            raise
