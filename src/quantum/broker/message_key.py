"""The key of a message: what it belongs to, where messages of one thing must stay together.

Its publisher may name it (MQTT 5: a user property `key`); otherwise it is the topic.
"""

from __future__ import annotations

from typing import Final

from quantum.broker.message import Message

_NAMED: Final = b"key"
_USER_PROPERTY: Final = 0x26
_BYTE: Final = 0x01  # the payload's format, the only one of a record that is no string
_LENGTH: Final = 2


def message_key(message: Message) -> bytes:
    """Return a message's key; properties that cannot be read have none, on every replica."""
    named = _named_key(message.properties) if message.properties else None
    return message.topic if named is None else named


def _named_key(properties: bytes) -> bytes | None:
    """Walk MQTT 5 properties as records have them: (identifier, value), strings by length."""
    at = 0
    while at < len(properties):
        identifier = properties[at]
        at += 1
        if identifier == _BYTE:
            at += 1
            continue
        name, at = _string(properties, at)
        if identifier == _USER_PROPERTY:
            value, at = _string(properties, at)
            if name == _NAMED:
                return value
    return None


def _string(properties: bytes, at: int) -> tuple[bytes, int]:
    begin = at + _LENGTH
    end = begin + int.from_bytes(properties[at:begin], "big")
    return properties[begin:end], end
