"""FindCoordinator, DescribeCluster and DescribeLogDirs: where things are."""

from __future__ import annotations

from typing import Any, Final

from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.metadata import (
    broker_rows,
    controller_of,
    find_topic,
    may_see,
)
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

_GROUP: Final = 0
_TRANSACTION: Final = 1
_NO_OPERATIONS: Final = -(1 << 31)
_UNKNOWN_BYTES: Final = -1


def on_find_coordinator(request: KafkaRequest) -> None:
    """Name the node that leads the PRG of a group or of a transactional id."""
    body = request.body
    kind = getattr(body, "key_type", _GROUP)
    if request.version >= 4:
        rows = [_coordinator(request, kind, key) for key in body.coordinator_keys]
        request.answer({"coordinators": rows})
    else:
        request.answer(_coordinator(request, kind, body.key))


def _coordinator(request: KafkaRequest, kind: int, key: str) -> dict[str, Any]:
    code = KafkaCode.none
    topics = request.tenant.topics
    if kind == _GROUP:
        prg = topics.group(key)
        if not request.may(Operation.DESCRIBE, ResourceKind.GROUP, key):
            code = KafkaCode.group_authorization_failed
    elif kind == _TRANSACTION:
        prg = topics.transaction(key)
        if not request.may(Operation.DESCRIBE, ResourceKind.TRANSACTIONAL_ID, key):
            code = KafkaCode.transactional_id_authorization_failed
    else:
        return _nobody(key, KafkaCode.invalid_request)
    if code is not KafkaCode.none:
        return _nobody(key, code)
    leader = topics.leader(prg).node
    place = None if request.peer is None else request.node.broker(request.peer, leader)
    if place is None or leader is None:
        return _nobody(key, KafkaCode.coordinator_not_available)
    return _nobody(key, code) | {"node_id": leader, "host": place[0], "port": place[1]}


def _nobody(key: str, code: KafkaCode) -> dict[str, Any]:
    row: dict[str, Any] = {"key": key, "node_id": -1, "host": "", "port": -1}
    return row | {"error_code": code, "error_message": None}


def on_describe_cluster(request: KafkaRequest) -> None:
    request.answer(
        {
            "error_code": KafkaCode.none,
            "error_message": None,
            "endpoint_type": 1,
            "cluster_id": request.node.cluster_id,
            "controller_id": controller_of(request),
            "brokers": broker_rows(request),
            "cluster_authorized_operations": _NO_OPERATIONS,
        }
    )


def on_describe_log_dirs(request: KafkaRequest) -> None:
    """Say what this node keeps of each partition; there is one directory, whose name is its own."""
    wanted = request.body.topics
    topics = request.tenant.topics
    rows = []
    if wanted is None:
        found = [
            (each, range(each.partitions))
            for each in topics.topics()
            if may_see(request, each.name)
        ]
    else:
        named = [(find_topic(request, each.topic), each.partitions) for each in wanted]
        found = [(topic, parts) for topic, parts in named if topic is not None]
    for topic, parts in found:
        partitions = [
            {
                "partition_index": p,
                "partition_size": topics.size_bytes(topic, p),
                "offset_lag": 0,
                "is_future_key": False,
            }
            for p in parts
            if 0 <= p < topic.partitions
        ]
        rows.append({"name": topic.name, "partitions": partitions})
    directory = {"error_code": KafkaCode.none, "log_dir": "quantum", "topics": rows}
    sizes = {"total_bytes": _UNKNOWN_BYTES, "usable_bytes": _UNKNOWN_BYTES}
    request.answer({"error_code": KafkaCode.none, "results": [directory | sizes]})
