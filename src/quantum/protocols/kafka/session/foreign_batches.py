"""Batches that another protocol wrote, as Kafka's readers see them: converted where they are read.

The fields are mapped as `docs/kafka.md` says; offsets and times are those of the log. Who reads the
other protocol's bytes is given by the node: no protocol knows another one.
"""

from __future__ import annotations

from quantum.mesh.topic_views import FetchedBatch
from quantum.model.records import Record, RecordProtocol, RecordReaders
from quantum.protocols.kafka.codec import KafkaRecord, build_batch, kafka_headers


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
    headers = kafka_headers(record)
    return KafkaRecord(record.offset, record.timestamp_ms, record.key, record.body, headers)
