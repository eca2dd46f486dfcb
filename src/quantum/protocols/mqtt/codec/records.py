"""MQTT's batches of a stream as neutral records: topic, key, headers, body, and who sent it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from quantum.broker.message import Message, decode_record
from quantum.model.records import MQTT_RECORDS, Origin, Record, RecordProtocol
from quantum.protocols.mqtt.codec.errors import MalformedPacket, ProtocolViolation
from quantum.protocols.mqtt.codec.primitives import PacketCursor, encode_variable
from quantum.protocols.mqtt.codec.properties import (
    NO_PROPERTIES,
    Properties,
    PropertyScope,
    decode_properties,
)

KEY: Final = "key"
"""The user property that names a message's key; without one its topic is."""


@lru_cache(maxsize=1024)
def decode_block(block: bytes) -> Properties:
    """Decode the properties of a record; none for bytes that are no properties.

    The same blocks come again and again (a publisher's content type).
    """
    if not block:
        return NO_PROPERTIES
    try:
        return decode_properties(
            PacketCursor(encode_variable(len(block)) + block), PropertyScope.PUBLISH
        )
    except (MalformedPacket, ProtocolViolation):
        return NO_PROPERTIES


def records_of(batch: bytes, first: int, timestamp_ms: int) -> Iterator[Record]:
    """Walk a batch that MQTT brought. Raises ValueError for bytes that are none."""
    if not batch.startswith(MQTT_RECORDS):
        raise ValueError("not a batch of MQTT's")
    at, offset = len(MQTT_RECORDS), first
    while at < len(batch):
        message, at = decode_record(batch, at)
        yield _record(message, offset, timestamp_ms)
        offset += 1


def _record(message: Message, offset: int, timestamp_ms: int) -> Record:
    return record_from(
        *(message.topic, message.payload, decode_block(message.properties)),
        retain=message.retain,
        origin=Origin(message.client_id, message.epoch, message.packet_id),
        expires_at_ms=message.expires_at_ms or None,
        offset=offset,
        timestamp_ms=timestamp_ms,
    )


def record_from(
    topic: bytes,
    payload: bytes,
    properties: Properties,
    *,
    retain: bool,
    origin: Origin,
    expires_at_ms: int | None,
    offset: int = 0,
    timestamp_ms: int = 0,
) -> Record:
    """Say a message of MQTT's in the neutral words."""
    said = properties.user_properties
    named = [value for name, value in said if name == KEY]
    return Record(
        offset=offset,
        timestamp_ms=timestamp_ms,
        protocol=RecordProtocol.MQTT,
        address=topic,
        origin=origin,
        # An empty retained message deletes (MQTT 5 §3.3.1.3): a body that was not said.
        body=None if retain and not payload else payload,
        key=named[0].encode() if named else topic,
        headers=tuple((name.encode(), value.encode()) for name, value in said),
        content_type=_text(properties.content_type),
        reply_to=properties.response_topic,
        correlation=properties.correlation_data,
        expires_at_ms=expires_at_ms,
    )


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()
