"""Kafka's batches as neutral records, and neutral records as a batch of Kafka's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from quantum.model.records import Origin, Record, RecordProtocol, producer_mark
from quantum.protocols.kafka.codec.errors import CorruptBatch
from quantum.protocols.kafka.codec.record_batch import TIMESTAMP_TYPE, read_header
from quantum.protocols.kafka.codec.records import KafkaRecord, build_batch, iterate_records

ADDRESS: Final = "mqtt.topic"
CONTENT_TYPE: Final = "content-type"
REPLY_TO: Final = "reply-to"
CORRELATION: Final = "correlation-id"
EXPIRES_AT: Final = "expires-at"
_SAID: Final = frozenset((ADDRESS, CONTENT_TYPE, REPLY_TO, CORRELATION))
READ_BYTES_MAX: Final = 16 << 20
"""What one batch may hold inflated, for readers that are given its records one by one."""
_TAG: Final = bytes((RecordProtocol.KAFKA,))
_DIGITS_MAX: Final = 15


def records_of(batch: bytes, first: int, _timestamp_ms: int) -> Iterator[Record]:
    """Walk a batch that Kafka brought; one that ends a transaction holds no records.

    Raises ValueError for bytes that are no such batch, or hold more than is inflated here.
    """
    if not batch.startswith(_TAG):
        raise ValueError("not a batch of Kafka's")
    data = memoryview(batch)[len(_TAG) :]
    try:
        header = read_header(data)
        if header.is_control:
            return
        sender = producer_mark(header.producer_id)
        for each in iterate_records(data, bytes_max=READ_BYTES_MAX):
            sequence = max(0, header.base_sequence) + each.offset - first
            yield _record(each, Origin(sender, header.producer_epoch, sequence))
    except CorruptBatch as fault:
        raise ValueError(fault.reason) from None


def _record(record: KafkaRecord, origin: Origin) -> Record:
    said = {name: value for name, value in record.headers if name in _SAID}
    expires_at_ms = _time(next((v for n, v in record.headers if n == EXPIRES_AT), None))
    taken = _SAID if expires_at_ms is None else _SAID | {EXPIRES_AT}
    return Record(
        offset=record.offset,
        timestamp_ms=record.timestamp,
        protocol=RecordProtocol.KAFKA,
        address=said.get(ADDRESS) or b"",
        origin=origin,
        body=record.value,
        key=record.key,
        headers=tuple((n.encode(), v) for n, v in record.headers if n not in taken),
        content_type=said.get(CONTENT_TYPE),
        reply_to=said.get(REPLY_TO),
        correlation=said.get(CORRELATION),
        expires_at_ms=expires_at_ms,
    )


def _time(text: bytes | None) -> int | None:
    """Read a time of day in milliseconds; None where it is none."""
    is_number = text is not None and text.isdigit() and len(text) <= _DIGITS_MAX
    return int(text) if is_number and text is not None else None


class KafkaRecordWriter:
    """Makes batches that Kafka's readers take as they are (`RecordWriter`)."""

    def key_partition(self, key: bytes, partitions: int) -> int:
        """Return the partition of a key as Apache's own producer chooses it."""
        return (murmur2(key) & 0x7FFFFFFF) % partitions

    def join_records(
        self,
        records: Sequence[Record],
        producer_id: int,
        epoch: int,
        first_sequence: int,
        *,
        is_append_time: bool,
    ) -> bytes:
        """Make one batch of records, without its tag."""
        made = [_kafka_record(each, offset) for offset, each in enumerate(records)]
        return build_batch(
            made,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=first_sequence,
            attributes=TIMESTAMP_TYPE if is_append_time else 0,
        )


def _kafka_record(record: Record, offset: int) -> KafkaRecord:
    time_ms, key, body = record.timestamp_ms, record.key, record.body
    return KafkaRecord(offset, time_ms, key, body, kafka_headers(record))


def kafka_headers(record: Record) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers that say what a record of another protocol says beside key and body."""
    expires = record.expires_at_ms
    said = (
        (ADDRESS, record.address or None),
        (CONTENT_TYPE, record.content_type),
        (REPLY_TO, record.reply_to),
        (CORRELATION, record.correlation),
        (EXPIRES_AT, None if expires is None else str(expires).encode()),
    )
    return (
        *((name.decode(errors="replace"), value) for name, value in record.headers),
        *((name, value) for name, value in said if value is not None),
    )


def murmur2(data: bytes) -> int:
    """Hash as Apache's default partitioner does (MurmurHash2, 32 bits)."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    found = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        found = found * factor & mask ^ word
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * factor & mask
    found = (found ^ found >> 13) * factor & mask
    return found ^ found >> 15
