"""Pages of queues: make one, look at it, empty it, move its messages, send and receive."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec

from clustor.control.types import Count
from quantum.admin.broker_pages import tenant_of
from quantum.admin.errors import ApiError, malformed, not_found
from quantum.admin.page_context import PageContext
from quantum.admin.routes import AdminRequest
from quantum.broker.queues import Queue, QueueRefusal, QueueSpec, SettlementKind
from quantum.node.queue_receiving import QueueGone, SettlingLost
from quantum.node.queue_rows import (
    QueueDone,
    QueueInfo,
    QueueMessages,
    QueuePage,
    QueueRow,
    QueueSent,
    QueueWhy,
)
from quantum.node.queue_words import MessageOrder, shown, written
from quantum.node.queues import (
    BrokerQueues,
    QueueCaller,
    QueueForbidden,
    QueueOrderRefused,
    QueuesBusy,
    QueueUnanswered,
    wish_of,
)
from quantum.node.served import ServedBroker
from quantum.node.wait_causes import explain_queue
from quantum.protocols.amqp.engine import AmqpError
from quantum.protocols.amqp.selectors import SELECTOR_CHARS_MAX, SelectorError, parse_selector
from quantum.protocols.amqp.session.partition_queues import PartitionQueues

WAIT_MS_MAX: Final = 8_000
MOVED_MAX: Final = 10_000
BODY_CHARS_MAX: Final = 1 << 20
_Answer = TypeVar("_Answer")
_KINDS: Final = {
    "accepted": SettlementKind.ACCEPTED,
    "released": SettlementKind.RELEASED,
    "rejected": SettlementKind.REJECTED,
}
QueueName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Short: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
Pairs: TypeAlias = Annotated[tuple[tuple[Short, Short], ...], msgspec.Meta(max_length=64)]
Moved: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOVED_MAX)]


class CreateQueueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a queue is like; one that is there is changed to be so."""

    name: QueueName
    messages_max: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)] = 1_000_000
    bytes_max: Count = 8 << 30
    deliveries_max: Annotated[int, msgspec.Meta(ge=0, le=1 << 32)] = 10
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] = 0
    keeps_expired: bool = False


class DeleteQueueBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether only an empty queue is meant."""

    if_empty: bool = False


class PurgeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether dead letters are dropped, and not messages."""

    dead: bool = False


class MoveBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where messages or dead letters go, and how many, the oldest first."""

    target: QueueName
    dead: bool = False
    count: Moved = 1_000


class ReviveBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters are messages again; none is named: the oldest."""

    numbers: Annotated[tuple[Count, ...], msgspec.Meta(max_length=MOVED_MAX)] = ()
    count: Moved = 1_000


class SendBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message: `text` is an amqp-value, `base64` is data."""

    text: Annotated[str, msgspec.Meta(max_length=BODY_CHARS_MAX)] | None = None
    base64: bytes | None = None
    subject: Short | None = None
    message_id: Short | None = None
    correlation_id: Short | None = None
    reply_to: Short | None = None
    content_type: Short | None = None
    group_id: Short | None = None
    priority: Annotated[int, msgspec.Meta(ge=0, le=255)] = 4
    ttl_ms: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] = 0
    properties: Pairs = ()


class ReceiveBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many at most, how long to wait for the first, and what becomes of them."""

    count: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 1_000
    outcome: Literal["accepted", "released", "rejected"] = "accepted"
    dead: bool = False
    selector: Annotated[str, msgspec.Meta(max_length=SELECTOR_CHARS_MAX)] = ""


def queues(api: PageContext, asked: AdminRequest) -> QueuePage:
    """List the queues of a tenant that the caller may know of, by name."""
    office, caller = _office(api, asked)
    after, limit = (asked.values["after"] or "").encode(), asked.values["limit"]
    found = [row for row in office.all(caller) if row[1].name > after]
    rows = [_row(*each) for each in found[:limit]]
    return QueuePage(items=rows, after=rows[-1].name if len(found) > limit else None)


async def queue(api: PageContext, asked: AdminRequest) -> QueueInfo:
    office, caller = _office(api, asked)

    async def look() -> tuple[PartitionQueues, Queue]:
        return office.find(caller, asked.values["queue"])

    return _info(tenant_of(api, asked)[0], *await _told(look()))


async def why(api: PageContext, asked: AdminRequest) -> QueueWhy:
    """Say what a queue's messages wait for."""
    found = await queue(api, asked)
    return QueueWhy(name=found.name, messages=found.messages, causes=explain_queue(found))


async def create(api: PageContext, asked: AdminRequest) -> QueueDone:
    """Make a queue, or change one."""
    office, caller = _office(api, asked)
    body: CreateQueueBody = asked.body
    spec = QueueSpec(
        body.name.encode(),
        body.messages_max,
        body.bytes_max,
        body.deliveries_max,
        body.ttl_ms,
        body.keeps_expired,
    )
    await _told(office.create(caller, spec))
    return QueueDone(name=body.name, done=1)


async def delete(api: PageContext, asked: AdminRequest) -> QueueDone:
    """End a queue with all that it holds."""
    office, caller = _office(api, asked)
    name = asked.values["queue"]
    done = await _told(office.delete(caller, name, if_empty=asked.body.if_empty))
    return QueueDone(name=name, done=done)


async def purge(api: PageContext, asked: AdminRequest) -> QueueDone:
    """Drop all messages, or all dead letters."""
    office, caller = _office(api, asked)
    name = asked.values["queue"]
    done = await _told(office.purge(caller, name, dead=asked.body.dead))
    return QueueDone(name=name, done=done)


async def revive(api: PageContext, asked: AdminRequest) -> QueueDone:
    """Let dead letters be messages again."""
    office, caller = _office(api, asked)
    name, body = asked.values["queue"], asked.body
    done = await _told(office.revive(caller, name, list(body.numbers), body.count))
    return QueueDone(name=name, done=done)


async def move(api: PageContext, asked: AdminRequest) -> QueueDone:
    """Let messages or dead letters be another queue's."""
    office, caller = _office(api, asked)
    name, body = asked.values["queue"], asked.body
    if body.target == name:
        raise malformed("a queue's dead letters come back to it by a revive")
    wish = wish_of(name, dead=body.dead)
    done = await _told(office.move(caller, wish, body.target, body.count))
    return QueueDone(name=body.target, done=done)


async def messages(api: PageContext, asked: AdminRequest) -> QueueMessages:
    """Look at messages or dead letters; nothing is taken."""
    office, caller = _office(api, asked)
    values = asked.values
    after = -1 if values["after"] is None else int(values["after"])
    peek = office.peek(
        caller, values["queue"], dead=values["dead"], after=after, limit=values["limit"]
    )
    items = [shown(*each) for each in await _told(peek)]
    return QueueMessages(items=items, after=str(items[-1].number) if items else None)


async def send(api: PageContext, asked: AdminRequest) -> QueueSent:
    """Send a message, and answer when a quorum has it."""
    office, caller = _office(api, asked)
    try:
        payload = written(_order(asked.body))
    except AmqpError as error:
        raise malformed(str(error)) from None
    await _told(office.send(caller, asked.values["queue"], payload))
    return QueueSent(accepted=True)


def _order(body: SendBody) -> MessageOrder:
    if (body.text is None) == (body.base64 is None):
        raise malformed("say either text or base64")
    said = body.text if body.text is not None else body.base64
    assert said is not None
    return MessageOrder(
        said,
        body.subject,
        body.message_id,
        body.correlation_id,
        body.reply_to,
        body.content_type,
        body.group_id,
        body.priority,
        body.ttl_ms,
        body.properties,
    )


async def receive(api: PageContext, asked: AdminRequest) -> QueueMessages:
    """Take messages, settle them, and answer when the log has that."""
    office, caller = _office(api, asked)
    body: ReceiveBody = asked.body
    try:
        if body.selector.strip():
            parse_selector(body.selector)
    except SelectorError as error:
        raise malformed(f"no selector: {error}") from None
    wish = wish_of(asked.values["queue"], dead=body.dead, selector=body.selector.strip())
    kind, seconds = _KINDS[body.outcome], body.wait_ms / 1000
    taken = office.receive(caller, wish, kind, count=body.count, seconds=seconds)
    return QueueMessages(items=[shown(*each) for each in await _told(taken)])


def _office(api: PageContext, asked: AdminRequest) -> tuple[BrokerQueues, QueueCaller]:
    broker, tenant = tenant_of(api, asked)
    return broker.queues, QueueCaller(tenant, asked.caller.identity, asked.encrypted)


def _row(queues: PartitionQueues, found: Queue) -> QueueRow:
    return QueueRow(
        name=found.name.decode(errors="replace"),
        partition=queues.leader.number,
        messages=len(found.live),
        dead_letters=len(found.dead),
        bytes=found.bytes,
        oldest_ms=found.oldest_ms(),
    )


def _info(broker: ServedBroker, queues: PartitionQueues, found: Queue) -> QueueInfo:
    leader, spec, is_led = queues.leader, found.spec, queues.leader.leading
    return QueueInfo(
        **msgspec.structs.asdict(_row(queues, found)),
        leader=leader.leader_node,
        leader_admin=broker.admin_of(leader.leader_node),
        unsettled=queues.unsettled_of(found.name) if is_led else None,
        receivers=queues.receivers_of(found.name) if is_led else None,
        messages_max=spec.messages_max,
        bytes_max=spec.bytes_max,
        deliveries_max=spec.deliveries_max,
        ttl_ms=spec.ttl_ms,
        keeps_expired=spec.keeps_expired,
        dynamic=spec.is_dynamic,
        created_ms=found.created_ms,
        expired=found.dropped,
        file_bytes=broker.queues.file_bytes(queues, found),
    )


_REFUSALS: Final = {
    QueueRefusal.FULL: (409, "QueueFull", "the queue has no room", "raise its bounds, or empty it"),
    QueueRefusal.OVER_LIMIT: (
        429,
        "QuotaExceeded",
        "the tenant's queues hold all that they may",
        "raise the tenant's quotas, or empty a queue",
    ),
    QueueRefusal.TOO_MANY: (
        429,
        "QuotaExceeded",
        "the tenant has as many queues as it may",
        "delete one, or raise the tenant's quotas",
    ),
    QueueRefusal.IN_USE: (409, "QueueInUse", "the queue is not empty", "purge it first"),
}
_LATER: Final = "repeat it: nothing counts twice but a message that is sent"


async def _told(answer: Awaitable[_Answer]) -> _Answer:
    """Say in the API's words what was refused."""
    try:
        return await answer
    except QueueForbidden:
        words = "the tenant's rules do not allow it"
        then = "`quantum explain access` names the rule that refuses it"
        raise ApiError(403, "NotAuthorized", words, next=then, is_recorded=True) from None
    except QueueGone:
        raise not_found("no such queue") from None
    except QueueOrderRefused as refused:
        raise _refused(refused.refusal) from None
    except (QueueUnanswered, SettlingLost):
        words, facts = "no leader answered in time", {"maybe_applied": True}
        raise ApiError(503, "NoAnswer", words, next=_LATER, facts=facts) from None
    except QueuesBusy:
        words = "as many requests as a node takes wait for messages"
        raise ApiError(429, "Busy", words, next="repeat it after a second") from None


def _refused(refusal: QueueRefusal) -> ApiError:
    if refusal is QueueRefusal.NO_QUEUE:
        return not_found("no such queue")
    status, error, words, then = _REFUSALS.get(
        refusal, (422, "Invalid", f"the partition refused it: {refusal.name}", "correct it")
    )
    return ApiError(status, error, words, next=then)
