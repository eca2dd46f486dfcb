"""Batches: checked and stamped as bytes, and opened within bounds."""

from __future__ import annotations

import random
import struct
import zlib

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kio.records.readers import read_batch
from kio.schema.end_txn_marker.v0.data import EndTxnMarker
from kio.serial import entity_reader

from quantum.protocols.kafka.codec import (
    BatchRefused,
    Compression,
    CorruptBatch,
    KafkaCode,
    KafkaMisuse,
    KafkaRecord,
    Marker,
    MarkerKind,
    build_batch,
    build_marker,
    check_produced,
    check_stored,
    deflate,
    inflate,
    iterate_records,
    offset_for_time,
    place,
    read_header,
    read_marker,
    stamp_append_time,
)
from quantum.protocols.kafka.codec.record_batch import CRC_AT, crc_of

CODECS = list(Compression)


def drawn(rng: random.Random, *, start: int = 0) -> list[KafkaRecord]:
    def blob() -> bytes | None:
        return rng.choice([None, b"", rng.randbytes(rng.randint(1, 200))])

    return [
        KafkaRecord(
            start + nth,
            rng.randrange(1 << 41),
            blob(),
            blob(),
            tuple((rng.choice(["h", "é", ""]), blob()) for _ in range(rng.randint(0, 3))),
        )
        for nth in range(rng.randint(1, 30))
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("seed", range(10))
def test_what_is_built_is_read_by_us_and_by_others(seed: int, codec: Compression) -> None:
    rng = random.Random(seed)
    records = drawn(rng, start=rng.randrange(1 << 40))
    batch = build_batch(
        records, compression=codec, producer_id=9, producer_epoch=3, base_sequence=4
    )
    header = check_produced(batch, api_version=9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 3, 4)
    assert header.last_offset == records[-1].offset
    assert header.max_timestamp == max(each.timestamp for each in records)
    assert list(iterate_records(batch)) == records
    other = DefaultRecordBatch(batch)
    assert other.validate_crc()
    seen = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in other]
    assert seen == [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


@pytest.mark.parametrize("codec", CODECS)
def test_what_another_builds_is_read(codec: Compression) -> None:
    builder = DefaultRecordBatchBuilder(2, codec.value, 0, -1, -1, -1, 1 << 20)
    for nth in range(50):
        builder.append(nth, 1000 + nth, b"k", b"v" * 40, [("h", b"x")])
    batch = bytes(builder.build())
    assert check_produced(batch, api_version=7).compression is codec
    assert [r.timestamp for r in iterate_records(batch)] == list(range(1000, 1050))


def altered(offset: int, form: str, value: int, *, fix: bool = True) -> bytes:
    batch = bytearray(
        build_batch(drawn(random.Random(3)), producer_id=1, producer_epoch=0, base_sequence=0)
    )
    struct.pack_into(form, batch, offset, value)
    if fix:
        struct.pack_into(">I", batch, CRC_AT, crc_of(batch))
    return bytes(batch)


GOOD = build_batch(drawn(random.Random(3)))
REFUSED = {
    "null": (b"", KafkaCode.invalid_record),
    "magic 0": (altered(16, ">b", 0), KafkaCode.unsupported_for_message_format),
    "magic 1": (altered(16, ">b", 1), KafkaCode.unsupported_for_message_format),
    "magic 3": (altered(16, ">b", 3), KafkaCode.invalid_record),
    "an old message set": (
        bytes(8) + b"\0\0\0\x16" + bytes(4) + b"\1" + bytes(17),
        KafkaCode.unsupported_for_message_format,
    ),
    "two batches": (GOOD + GOOD, KafkaCode.invalid_record),
    "a byte behind": (GOOD + b"\0", KafkaCode.invalid_record),
    "a byte too few": (GOOD[:-1], KafkaCode.corrupt_message),
    "a header cut": (GOOD[:60], KafkaCode.corrupt_message),
    "ten bytes": (GOOD[:10], KafkaCode.corrupt_message),
    "a negative length": (altered(8, ">i", -1), KafkaCode.corrupt_message),
    "a length of 0": (altered(8, ">i", 0), KafkaCode.corrupt_message),
    "a bit flipped": (altered(65, ">B", 0xEE, fix=False), KafkaCode.corrupt_message),
    "codec 5": (altered(21, ">h", 5), KafkaCode.unsupported_compression_type),
    "control": (altered(21, ">h", 0x20), KafkaCode.invalid_record),
    "delete horizon": (altered(21, ">h", 0x40), KafkaCode.invalid_record),
    "unused bits": (altered(21, ">h", 0x80), KafkaCode.invalid_record),
    "one record too many": (altered(57, ">i", 31), KafkaCode.invalid_record),
    "no records": (altered(57, ">i", 0), KafkaCode.invalid_record),
    "a negative delta": (altered(23, ">i", -1), KafkaCode.invalid_record),
    "a producer without an epoch": (altered(51, ">h", -1), KafkaCode.invalid_record),
    "a producer without a sequence": (altered(53, ">i", -1), KafkaCode.invalid_record),
    "producer -2": (altered(43, ">q", -2), KafkaCode.invalid_record),
    "transactional without a producer": (
        build_batch(drawn(random.Random(3)), attributes=0x10),
        KafkaCode.invalid_record,
    ),
}


@pytest.mark.parametrize(("batch", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_stored_is_refused_with_its_code(batch: bytes, code: KafkaCode) -> None:
    with pytest.raises(BatchRefused) as refused:
        check_produced(batch, api_version=9)
    assert refused.value.code is code


def test_bounds_and_versions_of_a_batch() -> None:
    assert check_produced(memoryview(GOOD), api_version=3, batch_bytes_max=len(GOOD))
    with pytest.raises(BatchRefused) as refused:
        check_produced(GOOD, api_version=3, batch_bytes_max=len(GOOD) - 1)
    assert refused.value.code is KafkaCode.message_too_large
    packed = build_batch(drawn(random.Random(1)), compression=Compression.ZSTD)
    assert check_produced(packed, api_version=7)
    with pytest.raises(BatchRefused) as refused:
        check_produced(packed, api_version=6)
    assert refused.value.code is KafkaCode.unsupported_compression_type
    with pytest.raises(BatchRefused):
        check_produced(None, api_version=9)


def test_placing_leaves_the_checksum_and_everything_behind_it() -> None:
    batch = bytearray(GOOD)
    place(batch, 1 << 40, 17)
    header = check_stored(bytes(batch))
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 17)
    assert batch[16:] == GOOD[16:]
    assert [r.offset - (1 << 40) for r in iterate_records(bytes(batch))] == [
        r.offset for r in iterate_records(GOOD)
    ]


def test_append_time_is_every_records_time() -> None:
    batch = bytearray(GOOD)
    stamp_append_time(batch, 77)
    header = check_stored(bytes(batch))
    assert header.attributes == 0x08
    assert {each.timestamp for each in iterate_records(bytes(batch))} == {77}
    assert {each.timestamp for each in DefaultRecordBatch(bytes(batch))} == {77}
    assert batch[43:] == GOOD[43:]


@pytest.mark.parametrize("kind", list(MarkerKind))
def test_markers_are_control_batches_that_others_read(kind: MarkerKind) -> None:
    wire = build_marker(
        Marker(kind, 5), offset=9, timestamp=3, producer_id=8, producer_epoch=2, leader_epoch=4
    )
    header = check_stored(wire)
    assert header.is_control and header.is_transactional
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (9, 9, 4)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (8, 2, -1)
    assert read_marker(wire) == Marker(kind, 5)
    other = DefaultRecordBatch(wire)
    assert other.is_control_batch
    (record,) = list(other)
    assert record.key == struct.pack(">hh", 0, kind)
    marker, _ = entity_reader(EndTxnMarker)(record.value[2:], 0)
    assert marker.coordinator_epoch == 5
    with pytest.raises(CorruptBatch):
        read_marker(GOOD)
    assert read_batch is not None


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_at_its_bound(codec: Compression) -> None:
    bomb = deflate(codec, bytes(4 << 20))
    assert len(inflate(codec, bomb, bytes_max=4 << 20)) == 4 << 20
    with pytest.raises(CorruptBatch):
        inflate(codec, bomb, bytes_max=(4 << 20) - 1)


def test_bombs_of_many_blocks_are_refused() -> None:
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    framed = b"\x82SNAPPY\x00" + bytes(8) + (len(block).to_bytes(4, "big") + block) * 8
    assert len(inflate(Compression.SNAPPY, framed, bytes_max=8 << 20)) == 8 << 20
    with pytest.raises(CorruptBatch):
        inflate(Compression.SNAPPY, framed, bytes_max=(8 << 20) - 1)
    member = deflate(Compression.GZIP, bytes(1 << 20))
    assert len(inflate(Compression.GZIP, member * 8, bytes_max=8 << 20)) == 8 << 20
    with pytest.raises(CorruptBatch):
        inflate(Compression.GZIP, member * 8, bytes_max=(8 << 20) - 1)


@pytest.mark.parametrize("codec", [each for each in CODECS if each is not Compression.NONE])
def test_damaged_records_are_corrupt(codec: Compression) -> None:
    packed = deflate(codec, random.Random(1).randbytes(5000))
    for data in (packed[:-3], b"\xff" * 40, packed[:1]):
        with pytest.raises(CorruptBatch):
            inflate(codec, data)


def test_gzip_is_what_others_write() -> None:
    assert zlib.decompress(deflate(Compression.GZIP, b"abc"), 31) == b"abc"


def test_the_first_record_at_or_after_a_time() -> None:
    records = [KafkaRecord(nth, stamp, None, b"") for nth, stamp in enumerate([5, 3, 9, 9])]
    batch = build_batch(records)
    found = [offset_for_time(batch, stamp) for stamp in (0, 5, 6, 9, 10)]
    assert found == [(0, 5), (0, 5), (2, 9), (2, 9), None]


def test_compaction_keeps_the_offsets_that_a_batch_stood_for() -> None:
    kept = [KafkaRecord(12, 1, b"k", b"v"), KafkaRecord(17, 2, b"j", None)]
    header = check_stored(build_batch(kept, base_offset=10, last_offset=19))
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 19, 2)
    assert list(iterate_records(build_batch(kept, base_offset=10, last_offset=19))) == kept
    with pytest.raises(KafkaMisuse):
        build_batch([])


def test_forged_insides_are_corrupt_and_nothing_else() -> None:
    """The checksum holds, and what is inside lies: counts, lengths, deltas, text."""
    rng = random.Random(20)
    outcomes = {"read": 0, "corrupt": 0}
    for _ in range(3000):
        batch = bytearray(build_batch(drawn(rng)))
        for _ in range(rng.randint(1, 3)):
            batch[rng.randrange(57, len(batch))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        struct.pack_into(">I", batch, CRC_AT, crc_of(batch))
        try:
            list(iterate_records(bytes(batch)))
        except CorruptBatch:
            outcomes["corrupt"] += 1
        else:
            outcomes["read"] += 1
    assert min(outcomes.values()) > 100, outcomes


def test_headers_are_views_of_the_bytes() -> None:
    assert read_header(memoryview(b"xx" + GOOD), 2) == read_header(GOOD)
    with pytest.raises(CorruptBatch):
        read_header(GOOD, len(GOOD) - 60)
