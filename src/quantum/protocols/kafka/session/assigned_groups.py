"""ConsumerGroupHeartbeat, ConsumerGroupDescribe: groups that the server assigns (KIP-848).

A heartbeat that says nothing new is answered from what the coordinator's replica knows; only news
is logged. While a group moves its members are asked to come back soon, else seldom.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from quantum.broker.streams import (
    AssignedGroup,
    AssignedMember,
    ConsumerHeartbeat,
    HeartbeatAnswer,
    StreamRefusal,
    TopicPartition,
)
from quantum.mesh.topic_views import TopicKind
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.group_requests import (
    CoordinationResult,
    milliseconds_of,
    refuse_group,
)
from quantum.protocols.kafka.session.metadata import NO_ID
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

CALM_MS: Final = 3_000
MOVING_MS: Final = 500
"""How soon a member comes back: while nothing changes, and while partitions change hands."""
_ID_BYTES: Final = 16
_OWN_ID_SINCE: Final = 1
_NO_OPERATIONS: Final = -(1 << 31)
_CONSUMER: Final = 1  # the type of a member that speaks this protocol

Refusal = tuple[KafkaCode, str | None]


def on_consumer_heartbeat(request: KafkaRequest) -> None:
    """Let a member come, stay, subscribe, give up or go."""
    refusal = _refuse(request)
    if refusal is not None:
        request.answer(_facts(request.body.member_id, *refusal))
        return
    command = _command(request)
    topics = request.tenant.topics
    prg = topics.group(command.group)
    if not topics.coordinator(prg).groups.would_change(command):
        group = assigned_group(request, command.group)
        assert group is not None
        topics.heard(command.group, command.member_id)
        _tell(request, group.answer(command), command.group)
        return

    def done(result: CoordinationResult) -> None:
        answer = None if result is None else result.answer
        if isinstance(answer, HeartbeatAnswer):
            _tell(request, answer, command.group)
            return
        code = KafkaCode.not_coordinator
        if isinstance(answer, StreamRefusal):
            code = request.code(answer)
        request.answer(_facts(command.member_id, code))

    topics.coordinate(prg, command, done)


def _refuse(request: KafkaRequest) -> Refusal | None:
    """Say why a heartbeat is not looked at; None: it is."""
    body = request.body
    code = refuse_group(request, body.group_id, Operation.CONSUME)
    if code is not KafkaCode.none:
        return code, None
    if not body.group_id:
        return KafkaCode.invalid_group_id, None
    if not body.member_id and (body.member_epoch != 0 or request.version >= _OWN_ID_SINCE):
        return KafkaCode.invalid_request, "a member names itself"
    if getattr(body, "subscribed_topic_regex", None):
        words = "no expressions are matched here: name the topics"
        return KafkaCode.invalid_regular_expression, words
    if body.member_epoch == 0 and body.subscribed_topic_names is None:
        return KafkaCode.invalid_request, "who joins says which topics it reads"
    return _refuse_topics(request, body.subscribed_topic_names or ())


def _refuse_topics(request: KafkaRequest, names: Iterable[str]) -> Refusal | None:
    for name in names:
        if not request.may(Operation.DESCRIBE, ResourceKind.STREAM, name):
            return KafkaCode.topic_authorization_failed, None
        topic = request.tenant.topics.topic(name)
        if topic is not None and topic.kind is TopicKind.CAPTURE:
            words = f"{name} captures MQTT's publishes: read it with group.protocol=classic"
            return KafkaCode.invalid_request, words
    return None


def _command(request: KafkaRequest) -> ConsumerHeartbeat:
    body, peer = request.body, request.peer
    names, owned = body.subscribed_topic_names, body.topic_partitions
    rebalance_ms = milliseconds_of(body.rebalance_timeout)
    return ConsumerHeartbeat(
        request.now_ms,
        body.group_id,
        body.member_id or request.node.entropy(_ID_BYTES).hex(),
        body.member_epoch,
        None if names is None else tuple(dict.fromkeys(names)),
        None if owned is None else tuple(_owned(request, owned)),
        body.instance_id,
        rebalance_ms if rebalance_ms > 0 else ConsumerHeartbeat(0, "", "", 0).rebalance_ms,
        body.server_assignor,
        request.connection.client_id,
        "" if peer is None else f"/{peer.address.rpartition(':')[0]}",
    )


def _owned(request: KafkaRequest, rows: Any) -> Iterable[TopicPartition]:
    """Name what a member holds; of a topic that is gone nobody holds anything."""
    for row in rows:
        topic = request.tenant.topics.topic_by_id((row.topic_id or NO_ID).bytes)
        if topic is not None:
            yield from ((topic.name, partition) for partition in row.partitions)


def assigned_group(request: KafkaRequest, name: str) -> AssignedGroup | None:
    """Return a group of this protocol as the replica here has it."""
    topics = request.tenant.topics
    found = topics.coordinator(topics.group(name)).groups.get(name)
    members = None if found is None else found.members
    return members if isinstance(members, AssignedGroup) else None


def is_moving(group: AssignedGroup) -> bool:
    """Say whether some member does not have yet what it should."""
    return any(_is_moving(group, each) for each in group.members.values())


def _is_moving(group: AssignedGroup, member: AssignedMember) -> bool:
    return bool(member.revoking) or member.epoch != group.epoch or member.assigned != member.target


def _tell(request: KafkaRequest, answer: HeartbeatAnswer, name: str) -> None:
    group = assigned_group(request, name)
    pause_ms = MOVING_MS if group is not None and is_moving(group) else CALM_MS
    facts = _facts(answer.member_id) | {
        "member_epoch": answer.epoch,
        "heartbeat_interval": pause_ms,
    }
    if answer.assignment is not None:
        facts["assignment"] = {"topic_partitions": _rows(request, answer.assignment)}
    request.answer(facts)


def _facts(
    member_id: str, code: KafkaCode = KafkaCode.none, words: str | None = None
) -> dict[str, Any]:
    facts: dict[str, Any] = {"error_code": code, "error_message": words, "member_id": member_id}
    return facts | {"member_epoch": 0, "heartbeat_interval": 0, "assignment": None}


def _rows(request: KafkaRequest, partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Gather partitions by topic; one that is gone meanwhile is left out."""
    by_name: dict[str, list[int]] = {}
    for name, partition in sorted(partitions):
        by_name.setdefault(name, []).append(partition)
    rows = []
    for name, numbers in by_name.items():
        topic = request.tenant.topics.topic(name)
        if topic is not None:
            row = {"topic_id": UUID(bytes=topic.uuid), "topic_name": name}
            rows.append(row | {"partitions": tuple(numbers)})
    return rows


# As an administrator sees them.


def on_consumer_group_describe(request: KafkaRequest) -> None:
    request.answer({"groups": [_described(request, name) for name in request.body.group_ids]})


def _described(request: KafkaRequest, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "error_code": refuse_group(request, name, Operation.DESCRIBE),
        "error_message": None,
        "group_id": name,
        "group_state": "Dead",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
        "authorized_operations": _NO_OPERATIONS,
    }
    if row["error_code"] is not KafkaCode.none:
        return row
    group = assigned_group(request, name)
    if group is None:
        words = f"{name} is no group that the server assigns"
        return row | {"error_code": KafkaCode.group_id_not_found, "error_message": words}
    row |= {"group_state": assigned_state(group), "group_epoch": group.epoch}
    row |= {"assignment_epoch": group.epoch, "assignor_name": group.assignor_name()}
    row["members"] = [_member_row(request, *each) for each in sorted(group.members.items())]
    return row


def assigned_state(group: AssignedGroup) -> str:
    """Return a group's state by Kafka's name for it."""
    if not group.members:
        return "Empty"
    return "Reconciling" if is_moving(group) else "Stable"


def _member_row(request: KafkaRequest, key: str, member: AssignedMember) -> dict[str, Any]:
    return {
        "member_id": key,
        "instance_id": member.instance_id,
        "rack_id": None,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": tuple(sorted(member.topics)),
        "subscribed_topic_regex": None,
        "assignment": {"topic_partitions": _rows(request, member.assigned)},
        "target_assignment": {"topic_partitions": _rows(request, member.target)},
        "member_type": _CONSUMER,
    }
