"""One partition's files, as far as they are planned, and the tail that is still in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from clustor.log.steps import FileName
from clustor.segmented.index import SparseIndex
from clustor.segmented.metadata import Definition, SegmentMeta
from clustor.segmented.runs import ROW, ROW_BYTES, FileCipher
from clustor.segmented.types import TopicPartitionId


class Piece:
    """Batches in memory, in the form in which a run holds them.

    Two buffers and no object for a batch: a collector that walks the heap finds nothing here.
    """

    __slots__ = ("data", "first_index", "next_index", "table")

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        self.next_index = first_index
        self.table = bytearray()
        self.data = bytearray()

    def add(self, first: int, count: int, timestamp: int, payload: bytes) -> None:
        """Add a batch behind the others."""
        self.table += ROW.pack(first, count, len(payload), timestamp)
        self.data += payload
        self.next_index = first + count

    @property
    def batch_count(self) -> int:
        return len(self.table) // ROW_BYTES

    @property
    def max_timestamp(self) -> int:
        return int(np.frombuffer(self.table, "<i8")[2::3].max())

    @property
    def size_bytes(self) -> int:
        """What this takes in memory, and in a run beside its head and its tag."""
        return len(self.table) + len(self.data)

    def plaintext(self) -> bytes:
        return b"".join((self.table, self.data))

    def cut(self, run_bytes: int) -> Iterator[Piece]:
        """Yield pieces of about `run_bytes` each; nearly always there is one."""
        if self.size_bytes <= run_bytes:
            yield self
            return
        start = position = size = 0
        for nth, length in enumerate(_lengths(self.table).tolist()):
            if size and size + length + ROW_BYTES > run_bytes:
                end = position + size - (nth - start) * ROW_BYTES
                yield self._part(start, nth, position, end)
                start, position, size = nth, end, 0
            size += length + ROW_BYTES
        yield self._part(start, self.batch_count, position, len(self.data))

    def part(self, from_index: int, bytes_max: int | None) -> Piece | None:
        """Return the batches from the one that holds `from_index`; None where there is none."""
        if not self.table or from_index >= self.next_index:
            return None
        start = bisect_right(range(self.batch_count), from_index, key=self._first)
        start = max(start - 1, 0)
        position = self._position(start)
        if bytes_max is None:
            return self._part(start, self.batch_count, position, len(self.data))
        end, reached = start, position
        while end < self.batch_count and reached - position + (end - start) * ROW_BYTES < bytes_max:
            reached += ROW.unpack_from(self.table, end * ROW_BYTES)[2]
            end += 1
        return self._part(start, end, position, reached)

    def _first(self, nth: int) -> int:
        first: int = ROW.unpack_from(self.table, nth * ROW_BYTES)[0]
        return first

    def _position(self, nth: int) -> int:
        """Say where the bytes of a batch start, counted from the nearer end."""
        at = nth * ROW_BYTES
        if 2 * nth > self.batch_count:
            return len(self.data) - int(_lengths(self.table[at:]).sum())
        return int(_lengths(self.table[:at]).sum())

    def _part(self, start: int, end: int, position: int, reached: int) -> Piece:
        table = self.table[start * ROW_BYTES : end * ROW_BYTES]
        piece = Piece(ROW.unpack_from(table)[0])
        piece.table, piece.data = table, self.data[position:reached]
        first, count, _, _ = ROW.unpack_from(table, len(table) - ROW_BYTES)
        piece.next_index = first + count
        return piece


def _lengths(table: bytearray) -> npt.NDArray[np.int64]:
    """Return the lengths that the rows of a table give, as a copy: the table goes on growing."""
    return np.frombuffer(table, "<u4")[3::6].astype(np.int64)


@dataclass(slots=True)
class PartitionFiles:
    """A partition on this disk. `segments` runs ahead of the disk by the plans that are out."""

    partition: TopicPartitionId
    start_index: int
    next_index: int  # of the next batch that is applied
    clean_next: int
    segments: list[SegmentMeta]  # in order of index; the last one may be open
    definition: Definition
    readable: tuple[SegmentMeta, ...] = ()  # the segments that finished plans have written
    in_flight: list[Piece] = field(default_factory=list)  # written by plans that are out
    tail: Piece = field(default_factory=lambda: Piece(0))
    cipher: FileCipher | None = None  # of the last segment, if this start writes to it
    index: SparseIndex | None = None  # of the last segment, if this start created it
    resumable: bool = False  # whether the last segment of an earlier start may be continued
    touched: set[int] = field(default_factory=set)  # files that the metadata does not know so
    unsynced: dict[FileName, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readable = tuple(self.segments)
        self.tail = Piece(self.next_index)

    def take_tail(self) -> Piece:
        """Hand the tail over to a plan, and start another."""
        piece = self.tail
        self.in_flight.append(piece)
        self.tail = Piece(self.next_index)
        return piece

    def close_segment(self) -> None:
        """Let the next run start a new file."""
        self.cipher = self.index = None
        self.resumable = False

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)
