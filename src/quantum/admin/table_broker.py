"""Pages of the broker itself: how this node stands, sessions, messages, the archive, the feed."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final

import msgspec

from clustor.control import AccessRole
from clustor.control.types import Count, Name
from quantum.admin import broker_pages as b
from quantum.admin import message_pages as m
from quantum.admin.listings import AFTER, LIMIT, TENANT
from quantum.admin.routes import OPERATORS, TENANT_READERS, Parameter, page
from quantum.archive.feed_page import PAGE_BYTES_DEFAULT, PAGE_BYTES_MAX
from quantum.node import rows as w

_SENDERS: Final = OPERATORS | {AccessRole.TENANT_ADMIN}
"""Who may publish and fetch; what of it is up to the tenant's access rules."""
_Text: Final = Annotated[str, msgspec.Meta(max_length=4096)]
_Client: Final = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_CLIENT: Final[dict[str, Any]] = {**TENANT, "client_id": _Client}
_BEHIND: Final = Parameter("after", _Text | None, AFTER.about, default=None)
_CONTAINS: Final = Parameter("contains", _Text, "only client ids that contain this", default="")
_FILTER: Final = Parameter("filter", _Text, "only what this filter matches", default="")
_BY_CLIENT: Final = (_CONTAINS, LIMIT, _BEHIND)
_BY_TOPIC: Final = (_FILTER, LIMIT, _BEHIND)
_TENANTS: Final[dict[str, Any]] = {
    "kinds": TENANT,
    "roles": TENANT_READERS,
    "own_tenant": True,
    "is_local": True,
}

BROKER: Final = (
    page(
        "/v1/broker/status",
        b.status,
        w.BrokerStatus,
        "broker status",
        "Show how this node's broker stands: its partitions, what has stopped, its disk.",
        is_local=True,
    ),
    page(
        "/v1/broker/digests",
        b.digests,
        w.Digests,
        "broker digests",
        "Show the digest of each partition's state at this moment.",
        is_local=True,
    ),
    page(
        "/v1/archive",
        b.archive,
        w.ArchiveView,
        "archive show",
        "Show how far this node's archive is, and what it waits for.",
        is_local=True,
    ),
    page(
        "/v1/backups",
        b.backups,
        w.BackupsView,
        "backups show",
        "Show how the schedule of backups stands, and the newest of them.",
        is_local=True,
    ),
    page(
        "/v1/feed",
        b.feed,
        w.FeedDirectory,
        "feed list",
        "List the partitions whose committed entries can be read here.",
        is_local=True,
    ),
    replace(
        page(
            "/v1/feed/{tenant_id}/{number}",
            b.feed_page,
            bytes,
            "feed page",
            "Read committed entries, sealed for whoever has the tenant's keys.",
            kinds={"tenant_id": Name, "number": Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]},
            query=(
                Parameter(
                    "from", Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)], "the first index"
                ),
                Parameter(
                    "bytes",
                    Annotated[int, msgspec.Meta(ge=1, le=PAGE_BYTES_MAX)],
                    "about how much at most",
                    default=PAGE_BYTES_DEFAULT,
                ),
                Parameter("at", Count | None, "when it is asked (ms since 1970)", default=None),
                Parameter("proof", _Text, "the key's epoch, and a MAC of the request", default=""),
            ),
            is_local=True,
            media="application/octet-stream",
            codes=(410, 429),
            example="acme 0 --from 1",
        ),
        command_line="",  # sealed bytes are for programs
    ),
)

SESSIONS: Final = (
    page(
        "/v1/tenants/{tenant_id}/sessions",
        b.sessions,
        w.SessionPage,
        "sessions list",
        "List sessions: connected clients, and those that will come back.",
        query=_BY_CLIENT,
        columns=("client_id", "connected", "subscriptions", "queued", "in_flight", "full"),
        example="acme",
        **_TENANTS,
    ),
    page(
        "/v1/tenants/{tenant_id}/sessions/{client_id}",
        b.session,
        w.SessionView,
        "sessions show",
        "Show one session and what it subscribes to.",
        example="acme lamp-7",
        **{**_TENANTS, "kinds": _CLIENT},
    ),
    page(
        "/v1/tenants/{tenant_id}/sessions/{client_id}/kick",
        b.kick,
        w.SessionEnded,
        "sessions kick",
        "End a session: its client is disconnected, its subscriptions and queue are gone.",
        method="POST",
        body=b.KickBody,
        example="acme lamp-7",
        **{**_TENANTS, "kinds": _CLIENT, "roles": _SENDERS},
    ),
    page(
        "/v1/tenants/{tenant_id}/clients",
        b.clients,
        w.ClientPage,
        "clients list",
        "List the clients that are connected to partitions that this node leads.",
        query=_BY_CLIENT,
        columns=("client_id", "identity", "transport", "address", "protocol", "queued_bytes"),
        example="acme",
        **_TENANTS,
    ),
    page(
        "/v1/tenants/{tenant_id}/topics",
        b.topics,
        w.TopicPage,
        "topics list",
        "List the filters that clients subscribe to.",
        query=_BY_TOPIC,
        columns=("filter", "subscribers"),
        example="acme",
        **_TENANTS,
    ),
    page(
        "/v1/tenants/{tenant_id}/retained",
        b.retained,
        w.RetainedPage,
        "retained list",
        "List retained messages.",
        query=_BY_TOPIC,
        columns=("topic", "qos", "bytes", "payload"),
        example="acme",
        **_TENANTS,
    ),
    page(
        "/v1/tenants/{tenant_id}/ring",
        b.ring,
        w.RingView,
        "ring show",
        "Show a tenant's ring on this node, and what a change of it waits for.",
        example="acme",
        **_TENANTS,
    ),
    page(
        "/v1/tenants/{tenant_id}/ring",
        b.grow,
        w.RingOrdered,
        "ring grow",
        "Add partitions to a tenant's ring, while its clients go on.",
        method="POST",
        body=b.GrowBody,
        example="acme --prg-count 5",
        **{**_TENANTS, "roles": OPERATORS, "own_tenant": False},
    ),
)

MESSAGES: Final = (
    page(
        "/v1/tenants/{tenant_id}/publish",
        m.publish,
        m.Published,
        "messages publish",
        "Publish a message; answered when a quorum has it on disk.",
        method="POST",
        body=m.PublishBody,
        example="acme --topic lamp/7 --text on --qos 1",
        **{**_TENANTS, "roles": _SENDERS},
    ),
    page(
        "/v1/tenants/{tenant_id}/poll",
        m.poll,
        m.Polled,
        "messages poll",
        "Wait for messages; the cursor of the answer goes on behind them.",
        method="POST",
        body=m.PollBody,
        codes=(410,),
        example="acme --filters '[\"lamp/#\"]' --wait-ms 5000",
        **{**_TENANTS, "roles": _SENDERS},
    ),
)
