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
TOPICS: Final = "/topics/"
_TIME_MAX_MS: Final = (1 << 63) - 1


def message_of(record: Record, stream: str, partition: int) -> bytes:
    """Write a record as a message: as it was sent, where AMQP brought it.

    A body that was not said is null.
    """
    return compose(record, f"/streams/{stream}", place_of(record.offset, partition))


def compose(
    record: Record,
    to: str,
    annotations: dict[object, object],
    *,
    durable: bool = True,
    failures: int = 0,
) -> bytes:
    """The same, with annotations; `to` is where it was sent if the record does not say."""
    whole = message_in(record)
    if whole is not None:
        return _annotated(whole, annotations, failures)
    annotations = dict(annotations)
    if record.key is not None:
        annotations[KEY] = _text_or_bytes(record.key)
    said: dict[object, object] = {
        name.decode(errors="replace"): None if value is None else _text_or_bytes(value)
        for name, value in record.headers
    }
    body = NULL_BODY if record.body is None else encode_data(record.body)
    return b"".join(
        (
            encode_composite(MessageHeader(durable=durable, delivery_count=failures)),
            encode_section(MessageSection.MESSAGE_ANNOTATIONS, annotations),
            encode_composite(_properties(record, to)),
            encode_section(MessageSection.APPLICATION_PROPERTIES, said) if said else b"",
            body,
        )
    )


def place_of(offset: int, partition: int) -> dict[object, object]:
    """Say where a message stands in its stream, as annotations."""
    return {OFFSET: ULong(offset), PARTITION: UInt(partition)}


def _properties(record: Record, to: str) -> MessageProperties:
    address, key = record.address.decode(errors="replace"), _text(record.key)
    found = MessageProperties()
    found.to = TOPICS + address if address else to
    found.subject = address or None
    found.reply_to = _reply_address(record)
    found.correlation_id = record.correlation
    found.content_type = _symbol(record.content_type)
    found.absolute_expiry_time = _time(record.expires_at_ms)
    found.creation_time = _time(record.timestamp_ms or None)
    found.group_id = key
    return found


def _reply_address(record: Record) -> str | None:
    """MQTT's answers go to a topic; others named an address of their own."""
    text = _text(record.reply_to)
    return TOPICS + text if text and record.protocol is RecordProtocol.MQTT else text


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


def _annotated(payload: bytes, annotations: dict[object, object], failures: int) -> bytes:
    """Return a message that AMQP brought with more annotations; the bare one is untouched."""
    view = locate_sections(payload)
    header = view.header()
    header.delivery_count = failures
    return with_head(view, header, {}, view.message_annotations() | annotations)
