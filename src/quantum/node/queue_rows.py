"""What a node says of its tenants' queues, as types: pages are made of these."""

from __future__ import annotations

from clustor.control.types import Count
from quantum.node.rows import Payload, Small, TableRow, WaitCause


class QueueRow(TableRow, frozen=True, kw_only=True):
    """A queue, as this node's replica has it."""

    name: str
    partition: Small
    messages: Small
    dead_letters: Small
    bytes: Count
    oldest_ms: Count | None
    """When the oldest message came (ms since 1970)."""


class QueuePage(TableRow, frozen=True, kw_only=True):
    items: list[QueueRow]
    after: str | None = None


class QueueInfo(QueueRow, frozen=True, kw_only=True):
    """A queue with its bounds; who holds what is known to its leader alone."""

    leader: Small | None
    leader_admin: str
    unsettled: Small | None
    receivers: Small | None
    messages_max: Count
    bytes_max: Count
    deliveries_max: Count
    ttl_ms: Count
    keeps_expired: bool
    dynamic: bool
    created_ms: Count
    expired: Count
    file_bytes: Count


class QueueWhy(TableRow, frozen=True, kw_only=True):
    """Why messages wait in a queue, the most telling cause first; none: nothing is in their way."""

    name: str
    messages: Small
    causes: list[WaitCause]


class QueueMessage(TableRow, frozen=True, kw_only=True):
    """One message or dead letter of a queue."""

    number: Count
    size: Count
    enqueued_ms: Count
    expires_ms: Count | None
    priority: Small
    delivery_count: Small
    dead_because: str | None
    group_id: str | None
    message_id: str | None
    correlation_id: str | None
    subject: str | None
    reply_to: str | None
    content_type: str | None
    properties: list[tuple[str, str]]
    body_kind: str
    body: Payload


class QueueMessages(TableRow, frozen=True, kw_only=True):
    """Messages, the oldest first; `after` is where to go on."""

    items: list[QueueMessage]
    after: str | None = None


class QueueDone(TableRow, frozen=True, kw_only=True):
    """How many messages an order was about."""

    name: str
    done: Count


class QueueSent(TableRow, frozen=True, kw_only=True):
    """`accepted`: a quorum has it on disk."""

    accepted: bool
