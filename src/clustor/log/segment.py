"""The bytes of a segment file, its trailer and its `.idx` (clustor §7.1).

    header    who wrote it, under which key epochs, and where in the log it starts
    run       what one append wrote: a clear header, then sealed blocks of entry frames
    …
    trailer   once the segment is closed: counts, CRC lanes and a MAC over them

A run's header is in the clear so that a reader can find the blocks; nothing in it is trusted
until the blocks it points at are authentic and hold exactly the entries it names. Behind the
last run of an open segment come zeros.
"""

from __future__ import annotations

import hmac
import re
import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from clustor.log.cipher import sealed_bytes
from clustor.log.errors import AuthenticationFailed, ChecksumMismatch, UnsupportedFormat
from clustor.log.frame import FRAME_BODY_BYTES_MAX, RUN_HEADER_BYTES, pack_offsets
from clustor.log.lanes import CrcLanes
from clustor.log.steps import FileName
from clustor.log.types import (
    BlockCounter,
    DekEpoch,
    LogId,
    LogIndex,
    MacEpoch,
    PartitionId,
    SegmentSeq,
    Term,
)

WAL_DIRECTORY: Final = "wal"
SEGMENT_HEADER_BYTES: Final = 128
RUN_PLAINTEXT_BYTES_MAX: Final = 2 * FRAME_BODY_BYTES_MAX
TRAILER_BYTES: Final = 98  # 4 of magic, then the 94 of the text

_SEGMENT_MAGIC: Final = b"CLSTRWAL"
_RUN_MAGIC: Final = b"CRUN"
_TRAILER_MAGIC: Final = b"CEND"
_IDX_MAGIC: Final = b"CLSTRIDX"
_FORMAT_VERSION: Final = 1
_MAC_SUITE_HMAC_SHA256: Final = 1

_SEGMENT: Final = struct.Struct("<8sHHIIQQQQ16s")
_RUN: Final = struct.Struct("<4sIQQII")
_TRAILER: Final = struct.Struct("<4sBBQQQI16s16s32s")
_IDX: Final = struct.Struct("<8sHHIQQ")
_CRC: Final = struct.Struct("<I")


def segment_file(segment_seq: int) -> FileName:
    return FileName(f"{WAL_DIRECTORY}/segment-{segment_seq:020d}.log")


def index_file(segment_seq: int) -> FileName:
    return FileName(f"{WAL_DIRECTORY}/segment-{segment_seq:020d}.idx")


def segment_seq_of(name: str) -> SegmentSeq | None:
    """Read the sequence number out of a segment's file name; None for any other file."""
    match = re.fullmatch(r"segment-([0-9]{20})\.log", name)
    return SegmentSeq(int(match[1])) if match else None


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """Who wrote a segment and where in the log it starts."""

    partition: PartitionId
    log_id: LogId
    segment_seq: SegmentSeq
    dek_epoch: DekEpoch
    mac_epoch: MacEpoch
    first_index: LogIndex  # of the entry that its first run would hold
    previous_term: Term  # of the entry before that one; 0 where there is none


def encode_segment_header(header: SegmentHeader) -> bytes:
    body = _SEGMENT.pack(
        _SEGMENT_MAGIC,
        _FORMAT_VERSION,
        0,
        header.dek_epoch,
        header.mac_epoch,
        header.partition,
        header.segment_seq,
        header.first_index,
        header.previous_term,
        header.log_id,
    )
    body += bytes(SEGMENT_HEADER_BYTES - len(body) - 4)
    return body + _CRC.pack(crc32c(body))


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Raises ChecksumMismatch for damaged or missing bytes, UnsupportedFormat for a later one."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise ChecksumMismatch("a segment header is cut short", given_bytes=len(data))
    body = data[: SEGMENT_HEADER_BYTES - 4]
    if _CRC.unpack_from(data, SEGMENT_HEADER_BYTES - 4)[0] != crc32c(body):
        raise ChecksumMismatch("a segment header's CRC does not match")
    magic, version, _, dek, mac, partition, seq, first, previous_term, log_id = (
        _SEGMENT.unpack_from(body)
    )
    if magic != _SEGMENT_MAGIC or version != _FORMAT_VERSION:
        raise UnsupportedFormat("not a segment that this release reads", version=version)
    return SegmentHeader(
        partition=PartitionId(partition),
        log_id=LogId(log_id),
        segment_seq=SegmentSeq(seq),
        dek_epoch=DekEpoch(dek),
        mac_epoch=MacEpoch(mac),
        first_index=LogIndex(first),
        previous_term=Term(previous_term),
    )


@dataclass(slots=True)
class RunHeader:
    """What one append wrote: where its counters start, and which entries it holds."""

    plaintext_bytes: int
    first_block_counter: BlockCounter
    first_index: LogIndex
    entry_count: int

    @property
    def sealed_bytes(self) -> int:
        """The length of the blocks that follow this header."""
        return sealed_bytes(self.plaintext_bytes)


def encode_run_header(header: RunHeader) -> bytes:
    body = _RUN.pack(
        _RUN_MAGIC,
        header.plaintext_bytes,
        header.first_block_counter,
        header.first_index,
        header.entry_count,
        0,
    )
    return body + _CRC.pack(crc32c(body))


def decode_run_header(data: bytes) -> RunHeader:
    """Raises ChecksumMismatch unless `data` starts with a run header as it was written."""
    if len(data) < RUN_HEADER_BYTES:
        raise ChecksumMismatch("a run header is cut short", given_bytes=len(data))
    if _CRC.unpack_from(data, _RUN.size)[0] != crc32c(data[: _RUN.size]):
        raise ChecksumMismatch("a run header's CRC does not match")
    magic, plaintext_bytes, counter, first_index, entry_count, flags = _RUN.unpack_from(data)
    if magic != _RUN_MAGIC or flags or not 0 < plaintext_bytes <= RUN_PLAINTEXT_BYTES_MAX:
        raise ChecksumMismatch("not a run header", plaintext_bytes=plaintext_bytes)
    return RunHeader(plaintext_bytes, BlockCounter(counter), LogIndex(first_index), entry_count)


@dataclass(frozen=True, slots=True)
class SegmentTrailer:
    """What a closed segment holds, under a MAC."""

    segment_seq: SegmentSeq
    first_index: LogIndex
    last_index: LogIndex
    entry_count: int
    entries_lanes: bytes
    offsets_lanes: bytes


def segment_mac(trailer: SegmentTrailer, key: bytes) -> bytes:
    """Compute the MAC of a trailer: ruling C2, which reproduces the vector of App. B.3.

    The tag stands for `version=1, mac_suite_id=1`: another version or suite has another tag.
    """
    message = b"segment-mac-v1" + struct.pack(
        "<QQQI16s16s",
        trailer.segment_seq,
        trailer.first_index,
        trailer.last_index,
        trailer.entry_count,
        trailer.entries_lanes,
        trailer.offsets_lanes,
    )
    return hmac.digest(key, message, "sha256")


def encode_trailer(trailer: SegmentTrailer, key: bytes) -> bytes:
    return _TRAILER.pack(
        _TRAILER_MAGIC,
        _FORMAT_VERSION,
        _MAC_SUITE_HMAC_SHA256,
        trailer.segment_seq,
        trailer.first_index,
        trailer.last_index,
        trailer.entry_count,
        trailer.entries_lanes,
        trailer.offsets_lanes,
        segment_mac(trailer, key),
    )


def is_trailer(data: bytes) -> bool:
    """Say whether a trailer, damaged or not, starts here rather than a run."""
    return data[:4] == _TRAILER_MAGIC


def decode_trailer(data: bytes, key: bytes) -> SegmentTrailer:
    """Raises AuthenticationFailed unless the MAC is right for exactly these fields."""
    if len(data) < TRAILER_BYTES:
        raise ChecksumMismatch("a segment trailer is cut short", given_bytes=len(data))
    magic, version, suite, seq, first, last, count, entries, offsets, mac = _TRAILER.unpack_from(
        data
    )
    trailer = SegmentTrailer(
        SegmentSeq(seq), LogIndex(first), LogIndex(last), count, entries, offsets
    )
    known = magic == _TRAILER_MAGIC and version == _FORMAT_VERSION and suite == 1
    if not known or not hmac.compare_digest(mac, segment_mac(trailer, key)):
        raise AuthenticationFailed("a segment's MAC does not match", segment_seq=seq)
    return trailer


def encode_index(segment_seq: int, offsets: bytes) -> bytes:
    """Encode a `.idx`: the file offset of every entry, u64 each, in the order of the segment."""
    body = _IDX.pack(_IDX_MAGIC, _FORMAT_VERSION, 0, 0, segment_seq, len(offsets) // 8) + offsets
    return body + _CRC.pack(crc32c(body))


def decode_index(data: bytes, segment_seq: int) -> bytes:
    """Return the offsets of a `.idx`. Raises ChecksumMismatch where it must be rebuilt."""
    if len(data) < _IDX.size + 4 or crc32c(data[:-4]) != _CRC.unpack(data[-4:])[0]:
        raise ChecksumMismatch("an index file's CRC does not match", segment_seq=segment_seq)
    magic, version, _, _, seq, count = _IDX.unpack_from(data)
    offsets = data[_IDX.size : -4]
    if magic != _IDX_MAGIC or version != _FORMAT_VERSION or seq != segment_seq:
        raise ChecksumMismatch("an index file of another segment", segment_seq=segment_seq)
    if len(offsets) != count * 8:
        raise ChecksumMismatch("an index file has another length", segment_seq=segment_seq)
    return offsets


class SegmentTally:
    """What a trailer will say of the runs so far; the writer and the scrub count alike."""

    __slots__ = ("_entries", "_offsets", "entry_count", "first_index", "last_index", "offsets")

    def __init__(self) -> None:
        self._entries = CrcLanes()
        self._offsets = CrcLanes()
        self.offsets = bytearray()
        self.entry_count = 0
        self.first_index = 0
        self.last_index = 0

    def add(
        self, first_index: int, run_offset: int, covered: list[bytes], starts: list[int]
    ) -> None:
        """Count a run: what its CRCs cover, and where in its plaintext each frame starts."""
        if not self.entry_count:
            self.first_index = first_index
        packed = pack_offsets(run_offset, starts)
        self._entries.update(covered)
        self._offsets.update([packed])
        self.offsets += packed
        self.entry_count += len(starts)
        self.last_index = first_index + len(starts) - 1

    def trailer(self, segment_seq: int) -> SegmentTrailer:
        return SegmentTrailer(
            segment_seq=SegmentSeq(segment_seq),
            first_index=LogIndex(self.first_index),
            last_index=LogIndex(self.last_index),
            entry_count=self.entry_count,
            entries_lanes=self._entries.packed(),
            offsets_lanes=self._offsets.packed(),
        )
