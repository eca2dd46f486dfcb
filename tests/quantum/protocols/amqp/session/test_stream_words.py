"""Where a receiver of a stream begins, by what address, and what messages are as records."""

from __future__ import annotations

import pytest

from quantum.model.records import Record, RecordProtocol
from quantum.protocols.amqp.engine import (
    Described,
    MessageProperties,
    MessageSection,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    encode_composite,
    encode_data,
    encode_section,
    encode_value,
    locate_sections,
)
from quantum.protocols.amqp.session.addresses import NodeKind, read_address
from quantum.protocols.amqp.session.message_records import SECTIONS, record_of
from quantum.protocols.amqp.session.record_messages import message_of
from quantum.protocols.amqp.session.stream_filters import (
    OFFSET_SPEC,
    StartKind,
    StreamStart,
    read_start,
    read_stream_filters,
)
from quantum.protocols.kafka.codec.neutral_records import KafkaRecordWriter, records_of

NOW = 1_700_000_000_000
VALUE, SEQUENCE = b"\0\x53\x77", b"\0\x53\x76"
NULL = VALUE + encode_value(None)
FOOT = encode_section(MessageSection.FOOTER, {Symbol("x-opt-sum"): 1})
HEAD = encode_section(MessageSection.MESSAGE_ANNOTATIONS, {Symbol("x-opt-mine"): ULong(7)})
SAID = encode_section(MessageSection.APPLICATION_PROPERTIES, {"colour": "blue", "n": UInt(3)})


def kept(payload: bytes) -> Record:
    """Return a message as the stream keeps it and gives it back."""
    made = record_of(payload, b"mark", NOW)
    batch = KafkaRecordWriter().join_records([made], 5, 0, 0, is_append_time=False)
    (found,) = records_of(bytes((RecordProtocol.KAFKA,)) + batch, 0, NOW)
    return found


def bare(payload: bytes) -> bytes:
    view = locate_sections(payload)
    return payload[view.bare[0] :]


@pytest.mark.parametrize(
    ("address", "name", "partition"),
    [
        ("/streams/a", "a", None),
        ("/streams/a.b-c_1", "a.b-c_1", None),
        ("/streams/a%2Eb/12", "a.b", 12),
        ("/streams/a/0", "a", 0),
    ],
)
def test_a_stream_s_address_may_name_a_partition(
    address: str, name: str, partition: int | None
) -> None:
    found = read_address(address)
    assert found is not None
    assert (found.kind, found.name, found.partition) == (NodeKind.STREAM, name, partition)
    assert read_address(str(found)) == found


@pytest.mark.parametrize("address", ["/streams/", "/streams//1", "/streams/a/", "/streams/a/b"])
def test_an_address_of_no_stream_is_none(address: str) -> None:
    assert read_address(address) is None
    assert read_address("/streams/a/" + "1" * 20) is None
    assert read_address("/streams/a/٣") is None  # a digit, but no ASCII one


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("first", StreamStart(StartKind.FIRST)),
        (Symbol("last"), StreamStart(StartKind.LAST)),
        ("next", StreamStart(StartKind.NEXT)),
        (ULong(0), StreamStart(StartKind.OFFSET, 0)),
        (17, StreamStart(StartKind.OFFSET, 17)),
        (Timestamp(NOW), StreamStart(StartKind.TIME, NOW)),
    ],
)
def test_a_place_to_begin_at_is_understood(value: object, start: StreamStart) -> None:
    assert read_start(value) == start
    filters = read_stream_filters({"a": Described(Symbol(OFFSET_SPEC), value)})
    assert filters.start == start
    assert list(filters.told or {}) == ["a"]


@pytest.mark.parametrize("value", ["", "First", "5m", True, -1, Timestamp(-1), 1.5, None, b"first"])
def test_what_is_no_place_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="first, last, next"):
        read_start(value)


def test_there_is_one_place_and_without_one_what_comes_next() -> None:
    assert read_stream_filters(None).start == StreamStart(StartKind.NEXT)
    first = Described(Symbol(OFFSET_SPEC), "first")
    with pytest.raises(ValueError, match="one place"):
        read_stream_filters({"a": first, "b": first})


BODIES = {
    "data": encode_data(b"x" * 300),
    "no data": encode_data(b""),
    "two pieces of data": encode_data(b"one") + encode_data(b"two"),
    "text": VALUE + encode_value("täxt"),
    "bytes": VALUE + encode_value(b"\xff"),
    "null": NULL,
    "a number": VALUE + encode_value(ULong(5)),
    "a symbol": VALUE + encode_value(Symbol("s")),
    "a sequence": SEQUENCE + encode_value([1, "two"]),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
@pytest.mark.parametrize("head", [b"", HEAD + SAID], ids=["no head", "a head"])
@pytest.mark.parametrize("foot", [b"", FOOT], ids=["no foot", "a foot"])
def test_an_amqp_reader_is_given_what_was_sent(head: bytes, body: bytes, foot: bytes) -> None:
    sent = head + body + foot
    got = message_of(kept(sent), "s", 3)
    assert bare(got) == bare(sent)
    annotations = locate_sections(got).message_annotations()
    assert annotations.pop(Symbol("x-stream-offset")) == 0
    assert annotations.pop(Symbol("x-opt-stream-partition")) == 3
    assert annotations == locate_sections(sent).message_annotations()


@pytest.mark.parametrize(
    ("body", "value", "content_type"),
    [
        (encode_data(b"d"), b"d", b"text/plain"),
        (VALUE + encode_value("t"), b"t", b"text/plain"),
        (VALUE + encode_value(b"b"), b"b", b"text/plain"),
        (NULL, None, b"text/plain"),
        (VALUE + encode_value(1.5), VALUE + encode_value(1.5), SECTIONS),
    ],
)
def test_others_read_data_text_and_bytes_as_they_are(
    body: bytes, value: bytes | None, content_type: bytes
) -> None:
    properties = MessageProperties()
    properties.content_type = Symbol("text/plain")
    properties.correlation_id = ULong(7)
    properties.group_id = "g"
    record = kept(encode_composite(properties) + SAID + body)
    assert (record.body, record.content_type) == (value, content_type)
    assert (record.key, record.correlation, record.timestamp_ms) == (b"g", b"7", NOW)
    assert dict(record.headers)[b"n"] == b"3"


def test_a_header_that_says_it_is_a_head_is_believed_only_if_it_is_one() -> None:
    record = kept(encode_data(b"body"))
    unreadable = b"\0\x53\x74\xc1\x03\x02\xff\xff"  # a map whose values have no type
    for head in (b"nonsense", b"\0\x53\x75", encode_data(b"x") + SAID, unreadable):
        forged = ((b"amqp.head", head), (b"colour", b"blue"))
        lie = Record(0, NOW, RecordProtocol.KAFKA, b"", record.origin, b"body", headers=forged)
        view = locate_sections(message_of(lie, "s", 0))
        assert (view.data(), view.application_properties()["colour"]) == (b"body", "blue")
