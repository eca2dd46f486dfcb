"""Walk a segment run by run, believing nothing that is not authentic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from clustor.log.cipher import SegmentCipher, blocks_needed
from clustor.log.errors import AuthenticationFailed, ChecksumMismatch, CorruptLog
from clustor.log.frame import RUN_HEADER_BYTES, DecodedFrames, decode_frames
from clustor.log.keys import KeyRing
from clustor.log.segment import (
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    RunHeader,
    SegmentHeader,
    SegmentTally,
    SegmentTrailer,
    decode_run_header,
    decode_segment_header,
    decode_trailer,
    is_trailer,
    segment_file,
)
from clustor.log.steps import FileName, Storage

_WINDOW_BYTES: Final = 1 << 20


@dataclass(slots=True)
class ScannedRun:
    """One authentic run and the entries it holds, void ones included."""

    offset: int
    end_offset: int
    header: RunHeader
    frames: DecodedFrames


class SegmentScanner:
    """Reads one segment from its start, or from a run that is known to start somewhere.

    Iterate `runs()`; afterwards `end_offset` is where the last good run ended and `problem` is
    why the walk stopped there, None where a trailer or nothing but zeros followed.
    """

    def __init__(self, storage: Storage, segment_seq: int, keys: KeyRing) -> None:
        """Raises CorruptLog for a damaged header, KeyUnavailable without the epoch's key."""
        self._file = segment_file(segment_seq)
        self._window = _Window(storage, self._file)
        self.header: SegmentHeader = decode_segment_header(
            self._window.read(0, SEGMENT_HEADER_BYTES)
        )
        if self.header.segment_seq != segment_seq:
            raise ChecksumMismatch("a segment under another's name", file=self._file)
        header = self.header
        self._cipher = SegmentCipher(
            keys.log_key(header.dek_epoch, header.partition, header.log_id),
            header.partition,
            header.dek_epoch,
            header.segment_seq,
        )
        self._keys = keys
        self.tally = SegmentTally()
        self.trailer: SegmentTrailer | None = None
        self.end_offset = SEGMENT_HEADER_BYTES
        self.next_block_counter = 0
        self.payload_bytes = 0
        self.problem: CorruptLog | None = None

    def runs(self, from_offset: int = SEGMENT_HEADER_BYTES) -> Iterator[ScannedRun]:
        """Yield authentic runs in the order they were written, and stop at the first doubt."""
        self.end_offset = from_offset
        from_start = from_offset == SEGMENT_HEADER_BYTES
        try:
            while (run := self._take_run(from_start)) is not None:
                yield run
        except CorruptLog as problem:
            problem.facts.setdefault("file", self._file)
            problem.facts.setdefault("offset", self.end_offset)
            self.problem = problem

    def _take_run(self, from_start: bool) -> ScannedRun | None:
        offset = self.end_offset
        head = self._window.read(offset, TRAILER_BYTES)
        if is_trailer(head):
            self._check_trailer(head, from_start)
            return None
        if not any(head[:RUN_HEADER_BYTES]) and self._only_zeros_from(offset):
            return None
        header = decode_run_header(head[:RUN_HEADER_BYTES])
        if header.first_block_counter < self.next_block_counter:
            # Left by a write that a crash tore, behind which a newer run was written.
            raise ChecksumMismatch("a run older than the one before it")
        sealed = self._window.read(offset + RUN_HEADER_BYTES, header.sealed_bytes)
        if len(sealed) < header.sealed_bytes:
            raise ChecksumMismatch("a run is cut short", missing=header.sealed_bytes - len(sealed))
        plaintext = self._cipher.open(sealed, header.first_block_counter)
        frames = decode_frames(plaintext, header.first_index, header.entry_count)
        if from_start:
            self.tally.add(header.first_index, offset, frames.covered, frames.starts)
        self.payload_bytes += sum(len(entry.payload) for entry in frames.entries)
        self.next_block_counter = header.first_block_counter + blocks_needed(len(plaintext))
        self.end_offset = offset + RUN_HEADER_BYTES + header.sealed_bytes
        return ScannedRun(offset, self.end_offset, header, frames)

    def _check_trailer(self, data: bytes, from_start: bool) -> None:
        key = self._keys.mac_key(self.header.mac_epoch, self.header.partition, self.header.log_id)
        trailer = decode_trailer(data, key)
        if from_start and trailer != self.tally.trailer(self.header.segment_seq):
            raise AuthenticationFailed("a segment does not hold what its trailer says")
        if self._window.read(self.end_offset + TRAILER_BYTES, 1):
            raise ChecksumMismatch("bytes behind a segment's trailer")
        self.trailer = trailer

    def _only_zeros_from(self, offset: int) -> bool:
        while chunk := self._window.read(offset, _WINDOW_BYTES):
            if chunk.count(0) != len(chunk):
                return False
            offset += len(chunk)
        return True


class _Window:
    """Reads a file in large pieces, because runs are small."""

    def __init__(self, storage: Storage, file: FileName) -> None:
        self._storage = storage
        self._file = file
        self._start = 0
        self._data = b""

    def read(self, offset: int, length: int) -> bytes:
        start = offset - self._start
        if start < 0 or start + length > len(self._data):
            size = max(length, _WINDOW_BYTES)
            self._data = self._storage.read(self._file, offset, size)
            self._start, start = offset, 0
        return self._data[start : start + length]
