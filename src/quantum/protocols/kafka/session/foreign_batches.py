"""Batches that another protocol wrote, as Kafka's readers see them: converted where they are read.

The fields are mapped as `docs/kafka.md` says; offsets and times are those of the log. Who reads the
other protocol's bytes is given by the node: no protocol knows another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from quantum.mesh.topic_views import FetchedBatch
from quantum.model.records import Record, RecordProtocol
from quantum.protocols.kafka.codec import KafkaRecord, build_batch

RecordReader = Callable[[bytes, int, int], Iterator[Record]]
"""Walks a batch of one protocol, its tag in front: the bytes, the first offset, the time."""
RecordReaders = Mapping[RecordProtocol, RecordReader]

ADDRESS: Final = "mqtt.topic"
CONTENT_TYPE: Final = "content-type"
REPLY_TO: Final = "reply-to"
CORRELATION: Final = "correlation-id"
EXPIRES_AT: Final = "expires-at"


def as_kafka(batch: FetchedBatch, readers: RecordReaders) -> memoryview:
    """Return a batch in Kafka's bytes: untouched where they are its own."""
    if batch.protocol is RecordProtocol.KAFKA:
        return batch.data
    read = readers[batch.protocol]
    tagged = bytes((batch.protocol,)) + batch.data
    found = read(tagged, batch.base_offset, batch.timestamp_ms)
    records = [_converted(each) for each in found]
    last = batch.base_offset + batch.count - 1
    return memoryview(build_batch(records, base_offset=batch.base_offset, last_offset=last))


def _converted(record: Record) -> KafkaRecord:
    headers: list[tuple[str, bytes | None]] = [
        (name.decode(errors="replace"), value) for name, value in record.headers
    ]
    expires = record.expires_at_ms
    said = (
        (ADDRESS, record.address),
        (CONTENT_TYPE, record.content_type),
        (REPLY_TO, record.reply_to),
        (CORRELATION, record.correlation),
        (EXPIRES_AT, None if expires is None else str(expires).encode()),
    )
    headers += [(name, value) for name, value in said if value is not None]
    return KafkaRecord(record.offset, record.timestamp_ms, record.key, record.body, tuple(headers))
