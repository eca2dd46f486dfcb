"""What a selector's names mean in a message: JMS's own from its head, others its properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from quantum.broker.queues import QueueEntry
from quantum.protocols.amqp.engine import AmqpError, MessageView, locate_sections
from quantum.protocols.amqp.engine.composites import MessageProperties

Fact: TypeAlias = "str | bool | int | float | None"

_PROPERTIES: Final[Mapping[str, Callable[[MessageProperties], object]]] = {
    "JMSMessageID": lambda found: found.message_id,
    "JMSTimestamp": lambda found: found.creation_time,
    "JMSCorrelationID": lambda found: found.correlation_id,
    "JMSType": lambda found: found.subject,
    "JMSDestination": lambda found: found.to,
    "JMSReplyTo": lambda found: found.reply_to,
    "JMSExpiration": lambda found: found.absolute_expiry_time,
    "JMSXGroupID": lambda found: found.group_id,
    "JMSXGroupSeq": lambda found: found.group_sequence,
    "JMSXUserID": lambda found: found.user_id,
}


class MessageFacts:
    """One message; nothing of it is read before it is asked for. A message that cannot be read
    says nothing."""

    __slots__ = ("_entry", "_payload", "_properties", "_said", "_view")

    def __init__(self, entry: QueueEntry, payload: bytes) -> None:
        self._entry = entry
        self._payload = payload
        self._view: MessageView | None = None
        self._properties: MessageProperties | None = None
        self._said: dict[object, object] | None = None

    def __getitem__(self, name: str) -> Fact:
        try:
            return _fact(self._find(name))
        except AmqpError:
            return None

    def _find(self, name: str) -> object:
        if name == "JMSPriority":
            return self._entry.priority
        if name == "JMSXDeliveryCount":
            return self._entry.failures + 1
        if name == "JMSRedelivered":
            return self._entry.failures > 0
        if self._view is None:
            self._view = locate_sections(self._payload)
        if name == "JMSDeliveryMode":
            return "PERSISTENT" if self._view.header().durable else "NON_PERSISTENT"
        asked = _PROPERTIES.get(name)
        if asked is not None:
            if self._properties is None:
                self._properties = self._view.properties()
            return asked(self._properties)
        if self._said is None:
            self._said = self._view.application_properties()
        return self._said.get(name)


def _fact(value: object) -> Fact:
    """Return a value as selectors know it: what they have no type for is nothing."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None
