"""Messages of queues as people and requests say them: rows to show, and orders to send."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from quantum.broker.queues import QueueEntry
from quantum.node.queue_rows import QueueMessage
from quantum.node.rows import Payload
from quantum.node.views import payload_of
from quantum.protocols.amqp.engine import AmqpError, MessageView, locate_sections
from quantum.protocols.amqp.engine.composites import MessageHeader, MessageProperties
from quantum.protocols.amqp.engine.encode import encode_value
from quantum.protocols.amqp.engine.fields import encode_composite
from quantum.protocols.amqp.engine.messages import MessageSection, encode_data, encode_section

_VALUE_HEAD: Final = b"\0\x53\x77"
_KINDS: Final = {
    MessageSection.DATA: "data",
    MessageSection.SEQUENCE: "sequence",
    MessageSection.VALUE: "value",
}


@dataclass(frozen=True, slots=True)
class MessageOrder:
    """A message that somebody wants to be sent; text is an amqp-value, bytes are data."""

    body: str | bytes
    subject: str | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    group_id: str | None = None
    priority: int = 4
    ttl_ms: int = 0
    properties: tuple[tuple[str, str], ...] = ()


def written(order: MessageOrder) -> bytes:
    """Write a message as AMQP's clients read it. Raises AmqpError for what none can have."""
    header = MessageHeader(durable=True, priority=order.priority, ttl=order.ttl_ms or None)
    properties = MessageProperties(
        message_id=order.message_id,
        subject=order.subject,
        reply_to=order.reply_to,
        correlation_id=order.correlation_id,
        content_type=order.content_type,
        group_id=order.group_id,
    )
    pieces = [encode_composite(header)]
    if properties != MessageProperties():
        pieces.append(encode_composite(properties))
    if order.properties:
        said: dict[object, object] = dict(order.properties)
        pieces.append(encode_section(MessageSection.APPLICATION_PROPERTIES, said))
    if isinstance(order.body, str):
        pieces.append(_VALUE_HEAD + encode_value(order.body))
    else:
        pieces.append(encode_data(order.body))
    return b"".join(pieces)


def shown(entry: QueueEntry, payload: bytes) -> QueueMessage:
    """Show a message; one that cannot be read is shown as its bytes."""
    try:
        view = locate_sections(payload)
        kind = "none" if view.body_kind is None else _KINDS[view.body_kind]
        properties, body = view.properties(), _body(view)
        said = view.application_properties()
    except AmqpError:
        kind, properties, said = "unreadable", MessageProperties(), {}
        body = payload_of(payload)
    return QueueMessage(
        number=entry.number,
        size=entry.size,
        enqueued_ms=entry.enqueued_ms,
        expires_ms=entry.expires_ms or None,
        priority=entry.priority,
        delivery_count=entry.failures,
        dead_because=entry.dead.decode(errors="replace") or None,
        group_id=entry.group.decode(errors="replace") or None,
        message_id=_word(properties.message_id),
        correlation_id=_word(properties.correlation_id),
        subject=properties.subject,
        reply_to=properties.reply_to,
        content_type=properties.content_type,
        properties=[(str(key), _word(value) or "") for key, value in said.items()],
        body_kind=kind,
        body=body,
    )


def _body(view: MessageView) -> Payload:
    if view.body_kind is MessageSection.VALUE:
        value = view.value()
        if isinstance(value, bytes):
            return payload_of(value)
        return Payload(text=value if isinstance(value, str) else json.dumps(_plain(value)))
    if view.body_kind is MessageSection.SEQUENCE:
        return payload_of(b"".join(view.payload[start:end] for start, end in view.body))
    return payload_of(view.data())


def _word(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(_plain(value))


def _plain(value: object) -> object:
    """Say a value of AMQP in JSON's words; what JSON has none for, in Python's."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.hex() if isinstance(value, bytes) else str(value)
