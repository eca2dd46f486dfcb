"""One partition's files, as far as they are planned, and the tail that is still in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, islice

from clustor.log.cipher import TAG_BYTES
from clustor.log.steps import FileName
from clustor.segmented.index import SparseIndex
from clustor.segmented.metadata import Definition, SegmentMeta
from clustor.segmented.runs import ROW, ROW_BYTES, RUN_HEAD_BYTES, FileCipher
from clustor.segmented.types import TopicPartitionId


class Piece:
    """Batches in memory, in the form in which a run holds them."""

    __slots__ = ("first_index", "next_index", "payloads", "table")

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        self.next_index = first_index
        self.table = bytearray()
        self.payloads: list[bytes] = []

    def add(self, first: int, count: int, timestamp: int, payload: bytes) -> None:
        """Add a batch behind the others."""
        self.table += ROW.pack(first, count, len(payload), timestamp)
        self.payloads.append(payload)
        self.next_index = first + count

    @property
    def payload_bytes(self) -> int:
        return sum(map(len, self.payloads))

    @property
    def max_timestamp(self) -> int:
        return max(row[3] for row in _rows(self.table))

    @property
    def run_bytes(self) -> int:
        """What this would take as one run of a file."""
        return RUN_HEAD_BYTES + len(self.table) + self.payload_bytes + TAG_BYTES

    def plaintext(self) -> bytes:
        return b"".join((self.table, *self.payloads))

    def cut(self, run_bytes: int) -> Iterator[Piece]:
        """Yield pieces of about `run_bytes` each; nearly always there is one."""
        if self.payload_bytes + len(self.table) <= run_bytes:
            yield self
            return
        start, size = 0, 0
        for nth, payload in enumerate(self.payloads):
            size += len(payload) + ROW_BYTES
            if size > run_bytes and nth > start:
                yield self._part(start, nth)
                start, size = nth, len(payload) + ROW_BYTES
        yield self._part(start, len(self.payloads))

    def part(self, from_index: int, bytes_max: int | None) -> Piece | None:
        """Return the batches from the one that holds `from_index`; None where there is none."""
        if not self.payloads or from_index >= self.next_index:
            return None
        start = bisect_right(range(len(self.payloads)), from_index, key=self._first)
        start = max(start - 1, 0)
        end = len(self.payloads)
        if bytes_max is not None:
            sizes = accumulate(len(at) + ROW_BYTES for at in islice(self.payloads, start, None))
            end = next((start + nth + 1 for nth, at in enumerate(sizes) if at >= bytes_max), end)
        return self._part(start, end)

    def _first(self, nth: int) -> int:
        first: int = ROW.unpack_from(self.table, nth * ROW_BYTES)[0]
        return first

    def _part(self, start: int, end: int) -> Piece:
        table = self.table[start * ROW_BYTES : end * ROW_BYTES]
        piece = Piece(ROW.unpack_from(table)[0])
        piece.table, piece.payloads = table, self.payloads[start:end]
        first, count, _, _ = ROW.unpack_from(table, len(table) - ROW_BYTES)
        piece.next_index = first + count
        return piece


def _rows(table: bytearray) -> Iterator[tuple[int, int, int, int]]:
    return ROW.iter_unpack(table)


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
        piece.next_index = self.next_index
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
