"""One partition's files, as far as they are planned, and the tail that is still in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from clustor.log.steps import FileName
from clustor.segmented.index import SparseIndex
from clustor.segmented.metadata import Definition, SegmentMeta
from clustor.segmented.piece import Piece
from clustor.segmented.runs import FileCipher
from clustor.segmented.types import TopicPartitionId


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
    tail: Piece = field(default_factory=Piece)
    cipher: FileCipher | None = None  # of the last segment, if this start writes to it
    index: SparseIndex | None = None  # of the last segment, if this start created it
    resumable: bool = False  # whether the last segment of an earlier start may be continued
    touched: set[int] = field(default_factory=set)  # files that the metadata does not know so
    unsynced: dict[FileName, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readable = tuple(self.segments)

    def take_tail(self) -> Piece:
        """Hand the tail over to a plan, and start another."""
        piece = self.tail
        self.in_flight.append(piece)
        self.tail = Piece()
        return piece

    def close_segment(self) -> None:
        """Let the next run start a new file."""
        self.cipher = self.index = None
        self.resumable = False

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)
