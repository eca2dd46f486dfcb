"""Pages of AMQP's queues: what is in them, and what is done to them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from clustor.control import AccessRole
from quantum.admin import queue_pages as q
from quantum.admin.listings import AFTER, LIMIT, TENANT, NumberCursor
from quantum.admin.routes import OPERATORS, TENANT_READERS, Parameter, page
from quantum.node import queue_rows as w

_OWNERS: Final = OPERATORS | {AccessRole.TENANT_ADMIN}
_QUEUE: Final[dict[str, Any]] = {**TENANT, "queue": q.QueueName}
_BEHIND: Final = Parameter(
    "after", Annotated[str, msgspec.Meta(max_length=512)] | None, AFTER.about, default=None
)
_TENANT: Final[dict[str, Any]] = {"kinds": TENANT, "own_tenant": True, "is_local": True}
_ONE: Final[dict[str, Any]] = {**_TENANT, "kinds": _QUEUE, "roles": _OWNERS}
_POST: Final[dict[str, Any]] = {**_ONE, "method": "POST"}
_PATH: Final = "/v1/tenants/{tenant_id}/queues"
_PEEK: Final = (
    LIMIT,
    Parameter("after", NumberCursor | None, AFTER.about, default=None),
    Parameter("dead", bool, "dead letters, and not messages", default=False),
)

QUEUES: Final = (
    page(
        _PATH,
        q.queues,
        w.QueuePage,
        "queues list",
        "List the queues of a tenant.",
        query=(LIMIT, _BEHIND),
        columns=("name", "partition", "messages", "dead_letters", "bytes", "oldest_ms"),
        example="acme",
        **{**_TENANT, "roles": TENANT_READERS},
    ),
    page(
        _PATH,
        q.create,
        w.QueueDone,
        "queues create",
        "Make a queue, or change the bounds of one; answered when a quorum has it.",
        body=q.CreateQueueBody,
        example="acme --name orders --deliveries-max 5",
        **{**_TENANT, "roles": _OWNERS, "method": "POST"},
    ),
    page(
        _PATH + "/{queue}",
        q.queue,
        w.QueueInfo,
        "queues show",
        "Show a queue as this node has it; its leader knows who holds what.",
        example="acme orders",
        **{**_ONE, "roles": TENANT_READERS},
    ),
    page(
        _PATH + "/{queue}/why",
        q.why,
        w.QueueWhy,
        "queues why",
        "Say why messages wait in a queue: who does not take them, what is full, what died.",
        example="acme orders",
        **{**_ONE, "roles": TENANT_READERS},
    ),
    page(
        _PATH + "/{queue}/delete",
        q.delete,
        w.QueueDone,
        "queues delete",
        "End a queue with all that it holds.",
        body=q.DeleteQueueBody,
        example="acme orders",
        **_POST,
    ),
    page(
        _PATH + "/{queue}/purge",
        q.purge,
        w.QueueDone,
        "queues purge",
        "Drop all messages of a queue, or all its dead letters.",
        body=q.PurgeBody,
        example="acme orders",
        **_POST,
    ),
    page(
        _PATH + "/{queue}/move",
        q.move,
        w.QueueDone,
        "queues move",
        "Let messages or dead letters be another queue's, the oldest first.",
        body=q.MoveBody,
        example="acme orders --target later",
        **_POST,
    ),
    page(
        _PATH + "/{queue}/revive",
        q.revive,
        w.QueueDone,
        "queues revive",
        "Let dead letters be messages of their queue again.",
        body=q.ReviveBody,
        example="acme orders",
        **_POST,
    ),
    page(
        _PATH + "/{queue}/messages",
        q.messages,
        w.QueueMessages,
        "queues messages",
        "Look at messages or dead letters of a queue; nothing is taken.",
        query=_PEEK,
        columns=("number", "enqueued_ms", "delivery_count", "subject", "body"),
        example="acme orders",
        **_ONE,
    ),
    page(
        _PATH + "/{queue}/send",
        q.send,
        w.QueueSent,
        "queues send",
        "Send a message to a queue; answered when a quorum has it.",
        body=q.SendBody,
        example="acme orders --text hello",
        **_POST,
    ),
    page(
        _PATH + "/{queue}/receive",
        q.receive,
        w.QueueMessages,
        "queues receive",
        "Take messages of a queue, and settle them.",
        body=q.ReceiveBody,
        example="acme orders",
        **_POST,
    ),
)
