"""Segments on their way into the archive and out of it: what a row says of one, and its entries."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from blake3 import blake3

from clustor.log.errors import LogMisuse
from clustor.log.keys import KeyRing
from clustor.log.logmap import Extent, LogMap
from clustor.log.reader import read_entries
from clustor.log.scan import SegmentScanner
from clustor.log.segment import SegmentHeader, segment_file
from clustor.log.steps import FileName, Storage
from clustor.log.types import Entry, EntryKind, LogIndex, SegmentSeq, Term
from clustor.replica.batch import decode_batch
from quantum.archive.names import segment_name
from quantum.archive.objects import Objects
from quantum.archive.records import ExtentRow, SegmentRow
from quantum.archive.types import PrgId
from quantum.broker.commands import (
    PUBLISHES,
    PUBLISHES_HEAD,
    ChannelAcked,
    decode_command,
)

WINDOW_BYTES: Final = 1 << 20
MARK_BYTES: Final = 4 << 20
_BLOCK_BYTES: Final = 8 << 20

Pace = Callable[[int], None]
"""Told how many bytes are about to be read or sent; may wait."""


class SegmentOpen(LogMisuse):
    """The segment has no trailer yet: it will be closed on disk in a moment."""


@dataclass(slots=True)
class ExaminedSegment:
    """What was found in a whole segment, every byte of it authentic."""

    header: SegmentHeader
    bytes: int
    digest: str
    first_time_ms: int | None
    last_time_ms: int | None


def examine_segment(
    storage: Storage, seq: SegmentSeq, keys: KeyRing, pace: Pace
) -> ExaminedSegment:
    """Read a closed segment, authenticate it, and find the times in it.

    Raises SegmentOpen while its trailer is not on disk, CorruptLog, KeyUnavailable, and
    FileNotFoundError when it was compacted meanwhile.
    """
    scanner = SegmentScanner(storage, seq, keys)
    low: int | None = None
    high: int | None = None
    for run in scanner.runs():
        pace(run.end_offset - run.offset)
        for stamp in stamps(run.frames.entries):
            low = stamp if low is None else min(low, stamp)
            high = stamp if high is None else max(high, stamp)
    if scanner.problem is not None:
        raise scanner.problem
    if scanner.trailer is None:
        raise SegmentOpen("not closed on disk yet", segment_seq=seq)
    digest = blake3()
    size = 0
    for piece in segment_pieces(storage, seq, lambda _: None):
        digest.update(piece)
        size += len(piece)
    return ExaminedSegment(scanner.header, size, digest.hexdigest(), low, high)


def segment_pieces(storage: Storage, seq: SegmentSeq, pace: Pace) -> Iterator[bytes]:
    """Yield a segment's file as it is."""
    file, offset = segment_file(seq), 0
    while piece := storage.read(file, offset, WINDOW_BYTES):
        pace(len(piece))
        yield piece
        offset += len(piece)


def stamps(entries: Sequence[Entry]) -> Iterator[int]:
    """Yield the time of every command that has one."""
    for entry in entries:
        if entry.kind is not EntryKind.DATA:
            continue
        try:
            commands = decode_batch(entry.payload)
        except ValueError:
            continue
        for command in commands:
            stamp = _stamp(command)
            if stamp is not None:
                yield stamp


def _stamp(command: bytes) -> int | None:
    if command[:1] == bytes([PUBLISHES]) and len(command) >= PUBLISHES_HEAD.size:
        return int(PUBLISHES_HEAD.unpack_from(command)[1])
    try:
        decoded = decode_command(command)
    except msgspec.DecodeError:
        return None
    return None if isinstance(decoded, ChannelAcked) else decoded.now_ms or None


def row_of(
    prg: PrgId, examined: ExaminedSegment, extents: Sequence[Extent], first: int, entries: LogMap
) -> SegmentRow:
    """Describe a segment that stands for its live entries from `first` on."""
    last = extents[-1].last_index
    held = extents[0].first_index
    return SegmentRow(
        object=segment_name(prg, held, last, examined.digest),
        bytes=examined.bytes,
        blake3=examined.digest,
        first=first,
        last=last,
        first_term=entries.term_of(first),
        last_term=entries.term_of(last),
        first_time_ms=examined.first_time_ms,
        last_time_ms=examined.last_time_ms,
        segment_seq=examined.header.segment_seq,
        log_id=examined.header.log_id.hex(),
        dek_epoch=examined.header.dek_epoch,
        mac_epoch=examined.header.mac_epoch,
        extents=tuple(map(_extent_row, extents)),
    )


def _extent_row(extent: Extent) -> ExtentRow:
    marks: list[tuple[int, int]] = []
    for index, offset in zip(extent.indices, extent.offsets, strict=True):
        if index > extent.last_index:
            break
        if not marks or offset - marks[-1][1] >= MARK_BYTES:
            marks.append((index, offset))
    end = max(extent.end_offset, extent.offsets[-1])
    return ExtentRow(extent.first_index, extent.last_index, end, tuple(marks))


def logmap_of(row: SegmentRow) -> LogMap:
    """Return where the live entries of an archived segment stand in it."""
    entries = LogMap(LogIndex(row.extents[0].first - 1), Term(0))
    for extent in row.extents:
        indices, offsets = zip(*extent.marks, strict=True)
        entries.extents.append(
            Extent(
                SegmentSeq(row.segment_seq),
                extent.first,
                extent.last,
                extent.end_offset,
                array("Q", indices),
                array("Q", offsets),
            )
        )
    return entries


def read_row(
    objects: Objects, row: SegmentRow, keys: KeyRing, first: int, last: int
) -> Iterator[Entry]:
    """Yield the entries from `first` through `last` of an archived segment, verified."""
    assert row.first <= first <= last <= row.last, (row.first, first, last, row.last)
    storage = ObjectStorage(objects, row)
    return read_entries(storage, keys, logmap_of(row), first, last)


class ObjectStorage:
    """One archived segment as the log's `Storage`; reads it in large blocks, and keeps one."""

    def __init__(self, objects: Objects, row: SegmentRow) -> None:
        self._objects = objects
        self._row = row
        self._file = segment_file(row.segment_seq)
        self._start = -1
        self._block = b""

    def names(self, _directory: str) -> Sequence[str]:
        return [self._file.rpartition("/")[2]]

    def size(self, file: FileName) -> int:
        assert file == self._file
        return self._row.bytes

    def read(self, file: FileName, offset: int, length: int) -> bytes:
        assert file == self._file
        pieces: list[bytes] = []
        while length > 0 and offset < self._row.bytes:
            self._fetch(offset)
            at = offset - self._start
            piece = self._block[at : at + length]
            if not piece:
                break  # shorter than its row says: the scanner will miss something
            pieces.append(piece)
            offset += len(piece)
            length -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _fetch(self, offset: int) -> None:
        if not (self._start >= 0 and self._start <= offset < self._start + len(self._block)):
            self._start = offset
            self._block = self._objects.read(self._row.object, offset, _BLOCK_BYTES)
