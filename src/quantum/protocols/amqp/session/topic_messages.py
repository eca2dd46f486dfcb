"""AMQP messages as publishes to topics, and what topics bring as AMQP messages.

The fields are mapped as `docs/amqp.md` says. What has no place in MQTT travels as one more user
property (`amqp.head`), so that an AMQP receiver is given what an AMQP sender sent.
"""

from __future__ import annotations

from typing import Final

import msgspec

from quantum.model.records import Record
from quantum.protocols.amqp.engine import Symbol, locate_sections
from quantum.protocols.amqp.session.message_records import (
    BODY,
    FOOT,
    HEAD,
    SUBJECT,
    TEXT,
    as_text,
    record_of,
)
from quantum.protocols.amqp.session.record_messages import TOPICS, compose
from quantum.protocols.amqp.session.topic_port import TopicDelivery, TopicPublish

RETAIN: Final = Symbol("x-opt-retain")
"""Whether a message is kept as the last of its topic, or was."""
TOPIC: Final = Symbol("x-opt-topic")
"""The topic of a message that is received: its sender need not have said it."""
REPLY_TO: Final = b"reply-to"
_PAYLOAD_FORMAT: Final = Symbol("x-opt-payload-format")


def publish_from(payload: bytes, sender: bytes, topic: bytes, now_ms: int) -> TopicPublish:
    """Read a message for a topic. Raises AmqpPeerFault for bytes that are none."""
    record = record_of(payload, sender, now_ms)
    retain = locate_sections(payload).message_annotations().get(RETAIN) is True
    is_text = (BODY, TEXT) in record.headers
    headers = [_header(each, sender) for each in record.headers if each != (SUBJECT, topic)]
    reply_to = record.reply_to
    if reply_to is not None and not reply_to.startswith(TOPICS.encode()):
        headers.append((REPLY_TO, reply_to))
        reply_to = None
    elif reply_to is not None:
        reply_to = reply_to.removeprefix(TOPICS.encode())
    record = msgspec.structs.replace(record, headers=tuple(headers), reply_to=reply_to)
    return TopicPublish(topic, record, retain, is_text)


def _header(header: tuple[bytes, bytes | None], sender: bytes) -> tuple[bytes, bytes | None]:
    name, value = header
    return (name, as_text(sender, value)) if name in (HEAD, FOOT) and value else header


def message_for(delivery: TopicDelivery) -> bytes:
    """Write what a topic brought as a message."""
    record: Record = delivery.record
    topic = record.address.decode(errors="replace")
    annotations: dict[object, object] = {TOPIC: topic}
    if delivery.retain:
        annotations[RETAIN] = True
    if delivery.is_text:
        annotations[_PAYLOAD_FORMAT] = 1
    return compose(
        record,
        TOPICS + topic,
        annotations,
        durable=delivery.is_durable,
        failures=delivery.failures,
    )
