"""Publishing, and waiting for messages, by request: bounded in time, bytes and number."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from quantum.admin.broker_pages import tenant_of
from quantum.admin.errors import ApiError, malformed
from quantum.admin.page_context import PageContext
from quantum.admin.routes import AdminRequest
from quantum.node.inner_client import ClientLost, InnerClientRefused
from quantum.node.messages import (
    BadCursor,
    CursorEnded,
    Fetch,
    MessageCaller,
    Messages,
    TooManyAtOnce,
)
from quantum.node.rows import Small, TableRow
from quantum.node.views import payload_of
from quantum.protocols.mqtt.codec import (
    MqttError,
    Properties,
    Publish,
    ReasonCode,
    TopicName,
    check_topic_filter,
    check_topic_name,
)

FILTERS_MAX: Final = 64
MESSAGES_MAX: Final = 1_000
BYTES_MAX: Final = 1 << 20
WAIT_MS_MAX: Final = 8_000
KEEP_SECONDS_MAX: Final = 3_600
_REFUSED: Final = (InnerClientRefused, ClientLost, TooManyAtOnce, MqttError)

Topic: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=65_535)]
Short: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
Pair: TypeAlias = tuple[Short, Short]
Pairs: TypeAlias = Annotated[tuple[Pair, ...], msgspec.Meta(max_length=64)]


class PublishBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message; without `text` and `base64` it is empty, which clears what is retained."""

    topic: Topic
    text: str | None = None
    base64: bytes | None = None
    qos: Literal[0, 1, 2] = 1
    retain: bool = False
    message_expiry_seconds: Small | None = None
    content_type: Short | None = None
    response_topic: Topic | None = None
    correlation_data: bytes | None = None
    user_properties: Pairs = ()


class Published(TableRow, frozen=True, kw_only=True):
    """`acknowledged`: a quorum has it on disk. At QoS 0 nobody says so."""

    acknowledged: bool


class PollBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either `filters`, or the `cursor` that the answer before named."""

    filters: Annotated[tuple[Topic, ...], msgspec.Meta(max_length=FILTERS_MAX)] = ()
    cursor: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    qos: Literal[0, 1] = 1
    keep_seconds: Annotated[int, msgspec.Meta(ge=0, le=KEEP_SECONDS_MAX)] = 60
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=WAIT_MS_MAX)] = 5_000
    messages_max: Annotated[int, msgspec.Meta(ge=1, le=MESSAGES_MAX)] = 100
    bytes_max: Annotated[int, msgspec.Meta(ge=1, le=BYTES_MAX)] = BYTES_MAX


class MessageRow(TableRow, frozen=True, kw_only=True):
    """A message; its payload as text where it is text."""

    topic: str
    qos: Small
    retain: bool
    text: str | None
    base64: bytes | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    message_expiry_seconds: Small | None
    user_properties: list[tuple[str, str]]


class Polled(TableRow, frozen=True, kw_only=True):
    """What came. The next request names `cursor`, and so acknowledges these; null: none is kept."""

    messages: list[MessageRow]
    cursor: str | None


async def publish(api: PageContext, asked: AdminRequest) -> Published:
    """Publish, and answer when a quorum has it."""
    body: PublishBody = asked.body
    messages, caller = _caller(api, asked)
    try:
        check_topic_name(body.topic.encode())
        return Published(acknowledged=await messages.publish(caller, _message(body)))
    except _REFUSED as error:
        raise refusal_of(error) from None


async def poll(api: PageContext, asked: AdminRequest) -> Polled:
    """Wait for messages, no longer than the request lets it."""
    body: PollBody = asked.body
    if bool(body.filters) == (body.cursor is not None):
        raise malformed("say either filters or a cursor")
    messages, caller = _caller(api, asked)
    wanted = Fetch(
        body.filters,
        body.cursor,
        body.qos,
        body.keep_seconds,
        body.wait_ms / 1000,
        body.messages_max,
        body.bytes_max,
    )
    try:
        for each in body.filters:
            check_topic_filter(each.encode())
        found = await messages.fetch(caller, wanted)
    except BadCursor:
        raise malformed("not a cursor that an answer named") from None
    except CursorEnded:
        raise ApiError(
            410,
            "CursorEnded",
            "the cursor was not used for as long as it was kept",
            next="begin anew with filters, and ask more often or with a longer keep_seconds",
        ) from None
    except _REFUSED as error:
        raise refusal_of(error) from None
    return Polled(messages=[_row(each) for each in found.messages], cursor=found.cursor)


def _caller(api: PageContext, asked: AdminRequest) -> tuple[Messages, MessageCaller]:
    broker, tenant = tenant_of(api, asked)
    return broker.messages, MessageCaller(tenant.name, asked.caller.identity, asked.encrypted)


def _message(body: PublishBody) -> Publish:
    if body.text is not None and body.base64 is not None:
        raise malformed("say either text or base64")
    payload = body.text.encode() if body.text is not None else body.base64 or b""
    properties = Properties(
        payload_format_indicator=1 if body.text is not None else None,
        message_expiry_interval=body.message_expiry_seconds,
        content_type=body.content_type,
        response_topic=None
        if body.response_topic is None
        else TopicName(body.response_topic.encode()),
        correlation_data=body.correlation_data,
        user_properties=body.user_properties,
    )
    return Publish(
        TopicName(body.topic.encode()), payload, body.qos, body.retain, properties=properties
    )


def _row(message: Publish) -> MessageRow:
    payload, properties = payload_of(message.payload), message.properties
    answers = properties.response_topic
    return MessageRow(
        topic=message.topic.decode(),
        qos=message.qos,
        retain=message.retain,
        text=payload.text,
        base64=payload.base64,
        content_type=properties.content_type,
        response_topic=None if answers is None else answers.decode(),
        correlation_data=properties.correlation_data,
        message_expiry_seconds=properties.message_expiry_interval,
        user_properties=list(properties.user_properties),
    )


_CODE: Final = ReasonCode
_LATER: Final = "repeat it after a second, or at another node"
_REFUSALS: Final = {
    _CODE.NOT_AUTHORIZED: (403, "`quantum explain access` names the rule that refuses it"),
    _CODE.BANNED: (403, "let the tenant's clients in again: `quantum admin tenants set`"),
    _CODE.QUOTA_EXCEEDED: (429, "raise the tenant's quotas, or wait until less is there"),
    _CODE.CONNECTION_RATE_EXCEEDED: (429, "repeat it after a second"),
    _CODE.MESSAGE_RATE_TOO_HIGH: (429, "repeat it after a second"),
    _CODE.TOPIC_NAME_INVALID: (422, "name a topic without wildcards that the broker takes"),
    _CODE.TOPIC_FILTER_INVALID: (422, "correct the filter"),
    _CODE.PACKET_TOO_LARGE: (413, "send less at once"),
    _CODE.SESSION_TAKEN_OVER: (409, "let one request at a time use a cursor"),
    _CODE.SERVER_UNAVAILABLE: (503, _LATER),
    _CODE.SERVER_BUSY: (503, _LATER),
    _CODE.SERVER_SHUTTING_DOWN: (503, _LATER),
    _CODE.USE_ANOTHER_SERVER: (503, _LATER),
    _CODE.SERVER_MOVED: (503, _LATER),
    _CODE.ADMINISTRATIVE_ACTION: (409, "an operator ended the session: begin anew"),
}
"""MQTT's codes in the words of the API; any other says that the request cannot be meant so."""


def refusal_of(error: Exception) -> ApiError:
    """Say in the API's words what the broker refused."""
    if isinstance(error, TooManyAtOnce):
        text = "as many requests of this kind as a node takes are under way"
        return ApiError(429, "TooManyAtOnce", text, next="repeat it after a second")
    if isinstance(error, MqttError):
        return malformed(str(error))
    if isinstance(error, ClientLost):
        then = "repeat it: a message may come twice, none is lost that was acknowledged"
        facts = {"maybe_applied": True}
        return ApiError(503, "NoAnswer", str(error), next=then, facts=facts)
    assert isinstance(error, InnerClientRefused)
    status, then = _REFUSALS.get(error.reason, (422, "correct what the message names"))
    words = str(error) or error.reason.name.replace("_", " ").lower()
    return ApiError(
        status,
        error.reason.name.title().replace("_", ""),
        words,
        next=then,
        facts={"reason_code": f"0x{int(error.reason):02x}"},
        is_recorded=True,  # the broker's own audit tells of it
    )
