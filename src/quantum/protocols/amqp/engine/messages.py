"""A message as a view: its sections are located, none is decoded until it is asked for (§3.2).

The bare message (properties to body) is immutable on its way: `with_head` puts new annotations
in front of the very bytes that came.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from quantum.protocols.amqp.engine.composites import MessageHeader, MessageProperties
from quantum.protocols.amqp.engine.decode import ValueReader, decode_value
from quantum.protocols.amqp.engine.encode import encode_binary, encode_map
from quantum.protocols.amqp.engine.errors import AmqpPeerFault, Condition, FaultScope, MalformedData
from quantum.protocols.amqp.engine.fields import decode_composite, encode_composite
from quantum.protocols.amqp.engine.hot import skip_value
from quantum.protocols.amqp.engine.types import (
    DEFAULT_LIMITS,
    DecodeLimits,
    Symbol,
    ULong,
)

Span = tuple[int, int]
"""Where a section's value stands in the payload, its descriptor left out."""
_ABSENT: Final[Span] = (-1, -1)


class MessageSection(IntEnum):
    """The sections of §3.2 in the order in which they stand."""

    HEADER = 0x70
    DELIVERY_ANNOTATIONS = 0x71
    MESSAGE_ANNOTATIONS = 0x72
    PROPERTIES = 0x73
    APPLICATION_PROPERTIES = 0x74
    DATA = 0x75
    SEQUENCE = 0x76
    VALUE = 0x77
    FOOTER = 0x78


_NAMES: Final = {
    "amqp:header:list": MessageSection.HEADER,
    "amqp:delivery-annotations:map": MessageSection.DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MessageSection.MESSAGE_ANNOTATIONS,
    "amqp:properties:list": MessageSection.PROPERTIES,
    "amqp:application-properties:map": MessageSection.APPLICATION_PROPERTIES,
    "amqp:data:binary": MessageSection.DATA,
    "amqp:amqp-sequence:list": MessageSection.SEQUENCE,
    "amqp:amqp-value:*": MessageSection.VALUE,
    "amqp:footer:map": MessageSection.FOOTER,
}
_BODY: Final = frozenset({MessageSection.DATA, MessageSection.SEQUENCE, MessageSection.VALUE})
_SHAPES: Final[dict[int, tuple[int, ...]]] = {
    MessageSection.HEADER: (0x45, 0xC0, 0xD0),
    MessageSection.PROPERTIES: (0x45, 0xC0, 0xD0),
    MessageSection.SEQUENCE: (0x45, 0xC0, 0xD0),
    MessageSection.DELIVERY_ANNOTATIONS: (0xC1, 0xD1),
    MessageSection.MESSAGE_ANNOTATIONS: (0xC1, 0xD1),
    MessageSection.APPLICATION_PROPERTIES: (0xC1, 0xD1),
    MessageSection.FOOTER: (0xC1, 0xD1),
    MessageSection.DATA: (0xA0, 0xB0),
}


@dataclass(slots=True)
class MessageView:
    """Where the sections of `payload` stand; body sections of one kind only."""

    payload: bytes
    spans: dict[int, Span]
    body: list[Span]
    body_kind: MessageSection | None
    bare: Span
    """The immutable part: from the properties' descriptor to the end of the body."""

    def header(self) -> MessageHeader:
        """Decode the header; what is absent has its defaults (§3.2.1)."""
        found = self._composite(MessageSection.HEADER)
        return found if isinstance(found, MessageHeader) else MessageHeader()

    def properties(self) -> MessageProperties:
        found = self._composite(MessageSection.PROPERTIES)
        return found if isinstance(found, MessageProperties) else MessageProperties()

    def delivery_annotations(self) -> dict[object, object]:
        return self._map(MessageSection.DELIVERY_ANNOTATIONS)

    def message_annotations(self) -> dict[object, object]:
        return self._map(MessageSection.MESSAGE_ANNOTATIONS)

    def application_properties(self) -> dict[object, object]:
        return self._map(MessageSection.APPLICATION_PROPERTIES)

    def footer(self) -> dict[object, object]:
        return self._map(MessageSection.FOOTER)

    def data(self) -> bytes:
        """Join the data sections, or return nothing where the body is of another kind."""
        if self.body_kind is not MessageSection.DATA:
            return b""
        return b"".join(self._data_of(span) for span in self.body)

    def value(self, limits: DecodeLimits = DEFAULT_LIMITS) -> object:
        """Decode the body's one value, or None where the body is of another kind."""
        if self.body_kind is not MessageSection.VALUE:
            return None
        start, end = self.body[0]
        return decode_value(self.payload[start:end], limits)

    def _data_of(self, span: Span) -> bytes:
        start, end = span
        return self.payload[start + (2 if self.payload[start] == 0xA0 else 5) : end]

    def _composite(self, section: MessageSection) -> object:
        start, end = self.spans.get(section, _ABSENT)
        if start < 0:
            return None
        head = b"\0\x53" + bytes((section,))
        raw = head + self.payload[start:end]
        return decode_composite(raw, 0, len(raw))[0]

    def _map(self, section: MessageSection) -> dict[object, object]:
        start, end = self.spans.get(section, _ABSENT)
        if start < 0:
            return {}
        found = decode_value(self.payload[start:end])
        if not isinstance(found, dict):
            raise MalformedData("a section is not a map", section=section.name)
        allowed: tuple[type, ...] = (Symbol, ULong)
        if section is MessageSection.APPLICATION_PROPERTIES:
            allowed = (str,)
        if not all(type(key) in allowed for key in found):
            raise MalformedData("a section's key has a type that it may not", section=section.name)
        return found


def locate_sections(payload: bytes) -> MessageView:
    """Find the sections of a message in format 0; raise PeerFault where they cannot be told.

    The order, the number and each section's outer type are checked; what is inside is not.
    """
    spans: dict[int, Span] = {}
    body: list[Span] = []
    kind: MessageSection | None = None
    bare_start = bare_end = -1
    last = 0
    position = 0
    end = len(payload)
    while position < end:
        start = position
        section, position = _descriptor(payload, position, end)
        value = position
        position = skip_value(payload, value, end)
        if position < 0:
            raise _malformed("a section has no end")
        shapes = _SHAPES.get(section)
        if shapes is not None and payload[value] not in shapes:
            raise _malformed("a section is not of its type", section=section.name)
        _check_order(section, last, kind)
        last = section
        if section in _BODY:
            kind = section
            body.append((value, position))
        else:
            spans[section] = (value, position)
        if MessageSection.PROPERTIES <= section < MessageSection.FOOTER:
            bare_start = start if bare_start < 0 else bare_start
            bare_end = position
    if kind is None:
        raise _malformed("a message has no body")
    return MessageView(payload, spans, body, kind, (bare_start, bare_end))


def _malformed(reason: str, **facts: object) -> AmqpPeerFault:
    # What is inside a message ends its link at most.
    return AmqpPeerFault(Condition.DECODE_ERROR, reason, FaultScope.LINK, **facts)


def _descriptor(payload: bytes, position: int, end: int) -> tuple[MessageSection, int]:
    if payload[position] != 0:
        raise _malformed("a section is not described")
    if position + 2 < end and payload[position + 1] == 0x53:
        number = payload[position + 2]
        if MessageSection.HEADER <= number <= MessageSection.FOOTER:
            return MessageSection(number), position + 3
        raise _malformed("a section is unknown", descriptor=number)
    reader = ValueReader(payload, position + 1, end)
    try:
        descriptor = reader.read_value(1)
    except MalformedData as fault:
        raise _malformed(fault.reason) from None
    if isinstance(descriptor, Symbol) and descriptor in _NAMES:
        return _NAMES[descriptor], reader.position
    if (
        isinstance(descriptor, ULong)
        and MessageSection.HEADER <= descriptor <= MessageSection.FOOTER
    ):
        return MessageSection(descriptor), reader.position
    raise _malformed("a section is unknown")


def _check_order(section: MessageSection, last: int, kind: MessageSection | None) -> None:
    repeats = section in (MessageSection.DATA, MessageSection.SEQUENCE) and section == last
    if section <= last and not repeats:
        raise _malformed("sections are out of order", section=section.name)
    if kind is not None and section in _BODY and section is not kind:
        raise _malformed("a message has bodies of two kinds", section=section.name)


def encode_section(section: MessageSection, value: dict[object, object]) -> bytes:
    """Write a section that is a map: annotations, application properties, footer."""
    return b"\0\x53" + bytes((section,)) + encode_map(value.items())


def encode_data(body: bytes) -> bytes:
    """Write the smallest message: one data section."""
    return b"\0\x53\x75" + encode_binary(body)


def with_head(
    view: MessageView,
    header: MessageHeader | None,
    delivery_annotations: dict[object, object],
    message_annotations: dict[object, object],
) -> bytes:
    """Put a new header and new annotations in front of the bare message, whose bytes stay.

    Footer and bare message are those of `view`, byte for byte (§3.2).
    """
    pieces: list[bytes] = []
    if header is not None:
        pieces.append(encode_composite(header))
    if delivery_annotations:
        pieces.append(encode_section(MessageSection.DELIVERY_ANNOTATIONS, delivery_annotations))
    if message_annotations:
        pieces.append(encode_section(MessageSection.MESSAGE_ANNOTATIONS, message_annotations))
    pieces.append(view.payload[view.bare[0] :])
    return b"".join(pieces)


def body_value(payload: bytes, limits: DecodeLimits = DEFAULT_LIMITS) -> object:
    """Return what a message with one amqp-value says, described or not (§4.2)."""
    view = locate_sections(payload)
    if view.body_kind is not MessageSection.VALUE:
        raise _malformed("a message's body is not an amqp-value")
    try:
        return view.value(limits)
    except MalformedData as fault:
        raise _malformed(fault.reason) from None
