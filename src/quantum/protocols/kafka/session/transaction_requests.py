"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: a producer's transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from quantum.broker.streams import (
    AddToTransaction,
    EndTransaction,
    InitProducer,
    ProducerGiven,
    StreamRefusal,
)
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.group_requests import CoordinationResult, milliseconds_of
from quantum.protocols.kafka.session.metadata import find_topic
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

_BUMPS_SINCE: Final = 5
"""From this version of EndTxn on the client takes a new epoch from the answer (KIP-890)."""
_NOBODY: Final = -1


def refuse_transaction(request: KafkaRequest, name: str) -> KafkaCode:
    """Say why a transactional id is not for this node or this client; `none`: it is."""
    if not request.may(Operation.PRODUCE, ResourceKind.TRANSACTIONAL_ID, name):
        return KafkaCode.transactional_id_authorization_failed
    topics = request.tenant.topics
    if not topics.leader(topics.transaction(name)).is_here:
        return KafkaCode.not_coordinator
    return KafkaCode.none


def result_code(request: KafkaRequest, result: CoordinationResult) -> KafkaCode:
    """Return what a coordinator's result is called; nobody knowing it is asked again."""
    if result is None:
        return KafkaCode.not_coordinator
    if isinstance(result.answer, StreamRefusal):
        return request.code(result.answer)
    return KafkaCode.none


def on_init_producer_id(request: KafkaRequest) -> None:
    body = request.body
    name = body.transactional_id
    topics = request.tenant.topics
    code = KafkaCode.none
    if name is not None:
        code = KafkaCode.invalid_request if not name else refuse_transaction(request, name)
    if code is not KafkaCode.none:
        request.answer(_producer_facts(code, None))
        return
    prg = topics.producer_prg() if name is None else topics.transaction(name)
    command = InitProducer(
        *(request.now_ms, name, max(0, milliseconds_of(body.transaction_timeout))),
        *(getattr(body, "producer_id", _NOBODY), getattr(body, "producer_epoch", _NOBODY)),
    )
    topics.coordinate(prg, command, _told_producer(request))


def _told_producer(request: KafkaRequest) -> Callable[[CoordinationResult], None]:
    def done(result: CoordinationResult) -> None:
        request.answer(_producer_facts(result_code(request, result), result))

    return done


def _producer_facts(code: KafkaCode, result: CoordinationResult) -> dict[str, Any]:
    given = None if result is None else result.answer
    known = isinstance(given, ProducerGiven)
    return {
        "error_code": code,
        "producer_id": given.producer_id if isinstance(given, ProducerGiven) else _NOBODY,
        "producer_epoch": given.epoch if known and isinstance(given, ProducerGiven) else _NOBODY,
    }


def on_add_partitions(request: KafkaRequest) -> None:
    """Bring partitions into a transaction: all of them, or none."""
    body = request.body
    name, wanted = body.v3_and_below_transactional_id, body.v3_and_below_topics
    code = refuse_transaction(request, name)
    if code is not KafkaCode.none:
        _answer_partitions(request, wanted, {}, code)
        return
    codes = _refused_partitions(request, wanted)
    if codes:
        _answer_partitions(request, wanted, codes, KafkaCode.operation_not_attempted)
        return
    partitions = tuple((each.name, p) for each in wanted for p in each.partitions)
    facts = (body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)
    command = AddToTransaction(request.now_ms, name, *facts, partitions)

    def done(result: CoordinationResult) -> None:
        _answer_partitions(request, wanted, {}, result_code(request, result))

    topics = request.tenant.topics
    topics.coordinate(topics.transaction(name), command, done)


def _refused_partitions(
    request: KafkaRequest, wanted: Iterable[Any]
) -> dict[tuple[str, int], KafkaCode]:
    codes = {}
    for each in wanted:
        topic = find_topic(request, each.name)
        may = request.may(Operation.PRODUCE, ResourceKind.STREAM, each.name)
        for p in each.partitions:
            if topic is None or not 0 <= p < topic.partitions:
                codes[each.name, p] = KafkaCode.unknown_topic_or_partition
            elif not may:
                codes[each.name, p] = KafkaCode.topic_authorization_failed
    return codes


def _answer_partitions(
    request: KafkaRequest,
    wanted: Iterable[Any],
    codes: dict[tuple[str, int], KafkaCode],
    other: KafkaCode,
) -> None:
    rows = [
        {
            "name": each.name,
            "results_by_partition": [
                {"partition_index": p, "partition_error_code": codes.get((each.name, p), other)}
                for p in each.partitions
            ],
        }
        for each in wanted
    ]
    request.answer({"results_by_topic_v3_and_below": rows})


def on_add_offsets(request: KafkaRequest) -> None:
    """Bring a group into a transaction, so that its offsets may follow."""
    body = request.body
    code = refuse_transaction(request, body.transactional_id)
    if code is KafkaCode.none and not request.may(
        Operation.CONSUME, ResourceKind.GROUP, body.group_id
    ):
        code = KafkaCode.group_authorization_failed
    if code is not KafkaCode.none:
        request.answer({"error_code": code})
        return
    facts = (request.now_ms, body.transactional_id, body.producer_id, body.producer_epoch)
    command = AddToTransaction(*facts, groups=(body.group_id,))
    topics = request.tenant.topics
    topics.coordinate(
        topics.transaction(body.transactional_id),
        command,
        lambda result: request.answer({"error_code": result_code(request, result)}),
    )


def on_end(request: KafkaRequest) -> None:
    """Decide a transaction; the answer leaves when the decision is durable."""
    body = request.body
    code = refuse_transaction(request, body.transactional_id)
    if code is not KafkaCode.none:
        request.answer(_producer_facts(code, None))
        return
    command = EndTransaction(
        *(request.now_ms, body.transactional_id, body.producer_id, body.producer_epoch),
        commit=body.committed,
        bump=request.version >= _BUMPS_SINCE,
    )
    topics = request.tenant.topics
    topics.coordinate(topics.transaction(body.transactional_id), command, _told_producer(request))
