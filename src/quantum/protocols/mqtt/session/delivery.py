"""A message on its way to clients: encoded once for all who need the same bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from quantum.broker.message import FIELD_BYTES_MAX, Message
from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    Properties,
    PropertyScope,
    ProtocolViolation,
    ReasonCode,
    encode_properties,
)
from quantum.protocols.mqtt.codec.hot import SharedPublish
from quantum.protocols.mqtt.codec.primitives import encode_variable

_EXPIRY: Final = b"\x02"
_SUBSCRIPTION_IDENTIFIER: Final = b"\x0b"
_TOPIC_ALIAS: Final = b"\x23"
_NO_PROPERTIES: Final = b"\0"


class Outgoing:
    """One message and its encodings, made when first needed."""

    __slots__ = ("_plain", "_with_properties", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self._plain: SharedPublish | None = None
        self._with_properties: SharedPublish | None = None

    def plain(self) -> SharedPublish:
        """For clients before MQTT 5."""
        if self._plain is None:
            self._plain = SharedPublish(self.message.topic, self.message.payload, None)
        return self._plain

    def with_properties(self, now_ms: int) -> SharedPublish:
        """For clients of MQTT 5 whose copy has nothing of its own."""
        if self._with_properties is None:
            message = self.message
            block = _NO_PROPERTIES
            if message.properties or message.expires_at_ms:
                block = property_block(message, now_ms, (), 0)
            self._with_properties = SharedPublish(message.topic, message.payload, block)
        return self._with_properties


def property_block(
    message: Message, now_ms: int, identifiers: tuple[int, ...], alias: int
) -> bytes:
    """Encode the properties of one client's copy (MQTT 5, 3.3.2.3)."""
    parts: list[bytes] = []
    if message.expires_at_ms:
        seconds = max(0, message.expires_at_ms - now_ms + 999) // 1000
        parts += (_EXPIRY, min(seconds, 0xFFFF_FFFF).to_bytes(4, "big"))
    parts.append(message.properties)
    for identifier in identifiers:
        parts += (_SUBSCRIPTION_IDENTIFIER, encode_variable(identifier))
    if alias:
        parts += (_TOPIC_ALIAS, alias.to_bytes(2, "big"))
    block = b"".join(parts)
    return encode_variable(len(block)) + block


def system_message(topic: bytes, payload: bytes) -> Message:
    """Make a message of the server's own, which is not logged."""
    return Message(topic, payload, 0, True, b"", 0, b"", 0, 0)  # noqa: FBT003  # hot: positional


def forwardable(properties: Properties) -> bytes:
    """Encode the properties that travel with a message, without those of one hop."""
    if properties is NO_PROPERTIES:
        return b""
    kept = replace(
        properties,
        topic_alias=None,
        message_expiry_interval=None,
        subscription_identifiers=(),
        will_delay_interval=None,
    )
    block = encode_properties(kept, PropertyScope.PUBLISH)
    at = 0
    while block[at] > 127:
        at += 1
    found = block[at + 1 :]
    if len(found) > FIELD_BYTES_MAX:
        raise ProtocolViolation(ReasonCode.PACKET_TOO_LARGE, "too many bytes of properties")
    return found
