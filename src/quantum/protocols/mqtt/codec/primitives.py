"""Read and write the data types of §1.5: integers, strings, binary data."""

from __future__ import annotations

import re
from typing import Final

from quantum.protocols.mqtt.codec.errors import MalformedPacket, MqttMisuse
from quantum.protocols.mqtt.codec.types import FIELD_BYTES_MAX, REMAINING_LENGTH_MAX, ReasonCode

_MALFORMED: Final = ReasonCode.MALFORMED_PACKET

# Control characters and Unicode non-characters, which a receiver may refuse (§1.5.4).
_NON_CHARACTERS: Final = "".join(
    chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF)
)
_UNWANTED: Final = re.compile(f"[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef{_NON_CHARACTERS}]")


class PacketCursor:
    """Walks the body of one packet; asks for more than there is raise MalformedPacket."""

    __slots__ = ("body", "end", "position")

    def __init__(self, body: bytes, position: int = 0, end: int | None = None) -> None:
        self.body = body
        self.position = position
        self.end = len(body) if end is None else end

    @property
    def exhausted(self) -> bool:
        return self.position >= self.end

    def take_byte(self) -> int:
        position = self.position
        if position >= self.end:
            raise _truncated()
        self.position = position + 1
        return self.body[position]

    def take_number(self, size: int) -> int:
        start = self.position
        end = start + size
        if end > self.end:
            raise _truncated()
        self.position = end
        return int.from_bytes(self.body[start:end], "big")

    def take_bytes(self, size: int) -> bytes:
        start = self.position
        end = start + size
        if end > self.end:
            raise _truncated()
        self.position = end
        return self.body[start:end]

    def take_rest(self) -> bytes:
        return self.take_bytes(self.end - self.position)

    def take_variable(self) -> int:
        """Take a variable byte integer; longer than it must be is malformed [MQTT-1.5.5-1]."""
        if self.position < self.end and self.body[self.position] < 0x80:
            return self.take_byte()
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.take_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    break
                return value
        raise MalformedPacket(_MALFORMED, "ill-formed variable byte integer")

    def take_binary(self) -> bytes:
        start = self.position + 2
        if start > self.end:
            raise _truncated()
        end = start + (self.body[start - 2] << 8 | self.body[start - 1])
        if end > self.end:
            raise _truncated()
        self.position = end
        return self.body[start:end]

    def take_text(self) -> str:
        return decode_text(self.take_binary())

    def take_identifier(self) -> str:
        """Take a text that names somebody: without control characters."""
        text = self.take_text()
        check_identifier(text)
        return text

    def check_exhausted(self) -> None:
        if self.position != self.end:
            raise MalformedPacket(
                _MALFORMED, "bytes after the end", surplus=self.end - self.position
            )


def _truncated() -> MalformedPacket:
    return MalformedPacket(_MALFORMED, "packet ends inside a field")


def decode_text(data: bytes) -> str:
    """Decode well-formed UTF-8 without U+0000 ([MQTT-1.5.4-1], [MQTT-1.5.4-2])."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket(_MALFORMED, "ill-formed UTF-8", offset=error.start) from None
    if "\0" in text:
        raise MalformedPacket(_MALFORMED, "U+0000 in a string")
    return text


def check_identifier(text: str) -> None:
    """Refuse control characters and non-characters, as §1.5.4 lets a receiver do.

    Names of topics, clients and users end in logs, terminals and file names. Other strings
    (user properties, reason strings) may hold a line break, and keep it.
    """
    if text.isascii() and text.isprintable():
        return
    if _UNWANTED.search(text):
        raise MalformedPacket(_MALFORMED, "control or non-character in a name")


def is_text(data: bytes) -> bool:
    """Say whether a payload is the UTF-8 that its Payload Format Indicator claims (§3.3.2.3.2)."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def encode_number(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise MqttMisuse("number does not fit its field", value=value, bytes=size) from None


def encode_variable(value: int) -> bytes:
    """Encode a variable byte integer in as few bytes as it takes (§1.5.5)."""
    if 0 <= value < 0x80:
        return value.to_bytes(1, "big")
    if not 0 <= value <= REMAINING_LENGTH_MAX:
        raise MqttMisuse("number does not fit a variable byte integer", value=value)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_binary(data: bytes) -> bytes:
    if len(data) > FIELD_BYTES_MAX:
        raise MqttMisuse("field too long", length=len(data), limit=FIELD_BYTES_MAX)
    return len(data).to_bytes(2, "big") + data


def encode_text(text: str) -> bytes:
    if "\0" in text:
        raise MqttMisuse("U+0000 in a string")
    try:
        return encode_binary(text.encode())
    except UnicodeEncodeError:
        raise MqttMisuse("a surrogate in a string") from None
