"""One partition's files, as far as they are planned, and the tail that is still in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from clustor.log.cipher import TAG_BYTES
from clustor.log.steps import FileName
from clustor.segmented.index import SparseIndex
from clustor.segmented.metadata import Definition, SegmentMeta
from clustor.segmented.runs import ROW, ROW_BYTES, RUN_HEAD_BYTES, FileCipher
from clustor.segmented.types import TopicPartitionId

NO_TIMESTAMP: Final = -(2**63)


class Piece:
    """Batches in memory, in the form in which a run holds them."""

    __slots__ = ("first_index", "max_timestamp", "next_index", "payload_bytes", "payloads", "table")

    def __init__(self, first_index: int) -> None:
        self.first_index = first_index
        self.next_index = first_index
        self.table = bytearray()
        self.payloads: list[bytes] = []
        self.payload_bytes = 0
        self.max_timestamp = NO_TIMESTAMP

    def add(self, first: int, count: int, timestamp: int, payload: bytes) -> None:
        """Add a batch behind the others."""
        length = len(payload)
        self.table += ROW.pack(first, count, length, timestamp)
        self.payloads.append(payload)
        self.payload_bytes += length
        self.next_index = first + count
        if timestamp > self.max_timestamp:  # noqa: PLR1730  # half the price of max(), and hot
            self.max_timestamp = timestamp

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
        piece: Piece | None = None
        for (first, count, _, timestamp), payload in zip(
            ROW.iter_unpack(self.table), self.payloads, strict=True
        ):
            if piece is not None and (
                piece.payload_bytes + len(piece.table) + len(payload) + ROW_BYTES > run_bytes
            ):
                yield piece
                piece = None
            piece = piece or Piece(first)
            piece.add(first, count, timestamp, payload)
        if piece is not None:
            yield piece


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
