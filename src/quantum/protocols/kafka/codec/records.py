"""Records out of a batch and into one: only where somebody must look inside.

ListOffsets by time, compaction, other protocols and transaction markers need this; Produce and
Fetch never do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from quantum.protocols.kafka.codec.compression import (
    INFLATED_BYTES_MAX,
    Compression,
    deflate,
    inflate,
)
from quantum.protocols.kafka.codec.errors import CorruptBatch, KafkaMisuse
from quantum.protocols.kafka.codec.record_batch import (
    CONTROL,
    CRC_AT,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
    BatchHeader,
    crc_of,
    read_header,
)

_MARKER_KEY: Final = struct.Struct(">hh")  # version, type
_MARKER_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch
RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, null key, null value, no headers

KafkaHeaders = tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True)
class KafkaRecord:
    """One record; `key` and `value` may be null, headers keep their order and repeats."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: KafkaHeaders = ()


class MarkerKind(IntEnum):
    """How a transaction ended in one partition."""

    ABORT = 0
    COMMIT = 1


@dataclass(slots=True)
class Marker:
    """What a control batch says of a transaction."""

    kind: MarkerKind
    coordinator_epoch: int


def read_signed(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """Read a zigzag variable integer of 32 or 64 bits. Raises CorruptBatch."""
    value = 0
    shift = 0
    while position < len(data) and shift < bits:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position += 1
        if byte < 0x80:
            if value >> bits:
                break
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise CorruptBatch("ill-formed variable integer in a record")


def encode_signed(value: int) -> bytes:
    """Encode a zigzag variable integer."""
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def iterate_records(
    batch: bytes | memoryview, *, bytes_max: int = INFLATED_BYTES_MAX
) -> Iterator[KafkaRecord]:
    """Yield the records of one batch, inflated within `bytes_max`. Raises CorruptBatch."""
    header = read_header(batch)
    if header.attributes & 0x07 > Compression.ZSTD:
        raise CorruptBatch("unknown codec")
    data = inflate(header.compression, memoryview(batch)[HEADER_BYTES:], bytes_max=bytes_max)
    if not 0 <= header.record_count <= len(data) // RECORD_BYTES_MIN:
        raise CorruptBatch("impossible count of records", count=header.record_count)
    position = 0
    for _ in range(header.record_count):
        record, position = _read_record(data, position, header)
        yield record
    if position != len(data):
        raise CorruptBatch("bytes behind the records", extra=len(data) - position)


def _read_record(data: bytes, position: int, header: BatchHeader) -> tuple[KafkaRecord, int]:
    length, position = read_signed(data, position, 32)
    end = position + length
    if length < 0 or end > len(data):
        raise CorruptBatch("record runs beyond its batch", length=length)
    body = data[position:end]
    delta, position = read_signed(body, 1, 64)
    offset_delta, position = read_signed(body, position, 32)
    key, position = _read_bytes(body, position)
    value, position = _read_bytes(body, position)
    headers, position = _read_headers(body, position)
    if position != length:
        raise CorruptBatch("record of another length than it says", length=length)
    appended = header.attributes & TIMESTAMP_TYPE
    timestamp = header.max_timestamp if appended else header.base_timestamp + delta
    return KafkaRecord(header.base_offset + offset_delta, timestamp, key, value, headers), end


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_signed(data, position, 32)
    if length == -1:
        return None, position
    if length < 0 or position + length > len(data):
        raise CorruptBatch("a field runs beyond its record", length=length)
    return data[position : position + length], position + length


def _read_headers(data: bytes, position: int) -> tuple[KafkaHeaders, int]:
    count, position = read_signed(data, position, 32)
    if not 0 <= count <= len(data) - position:
        raise CorruptBatch("impossible count of headers", count=count)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _read_bytes(data, position)
        value, position = _read_bytes(data, position)
        if name is None:
            raise CorruptBatch("a header without a name")
        try:
            headers.append((name.decode(), value))
        except UnicodeDecodeError:
            raise CorruptBatch("a header's name is no UTF-8") from None
    return tuple(headers), position


def _encode_bytes(data: bytes | None) -> bytes:
    return encode_signed(-1) if data is None else encode_signed(len(data)) + data


def encode_record(record: KafkaRecord, base_offset: int, base_timestamp: int) -> bytes:
    """Encode one record as a batch with these bases holds it."""
    body = bytearray(b"\x00")
    body += encode_signed(record.timestamp - base_timestamp)
    body += encode_signed(record.offset - base_offset)
    body += _encode_bytes(record.key)
    body += _encode_bytes(record.value)
    body += encode_signed(len(record.headers))
    for name, value in record.headers:
        body += _encode_bytes(name.encode())
        body += _encode_bytes(value)
    return encode_signed(len(body)) + bytes(body)


def build_batch(
    records: Sequence[KafkaRecord],
    *,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    attributes: int = 0,
    base_offset: int | None = None,
    last_offset: int | None = None,
) -> bytes:
    """Build a batch from records whose offsets ascend; holes between them are kept.

    Compaction says by `base_offset` and `last_offset` which offsets the batch stood for.
    """
    if not records:
        raise KafkaMisuse("a batch without records")
    base = records[0].offset if base_offset is None else base_offset
    last = records[-1].offset if last_offset is None else last_offset
    times = [each.timestamp for each in records]
    body = b"".join(encode_record(each, base, times[0]) for each in records)
    packed = deflate(compression, body)
    batch = bytearray(HEADER_BYTES) + packed
    length = len(batch) - LENGTH_END
    flags = attributes | compression
    HEADER.pack_into(
        *(batch, 0, base, length, leader_epoch, MAGIC, 0, flags, last - base),
        *(times[0], max(times), producer_id, producer_epoch, base_sequence, len(records)),
    )
    struct.pack_into(">I", batch, CRC_AT, crc_of(batch))
    return bytes(batch)


def build_marker(
    marker: Marker,
    *,
    offset: int,
    timestamp: int,
    producer_id: int,
    producer_epoch: int,
    leader_epoch: int = -1,
) -> bytes:
    """Build the control batch that ends a transaction in one partition."""
    key = _MARKER_KEY.pack(0, marker.kind)
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [KafkaRecord(offset, timestamp, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


def read_marker(batch: bytes | memoryview) -> Marker:
    """Read a control batch. Raises CorruptBatch where it ends no transaction."""
    if not read_header(batch).is_control:
        raise CorruptBatch("no control batch")
    record = next(iterate_records(batch), None)
    key, value = (record.key, record.value) if record is not None else (None, None)
    if key is None or value is None or len(key) < _MARKER_KEY.size:
        raise CorruptBatch("a control batch without a key or a value")
    kind = _MARKER_KEY.unpack_from(key)[1]
    if kind not in {MarkerKind.ABORT, MarkerKind.COMMIT} or len(value) < _MARKER_VALUE.size:
        raise CorruptBatch("a control batch that ends no transaction", kind=kind)
    return Marker(MarkerKind(kind), _MARKER_VALUE.unpack_from(value)[1])


def offset_for_time(
    batch: bytes | memoryview, since_ms: int, *, bytes_max: int = INFLATED_BYTES_MAX
) -> tuple[int, int] | None:
    """Find the first record at or after `since_ms`: its offset and timestamp (ListOffsets)."""
    for record in iterate_records(batch, bytes_max=bytes_max):
        if record.timestamp >= since_ms:
            return record.offset, record.timestamp
    return None
