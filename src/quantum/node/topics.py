"""Kafka's topics and groups for operators: looked at on any node, made and ended by request.

What is looked at is this node's replicas, which may be a little behind; orders go to the leader of
the partition that keeps the topic or the group. The tenant's rules decide, as for Kafka's clients.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from quantum.broker.streams import (
    AssignedGroup,
    ClassicGroup,
    Configs,
    ConsumerGroup,
    DeleteGroup,
    StreamRefusal,
    TopicPartition,
    TopicReply,
)
from quantum.broker.streams.subscriptions import assigned_partitions
from quantum.broker.streams.topics import UUID_BYTES
from quantum.mesh.topic_views import TopicView
from quantum.node.inner_client import peer_of
from quantum.node.kafka_rows import (
    KafkaGroupInfo,
    KafkaGroupRow,
    KafkaLagRow,
    KafkaMemberRow,
    KafkaPartitionRow,
    KafkaTopicInfo,
    KafkaTopicRow,
)
from quantum.protocols.kafka.session.group_admin import state_of
from quantum.tenancy import Operation, ResourceKind
from quantum.tenants.binding import needs_list

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.mesh.topics import TenantTopics
    from quantum.node.service import BrokerService

ORDER_SECONDS_MAX: Final = 20.0
"""Longer than topics ask for: their own answer comes first."""


class TopicForbidden(Exception):
    """The tenant's rules do not allow it."""


class TopicOrderRefused(Exception):
    """The partition said no."""

    def __init__(self, refusal: StreamRefusal, reason: str = "") -> None:
        super().__init__(reason or refusal.value)
        self.refusal = refusal


class TopicUnanswered(Exception):
    """No leader answered in time: the order may or may not count."""


@dataclass(frozen=True, slots=True)
class TopicCaller:
    """Who asks, for which tenant."""

    tenant: Tenant
    identity: str
    encrypted: bool

    @property
    def topics(self) -> TenantTopics:
        return self.tenant.topics

    def may(self, operation: Operation, kind: ResourceKind, name: str) -> bool:
        """Say whether the tenant's rules allow something to the caller."""
        guard = self.tenant.guard
        peer = peer_of(self.tenant.name, self.identity, encrypted=self.encrypted)
        lists = needs_list(peer, shared=guard.is_shared)
        return guard.may(self.identity, operation, kind, name.encode(), needs_list=lists).allowed

    def check(self, operation: Operation, kind: ResourceKind, name: str) -> None:
        """Raise TopicForbidden where the tenant's rules do not allow it."""
        if not self.may(operation, kind, name):
            what = f"{operation.value.upper()}_REFUSED"
            self.tenant.guard.note(what, b"", self.identity, name.encode())
            raise TopicForbidden(name)


class BrokerTopics:
    """The topics and groups of all tenants of a node."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    # What there is.

    def topics(self, caller: TopicCaller, after: str, limit: int) -> list[KafkaTopicRow]:
        """Return rows of the topics behind a name that the caller may know of, by name."""
        found = sorted(caller.topics.topics(), key=lambda each: each.name)
        wanted = (each for each in found if each.name > after and _knows(caller, each.name))
        return [
            KafkaTopicRow(**_topic_facts(caller.topics, each)) for each in _first(wanted, limit)
        ]

    def topic(self, caller: TopicCaller, name: str) -> KafkaTopicInfo | None:
        """Show one topic with its partitions; None where there is none."""
        caller.check(Operation.DESCRIBE, ResourceKind.STREAM, name)
        topics = caller.topics
        found = topics.topic(name)
        if found is None:
            return None
        rows = [_partition_row(caller, found, each) for each in range(found.partitions)]
        return KafkaTopicInfo(
            **_topic_facts(topics, found), partitions=rows, configs=dict(found.configs)
        )

    def groups(self, caller: TopicCaller, after: str, limit: int) -> list[KafkaGroupRow]:
        """Return rows of the groups behind a name that the caller may know of, by name."""
        topics = caller.topics
        names = sorted(
            (name, prg)
            for prg in range(caller.tenant.prg_count)
            for name in topics.coordinator(prg).groups.names()
            if name > after and caller.may(Operation.DESCRIBE, ResourceKind.GROUP, name)
        )
        found = ((name, topics.coordinator(prg).groups.get(name)) for name, prg in names[:limit])
        return [
            KafkaGroupRow(**_group_facts(topics, name, group)) for name, group in found if group
        ]

    def group(self, caller: TopicCaller, name: str) -> KafkaGroupInfo | None:
        """Show one group, its members and how far it is; None where there is none."""
        caller.check(Operation.DESCRIBE, ResourceKind.GROUP, name)
        topics = caller.topics
        group = topics.coordinator(topics.group(name)).groups.get(name)
        if group is None:
            return None
        held = dict(_held(group))
        members = group.members
        return KafkaGroupInfo(
            **_group_facts(topics, name, group),
            generation=_generation(group),
            protocol=members.protocol if isinstance(members, ClassicGroup) else "",
            members=[
                KafkaMemberRow(
                    member_id=key,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    host=member.client_host,
                    partitions=[f"{topic}/{p}" for topic, p in sorted(held[key])],
                )
                for key, member in ({} if members is None else members.members).items()
            ],
            partitions=_lags(caller, group, held),
        )

    # Orders.

    async def create(
        self, caller: TopicCaller, name: str, partitions: int, configs: Configs
    ) -> None:
        """Begin a topic; raises TopicForbidden, TopicOrderRefused and TopicUnanswered."""
        caller.check(Operation.MANAGE, ResourceKind.STREAM, name)
        uuid = os.urandom(UUID_BYTES)
        order = partial(caller.topics.create_topic, name, partitions, configs, uuid)
        await self._ordered(caller, order, "TopicCreated", f"topic/{name}")

    async def delete(self, caller: TopicCaller, name: str) -> None:
        """End a topic with all that it holds; raises as `create` does."""
        caller.check(Operation.MANAGE, ResourceKind.STREAM, name)
        order = partial(caller.topics.delete_topic, name)
        await self._ordered(caller, order, "TopicDeleted", f"topic/{name}")

    async def delete_group(self, caller: TopicCaller, name: str) -> None:
        """Forget a group and what it committed; raises as `create` does."""
        caller.check(Operation.MANAGE, ResourceKind.GROUP, name)
        topics, command = caller.topics, DeleteGroup(self._service.now_ms(), name)
        order = partial(topics.coordinate, topics.group(name), command)
        await self._ordered(caller, order, "GroupDeleted", f"group/{name}")

    async def _ordered(
        self, caller: TopicCaller, order: Callable[[Any], None], what: str, target: str
    ) -> None:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        order(lambda reply: None if answered.done() else answered.set_result(reply))
        try:
            async with asyncio.timeout(ORDER_SECONDS_MAX):
                reply = await answered
        except TimeoutError:
            raise TopicUnanswered from None
        if reply is None:
            raise TopicUnanswered
        refusal, reason = _refusal_of(reply)
        if refusal is not None:
            raise TopicOrderRefused(refusal, reason)
        facts = {"who": caller.identity, "target": target, "tenant": caller.tenant.name}
        self._service.note_act(what, "Done", **facts)


def _refusal_of(reply: Any) -> tuple[StreamRefusal | None, str]:
    if isinstance(reply, TopicReply):
        return reply.refusal, reply.reason
    answer = reply.answer
    return (answer, "") if isinstance(answer, StreamRefusal) else (None, "")


def _knows(caller: TopicCaller, name: str) -> bool:
    return caller.may(Operation.DESCRIBE, ResourceKind.STREAM, name)


def _first(found: Iterator[TopicView], limit: int) -> list[TopicView]:
    return [each for _, each in zip(range(limit), found, strict=False)]


def _topic_facts(topics: TenantTopics, topic: TopicView) -> dict[str, Any]:
    views = [topics.partition(topic, each) for each in range(topic.partitions)]
    return {
        "name": topic.name,
        "kind": topic.kind.value,
        "partition_count": topic.partitions,
        "records": sum(each.high_watermark - each.start for each in views if each is not None),
        "file_bytes": sum(topics.size_bytes(topic, each) for each in range(topic.partitions)),
        "created_ms": topic.created_ms,
    }


def _partition_row(caller: TopicCaller, topic: TopicView, number: int) -> KafkaPartitionRow:
    topics, prg = caller.topics, topic.prgs[number]
    leader, view = topics.leader(prg), topics.partition(topic, number)
    return KafkaPartitionRow(
        partition=number,
        group=int(caller.tenant.prgs[prg].group.partition_id),
        leader=leader.node,
        epoch=max(0, leader.epoch),
        start=0 if view is None else view.start,
        end=0 if view is None else view.high_watermark,
        last_stable=0 if view is None else view.last_stable,
        file_bytes=topics.size_bytes(topic, number),
        closed=leader.closed,
    )


def _group_facts(topics: TenantTopics, name: str, group: ConsumerGroup) -> dict[str, Any]:
    behind = 0
    for (topic, number), row in group.offsets.committed.items():
        end = _reach(topics, topic, number)[1]
        behind += 0 if end is None else max(0, end - row.offset)
    return {
        "name": name,
        "state": state_of(group),
        "kind": "consumer" if isinstance(group.members, AssignedGroup) else "classic",
        "member_count": 0 if group.members is None else len(group.members.members),
        "committed": len(group.offsets.committed),
        "lag": behind,
        "coordinator": topics.leader(topics.group(name)).node,
    }


def _reach(topics: TenantTopics, name: str, number: int) -> tuple[int | None, int | None]:
    topic = topics.topic(name)
    view = None if topic is None else topics.partition(topic, number)
    return (None, None) if view is None else (view.start, view.high_watermark)


def _generation(group: ConsumerGroup) -> int:
    match group.members:
        case ClassicGroup(generation=number):
            return number
        case AssignedGroup(epoch=number):
            return number
        case None:
            return 0


def _held(group: ConsumerGroup) -> Iterator[tuple[str, list[TopicPartition]]]:
    """Say what each member was given."""
    match group.members:
        case ClassicGroup(members=rows):
            for key, member in rows.items():
                yield key, assigned_partitions(member.assignment)
        case AssignedGroup(members=members):
            for key, one in members.items():
                yield key, list(one.assigned)
        case None:
            return


def _lags(
    caller: TopicCaller, group: ConsumerGroup, held: dict[str, list[TopicPartition]]
) -> list[KafkaLagRow]:
    """Tell of each partition that was committed or given to somebody."""
    topics, committed = caller.topics, group.offsets.committed
    owners = {each: key for key, mine in held.items() for each in mine}
    rows = []
    for place in sorted({*committed, *owners}):
        (name, number), row = place, committed.get(place)
        topic = topics.topic(name)
        prg = topic.prgs[number] if topic is not None and number < topic.partitions else None
        start, end = _reach(topics, name, number)
        behind = None if end is None or row is None else max(0, end - row.offset)
        rows.append(
            KafkaLagRow(
                topic=name,
                partition=number,
                group=None if prg is None else int(caller.tenant.prgs[prg].group.partition_id),
                leader=None if prg is None else topics.leader(prg).node,
                start=start,
                committed=None if row is None else row.offset,
                end=end,
                lag=behind,
                member_id=owners.get(place),
            )
        )
    return rows
