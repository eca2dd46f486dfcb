"""A record batch of version 2 as bytes: seen by its header, checked, stamped, never re-encoded.

The first 21 bytes stand outside the checksum: base offset, length, leader epoch, magic and the
checksum itself. So the log may place a batch without touching what the producer signed for.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import crc32c
from kio.schema.errors import ErrorCode as KafkaCode

from quantum.protocols.kafka.codec.compression import Compression
from quantum.protocols.kafka.codec.errors import BatchRefused, CorruptBatch

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size
LENGTH_END: Final = 12  # base offset and length: what the length does not count
MAGIC_AT: Final = 16
CRC_AT: Final = 17
CRC_START: Final = 21  # the attributes: the first byte that the checksum covers
MAX_TIMESTAMP_AT: Final = 35
MAGIC: Final = 2

TIMESTAMP_TYPE: Final = 0x08  # set: the time of the append, for every record
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
_COMPRESSION: Final = 0x07
_KNOWN: Final = _COMPRESSION | TIMESTAMP_TYPE | TRANSACTIONAL | CONTROL | DELETE_HORIZON
_FROM_PRODUCERS: Final = _COMPRESSION | TIMESTAMP_TYPE | TRANSACTIONAL

NO_PRODUCER: Final = -1
_ZSTD_SINCE: Final = 7

BATCH_BYTES_MAX: Final = (1 << 20) + LENGTH_END


class BatchHeader(NamedTuple):
    """The header of a batch, in the order of its bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The bytes of the whole batch."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> Compression:
        return Compression(self.attributes & _COMPRESSION)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


def read_header(batch: bytes | bytearray | memoryview, start: int = 0) -> BatchHeader:
    """Read the header at `start`, unchecked. Raises CorruptBatch where the bytes end in it."""
    if len(batch) - start < HEADER_BYTES:
        raise CorruptBatch("batch shorter than its header", length=len(batch) - start)
    return BatchHeader._make(HEADER.unpack_from(batch, start))


def crc_of(batch: bytes | bytearray | memoryview) -> int:
    """Compute the checksum that the header should hold."""
    with memoryview(batch) as whole, whole[CRC_START:] as covered:
        return crc32c.crc32c(covered)


def check_produced(
    batch: bytes | memoryview | None,
    *,
    api_version: int,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> BatchHeader:
    """Check what a producer sent for one partition: exactly one sound batch of version 2.

    Raises BatchRefused with the code that Apache Kafka has for it.
    """
    if not batch:
        raise BatchRefused(KafkaCode.invalid_record, "no record batch for a partition")
    if len(batch) > batch_bytes_max:
        raise BatchRefused(
            KafkaCode.message_too_large, "batch too large", length=len(batch), limit=batch_bytes_max
        )
    _check_magic(batch)
    header = read_header(batch)
    _check_size(header, len(batch))
    _check_fields(header, api_version)
    if header.crc != crc_of(batch):
        raise CorruptBatch("checksum mismatch")
    return header


def _check_magic(batch: bytes | memoryview) -> None:
    """Recognise message sets of magic 0 and 1: their magic stands where ours does."""
    if len(batch) <= MAGIC_AT:
        raise CorruptBatch("batch shorter than its header", length=len(batch))
    magic = batch[MAGIC_AT]
    if magic in {0, 1}:
        code = KafkaCode.unsupported_for_message_format
        raise BatchRefused(code, "message sets before version 2 are not stored", magic=magic)
    if magic != MAGIC:
        raise BatchRefused(KafkaCode.invalid_record, "unknown magic", magic=magic)


def _check_size(header: BatchHeader, length: int) -> None:
    if header.size < HEADER_BYTES or header.size > length:
        raise CorruptBatch("batch of another length than it says", says=header.size, length=length)
    if header.size < length:
        raise BatchRefused(KafkaCode.invalid_record, "more than one batch for a partition")


def _check_fields(header: BatchHeader, api_version: int) -> None:
    invalid = KafkaCode.invalid_record
    codec = header.attributes & _COMPRESSION
    if codec > Compression.ZSTD:
        raise BatchRefused(KafkaCode.unsupported_compression_type, "unknown codec", codec=codec)
    if codec == Compression.ZSTD and api_version < _ZSTD_SINCE:
        code = KafkaCode.unsupported_compression_type
        raise BatchRefused(code, "zstd needs Produce 7", api_version=api_version)
    if header.attributes & ~_FROM_PRODUCERS:
        raise BatchRefused(invalid, "attributes not for producers", attributes=header.attributes)
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        count = header.record_count
        raise BatchRefused(invalid, "count and offsets disagree", count=count)
    if header.producer_id < NO_PRODUCER:
        raise BatchRefused(invalid, "negative producer id")
    if header.producer_id == NO_PRODUCER:
        if header.is_transactional:
            raise BatchRefused(invalid, "transactional batch without a producer id")
    elif header.producer_epoch < 0 or header.base_sequence < 0:
        raise BatchRefused(invalid, "producer id without an epoch or a sequence")


def check_stored(batch: bytes | memoryview) -> BatchHeader:
    """Check a batch that a log gave back. Raises CorruptBatch."""
    header = read_header(batch)
    if header.magic != MAGIC or header.size != len(batch) or header.attributes & ~_KNOWN:
        raise CorruptBatch("not a batch of version 2", magic=header.magic, length=len(batch))
    if header.crc != crc_of(batch):
        raise CorruptBatch("checksum mismatch")
    return header


def place(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write where the log put a batch; its checksum does not cover this."""
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, LENGTH_END, leader_epoch)


def stamp_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Make `now_ms` the time of every record (LogAppendTime), with a new checksum."""
    (attributes,) = struct.unpack_from(">h", batch, CRC_START)
    struct.pack_into(">h", batch, CRC_START, attributes | TIMESTAMP_TYPE)
    struct.pack_into(">q", batch, MAX_TIMESTAMP_AT, now_ms)
    struct.pack_into(">I", batch, CRC_AT, crc_of(batch))
