"""One partition's files, as far as they are planned, and what of it is still in memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from clustor.log.steps import FileName
from clustor.streams.index import SparseIndex
from clustor.streams.metadata import NOT_COMPACTED, CompactionMark, Definition, SegmentMeta
from clustor.streams.piece import BatchPiece
from clustor.streams.runs import FileCipher
from clustor.streams.types import StreamPartitionId


@dataclass(slots=True)
class SegmentSwap:
    """Files that others have taken the place of; the next checkpoint says so, and deletes them."""

    replaced: list[SegmentMeta]
    mark: CompactionMark


@dataclass(slots=True)
class StreamFiles:
    """A partition on this disk. `segments` runs ahead of the disk by the plans that are out.

    In memory stand, without a gap and in this order: `window`, `in_flight`, `tail`.
    """

    partition: StreamPartitionId
    start_index: int
    next_index: int  # of the next batch that is taken
    segments: list[SegmentMeta]  # in order of index; the last one may be open
    definition: Definition
    defined_at: int = 0  # the raft index of its definition, or a later one
    digest: int = 0  # the chained CRC32C of rows and payloads from `digest_from` to `next_index`
    digest_from: int = 0
    is_told: bool = False  # whether the metadata has its definition
    readable: tuple[SegmentMeta, ...] = ()  # the segments that finished plans have written
    window: tuple[BatchPiece, ...] = ()  # written, and kept for who reads the newest
    in_flight: tuple[BatchPiece, ...] = ()  # written by plans that are out
    tail: BatchPiece | None = None  # what no plan has written yet
    cipher: FileCipher | None = None  # of the last segment, if it is kept for the next flush
    index: SparseIndex | None = None  # of the last segment, if this start created it
    resumable: bool = False  # whether the last segment may be continued without its cipher
    touched: dict[int, None] = field(default_factory=dict)  # files that the metadata knows not so
    unsynced: dict[FileName, None] = field(default_factory=dict)
    compacted: CompactionMark = NOT_COMPACTED  # of the files in `readable`
    swap: SegmentSwap | None = None

    def __post_init__(self) -> None:
        self.readable = tuple(self.segments)

    def take_tail(self) -> BatchPiece:
        """Hand the tail over to a plan."""
        piece = self.tail
        assert piece is not None
        self.in_flight = (*self.in_flight, piece)
        self.tail = None
        return piece

    def close_segment(self) -> None:
        """Let the next run start a new file."""
        self.cipher = self.index = None
        self.resumable = False

    def rest(self) -> None:
        """Give up what only the next flush needs, and could make anew: others write now."""
        if self.cipher is not None:
            self.cipher = self.index = None
            self.resumable = True

    @property
    def size_bytes(self) -> int:
        """What its files take on the disk."""
        return sum(segment.size_bytes for segment in self.segments)
