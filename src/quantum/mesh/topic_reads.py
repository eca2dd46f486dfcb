"""Reads of topics: what is in memory at once, the rest by the node's readers off the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeAlias

from clustor.streams import StreamChunk, StreamOutOfRange, StreamView, UnknownStream
from quantum.broker.streams import StreamRefusal
from quantum.mesh.topic_views import FetchedBatch, PartitionView, ReadOutcome, TimeOutcome
from quantum.model.records import RecordProtocol
from quantum.partition.leader import PartitionLeader

ReadDone: TypeAlias = Callable[[ReadOutcome], None]
TimeDone: TypeAlias = Callable[[TimeOutcome], None]
_R = StreamRefusal
_BATCH_BYTES = 1
"""One batch is wanted: what is read at least."""


class StreamFilesPort(Protocol):
    """Who reads files of streams without holding the loop up; bounded, and BUSY beyond that."""

    def read_file(
        self,
        prg: PartitionLeader,
        file_id: int,
        offset: int,
        bytes_max: int,
        done: Callable[[list[StreamChunk] | StreamRefusal], None],
    ) -> None: ...

    def find_file_time(
        self,
        prg: PartitionLeader,
        file_id: int,
        time_ms: int,
        done: Callable[[int | StreamRefusal | None], None],
    ) -> None: ...


class TopicReads:
    """The reads of one tenant's partitions."""

    def __init__(self, files: Callable[[], StreamFilesPort | None]) -> None:
        self._files = files

    def read(
        self,
        prg: PartitionLeader | None,
        file_id: int,
        offset: int,
        bytes_max: int,
        *,
        look: Callable[[], PartitionView | None],
        done: ReadDone,
    ) -> None:
        """Read whole batches from the one that holds the offset."""
        seen = look()
        if prg is None or seen is None:
            done(ReadOutcome(refusal=_R.TOPIC_UNKNOWN))
            return

        def found(chunks: list[StreamChunk] | StreamRefusal) -> None:
            now = look() or seen
            facts = (now.start, now.high_watermark, now.last_stable)
            if isinstance(chunks, StreamRefusal):
                done(ReadOutcome([], *facts, chunks))
            else:
                done(ReadOutcome(list(batches_of(chunks)), *facts))

        self._chunks(prg, file_id, offset, bytes_max, found)

    def _chunks(
        self,
        prg: PartitionLeader,
        file_id: int,
        offset: int,
        bytes_max: int,
        found: Callable[[list[StreamChunk] | StreamRefusal], None],
    ) -> None:
        try:
            view = prg.group.replica.stream_view(file_id, offset, bytes_max)
        except StreamOutOfRange:
            found(_R.OFFSET_OUT_OF_RANGE)
            return
        except UnknownStream:
            found(_R.TOPIC_UNKNOWN)
            return
        files = self._files()
        if not view.segments:
            found(list(_in_memory(view, offset)))
        elif files is None:
            found(_R.BUSY)
        else:
            files.read_file(prg, file_id, offset, bytes_max, found)

    def find_time(
        self, prg: PartitionLeader | None, file_id: int, time_ms: int, done: TimeDone
    ) -> None:
        """Find the first batch that is as new as a time, and read it."""
        files = self._files()
        if prg is None or files is None:
            done(TimeOutcome(refusal=_R.TOPIC_UNKNOWN if prg is None else _R.BUSY))
            return

        def read(chunks: list[StreamChunk] | StreamRefusal) -> None:
            if isinstance(chunks, StreamRefusal):
                done(TimeOutcome(refusal=chunks))
            else:
                done(TimeOutcome(next(batches_of(chunks), None)))

        def found(at: int | StreamRefusal | None) -> None:
            if isinstance(at, StreamRefusal):
                done(TimeOutcome(refusal=at))
            elif at is None:
                done(TimeOutcome())
            else:
                self._chunks(prg, file_id, at, _BATCH_BYTES, read)

        files.find_file_time(prg, file_id, time_ms, found)


def _in_memory(view: StreamView, offset: int) -> Iterator[StreamChunk]:
    for piece in view.pieces:
        part = StreamChunk.of_piece(piece).between(offset, view.readable_next)
        if part is not None:
            yield part


def batches_of(chunks: Iterable[StreamChunk]) -> Iterator[FetchedBatch]:
    """Walk the batches of chunks; no byte is copied, or looked at but the first."""
    for chunk in chunks:
        position = 0
        for first, count, length, stamp in chunk.rows():
            data = chunk.payloads[position : position + length]
            position += length
            yield FetchedBatch(RecordProtocol(data[0]), first, count, stamp, data[1:])
