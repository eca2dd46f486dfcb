"""What a stream keeps of MQTT is told to other protocols field by field."""

from __future__ import annotations

import pytest

from quantum.broker.message import RETAIN, encode_record
from quantum.model.records import MQTT_RECORDS, Origin, Record, RecordProtocol, protocol_of
from quantum.protocols.mqtt.codec import Properties
from quantum.protocols.mqtt.codec.records import records_of
from quantum.protocols.mqtt.codec.types import TopicName
from quantum.protocols.mqtt.session.delivery import forwardable

ORIGIN = Origin(b"client", 4, 11)


def record(properties: Properties | None = None, payload: bytes = b"body", **at: int) -> bytes:
    block = b"" if properties is None else forwardable(properties)
    return encode_record(
        b"a/b", payload, 1 | at.get("flags", 0), block, at.get("expires", 0), b"client", 4, 11
    )


def plain(offset: int, **said: object) -> Record:
    fields = {"body": b"body", "key": b"a/b"} | said
    return Record(offset, 77, RecordProtocol.MQTT, b"a/b", ORIGIN, **fields)  # type: ignore[arg-type]


RICH = Properties(
    content_type="text/plain",
    response_topic=TopicName(b"answers"),
    correlation_data=b"\x00\xff",
    user_properties=(("k", "1"), ("key", "ü"), ("k", "2"), ("key", "second")),
)
HEADERS = ((b"k", b"1"), (b"key", "ü".encode()), (b"k", b"2"), (b"key", b"second"))

CASES: dict[str, tuple[bytes, Record]] = {
    "plain": (record(), plain(5)),
    "expires": (record(expires=99), plain(5, expires_at_ms=99)),
    "everything": (
        record(RICH),
        plain(
            5,
            key="ü".encode(),
            headers=HEADERS,
            content_type=b"text/plain",
            reply_to=b"answers",
            correlation=b"\x00\xff",
        ),
    ),
    "an empty body": (record(payload=b""), plain(5, body=b"")),
    "an empty retained message deletes": (
        record(payload=b"", flags=RETAIN),
        plain(5, body=None),
    ),
}


@pytest.mark.parametrize(("stored", "told"), CASES.values(), ids=CASES.keys())
def test_each_field_is_told(stored: bytes, told: Record) -> None:
    assert list(records_of(MQTT_RECORDS + stored, 5, 77)) == [told]


def test_offsets_count_from_the_first_of_the_batch() -> None:
    batch = MQTT_RECORDS + record() + record(payload=b"next")
    assert list(records_of(batch, 5, 77)) == [plain(5), plain(6, body=b"next")]
    assert protocol_of(batch) is RecordProtocol.MQTT


@pytest.mark.parametrize("batch", [b"\x02" + record(), MQTT_RECORDS + record()[:-1], b""])
def test_other_bytes_are_refused(batch: bytes) -> None:
    with pytest.raises(ValueError, match=r"batch|record"):
        list(records_of(batch, 0, 0))
