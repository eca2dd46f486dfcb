"""Neutral records as publishes of MQTT 5, and publishes as neutral records.

MQTT's user properties are text. What another protocol brought as bytes, and what has no place of
its own here, is said by that protocol in a header of text (`amqp.head`); bytes that are no text
are left out.
"""

from __future__ import annotations

from typing import Final

from quantum.model.records import Origin, Record
from quantum.protocols.mqtt.codec.errors import PeerFault
from quantum.protocols.mqtt.codec.packets import Publish
from quantum.protocols.mqtt.codec.primitives import decode_text
from quantum.protocols.mqtt.codec.properties import Properties
from quantum.protocols.mqtt.codec.records import KEY, record_from
from quantum.protocols.mqtt.codec.topics import is_topic_name
from quantum.protocols.mqtt.codec.types import FIELD_BYTES_MAX, TopicName

_EXPIRY_SECONDS_MAX: Final = 0xFFFF_FFFF


def publish_of(
    record: Record, topic: bytes, *, retain: bool, is_text: bool, now_ms: int
) -> Publish:
    """Write a record as a publish of QoS 2; a body that was not said deletes what is retained."""
    said = [pair for pair in map(_pair, record.headers) if pair is not None]
    if record.key is not None:
        key = _text(record.key)
        said += [] if key is None else [(KEY, key)]
    response = record.reply_to if record.reply_to and is_topic_name(record.reply_to) else None
    return Publish(
        TopicName(topic),
        record.body or b"",
        qos=2,
        retain=retain or record.body is None,
        properties=Properties(
            payload_format_indicator=1 if is_text else None,
            message_expiry_interval=_seconds_left(record.expires_at_ms, now_ms),
            content_type=_text(record.content_type),
            response_topic=None if response is None else TopicName(response),
            correlation_data=record.correlation,
            user_properties=tuple(said),
        ),
    )


def record_of_publish(publish: Publish, now_ms: int) -> Record:
    """Read a publish that a client was sent; nothing in it says who sent it, nor when."""
    left = publish.properties.message_expiry_interval
    return record_from(
        *(publish.topic, publish.payload, publish.properties),
        retain=publish.retain,
        origin=Origin(b"", 0, int(publish.packet_id)),
        expires_at_ms=None if left is None else now_ms + 1000 * left,
    )


def _seconds_left(expires_at_ms: int | None, now_ms: int) -> int | None:
    if expires_at_ms is None:
        return None
    return min(max(0, expires_at_ms - now_ms + 999) // 1000, _EXPIRY_SECONDS_MAX)


def _pair(header: tuple[bytes, bytes | None]) -> tuple[str, str] | None:
    name, value = _text(header[0]), _text(header[1])
    return None if name is None or value is None else (name, value)


def _text(value: bytes | None) -> str | None:
    """Return what may stand in a property; None for what may not."""
    if value is None or len(value) > FIELD_BYTES_MAX:
        return None
    try:
        return decode_text(value)
    except PeerFault:
        return None
