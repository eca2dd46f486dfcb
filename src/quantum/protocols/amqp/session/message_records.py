"""AMQP messages as records of a stream, and such records as the messages that they were.

What every protocol can read is in the record's own fields. The rest of the head is kept beside it
as it was sent, so that an AMQP reader is given what an AMQP sender sent, types and all. Data is
a body as it is, and so are text and bytes as a value: a header says which. Any other body is kept
as its sections, and the content type says so.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

from quantum.model.records import Origin, Record, RecordProtocol
from quantum.protocols.amqp.engine import (
    AmqpError,
    MessageProperties,
    MessageSection,
    MessageView,
    Symbol,
    encode_data,
    encode_value,
    locate_sections,
)

HEAD: Final = b"amqp.head"
FOOT: Final = b"amqp.foot"
BODY: Final = b"amqp.body"
TEXT: Final = b"text"
BINARY: Final = b"binary"
_VALUE: Final = b"\0\x53\x77"
_PLAIN_CODES: Final = frozenset((0x40, 0xA0, 0xB0, 0xA1, 0xB1))
"""How null, bytes and text begin (§1.6)."""
SUBJECT: Final = b"subject"
SECTIONS: Final = b"application/vnd.amqp.sections"
"""The content type of a body that is sections of a message, and not data."""
KEY: Final = Symbol("x-opt-partition-key")
NULL_BODY: Final = _VALUE + encode_value(None)
_HEAD_SECTIONS: Final = (
    MessageSection.HEADER,
    MessageSection.MESSAGE_ANNOTATIONS,
    MessageSection.PROPERTIES,
    MessageSection.APPLICATION_PROPERTIES,
)
_TIME_MAX_MS: Final = 1 << 53
_MARK_END: Final = b":"


def record_of(payload: bytes, sender: bytes, now_ms: int) -> Record:
    """Read a message in the standard's format. Raises AmqpPeerFault for bytes that are none."""
    view = locate_sections(payload)
    properties = view.properties()
    body, kind, content_type = _body_of(view, properties)
    return Record(
        offset=0,
        timestamp_ms=_time(properties.creation_time) or now_ms,
        protocol=RecordProtocol.AMQP,
        address=b"",  # its own head says where it was sent to
        origin=Origin(sender, 0, 0),
        body=body,
        key=_key_of(view, properties),
        headers=_headers_of(view, properties, kind),
        content_type=content_type,
        reply_to=_bytes_of(properties.reply_to),
        correlation=_bytes_of(properties.correlation_id),
        expires_at_ms=_expiry_of(view, properties, now_ms),
    )


def message_in(record: Record) -> bytes | None:
    """Return the message that a record was made of; None: it was made of something else."""
    said = dict(record.headers)
    head, foot = said.get(HEAD), said.get(FOOT) or b""
    try:
        if record.protocol is RecordProtocol.MQTT:
            head, foot = _bytes_in(head), _bytes_in(foot) or b""
        if head is None:
            return None
        whole = head + _sections_of(record.body, said.get(BODY), record.content_type) + foot
        _check(locate_sections(whole))
    except (AmqpError, ValueError):
        return None  # somebody else's headers of these names
    return whole


def as_text(sender: bytes, data: bytes) -> bytes:
    """Write a head where there is room for text alone, and who sent it before it."""
    return sender.hex().encode() + _MARK_END + b64encode(data)


def sender_in(record: Record) -> bytes:
    """Return the mark of who sent a record of MQTT's by AMQP; empty: nobody did."""
    mark, found, _ = (dict(record.headers).get(HEAD) or b"").partition(_MARK_END)
    try:
        return bytes.fromhex(mark.decode()) if found else b""
    except ValueError:
        return b""  # somebody else's header of this name


def _bytes_in(text: bytes | None) -> bytes | None:
    """Read what `as_text` wrote. Raises ValueError."""
    return b64decode(text.partition(_MARK_END)[2], validate=True) if text else None


def _check(view: MessageView) -> None:
    """Raise AmqpError for a head that a receiver could not read: anybody may write headers."""
    view.header()
    view.message_annotations()
    view.properties()
    view.application_properties()


def _sections_of(body: bytes | None, kind: bytes | None, content_type: bytes | None) -> bytes:
    if body is None:
        return NULL_BODY
    if kind == TEXT:
        return _VALUE + encode_value(body.decode())
    if kind == BINARY:
        return _VALUE + encode_value(body)
    return body if content_type == SECTIONS else encode_data(body)


def _body_of(
    view: MessageView, properties: MessageProperties
) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Return the body as others read it, what kind of value it was, and its content type."""
    content_type = _bytes_of(properties.content_type)
    if content_type == SECTIONS:
        content_type = None  # its own head says so
    if view.body_kind is MessageSection.DATA and len(view.body) == 1:
        return view.data(), None, content_type
    value = _plain_value(view)
    if value is None or isinstance(value, bytes):
        return value, None if value is None else BINARY, content_type
    if isinstance(value, str):
        return value.encode(), TEXT, content_type
    assert view.body_kind is not None, "a message has a body"
    body = b"".join(_section(view, view.body_kind, span) for span in view.body)
    return body, None, SECTIONS


def _plain_value(view: MessageView) -> object:
    """Return a body that is null, text or bytes; anything else is a body of its own kind."""
    if view.body_kind is not MessageSection.VALUE:
        return ...
    start, _ = view.body[0]
    if view.payload[start] not in _PLAIN_CODES:
        return ...
    return view.value()


def _section(view: MessageView, kind: MessageSection, span: tuple[int, int]) -> bytes:
    return b"\0\x53" + bytes((kind,)) + view.payload[span[0] : span[1]]


def _headers_of(
    view: MessageView, properties: MessageProperties, kind: bytes | None
) -> tuple[tuple[bytes, bytes | None], ...]:
    said = [(str(name).encode(), _bytes_of(v)) for name, v in view.application_properties().items()]
    if properties.subject is not None:
        said.append((SUBJECT, properties.subject.encode()))
    head = [_section(view, each, view.spans[each]) for each in _HEAD_SECTIONS if each in view.spans]
    said.append((HEAD, b"".join(head)))
    if kind is not None:
        said.append((BODY, kind))
    if MessageSection.FOOTER in view.spans:
        foot = MessageSection.FOOTER
        said.append((FOOT, _section(view, foot, view.spans[foot])))
    return tuple(said)


def _key_of(view: MessageView, properties: MessageProperties) -> bytes | None:
    key = view.message_annotations().get(KEY)
    return _bytes_of(properties.group_id if key is None else key)


def _expiry_of(view: MessageView, properties: MessageProperties, now_ms: int) -> int | None:
    expiry = _time(properties.absolute_expiry_time)
    ttl = view.header().ttl
    return now_ms + int(ttl) if expiry is None and ttl else expiry


def _time(time_ms: int | None) -> int | None:
    return int(time_ms) if time_ms is not None and 0 < time_ms <= _TIME_MAX_MS else None


def _bytes_of(value: object) -> bytes | None:
    """Write a value as other protocols read it: text as it is, numbers in decimal."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode(errors="replace")
