"""Pages of Kafka's topics and consumer groups: look at them, make and end topics, forget groups."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec

from quantum.admin.broker_pages import tenant_of
from quantum.admin.errors import ApiError, conflict, malformed, not_found
from quantum.admin.page_context import PageContext
from quantum.admin.routes import AdminRequest
from quantum.broker.streams import StreamRefusal
from quantum.broker.streams.topics import PARTITIONS_MAX
from quantum.node.kafka_rows import (
    KafkaDone,
    KafkaGroupInfo,
    KafkaGroupPage,
    KafkaGroupWhy,
    KafkaTopicInfo,
    KafkaTopicPage,
)
from quantum.node.topics import (
    BrokerTopics,
    TopicCaller,
    TopicForbidden,
    TopicOrderRefused,
    TopicUnanswered,
)
from quantum.node.wait_causes import explain_group

TopicName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
"""What it may be made of the broker says: with a sentence, not with a pattern."""
GroupName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
_Config: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
_Answer = TypeVar("_Answer")
_LATER: Final = "look whether it was done, and repeat it"


class CreateTopicBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a topic is like: its configs are Kafka's."""

    name: TopicName
    partition_count: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)] = 1
    configs: Annotated[dict[_Config, _Config], msgspec.Meta(max_length=64)] = {}


class DeleteTopicBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing has to be said."""


class DeleteGroupBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing has to be said."""


def topics(api: PageContext, asked: AdminRequest) -> KafkaTopicPage:
    """List the topics of a tenant that the caller may know of, by name."""
    office, caller = _office(api, asked)
    limit = asked.values["limit"]
    rows = office.topics(caller, asked.values["after"] or "", limit + 1)
    return KafkaTopicPage(
        items=rows[:limit], after=rows[limit - 1].name if len(rows) > limit else None
    )


async def topic(api: PageContext, asked: AdminRequest) -> KafkaTopicInfo:
    office, caller = _office(api, asked)
    name = asked.values["topic"]

    async def look() -> KafkaTopicInfo | None:
        return office.topic(caller, name)

    found = await _told(look())
    if found is None:
        raise not_found("no such topic", topic=name)
    return found


async def create(api: PageContext, asked: AdminRequest) -> KafkaDone:
    """Make a topic; answered when every partition of the tenant has it."""
    office, caller = _office(api, asked)
    body: CreateTopicBody = asked.body
    configs = tuple(body.configs.items())
    await _told(office.create(caller, body.name, body.partition_count, configs))
    return KafkaDone(name=body.name)


async def delete(api: PageContext, asked: AdminRequest) -> KafkaDone:
    """End a topic with all that it holds."""
    office, caller = _office(api, asked)
    name = asked.values["topic"]
    await _told(office.delete(caller, name))
    return KafkaDone(name=name)


def groups(api: PageContext, asked: AdminRequest) -> KafkaGroupPage:
    """List the consumer groups of a tenant that the caller may know of, by name."""
    office, caller = _office(api, asked)
    limit = asked.values["limit"]
    rows = office.groups(caller, asked.values["after"] or "", limit + 1)
    return KafkaGroupPage(
        items=rows[:limit], after=rows[limit - 1].name if len(rows) > limit else None
    )


async def group(api: PageContext, asked: AdminRequest) -> KafkaGroupInfo:
    office, caller = _office(api, asked)
    name = asked.values["group"]

    async def look() -> KafkaGroupInfo | None:
        return office.group(caller, name)

    found = await _told(look())
    if found is None:
        raise not_found("no such consumer group", group=name)
    return found


async def group_why(api: PageContext, asked: AdminRequest) -> KafkaGroupWhy:
    """Say what a group waits for."""
    found = await group(api, asked)
    return KafkaGroupWhy(name=found.name, lag=found.lag, causes=explain_group(found))


async def delete_group(api: PageContext, asked: AdminRequest) -> KafkaDone:
    """Forget a group and all that it committed."""
    office, caller = _office(api, asked)
    name = asked.values["group"]
    await _told(office.delete_group(caller, name))
    return KafkaDone(name=name)


def _office(api: PageContext, asked: AdminRequest) -> tuple[BrokerTopics, TopicCaller]:
    broker, tenant = tenant_of(api, asked)
    return broker.topics, TopicCaller(tenant, asked.caller.identity, asked.encrypted)


async def _told(answer: Awaitable[_Answer]) -> _Answer:
    """Say in the API's words what was refused."""
    try:
        return await answer
    except TopicForbidden:
        words = "the tenant's rules do not allow it"
        then = "`quantum explain access` names the rule that refuses it"
        raise ApiError(403, "NotAuthorized", words, next=then, is_recorded=True) from None
    except TopicOrderRefused as refused:
        raise _refused(refused) from None
    except TopicUnanswered:
        words, facts = "no leader answered in time", {"maybe_applied": True}
        raise ApiError(503, "NoAnswer", words, next=_LATER, facts=facts) from None


_WRONG: Final = frozenset(
    {StreamRefusal.BAD_TOPIC_NAME, StreamRefusal.BAD_PARTITIONS, StreamRefusal.BAD_CONFIG}
)
_GONE: Final = frozenset({StreamRefusal.TOPIC_UNKNOWN, StreamRefusal.GROUP_UNKNOWN})


def _refused(refused: TopicOrderRefused) -> ApiError:
    if refused.refusal in _WRONG:
        return malformed(str(refused))
    if refused.refusal in _GONE:
        return not_found(str(refused))
    if refused.refusal is StreamRefusal.BUSY:
        return ApiError(503, "NoAnswer", str(refused), next=_LATER)
    return conflict(str(refused))
