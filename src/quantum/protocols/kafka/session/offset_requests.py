"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete: how far groups are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from quantum.broker.streams import (
    AddToTransaction,
    CommitInTransaction,
    CommitOffsets,
    CommittedOffset,
    DeleteOffsets,
    StreamRefusal,
    TopicPartition,
)
from quantum.broker.streams.group_commands import NO_GENERATION
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.group_requests import CoordinationResult, refuse_group
from quantum.protocols.kafka.session.metadata import find_topic, may_see
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

_JOINS_BY_ITSELF: Final = 5
"""From this version on a commit brings its group into the transaction (KIP-890)."""
_UNKNOWN: Final = -1
_Codes = dict[TopicPartition, KafkaCode]


def _offsets(
    topics: Iterable[Any], codes: _Codes
) -> tuple[tuple[TopicPartition, CommittedOffset], ...]:
    """Return what is to be committed of all that is not refused already."""
    return tuple(
        (
            (topic.name, each.partition_index),
            CommittedOffset(
                each.committed_offset,
                getattr(each, "committed_leader_epoch", _UNKNOWN),
                each.committed_metadata or "",
            ),
        )
        for topic in topics
        for each in topic.partitions
        if (topic.name, each.partition_index) not in codes
    )


def _refused_topics(request: KafkaRequest, topics: Iterable[Any]) -> _Codes:
    """Refuse partitions that are not there, or that the client may not read."""
    codes: _Codes = {}
    for each in topics:
        topic = find_topic(request, each.name)
        may = topic is not None and request.may(Operation.CONSUME, ResourceKind.STREAM, each.name)
        for row in each.partitions:
            p = row.partition_index
            if topic is None or not 0 <= p < topic.partitions:
                codes[each.name, p] = KafkaCode.unknown_topic_or_partition
            elif not may:
                codes[each.name, p] = KafkaCode.topic_authorization_failed
    return codes


def _answer_by(request: KafkaRequest, topics: Iterable[Any], codes: _Codes) -> None:
    rows = [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": each.partition_index,
                    "error_code": codes[topic.name, each.partition_index],
                }
                for each in topic.partitions
            ],
        }
        for topic in topics
    ]
    request.answer({"topics": rows})


def _answer_all(request: KafkaRequest, topics: Iterable[Any], code: KafkaCode) -> None:
    rows = tuple(topics)
    codes = {(each.name, row.partition_index): code for each in rows for row in each.partitions}
    _answer_by(request, rows, codes)


def _settled(
    request: KafkaRequest,
    topics: Iterable[Any],
    offsets: tuple[tuple[TopicPartition, CommittedOffset], ...],
    codes: _Codes,
) -> Callable[[CoordinationResult], None]:
    """Answer each partition by what the machine said of it, or of all."""

    def done(result: CoordinationResult) -> None:
        answer = None if result is None else result.answer
        if isinstance(answer, tuple):
            for (key, _), refusal in zip(offsets, answer, strict=True):
                codes[key] = request.code(refusal)
        else:
            code = KafkaCode.not_coordinator
            if isinstance(answer, StreamRefusal):
                code = request.code(answer)
            codes.update({key: code for key, _ in offsets})
        _answer_by(request, topics, codes)

    return done


def on_offset_commit(request: KafkaRequest) -> None:
    body = request.body
    code = refuse_group(request, body.group_id, Operation.CONSUME)
    if code is not KafkaCode.none:
        _answer_all(request, body.topics, code)
        return
    codes = _refused_topics(request, body.topics)
    offsets = _offsets(body.topics, codes)
    if not offsets:
        _answer_by(request, body.topics, codes)
        return
    command = CommitOffsets(
        *(request.now_ms, body.group_id, body.generation_id_or_member_epoch, body.member_id),
        offsets,
        getattr(body, "group_instance_id", None),
    )
    topics = request.tenant.topics
    if body.member_id:
        topics.heard(body.group_id, body.member_id)
    done = _settled(request, body.topics, offsets, codes)
    topics.coordinate(topics.group(body.group_id), command, done)


def on_transaction_offset_commit(request: KafkaRequest) -> None:
    body = request.body
    code = refuse_group(request, body.group_id, Operation.CONSUME)
    if code is KafkaCode.none and not request.may(
        Operation.PRODUCE, ResourceKind.TRANSACTIONAL_ID, body.transactional_id
    ):
        code = KafkaCode.transactional_id_authorization_failed
    if code is not KafkaCode.none:
        _answer_all(request, body.topics, code)
        return
    codes = _refused_topics(request, body.topics)
    offsets = _offsets(body.topics, codes)
    command = CommitInTransaction(
        *(request.now_ms, body.group_id),
        *(getattr(body, "generation_id", NO_GENERATION), getattr(body, "member_id", "")),
        *(body.producer_id, body.producer_epoch),
        offsets,
        getattr(body, "group_instance_id", None),
    )
    topics = request.tenant.topics
    done = _settled(request, body.topics, offsets, codes)

    def commit() -> None:
        topics.coordinate(topics.group(command.group), command, done)

    if request.version < _JOINS_BY_ITSELF:
        commit()
    else:
        _join_first(request, body, commit, done)


def _join_first(
    request: KafkaRequest,
    body: Any,
    commit: Callable[[], None],
    refuse: Callable[[CoordinationResult], None],
) -> None:
    """Bring the group into the transaction before its offsets (KIP-890)."""

    def joined(result: CoordinationResult) -> None:
        if result is None or isinstance(result.answer, StreamRefusal):
            refuse(result)
        else:
            commit()

    topics = request.tenant.topics
    name = body.transactional_id
    facts = (request.now_ms, name, body.producer_id, body.producer_epoch)
    add = AddToTransaction(*facts, groups=(body.group_id,))
    topics.coordinate(topics.transaction(name), add, joined)


def on_offset_fetch(request: KafkaRequest) -> None:
    """Answer from the replica of who leads the group: what is applied is what is committed."""
    body = request.body
    stable = getattr(body, "require_stable", False)
    if request.version >= 8:
        rows = []
        for each in body.groups:
            code, topics = _committed(request, each.group_id, each.topics, stable=stable)
            rows.append({"group_id": each.group_id, "topics": topics, "error_code": code})
        request.answer({"groups": rows})
        return
    code, topics = _committed(request, body.group_id, body.topics, stable=stable)
    if request.version < 2 and code is not KafkaCode.none:
        topics = _all_refused(body.topics or (), code)
    request.answer({"topics": topics, "error_code": code})


def _all_refused(topics: Iterable[Any], code: KafkaCode) -> list[dict[str, Any]]:
    return [
        {
            "name": each.name,
            "partitions": [_offset_row(p, None, code) for p in each.partition_indexes],
        }
        for each in topics
    ]


def _committed(
    request: KafkaRequest, name: str, wanted: Iterable[Any] | None, *, stable: bool
) -> tuple[KafkaCode, list[dict[str, Any]]]:
    code = refuse_group(request, name, Operation.DESCRIBE)
    if code is not KafkaCode.none:
        return code, []
    topics = request.tenant.topics
    group = topics.coordinator(topics.group(name)).groups.get(name)
    if wanted is None:
        keys = sorted(() if group is None else group.offsets.committed)
        named: dict[str, list[int]] = {}
        for topic, p in keys:
            if may_see(request, topic):
                named.setdefault(topic, []).append(p)
    else:
        named = {each.name: list(each.partition_indexes) for each in wanted}
    rows = []
    for topic, parts in named.items():
        partitions = []
        for p in parts:
            found = None if group is None else group.offsets.get((topic, p), stable=stable)
            if isinstance(found, StreamRefusal):
                partitions.append(_offset_row(p, None, request.code(found)))
            else:
                partitions.append(_offset_row(p, found, KafkaCode.none))
        rows.append({"name": topic, "partitions": partitions})
    return code, rows


def _offset_row(p: int, found: CommittedOffset | None, code: KafkaCode) -> dict[str, Any]:
    return {
        "partition_index": p,
        "committed_offset": _UNKNOWN if found is None else found.offset,
        "committed_leader_epoch": _UNKNOWN if found is None else found.leader_epoch,
        "metadata": "" if found is None else found.metadata,
        "error_code": code,
    }


def on_offset_delete(request: KafkaRequest) -> None:
    body = request.body
    code = refuse_group(request, body.group_id, Operation.MANAGE)
    if code is not KafkaCode.none:
        request.answer({"error_code": code, "topics": []})
        return
    partitions = tuple(
        (topic.name, each.partition_index) for topic in body.topics for each in topic.partitions
    )

    def done(result: CoordinationResult) -> None:
        answer = None if result is None else result.answer
        if not isinstance(answer, tuple):
            code = KafkaCode.not_coordinator
            if isinstance(answer, StreamRefusal):
                code = request.code(answer)
            request.answer({"error_code": code, "topics": []})
            return
        codes = {key: request.code(each) for key, each in zip(partitions, answer, strict=True)}
        rows = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": codes[topic.name, each.partition_index],
                    }
                    for each in topic.partitions
                ],
            }
            for topic in body.topics
        ]
        request.answer({"error_code": KafkaCode.none, "topics": rows})

    topics = request.tenant.topics
    command = DeleteOffsets(request.now_ms, body.group_id, partitions)
    topics.coordinate(topics.group(body.group_id), command, done)
