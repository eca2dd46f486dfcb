"""Records of streams as AMQP messages: the fields are mapped as `docs/amqp.md` says."""

from __future__ import annotations

from typing import Final

from quantum.model.records import Record, RecordProtocol
from quantum.protocols.amqp.engine import (
    MessageHeader,
    MessageProperties,
    MessageSection,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    encode_composite,
    encode_data,
    encode_section,
    locate_sections,
    with_head,
)
from quantum.protocols.amqp.session.message_records import KEY, NULL_BODY, message_in

OFFSET: Final = Symbol("x-stream-offset")
"""As RabbitMQ names it, whose clients look for it."""
PARTITION: Final = Symbol("x-opt-stream-partition")
_TOPICS: Final = "/topics/"
_TIME_MAX_MS: Final = (1 << 63) - 1


def message_of(record: Record, stream: str, partition: int) -> bytes:
    """Write a record as a message: as it was sent, where AMQP brought it.

    A body that was not said is null.
    """
    whole = message_in(record) if record.protocol is RecordProtocol.KAFKA else None
    if whole is not None:
        return with_place(whole, record.offset, partition)
    annotations = place_of(record.offset, partition)
    if record.key is not None:
        annotations[KEY] = _text_or_bytes(record.key)
    said: dict[object, object] = {
        name.decode(errors="replace"): None if value is None else _text_or_bytes(value)
        for name, value in record.headers
    }
    body = NULL_BODY if record.body is None else encode_data(record.body)
    return b"".join(
        (
            encode_composite(MessageHeader(durable=True)),
            encode_section(MessageSection.MESSAGE_ANNOTATIONS, annotations),
            encode_composite(_properties(record, stream)),
            encode_section(MessageSection.APPLICATION_PROPERTIES, said) if said else b"",
            body,
        )
    )


def place_of(offset: int, partition: int) -> dict[object, object]:
    """Say where a message stands in its stream, as annotations."""
    return {OFFSET: ULong(offset), PARTITION: UInt(partition)}


def _properties(record: Record, stream: str) -> MessageProperties:
    address, key = record.address.decode(errors="replace"), _text(record.key)
    found = MessageProperties()
    found.to = _TOPICS + address if address else f"/streams/{stream}"
    found.subject = address or None
    found.reply_to = _reply_address(record)
    found.correlation_id = record.correlation
    found.content_type = _symbol(record.content_type)
    found.absolute_expiry_time = _time(record.expires_at_ms)
    found.creation_time = _time(record.timestamp_ms)
    found.group_id = key
    return found


def _reply_address(record: Record) -> str | None:
    """MQTT's answers go to a topic; others named an address of their own."""
    text = _text(record.reply_to)
    return _TOPICS + text if text and record.protocol is RecordProtocol.MQTT else text


def _time(time_ms: int | None) -> Timestamp | None:
    return None if time_ms is None or not 0 <= time_ms <= _TIME_MAX_MS else Timestamp(time_ms)


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _symbol(value: bytes | None) -> Symbol | None:
    return Symbol(value.decode()) if value is not None and value.isascii() else None


def _text_or_bytes(value: bytes) -> str | bytes:
    """Give text where it is some: most headers are, and few clients read others."""
    text = _text(value)
    return value if text is None else text


def with_place(payload: bytes, offset: int, partition: int) -> bytes:
    """Return a message that AMQP brought with its place in the stream; the bare one is untouched.

    Raises AmqpError for bytes that are no message.
    """
    view = locate_sections(payload)
    annotations = view.message_annotations() | place_of(offset, partition)
    return with_head(view, view.header(), {}, annotations)
