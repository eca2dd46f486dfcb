"""The one table from what a partition or a rule refuses to AMQP's conditions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quantum.broker.queues import QueueRefusal
from quantum.broker.streams import StreamRefusal
from quantum.protocols.amqp.engine import Condition, ErrorValue, RejectedOutcome
from quantum.protocols.amqp.session.dispatch_words import AttachmentEnd

_REFUSALS: Final[Mapping[QueueRefusal, tuple[str, str]]] = {
    QueueRefusal.NO_QUEUE: (Condition.NOT_FOUND, "there is no queue of this name"),
    QueueRefusal.FULL: (Condition.RESOURCE_LIMIT_EXCEEDED, "the queue is full"),
    QueueRefusal.NOT_PLACED_HERE: (Condition.INTERNAL_ERROR, "the queue is another partition's"),
    QueueRefusal.TOO_MANY: (Condition.RESOURCE_LIMIT_EXCEEDED, "there are too many queues"),
    QueueRefusal.GAP: (Condition.INTERNAL_ERROR, "the order of commands was lost"),
    QueueRefusal.BAD_NAME: (Condition.INVALID_FIELD, "no name for a queue"),
    QueueRefusal.OVER_LIMIT: (
        Condition.RESOURCE_LIMIT_EXCEEDED,
        "the tenant's queues hold all that they may",
    ),
    QueueRefusal.FENCED: (Condition.STOLEN, "the link was attached again elsewhere"),
    QueueRefusal.NO_TRANSACTION: (
        Condition.UNKNOWN_TRANSACTION,
        "there is no such transaction",
    ),
    QueueRefusal.BUSY: (Condition.TRANSACTION_ROLLBACK, "a partition hears nothing now"),
    QueueRefusal.IN_USE: (Condition.RESOURCE_LOCKED, "the queue is not empty"),
}
_ENDS: Final[Mapping[int, tuple[str, str]]] = {
    AttachmentEnd.NOT_LEADER: (Condition.DETACH_FORCED, "the queue moves to another node"),
    AttachmentEnd.NO_QUEUE: (Condition.NOT_FOUND, "there is no queue of this name"),
    AttachmentEnd.STOLEN: (Condition.STOLEN, "the link was attached again elsewhere"),
    AttachmentEnd.DELETED: (Condition.RESOURCE_DELETED, "the queue was deleted"),
}


class LinkRefused(Exception):
    """A link that cannot be; its error is what the client is told."""

    def __init__(self, condition: str, why: str) -> None:
        super().__init__(why)
        self.error = ErrorValue(condition, why)


def refusal_error(refusal: QueueRefusal) -> ErrorValue:
    """Return what a client is told about a refusal."""
    return ErrorValue(*_REFUSALS[refusal])


def rejected(refusal: QueueRefusal) -> RejectedOutcome:
    return RejectedOutcome(refusal_error(refusal))


def stream_error(refusal: StreamRefusal) -> ErrorValue:
    """Return what a client is told when the log did not take a record of a stream."""
    if refusal is StreamRefusal.TOPIC_UNKNOWN:
        return ErrorValue(Condition.RESOURCE_DELETED, "the stream was deleted")
    return ErrorValue(Condition.INTERNAL_ERROR, f"{refusal.value}: send it again")


def end_error(why: int) -> ErrorValue:
    """Return what a client is told when its link ends."""
    return ErrorValue(*_ENDS[why])
