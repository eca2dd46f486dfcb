"""The bytes in which the partitions of a group travel: what an export says and an import believes.

A row of frames, cut anywhere on their way:

    magic:4 "SGXF" kind:u8 zero:3 body_bytes:u32 chain_crc32c:u32      body

    begin      msgpack [version, group, raft_index]
    partition  msgpack `ExportedPartition`: what is true of it, before its batches
    run        batch_count:u32, then a table and payloads, exactly as a partition's file seals them
    gone       msgpack list of ids that are never used again
    end        msgpack [partitions, batches]

All little-endian. The CRC of a frame goes on from that of the frame before, so one that is lost,
repeated or moved is noticed as well as one that is changed. Partitions come in order of their ids,
and batches are cut into runs by their lengths alone: replicas that hold the same batches write the
same bytes, whenever they flushed them. Everything is clear text: the snapshot that carries it is
sealed by its own room, and the replica that takes it in seals it anew under its own store's keys.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final

import msgspec
from crc32c import crc32c

from clustor.log.errors import ChecksumMismatch, UnsupportedFormat
from clustor.segmented.metadata import Definition
from clustor.segmented.piece import Piece
from clustor.segmented.runs import ROW, ROW_BYTES, RUN_BYTES_MAX
from clustor.segmented.types import U64_MAX

EXPORT_VERSION: Final = 1
EXPORT_RUN_BYTES: Final = 256 << 10
GONE_PER_FRAME: Final = 10_000

_MAGIC: Final = b"SGXF"
_HEAD: Final = struct.Struct("<4sB3xI")
_CRC: Final = struct.Struct("<I")
HEAD_BYTES: Final = _HEAD.size + _CRC.size
_COUNT: Final = struct.Struct("<I")
_BODY_BYTES_MAX: Final = RUN_BYTES_MAX + _COUNT.size


class FrameKind(IntEnum):
    BEGIN = 1
    PARTITION = 2
    RUN = 3
    GONE = 4
    END = 5


class ExportedPartition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A partition as a snapshot knows it. Nothing in it depends on who wrote it, or when."""

    partition: int
    start_index: int
    next_index: int
    clean_next: int
    definition: Definition


_encode = msgspec.msgpack.encode
_NUMBERS: Final = msgspec.msgpack.Decoder(list[int])
_PARTITION: Final = msgspec.msgpack.Decoder(ExportedPartition)


class FrameWriter:
    """Encodes frames, each chained to the one before."""

    def __init__(self) -> None:
        self._crc = 0

    def begin(self, group: int, raft_index: int) -> bytes:
        return self._frame(FrameKind.BEGIN, _encode([EXPORT_VERSION, group, raft_index]))

    def partition(self, exported: ExportedPartition) -> bytes:
        return self._frame(FrameKind.PARTITION, _encode(exported))

    def run(self, piece: Piece) -> bytes:
        return self._frame(FrameKind.RUN, _COUNT.pack(piece.batch_count) + piece.plaintext())

    def gone(self, partitions: list[int]) -> bytes:
        return self._frame(FrameKind.GONE, _encode(partitions))

    def end(self, partitions: int, batches: int) -> bytes:
        return self._frame(FrameKind.END, _encode([partitions, batches]))

    def _frame(self, kind: FrameKind, body: bytes) -> bytes:
        head = _HEAD.pack(_MAGIC, kind, len(body))
        self._crc = _chained(self._crc, head, body)
        return head + _CRC.pack(self._crc) + body


class FrameReader:
    """Takes frames out of pieces that were cut anywhere; holds one frame at the most."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._crc = 0

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """Yield the frames that are whole now. Raises ChecksumMismatch or UnsupportedFormat."""
        self._buffer += data
        position = 0
        try:
            while (end := self._end(position)) is not None:
                yield self._take(position, end)
                position = end
        finally:
            del self._buffer[:position]

    @property
    def is_between_frames(self) -> bool:
        return not self._buffer

    def _end(self, position: int) -> int | None:
        """Say where the frame at `position` ends, None while it is not whole."""
        if position + HEAD_BYTES > len(self._buffer):
            return None
        magic, _, body_bytes = _HEAD.unpack_from(self._buffer, position)
        if magic != _MAGIC or body_bytes > _BODY_BYTES_MAX:
            raise ChecksumMismatch("not a frame of an export", body_bytes=body_bytes)
        end: int = position + HEAD_BYTES + body_bytes
        return end if end <= len(self._buffer) else None

    def _take(self, position: int, end: int) -> tuple[FrameKind, bytes]:
        frame = bytes(memoryview(self._buffer)[position:end])
        kind = _HEAD.unpack_from(frame)[1]
        body = frame[HEAD_BYTES:]
        self._crc = _chained(self._crc, frame[: _HEAD.size], body)
        if _CRC.unpack_from(frame, _HEAD.size)[0] != self._crc:
            raise ChecksumMismatch("a frame of an export is not what was written", kind=kind)
        if kind not in FrameKind.__members__.values():
            raise UnsupportedFormat("an export of a later release", kind=kind)
        return FrameKind(kind), body


def _chained(crc: int, head: bytes, body: bytes) -> int:
    return int(crc32c(body, crc32c(head, crc)))


def decode_numbers(body: bytes, count: int | None = None) -> list[int]:
    """Decode a list of `count` numbers. Raises ChecksumMismatch."""
    try:
        numbers = _NUMBERS.decode(body)
    except msgspec.MsgspecError as error:
        raise ChecksumMismatch("a frame of an export cannot be read") from error
    if count is not None and len(numbers) != count:
        raise ChecksumMismatch("a frame of an export has other fields", fields=len(numbers))
    if numbers and not 0 <= min(numbers) <= max(numbers) <= U64_MAX:
        raise ChecksumMismatch("a frame of an export has impossible numbers")
    return numbers


def decode_partition(body: bytes) -> ExportedPartition:
    """Raises ChecksumMismatch, and UnsupportedFormat for a policy of a later release."""
    try:
        exported = _PARTITION.decode(body)
    except msgspec.MsgspecError as error:
        raise ChecksumMismatch("a partition of an export cannot be read") from error
    exported.definition.quorum_policy()
    exported.definition.master_policy()
    start, end = exported.start_index, exported.next_index
    in_order = 0 <= start <= end <= U64_MAX and 0 <= exported.clean_next <= end
    if not in_order or not 0 <= exported.partition <= U64_MAX:
        raise ChecksumMismatch("an impossible partition", partition=exported.partition)
    return exported


def decode_run(body: bytes, reached: int, next_index: int) -> Piece:
    """Decode batches that stand between two indices. Raises ChecksumMismatch."""
    if len(body) < _COUNT.size:
        raise ChecksumMismatch("a run of an export is cut short")
    table_end = _COUNT.size + _COUNT.unpack_from(body)[0] * ROW_BYTES
    if len(body) < table_end:
        raise ChecksumMismatch("a run of an export is cut short")
    table, data = body[_COUNT.size : table_end], body[table_end:]
    lengths = 0
    for first, count, length, _ in ROW.iter_unpack(table):
        if first < reached or not count or first + count > next_index:
            raise ChecksumMismatch("a batch of an export has no place", first=first)
        reached, lengths = first + count, lengths + length
    if not table or lengths != len(data):
        raise ChecksumMismatch("a run's table does not fit its bytes", given_bytes=len(body))
    piece = Piece()
    piece.add_block(table, data)
    return piece
