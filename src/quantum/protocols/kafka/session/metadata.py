"""Metadata and DescribeTopicPartitions: which topics there are, and who leads what.

Who may not describe a topic hears of it exactly what it would hear of one that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from quantum.broker.streams import StreamRefusal, TopicReply
from quantum.broker.streams.topics import CATALOGUE_PRG
from quantum.mesh.topic_views import TopicView
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

NO_ID: Final = UUID(int=0)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NO_OPERATIONS: Final = -(1 << 31)
NO_LEADER: Final = -1
_NO_NAME_SINCE: Final = 12


def may_see(request: KafkaRequest, name: str) -> bool:
    """Say whether a client may know of a topic."""
    return request.may(Operation.DESCRIBE, ResourceKind.STREAM, name)


def find_topic(request: KafkaRequest, name: str) -> TopicView | None:
    """Return a topic that the client may know of."""
    topic = request.tenant.topics.topic(name)
    return topic if topic is not None and may_see(request, name) else None


def find_topic_by_id(request: KafkaRequest, uuid: bytes) -> TopicView | None:
    topic = request.tenant.topics.topic_by_id(uuid)
    return topic if topic is not None and may_see(request, topic.name) else None


def on_metadata(request: KafkaRequest) -> None:
    """Answer for the topics that are asked for, creating those that may be created."""
    body = request.body
    wanted = body.topics
    if wanted is None or (request.version == 0 and not wanted):
        every = (each for each in request.tenant.topics.topics() if may_see(request, each.name))
        _answer(request, [topic_facts(request, each) for each in every])
        return
    rows: dict[int, dict[str, Any]] = {}
    creating: list[tuple[int, str]] = []
    creates = request.node.limits.creates_topics and getattr(
        body, "allow_auto_topic_creation", True
    )
    for place, each in enumerate(wanted):
        found = _find(request, each)
        if found is not None:
            rows[place] = topic_facts(request, found)
        elif each.name is not None and creates and _may_create(request, each.name):
            creating.append((place, each.name))
        else:
            rows[place] = _missing(request, each)
    _create_first(request, creating, rows)


def _find(request: KafkaRequest, wanted: Any) -> TopicView | None:
    if wanted.name is None:
        return find_topic_by_id(request, wanted.topic_id.bytes if wanted.topic_id else bytes(16))
    return find_topic(request, wanted.name)


def _may_create(request: KafkaRequest, name: str) -> bool:
    is_free = request.tenant.topics.topic(name) is None
    return (
        is_free
        and _NAME.fullmatch(name) is not None
        and request.may(Operation.MANAGE, ResourceKind.STREAM, name)
    )


def _missing(request: KafkaRequest, wanted: Any) -> dict[str, Any]:
    code = KafkaCode.unknown_topic_or_partition
    if wanted.name is None:
        code = KafkaCode.unknown_topic_id
    elif not _NAME.fullmatch(wanted.name):
        code = KafkaCode.invalid_topic_exception
    elif not may_see(request, wanted.name):
        code = KafkaCode.topic_authorization_failed
    topic_id = getattr(wanted, "topic_id", None)
    # A topic without a name has one in versions before 12: there is no null for it.
    name = "" if wanted.name is None and request.version < _NO_NAME_SINCE else wanted.name
    return _row(name, topic_id or NO_ID, []) | {"error_code": code}


def _create_first(
    request: KafkaRequest, creating: list[tuple[int, str]], rows: dict[int, dict[str, Any]]
) -> None:
    """Create topics on first use, and answer when that is done."""
    left = len(creating)
    if not left:
        _answer(request, [rows[place] for place in sorted(rows)])
        return

    def done_with(place: int, name: str) -> Callable[[TopicReply | None], None]:
        def done(reply: TopicReply | None) -> None:
            nonlocal left
            left -= 1
            rows[place] = _created(request, name, reply)
            if not left and not request.is_over:
                _answer(request, [rows[each] for each in sorted(rows)])

        return done

    count = request.node.limits.partitions_default
    for place, name in creating:
        uuid = draw_uuid(request)
        request.tenant.topics.create_topic(name, count, (), uuid, done_with(place, name))


def draw_uuid(request: KafkaRequest) -> bytes:
    """Draw the id of a new topic."""
    return UUID(bytes=request.node.entropy(16), version=4).bytes


def _created(request: KafkaRequest, name: str, reply: TopicReply | None) -> dict[str, Any]:
    topic = request.tenant.topics.topic(name)
    if topic is not None:
        return topic_facts(request, topic)
    code = KafkaCode.leader_not_available
    if reply is not None and reply.refusal is not None:
        code = request.code(reply.refusal)
        if reply.refusal in {StreamRefusal.BUSY, StreamRefusal.TOPIC_EXISTS}:
            code = KafkaCode.leader_not_available  # it is there in a moment
    return _row(name, NO_ID, []) | {"error_code": code}


def _row(name: str | None, uuid: UUID, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "error_code": KafkaCode.none,
        "name": name,
        "topic_id": uuid,
        "is_internal": False,
        "partitions": partitions,
        "topic_authorized_operations": _NO_OPERATIONS,
    }


def topic_facts(request: KafkaRequest, topic: TopicView) -> dict[str, Any]:
    """Tell of one topic and all its partitions."""
    partitions = [partition_facts(request, topic, p) for p in range(topic.partitions)]
    return _row(topic.name, UUID(bytes=topic.uuid), partitions)


def partition_facts(request: KafkaRequest, topic: TopicView, p: int) -> dict[str, Any]:
    """Tell who leads a partition; every node of the cluster is shown as its replica."""
    leader = request.tenant.topics.leader(topic.prgs[p])
    peer = request.peer
    nodes = () if peer is None else tuple(node for node, _, _ in request.node.brokers(peer))
    known = leader.node is not None and leader.node in nodes
    return {
        "error_code": KafkaCode.none if known else KafkaCode.leader_not_available,
        "partition_index": p,
        "leader_id": leader.node if known else NO_LEADER,
        "leader_epoch": leader.epoch,
        "replica_nodes": nodes,
        "isr_nodes": nodes,
        "eligible_leader_replicas": (),  # Java's client takes no null, though the protocol does
        "last_known_elr": (),
        "offline_replicas": (),
    }


def broker_rows(request: KafkaRequest) -> list[dict[str, Any]]:
    """Tell where all nodes are, as this client can reach them."""
    if request.peer is None:
        return []
    return [
        {"node_id": node, "broker_id": node, "host": host, "port": port, "rack": None}
        for node, host, port in request.node.brokers(request.peer)
    ]


def controller_of(request: KafkaRequest) -> int:
    """Name the node that leads the catalogue: what a client takes for the controller."""
    leader = request.tenant.topics.leader(CATALOGUE_PRG).node
    return request.node.node_id if leader is None else leader


def _answer(request: KafkaRequest, topics: list[dict[str, Any]]) -> None:
    request.answer(
        {
            "brokers": broker_rows(request),
            "cluster_id": request.node.cluster_id,
            "controller_id": controller_of(request),
            "topics": topics,
            "cluster_authorized_operations": _NO_OPERATIONS,
            "error_code": KafkaCode.none,
        }
    )


def on_describe_topic_partitions(request: KafkaRequest) -> None:
    """Answer page by page (KIP-966): topics in order of their names, so many partitions."""
    body = request.body
    left = max(1, min(body.response_partition_limit, 2_000))
    cursor = body.cursor
    topics: list[dict[str, Any]] = []
    following: dict[str, Any] | None = None
    for name in sorted({each.name for each in body.topics}):
        if cursor is not None and name < cursor.topic_name:
            continue
        first = cursor.partition_index if cursor and name == cursor.topic_name else 0
        topic = find_topic(request, name)
        if left <= 0:
            following = {"topic_name": name, "partition_index": first}
            break
        if topic is None:
            row = _row(name, NO_ID, []) | {"error_code": KafkaCode.unknown_topic_or_partition}
            topics.append(row)
            continue
        end = min(topic.partitions, first + left)
        rows = [partition_facts(request, topic, p) for p in range(first, end)]
        topics.append(_row(topic.name, UUID(bytes=topic.uuid), rows))
        left -= len(rows)
        if end < topic.partitions:
            following = {"topic_name": name, "partition_index": end}
            break
    request.answer({"topics": topics, "next_cursor": following})
