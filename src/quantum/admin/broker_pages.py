"""Pages of this node's broker: what is in it, and what an operator orders of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from quantum.admin.errors import ApiError, conflict, malformed, not_found
from quantum.admin.page_context import PageContext
from quantum.admin.routes import AdminRequest
from quantum.archive.feed_page import FeedRequest
from quantum.node.orders import LedByAnother, OrderFailed, OrderRefused, describe_ring
from quantum.node.rows import (
    ArchiveView,
    BackupsView,
    BrokerStatus,
    ClientPage,
    Digests,
    FeedDirectory,
    RetainedPage,
    RingOrdered,
    RingView,
    SessionEnded,
    SessionPage,
    SessionView,
    TopicPage,
)
from quantum.node.served import ServedBroker
from quantum.protocols.mqtt.codec import PeerFault, check_topic_filter

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant


class GrowBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many partitions a tenant shall have; a ring never shrinks."""

    prg_count: Annotated[int, msgspec.Meta(ge=1, le=1024)]


class KickBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing has to be said."""


def broker_of(api: PageContext) -> ServedBroker:
    """Return the broker of this node, or refuse."""
    broker = api.broker()
    if broker is None:
        raise not_found("this node serves no broker")
    return broker


def tenant_of(api: PageContext, asked: AdminRequest) -> tuple[ServedBroker, Tenant]:
    """Return the tenant that the path names, as it is served here."""
    broker = broker_of(api)
    tenant = broker.tenant(asked.values["tenant_id"])
    if tenant is None:
        raise not_found("no such tenant is served here", tenant=asked.values["tenant_id"])
    return broker, tenant


# What is in it.


def status(api: PageContext, _asked: AdminRequest) -> BrokerStatus:
    return broker_of(api).views.status()


def digests(api: PageContext, _asked: AdminRequest) -> Digests:
    return broker_of(api).views.digests()


def archive(api: PageContext, _asked: AdminRequest) -> ArchiveView:
    found = broker_of(api).views.archive()
    if found is None:
        raise not_found("this broker has no archive; start it with --archive URL")
    return found


def backups(api: PageContext, _asked: AdminRequest) -> BackupsView:
    found = broker_of(api).views.backups()
    if found is None:
        raise not_found(
            "this broker makes no backups by itself; give it --archive URL and "
            "--backup-interval-seconds N"
        )
    return found


def sessions(api: PageContext, asked: AdminRequest) -> SessionPage:
    broker, tenant = tenant_of(api, asked)
    return broker.views.sessions(tenant, *_span(asked))


def session(api: PageContext, asked: AdminRequest) -> SessionView:
    broker, tenant = tenant_of(api, asked)
    found = broker.views.session(tenant, asked.values["client_id"].encode())
    if found is None:
        raise not_found("no such session", client_id=asked.values["client_id"])
    return found


def clients(api: PageContext, asked: AdminRequest) -> ClientPage:
    broker, tenant = tenant_of(api, asked)
    return broker.views.clients(tenant, *_span(asked))


def topics(api: PageContext, asked: AdminRequest) -> TopicPage:
    broker, tenant = tenant_of(api, asked)
    return broker.views.topics(tenant, *_span(asked))


def retained(api: PageContext, asked: AdminRequest) -> RetainedPage:
    broker, tenant = tenant_of(api, asked)
    wanted, after, limit = _span(asked)
    try:
        check_topic_filter(wanted or b"#")
    except PeerFault as fault:
        raise malformed(fault.reason, parameter="filter") from None
    return broker.views.retained(tenant, wanted, after, limit)


def _span(asked: AdminRequest) -> tuple[bytes, bytes, int]:
    values = asked.values
    wanted = values.get("contains", values.get("filter")) or ""
    return wanted.encode(), (values["after"] or "").encode(), values["limit"]


def ring(api: PageContext, asked: AdminRequest) -> RingView:
    return describe_ring(tenant_of(api, asked)[1])


# What is ordered.


def kick(api: PageContext, asked: AdminRequest) -> SessionEnded:
    """End a session; who leads its partition does it."""
    broker, tenant = tenant_of(api, asked)
    name = asked.values["client_id"]
    try:
        is_ended = broker.orders.kick(tenant, name.encode(), asked.caller.identity)
    except LedByAnother as error:
        raise led_by_another(broker, error.leader) from None
    if not is_ended:
        raise not_found("no such session", client_id=name)
    return SessionEnded(client_id=name)


def led_by_another(broker: ServedBroker, leader: int | None) -> ApiError:
    admin = broker.admin_of(leader)
    return ApiError(
        409,
        "LedByAnother",
        "another node leads this partition",
        next=f"ask {admin}" if admin else "wait for a leader, and repeat it",
        facts={"leader": leader, "admin": admin},
    )


def grow(api: PageContext, asked: AdminRequest) -> RingOrdered:
    broker, tenant = tenant_of(api, asked)
    try:
        return broker.orders.grow(tenant, asked.body.prg_count, asked.caller.identity)
    except OrderRefused as refusal:
        raise conflict(str(refusal)) from None
    except OrderFailed as failure:
        raise ApiError(
            503, "NotWritten", str(failure), next="mend the disk, and repeat it"
        ) from None


# The feed.


def feed(api: PageContext, _asked: AdminRequest) -> FeedDirectory:
    return broker_of(api).feeding.directory()


async def feed_page(api: PageContext, asked: AdminRequest) -> bytes:
    """Return a sealed page of entries."""
    values = asked.values
    request = FeedRequest(
        values["tenant_id"], values["number"], values["from"], values["bytes"], values["at"] or 0
    )
    answer = broker_of(api).feeding.page(request, values["proof"])
    code, content = await answer if isinstance(answer, asyncio.Future) else answer
    if code == 200:
        assert isinstance(content, bytes)
        return content
    assert isinstance(content, dict)
    raise _feed_refusal(code, content)


_FEED_NEXT = {
    403: ("NoProof", "show a proof made with this tenant's keys: `quantum keys export`"),
    404: ("NotFound", "list the partitions: GET /v1/feed"),
    410: ("Compacted", "read it from the archive, or begin at `first`"),
    429: ("Busy", "repeat it after retry_ms"),
    503: ("Unavailable", "repeat it after retry_ms, or at another node"),
}


def _feed_refusal(code: int, content: dict[str, Any]) -> ApiError:
    error, then = _FEED_NEXT[code]
    facts = {name: value for name, value in content.items() if name != "error"}
    return ApiError(code, error, str(content["error"]), next=then, facts=facts)
