"""The frequent messages as the protocol's library has them: the twins of what is by hand."""

from __future__ import annotations

import random
from datetime import timedelta
from pkgutil import resolve_name
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial.readers import tz_aware_from_i64
from kio.static.primitive import i64

from quantum.protocols.kafka.codec import FetchedPartition, ProducedPartition
from quantum.protocols.kafka.codec.hot import Endpoint

CODES = [each for each in ErrorCode if each >= 0]


def schema(name: str, version: int, kind: str) -> Any:
    return resolve_name(f"kio.schema.{name}.v{version}.{kind}")


def words(rng: random.Random) -> str:
    return "".join(rng.choice("abcé-._0") for _ in range(rng.randint(1, 200)))


def number(rng: random.Random, bits: int) -> int:
    edge = rng.choice([-1, 0, 1, 127, 128, (1 << bits - 1) - 1])
    return rng.choice([edge, rng.randrange(1 << bits - 1)])


def produce_request(rng: random.Random, version: int) -> tuple[Any, list[Any]]:
    """Draw a request, and the rows that a scan of it must find: topic, partition, bytes."""
    module = schema("produce", version, "request")
    topics, rows = [], []
    for nth in range(rng.randint(0, 4)):
        name, partitions = f"{nth}{words(rng)}", []
        for index in rng.sample(range(300), rng.randint(0, 4)):
            records = None if rng.random() < 0.1 else rng.randbytes(rng.randint(0, 300))
            partitions.append(module.PartitionProduceData(index=index, records=records))
            rows.append((name.encode(), index, records))
        topics.append(module.TopicProduceData(name=name, partition_data=tuple(partitions)))
    request = module.ProduceRequest(
        transactional_id=rng.choice([None, "", words(rng)]),
        acks=rng.choice([-1, 0, 1]),
        timeout=timedelta(milliseconds=number(rng, 31)),
        topic_data=tuple(topics),
    )
    return request, rows


def endpoints(rng: random.Random) -> list[Endpoint]:
    return [
        (number(rng, 32), words(rng).encode(), number(rng, 32), rng.choice([None, b"rack"]))
        for _ in range(rng.randint(0, 3))
    ]


def _endpoint_twins(module: Any, rows: list[Endpoint]) -> tuple[Any, ...]:
    return tuple(
        module.NodeEndpoint(
            node_id=node,
            host=host.decode(),
            port=port,
            rack=None if rack is None else rack.decode(),
        )
        for node, host, port, rack in rows
    )


def produced(rng: random.Random) -> ProducedPartition:
    return ProducedPartition(
        number(rng, 32),
        rng.choice(CODES),
        number(rng, 64),
        rng.choice([-1, rng.randrange(1 << 41)]),
        number(rng, 64),
        rng.choice([None, b"", words(rng).encode()]),
        number(rng, 32),
        number(rng, 32),
    )


def produce_response(
    version: int,
    topics: list[tuple[bytes, list[ProducedPartition]]],
    throttle_ms: int,
    nodes: list[Endpoint],
) -> Any:
    module = schema("produce", version, "response")

    def partition(each: ProducedPartition) -> Any:
        facts: dict[str, Any] = {
            "index": each.index,
            "error_code": ErrorCode(each.error),
            "base_offset": each.base_offset,
            "log_append_time": _time(each.log_append_ms),
        }
        if version >= 5:
            facts["log_start_offset"] = each.log_start_offset
        if version >= 8:
            message = each.error_message
            facts["record_errors"] = ()
            facts["error_message"] = None if message is None else message.decode()
        if version >= 10:
            facts["current_leader"] = module.LeaderIdAndEpoch(
                leader_id=each.leader_id, leader_epoch=each.leader_epoch
            )
        return module.PartitionProduceResponse(**facts)

    facts: dict[str, Any] = {
        "responses": tuple(
            module.TopicProduceResponse(
                name=name.decode(), partition_responses=tuple(map(partition, partitions))
            )
            for name, partitions in topics
        ),
        "throttle_time": timedelta(milliseconds=throttle_ms),
    }
    if version >= 10:
        facts["node_endpoints"] = _endpoint_twins(module, nodes)
    return module.ProduceResponse(**facts)


def _time(stamp_ms: int) -> Any:
    return None if stamp_ms < 0 else tz_aware_from_i64(i64(stamp_ms))


def fetched(rng: random.Random) -> FetchedPartition:
    pieces = [memoryview(rng.randbytes(rng.randint(1, 90))) for _ in range(rng.randint(0, 3))]
    aborted = [(number(rng, 64), number(rng, 64)) for _ in range(rng.randint(0, 3))]
    return FetchedPartition(
        number(rng, 32),
        rng.choice(CODES),
        number(rng, 64),
        number(rng, 64),
        number(rng, 64),
        rng.choice([None, pieces]),
        rng.choice([None, aborted]),
        number(rng, 32),
        number(rng, 32),
        number(rng, 32),
        number(rng, 64),
    )


def fetch_response(
    version: int,
    topics: list[tuple[bytes, list[FetchedPartition]]],
    facts_above: tuple[int, int, int],
    nodes: list[Endpoint],
) -> Any:
    module = schema("fetch", version, "response")
    error, session_id, throttle_ms = facts_above

    def partition(each: FetchedPartition) -> Any:
        facts: dict[str, Any] = {
            "partition_index": each.index,
            "error_code": ErrorCode(each.error),
            "high_watermark": each.high_watermark,
            "last_stable_offset": each.last_stable_offset,
            "aborted_transactions": None
            if each.aborted is None
            else tuple(
                module.AbortedTransaction(producer_id=producer, first_offset=first)
                for producer, first in each.aborted
            ),
            "records": None if each.batches is None else b"".join(each.batches),
        }
        if version >= 5:
            facts["log_start_offset"] = each.log_start_offset
        if version >= 12:
            facts["diverging_epoch"] = module.EpochEndOffset(
                epoch=each.diverging_epoch, end_offset=each.diverging_end_offset
            )
            facts["current_leader"] = module.LeaderIdAndEpoch(
                leader_id=each.leader_id, leader_epoch=each.leader_epoch
            )
        return module.PartitionData(**facts)

    def topic(name: bytes, partitions: list[FetchedPartition]) -> Any:
        named = {"topic_id": UUID(bytes=name)} if version >= 13 else {"topic": name.decode()}
        return module.FetchableTopicResponse(partitions=tuple(map(partition, partitions)), **named)

    facts: dict[str, Any] = {
        "throttle_time": timedelta(milliseconds=throttle_ms),
        "responses": tuple(topic(name, partitions) for name, partitions in topics),
    }
    if version >= 7:
        facts |= {"error_code": ErrorCode(error), "session_id": session_id}
    if version >= 16:
        facts["node_endpoints"] = _endpoint_twins(module, nodes)
    return module.FetchResponse(**facts)
