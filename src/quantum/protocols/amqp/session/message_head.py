"""What a queue must know of a message, and the head that a message leaves with."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from quantum.broker.queues import NewMessage, QueueEntry
from quantum.protocols.amqp.engine import (
    AmqpPeerFault,
    Condition,
    FaultScope,
    MessageView,
    Symbol,
    decode_value,
    encode_value,
    locate_sections,
    with_head,
)
from quantum.protocols.amqp.engine.messages import MessageSection

_TIME_MAX_MS: Final = 1 << 53
_HEADER: Final = b"\0\x53\x70"
_PLAIN: Final = (b"\0\x53\x75", b"\0\x53\x77", b"\0\x53\x74")
"""A message that begins so has neither header nor properties."""
GROUP_BYTES_MAX: Final = 256
DEAD_REASON: Final = Symbol("x-opt-dead-letter-reason")


def read_message(payload: bytes, message_format: int) -> NewMessage:
    """Return a message as queues take it. Raises AmqpPeerFault for bytes that are none.

    Formats other than the standard's own are kept as they are (§2.8.11).
    """
    if message_format:
        return NewMessage(payload)
    view = locate_sections(payload)
    if payload.startswith(_PLAIN):
        return NewMessage(payload)
    spans = view.spans
    message = NewMessage(payload)
    if MessageSection.HEADER in spans:
        header = view.header()
        message.priority = int(header.priority)
        message.ttl_ms = int(header.ttl or 0)
    if MessageSection.PROPERTIES in spans:
        _read_properties(view, message)
    return message


def _read_properties(view: MessageView, message: NewMessage) -> None:
    properties = view.properties()
    expiry = properties.absolute_expiry_time
    if expiry is not None:
        message.expires_ms = max(1, min(int(expiry), _TIME_MAX_MS))
    if properties.group_id:
        message.group = properties.group_id.encode()[:GROUP_BYTES_MAX]


def sender_mark(container: str) -> bytes:
    """Return what messages of a container are known by; it is short, and two rarely share one."""
    return blake2b(container.encode(), digest_size=8).digest()


def address_in(payload: bytes) -> str | None:
    """Return where a message itself says that it goes (`to`)."""
    return locate_sections(payload).properties().to


def leaving(entry: QueueEntry, payload: bytes) -> bytes:
    """Return a message with what has become of it: failed deliveries, annotations, its death."""
    if not (entry.failures or entry.annotations or entry.dead):
        return payload
    try:
        view = locate_sections(payload)
        header = view.header()
        annotations = view.message_annotations()
    except AmqpPeerFault:
        return payload  # of a format of its own
    header.delivery_count = entry.failures
    for key, value in entry.annotations:
        annotations[decode_value(key)] = decode_value(value)
    if entry.dead:
        annotations[DEAD_REASON] = entry.dead.decode(errors="replace")
    return with_head(view, header, {}, annotations)


def annotation_pairs(annotations: dict[object, object] | None) -> list[tuple[bytes, bytes]]:
    """Write annotations as queues keep them. Raises AmqpPeerFault for keys that none may have."""
    pairs = []
    for key, value in (annotations or {}).items():
        if not isinstance(key, Symbol):
            raise AmqpPeerFault(
                Condition.INVALID_FIELD, "an annotation's key is no symbol", FaultScope.LINK
            )
        pairs.append((encode_value(key), encode_value(value)))
    return pairs
