"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords.

They are answered when every PRG has taken them, from whatever node they were asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from quantum.broker.streams import AppendOutcome, TopicReply
from quantum.broker.streams.topic_configs import DEFAULTS, refuse_configs
from quantum.mesh.topic_views import TopicView
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.gathering import Gathering
from quantum.protocols.kafka.session.list_offsets import judge_partition
from quantum.protocols.kafka.session.metadata import (
    NO_ID,
    draw_uuid,
    find_topic,
    find_topic_by_id,
)
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

_DEFAULT: Final = -1
_DYNAMIC_TOPIC_CONFIG: Final = 1
_DEFAULT_CONFIG: Final = 5


def may_manage(request: KafkaRequest, name: str) -> bool:
    return request.may(Operation.MANAGE, ResourceKind.STREAM, name)


def reply_code(request: KafkaRequest, reply: TopicReply | None) -> KafkaCode:
    """Return what an order's outcome is called; nobody knowing it is a time-out."""
    if reply is None:
        return KafkaCode.request_timed_out
    return request.code(reply.refusal)


def on_create_topics(request: KafkaRequest) -> None:
    body = request.body
    rows = [_new_row(each) for each in body.topics]
    gathering = Gathering(lambda: request.answer({"topics": rows}))
    twice = {
        name for name, count in Counter(each.name for each in body.topics).items() if count > 1
    }
    for wanted, row in zip(body.topics, rows, strict=True):
        configs = tuple((each.name, each.value or "") for each in wanted.configs)
        count = _count_of(request, wanted)
        row["num_partitions"] = count
        code, words = _refuse_new(request, wanted, configs, twice)
        if code is not KafkaCode.none or body.validate_only:
            row.update(error_code=code, error_message=words)
            continue
        gathering.expect()
        request.tenant.topics.create_topic(
            *(wanted.name, count, configs, draw_uuid(request)),
            _created(request, wanted.name, row, gathering),
        )
    gathering.begin()


def _new_row(wanted: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"name": wanted.name, "topic_id": NO_ID, "error_code": KafkaCode.none}
    row |= {"error_message": None, "num_partitions": -1, "replication_factor": -1}
    return row | {"configs": None, "topic_config_error_code": KafkaCode.none}


def _count_of(request: KafkaRequest, wanted: Any) -> int:
    if wanted.assignments:
        return len(wanted.assignments)
    count = int(wanted.num_partitions)
    return request.node.limits.partitions_default if count == _DEFAULT else count


def _refuse_new(
    request: KafkaRequest, wanted: Any, configs: tuple[tuple[str, str], ...], twice: set[str]
) -> tuple[KafkaCode, str | None]:
    if wanted.name in twice:
        return KafkaCode.invalid_request, "the topic is named twice in one request"
    if not may_manage(request, wanted.name):
        return KafkaCode.topic_authorization_failed, None
    if wanted.assignments:
        words = "replicas are placed by the cluster: say how many partitions, not where"
        return KafkaCode.invalid_replica_assignment, words
    if wanted.replication_factor == 0 or wanted.replication_factor < _DEFAULT:
        return KafkaCode.invalid_replication_factor, "-1, or how many nodes there are"
    if request.tenant.topics.topic(wanted.name) is not None:
        return KafkaCode.topic_already_exists, f"there is a topic {wanted.name}"
    reason = refuse_configs(configs)
    if reason:
        return KafkaCode.invalid_config, reason
    count = _count_of(request, wanted)
    if not 1 <= count <= request.node.limits.partitions_max:
        words = f"a topic has 1 to {request.node.limits.partitions_max} partitions"
        return KafkaCode.invalid_partitions, words
    return KafkaCode.none, None


def _created(
    request: KafkaRequest, name: str, row: dict[str, Any], gathering: Gathering
) -> Callable[[TopicReply | None], None]:
    def done(reply: TopicReply | None) -> None:
        row["error_code"] = reply_code(request, reply)
        row["error_message"] = None if reply is None or not reply.reason else reply.reason
        topic = request.tenant.topics.topic(name)
        if topic is not None and row["error_code"] is KafkaCode.none:
            peer = request.peer
            nodes = [] if peer is None else request.node.brokers(peer)
            row["topic_id"] = UUID(bytes=topic.uuid)
            row["replication_factor"] = max(1, len(nodes))
            row["configs"] = _config_rows(topic)
        gathering.came()

    return done


def _config_rows(topic: TopicView) -> list[dict[str, Any]]:
    return [
        {
            "name": key,
            "value": topic.configs.get(key, default),
            "read_only": False,
            "config_source": _DYNAMIC_TOPIC_CONFIG if key in topic.configs else _DEFAULT_CONFIG,
            "is_sensitive": False,
        }
        for key, default in DEFAULTS.items()
    ]


def on_delete_topics(request: KafkaRequest) -> None:
    body = request.body
    rows: list[dict[str, Any]] = []
    gathering = Gathering(lambda: request.answer({"responses": rows}))
    wanted = (
        [(name, None) for name in body.topic_names]
        if request.version < 6
        else [(each.name, each.topic_id) for each in body.topics]
    )
    for name, uuid in wanted:
        topic = (
            find_topic(request, name)
            if name is not None
            else find_topic_by_id(request, bytes(16) if uuid is None else uuid.bytes)
        )
        row: dict[str, Any] = {"name": name, "topic_id": uuid or NO_ID, "error_message": None}
        rows.append(row | {"error_code": KafkaCode.none})
        row = rows[-1]
        if topic is None:
            by_id = KafkaCode.unknown_topic_id
            row["error_code"] = KafkaCode.unknown_topic_or_partition if name else by_id
        elif not may_manage(request, topic.name):
            row["error_code"] = KafkaCode.topic_authorization_failed
        else:
            row.update(name=topic.name, topic_id=UUID(bytes=topic.uuid))
            gathering.expect()
            request.tenant.topics.delete_topic(topic.name, _ordered(request, row, gathering))
    gathering.begin()


def _ordered(
    request: KafkaRequest, row: dict[str, Any], gathering: Gathering
) -> Callable[[TopicReply | None], None]:
    def done(reply: TopicReply | None) -> None:
        row["error_code"] = reply_code(request, reply)
        row["error_message"] = None if reply is None or not reply.reason else reply.reason
        gathering.came()

    return done


def on_create_partitions(request: KafkaRequest) -> None:
    body = request.body
    rows: list[dict[str, Any]] = []
    gathering = Gathering(lambda: request.answer({"results": rows}))
    for each in body.topics:
        row: dict[str, Any] = {"name": each.name, "error_code": KafkaCode.none}
        row["error_message"] = None
        rows.append(row)
        code, words = _refuse_growth(request, each)
        if code is not KafkaCode.none or body.validate_only:
            row.update(error_code=code, error_message=words)
            continue
        gathering.expect()
        request.tenant.topics.grow_topic(each.name, each.count, _ordered(request, row, gathering))
    gathering.begin()


def _refuse_growth(request: KafkaRequest, wanted: Any) -> tuple[KafkaCode, str | None]:
    topic = find_topic(request, wanted.name)
    if topic is None:
        return KafkaCode.unknown_topic_or_partition, None
    if not may_manage(request, wanted.name):
        return KafkaCode.topic_authorization_failed, None
    if wanted.count <= topic.partitions:
        words = f"the topic has {topic.partitions} partitions; it can only have more"
        return KafkaCode.invalid_partitions, words
    return KafkaCode.none, None


def on_delete_records(request: KafkaRequest) -> None:
    topics: list[dict[str, Any]] = []
    gathering = Gathering(lambda: request.answer({"topics": topics}))
    for each in request.body.topics:
        rows: list[dict[str, Any]] = []
        topics.append({"name": each.name, "partitions": rows})
        for wanted in each.partitions:
            p = wanted.partition_index
            row: dict[str, Any] = {"partition_index": p, "low_watermark": -1}
            rows.append(row)
            code, topic, _ = judge_partition(request, each.name, p)
            if topic is not None and not may_manage(request, each.name):
                code, topic = KafkaCode.topic_authorization_failed, None
            row["error_code"] = code
            if topic is not None:
                gathering.expect()
                done = _deleted(request, row, gathering)
                request.tenant.topics.delete_records(topic, p, wanted.offset, done)
    gathering.begin()


def _deleted(
    request: KafkaRequest, row: dict[str, Any], gathering: Gathering
) -> Callable[[AppendOutcome | None], None]:
    def done(outcome: AppendOutcome | None) -> None:
        if outcome is None:
            row["error_code"] = KafkaCode.not_leader_or_follower
        else:
            row["error_code"] = request.code(outcome.refusal)
            if outcome.refusal is None:
                row["low_watermark"] = outcome.start_offset
        gathering.came()

    return done
