"""One published message, and the record that carries it through logs and between partitions.

length:u32 flags:u8 client:u16 topic:u16 properties:u16 packet_id:u16 epoch:u32
[expires_at_ms:u64] client topic properties payload                              (little-endian)

`length` counts what follows it. The payload stays the bytes that the publisher sent; the
properties are MQTT 5's own encoding, without the ones that belong to one hop only (topic alias,
message expiry, subscription identifiers).
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from quantum.broker.types import TIME_MAX_MS

HEAD: Final = struct.Struct("<IBHHHHI")
HEAD_BYTES: Final = HEAD.size
EXPIRY: Final = struct.Struct("<Q")
LENGTH_BYTES: Final = 4
_FLAGS_AT: Final = LENGTH_BYTES
_BEHIND_LENGTH: Final = HEAD_BYTES - LENGTH_BYTES

FIELD_BYTES_MAX: Final = 0xFFFF
"""The longest topic, client id or block of properties."""

QOS_MASK: Final = 0x03
RETAIN: Final = 0x04
EXPIRES: Final = 0x08
FROM_V5: Final = 0x10  # for the analytical side
BEFORE_V5: Final = 0x20  # its publisher cannot be told that it was refused
BEGINS: Final = 0x40  # the first of a connection that goes this way

_pack_head = HEAD.pack
unpack_head = HEAD.unpack_from
_join = b"".join


_Short: TypeAlias = Annotated[bytes, Meta(max_length=FIELD_BYTES_MAX)]


class Message(msgspec.Struct, array_like=True, eq=False, gc=False):
    """A message as the broker keeps it. Nobody changes one that was published.

    The bounds hold for what is decoded: they are those of a record.
    """

    topic: _Short
    payload: bytes
    qos: Annotated[int, Meta(ge=0, le=2)]
    retain: bool
    properties: _Short
    expires_at_ms: Annotated[int, Meta(ge=0, le=TIME_MAX_MS)]  # 0: never
    client_id: _Short
    epoch: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
    packet_id: Annotated[int, Meta(ge=0, le=0xFFFF)]

    @property
    def record(self) -> bytes:
        """The message as bytes; `decode_record` is its inverse."""
        return self.record_with(0)

    def record_with(self, flags: int) -> bytes:
        """Return the record with more flags than the message itself has."""
        return encode_record(
            self.topic,
            self.payload,
            self.qos | (RETAIN if self.retain else 0) | flags,
            self.properties,
            self.expires_at_ms,
            self.client_id,
            self.epoch,
            self.packet_id,
        )

    @property
    def weight(self) -> int:
        """How many bytes it costs to keep."""
        return len(self.topic) + len(self.payload) + len(self.properties) + 64


def encode_record(  # noqa: PLR0917  # hot: positional
    topic: bytes,
    payload: bytes,
    flags: int,
    properties: bytes,
    expires_at_ms: int,
    client_id: bytes,
    epoch: int,
    packet_id: int,
) -> bytes:
    """Make the record of a message."""
    body = _join((client_id, topic, properties, payload))
    length = _BEHIND_LENGTH + len(body)
    if expires_at_ms:
        expiry = EXPIRY.pack(expires_at_ms)
        length, flags, body = length + EXPIRY.size, flags | EXPIRES, expiry + body
    head = _pack_head(length, flags, len(client_id), len(topic), len(properties), packet_id, epoch)
    return head + body


def encode_plain_record(  # noqa: PLR0917  # hot: positional
    topic: bytes, payload: bytes, flags: int, client_id: bytes, epoch: int, packet_id: int
) -> bytes:
    """Make the record of a message without properties that never expires."""
    length = _BEHIND_LENGTH + len(client_id) + len(topic) + len(payload)
    head = _pack_head(length, flags, len(client_id), len(topic), 0, packet_id, epoch)
    return _join((head, client_id, topic, payload))


def mark_record(record: bytes, flags: int) -> bytes:
    """Return a record with more flags than it has."""
    return b"".join(
        (record[:_FLAGS_AT], bytes((record[_FLAGS_AT] | flags,)), record[_FLAGS_AT + 1 :])
    )


def flags_of(record: bytes) -> int:
    """Return the flags of a record that `decode_record` took."""
    return record[_FLAGS_AT]


def decode_record(data: bytes, start: int = 0) -> tuple[Message, int]:
    """Return the message that begins at `start`, and where the next one does.

    Raises ValueError for bytes that `encode_record` did not make.
    """
    try:
        length, flags, client, topic, properties, packet_id, epoch = unpack_head(data, start)
        at = start + HEAD_BYTES
        expires_at_ms = 0
        if flags & EXPIRES:
            (expires_at_ms,) = EXPIRY.unpack_from(data, at)
            expires_at_ms = min(expires_at_ms, TIME_MAX_MS)
            at += EXPIRY.size
    except struct.error:
        raise ValueError("a record is cut short") from None
    end = start + LENGTH_BYTES + length
    topic_at = at + client
    properties_at = topic_at + topic
    payload_at = properties_at + properties
    qos = flags & QOS_MASK
    if payload_at > end or end > len(data) or qos == QOS_MASK:
        raise ValueError("the lengths of a record do not add up, or it has no QoS")
    message = Message(
        data[topic_at:properties_at],
        data[payload_at:end],
        qos,
        flags & RETAIN != 0,
        data[properties_at:payload_at],
        expires_at_ms,
        data[at:topic_at],
        epoch,
        packet_id,
    )
    return message, end
