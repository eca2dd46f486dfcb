"""The columns that come from MQTT 5 properties. Pure.

The same blocks come again and again (a publisher's content type), so each is decoded once a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import pyarrow as pa

from quantum.lake.schema import arrow_schema
from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    MalformedPacket,
    Properties,
    PropertyScope,
    ProtocolViolation,
    decode_properties,
)
from quantum.protocols.mqtt.codec.primitives import Cursor, encode_variable

_SCHEMA = arrow_schema(["content_type", "user_properties"])


@lru_cache(maxsize=1024)
def decode_block(block: bytes) -> Properties:
    """Decode the properties of a record; none for bytes that are no properties."""
    if not block:
        return NO_PROPERTIES
    try:
        return decode_properties(Cursor(encode_variable(len(block)) + block), PropertyScope.PUBLISH)
    except (MalformedPacket, ProtocolViolation):
        return NO_PROPERTIES


def property_columns(blocks: list[bytes]) -> Mapping[str, pa.Array]:
    """Make the columns of so many rows; what is absent is null."""
    if not any(blocks):
        return {field.name: pa.nulls(len(blocks), field.type) for field in _SCHEMA}
    found = [decode_block(block) for block in blocks]
    pairs = [
        [{"key": key, "value": value} for key, value in each.user_properties] or None
        for each in found
    ]
    return {
        "content_type": pa.array(
            [each.content_type for each in found], _SCHEMA.field("content_type").type
        ),
        "user_properties": pa.array(pairs, _SCHEMA.field("user_properties").type),
    }
