"""One published message, and the record that carries it through logs and between partitions.

length:u32 flags:u8 client:u16 topic:u16 properties:u16 packet_id:u16 epoch:u32
[expires_at_ms:u64] client topic properties payload                              (little-endian)

`length` counts what follows it. The payload stays the bytes that the publisher sent; the
properties are MQTT 5's own encoding, without the ones that belong to one hop only (topic alias,
message expiry, subscription identifiers).
"""

from __future__ import annotations

import struct
from typing import Final

HEAD: Final = struct.Struct("<IBHHHHI")
HEAD_BYTES: Final = HEAD.size
EXPIRY: Final = struct.Struct("<Q")
LENGTH_BYTES: Final = 4

QOS_MASK: Final = 0x03
RETAIN: Final = 0x04
EXPIRES: Final = 0x08
FROM_V5: Final = 0x10  # whether `properties` may be non-empty; for the analytical side


class Message:
    """A message as the broker keeps it; `record` is made once, when first asked for."""

    __slots__ = (
        "_record",
        "client_id",
        "epoch",
        "expires_at_ms",
        "packet_id",
        "payload",
        "properties",
        "qos",
        "retain",
        "topic",
    )

    def __init__(  # noqa: PLR0917  # hot: positional
        self,
        topic: bytes,
        payload: bytes,
        qos: int,
        retain: bool,  # hot: positional
        properties: bytes,
        expires_at_ms: int,
        client_id: bytes,
        epoch: int,
        packet_id: int,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.expires_at_ms = expires_at_ms  # 0: never
        self.client_id = client_id
        self.epoch = epoch
        self.packet_id = packet_id
        self._record: bytes | None = None

    @property
    def record(self) -> bytes:
        """The message as bytes; `decode_record` is its inverse."""
        if self._record is None:
            self._record = encode_record(
                self.topic,
                self.payload,
                self.qos | (RETAIN if self.retain else 0),
                self.properties,
                self.expires_at_ms,
                self.client_id,
                self.epoch,
                self.packet_id,
            )
        return self._record

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
    sizes = len(client_id), len(topic), len(properties)
    length = HEAD_BYTES - LENGTH_BYTES + sum(sizes) + len(payload)
    if expires_at_ms:
        head = HEAD.pack(length + EXPIRY.size, flags | EXPIRES, *sizes, packet_id, epoch)
        expiry = EXPIRY.pack(expires_at_ms)
        return b"".join((head, expiry, client_id, topic, properties, payload))
    head = HEAD.pack(length, flags, *sizes, packet_id, epoch)
    return b"".join((head, client_id, topic, properties, payload))


def decode_record(data: bytes, start: int = 0) -> tuple[Message, int]:
    """Return the message that begins at `start`, and where the next one does.

    Raises ValueError for bytes that `encode_record` did not make.
    """
    try:
        length, flags, client, topic, properties, packet_id, epoch = HEAD.unpack_from(data, start)
        at = start + HEAD_BYTES
        expires_at_ms = 0
        if flags & EXPIRES:
            (expires_at_ms,) = EXPIRY.unpack_from(data, at)
            at += EXPIRY.size
    except struct.error:
        raise ValueError("a record is cut short") from None
    end = start + LENGTH_BYTES + length
    topic_at = at + client
    properties_at = topic_at + topic
    payload_at = properties_at + properties
    if payload_at > end or end > len(data):
        raise ValueError("the lengths of a record do not add up")
    message = Message(
        data[topic_at:properties_at],
        data[payload_at:end],
        flags & QOS_MASK,
        flags & RETAIN != 0,
        data[properties_at:payload_at],
        expires_at_ms,
        data[at:topic_at],
        epoch,
        packet_id,
    )
    return message, end
