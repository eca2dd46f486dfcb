"""DescribeProducers, DescribeTransactions, ListTransactions: what is open, and whose it is."""

from __future__ import annotations

from typing import Any, Final

from quantum.broker.streams import Transaction, TransactionState
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.list_offsets import judge_partition
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

_STATES: Final = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}
_NOT_ONGOING: Final = -1


def on_list_transactions(request: KafkaRequest) -> None:
    """List the transactional ids that this node coordinates: clients ask every node."""
    body = request.body
    states, producers = set(body.state_filters), set(body.producer_id_filters)
    longer = getattr(body, "duration_filter", None)
    longer_ms = -1 if longer is None else round(longer.total_seconds() * 1000)
    topics = request.tenant.topics
    rows = []
    for prg in range(request.tenant.tenant.prg_count):
        if not topics.leader(prg).is_here:
            continue
        coordinator = topics.coordinator(prg).transactions
        for name in coordinator.ids():
            found = coordinator.get(name)
            if found is None or not _may_describe(request, name):
                continue
            age_ms = request.now_ms - found.started_ms
            is_ongoing = found.state is TransactionState.ONGOING
            suits = (not states or _STATES[found.state] in states) and (
                not producers or found.producer_id in producers
            )
            if suits and (longer_ms < 0 or (is_ongoing and age_ms > longer_ms)):
                state = _STATES[found.state]
                row = {"transactional_id": name, "producer_id": found.producer_id}
                rows.append(row | {"transaction_state": state})
    unknown = sorted(states - set(_STATES.values()))
    facts = {"error_code": KafkaCode.none, "unknown_state_filters": unknown}
    request.answer(facts | {"transaction_states": rows})


def _may_describe(request: KafkaRequest, name: str) -> bool:
    return request.may(Operation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID, name)


def on_describe_transactions(request: KafkaRequest) -> None:
    rows = [_described(request, name) for name in request.body.transactional_ids]
    request.answer({"transaction_states": rows})


def _described(request: KafkaRequest, name: str) -> dict[str, Any]:
    topics = request.tenant.topics
    prg = topics.transaction(name)
    found: Transaction | None = None
    if not _may_describe(request, name):
        code = KafkaCode.transactional_id_authorization_failed
    elif not topics.leader(prg).is_here:
        code = KafkaCode.not_coordinator
    else:
        found = topics.coordinator(prg).transactions.get(name)
        code = KafkaCode.transactional_id_not_found if found is None else KafkaCode.none
    named: dict[str, list[int]] = {}
    for topic, p in sorted(() if found is None else found.partitions):
        named.setdefault(topic, []).append(p)
    ongoing = found is not None and found.state is TransactionState.ONGOING
    return {
        "error_code": code,
        "transactional_id": name,
        "transaction_state": "" if found is None else _STATES[found.state],
        "transaction_timeout": 0 if found is None else found.timeout_ms,
        "transaction_start_time": found.started_ms if found and ongoing else _NOT_ONGOING,
        "producer_id": -1 if found is None else found.producer_id,
        "producer_epoch": -1 if found is None else found.epoch,
        "topics": [{"topic": topic, "partitions": parts} for topic, parts in named.items()],
    }


def on_describe_producers(request: KafkaRequest) -> None:
    """Say who produces to partitions that are led here."""
    rows = []
    for each in request.body.topics:
        partitions = [_producers(request, each.name, p) for p in each.partition_indexes]
        rows.append({"name": each.name, "partitions": partitions})
    request.answer({"topics": rows})


def _producers(request: KafkaRequest, name: str, p: int) -> dict[str, Any]:
    code, topic, _ = judge_partition(request, name, p)
    active = [] if topic is None else request.tenant.topics.producers(topic, p)
    return {
        "partition_index": p,
        "error_code": code,
        "error_message": None,
        "active_producers": [
            {
                "producer_id": producer_id,
                "producer_epoch": known.epoch,
                "last_sequence": known.batches[-1].last_sequence if known.batches else -1,
                "last_timestamp": known.last_ms,
                "coordinator_epoch": 0,
                "current_txn_start_offset": _NOT_ONGOING if start is None else start,
            }
            for producer_id, known, start in active
        ],
    }
