"""Kafka's batches for readers of other protocols, and batches made of others' records."""

from __future__ import annotations

import random
import warnings

import pytest

from quantum.model.records import Origin, Record, RecordProtocol, producer_mark
from quantum.protocols.kafka.codec import (
    Compression,
    KafkaRecord,
    Marker,
    MarkerKind,
    build_batch,
    build_marker,
    check_produced,
    iterate_records,
)
from quantum.protocols.kafka.codec.neutral_records import (
    READ_BYTES_MAX,
    KafkaRecordWriter,
    murmur2,
    records_of,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.partitioner.default import murmur2 as stock_murmur2

TAG = bytes((RecordProtocol.KAFKA,))
NOW = 1_700_000_000_000


def test_keys_are_hashed_as_stock_clients_do() -> None:
    rng = random.Random(5)
    for size in range(40):
        key = rng.randbytes(size)
        assert murmur2(key) == stock_murmur2(key) & 0xFFFFFFFF
    partitions = {KafkaRecordWriter().key_partition(rng.randbytes(9), 7) for _ in range(200)}
    assert partitions == set(range(7))


def test_headers_that_have_a_field_become_it() -> None:
    headers = (
        ("mqtt.topic", b"a/b"),
        ("x", b"1"),
        ("content-type", b"t"),
        ("reply-to", b"r"),
        ("correlation-id", b"c"),
        ("expires-at", b"5"),
        ("x", None),
    )
    kept = KafkaRecord(4, NOW, b"k", None, headers)
    batch = build_batch([kept], producer_id=9, producer_epoch=2, base_sequence=3)
    (found,) = records_of(TAG + batch, 4, NOW)
    assert found == Record(
        offset=4,
        timestamp_ms=NOW,
        protocol=RecordProtocol.KAFKA,
        address=b"a/b",
        origin=Origin(producer_mark(9), 2, 3),
        body=None,
        key=b"k",
        headers=((b"x", b"1"), (b"x", None)),
        content_type=b"t",
        reply_to=b"r",
        correlation=b"c",
        expires_at_ms=5,
    )


@pytest.mark.parametrize("text", [b"", b"soon", b"-5", b"9" * 16, None])
def test_a_time_that_is_none_stays_a_header(text: bytes | None) -> None:
    batch = build_batch([KafkaRecord(0, NOW, None, b"", (("expires-at", text),))])
    (found,) = records_of(TAG + batch, 0, NOW)
    assert (found.expires_at_ms, found.headers) == (None, ((b"expires-at", text),))


def test_the_end_of_a_transaction_holds_no_records() -> None:
    marker = Marker(MarkerKind.COMMIT, 1)
    batch = build_marker(marker, offset=3, timestamp=NOW, producer_id=1, producer_epoch=0)
    assert list(records_of(TAG + batch, 3, NOW)) == []


def test_what_is_no_batch_or_too_much_of_one_is_refused() -> None:
    big = KafkaRecord(0, NOW, None, bytes(READ_BYTES_MAX))
    bomb = build_batch([big], compression=Compression.ZSTD)
    assert len(bomb) < 10_000
    whole = build_batch([KafkaRecord(0, NOW, None, b"value")])
    for data in (b"", b"\1abc", TAG, TAG + whole[:-1], TAG + whole + b"x", TAG + bomb):
        with pytest.raises(ValueError, match=r"\w"):
            list(records_of(data, 0, NOW))


@pytest.mark.parametrize("is_append_time", [False, True])
def test_a_batch_of_others_records_is_one_that_a_producer_could_have_sent(
    is_append_time: bool,
) -> None:
    origin = Origin(b"", 0, 0)
    records = [
        Record(0, NOW + n, RecordProtocol.AMQP, b"", origin, b"b%d" % n, headers=((b"h", b"v"),))
        for n in range(3)
    ]
    batch = KafkaRecordWriter().join_records(records, 7, 1, 20, is_append_time=is_append_time)
    header = check_produced(memoryview(batch), api_version=9, batch_bytes_max=1 << 20)
    facts = (header.producer_id, header.producer_epoch, header.base_sequence, header.record_count)
    assert facts == (7, 1, 20, 3)
    times = [NOW + 2] * 3 if is_append_time else [NOW, NOW + 1, NOW + 2]
    assert [(each.offset, each.timestamp) for each in iterate_records(batch)] == [*enumerate(times)]
