"""The columns that come from MQTT 5 properties. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from quantum.lake.schema import arrow_schema
from quantum.protocols.mqtt.codec.records import decode_block

_SCHEMA = arrow_schema(["content_type", "user_properties"])


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
