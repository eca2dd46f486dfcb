"""Batches that bring their partitions into a transaction (KIP-890): in order, or none of them."""

from __future__ import annotations

from typing import Any

import pytest
from kio.index import load_response_schema

from quantum.broker.streams import AddToTransaction, InitProducer, StreamRefusal, TransactionResult
from quantum.protocols.kafka.codec import ApiKey, KafkaCode, KafkaRecord, build_batch, decode
from tests.quantum.kafka.session.adapter_server import AdapterBench, BenchWire
from tests.quantum.kafka.session.test_connection import UUID, answers, fetch, request

NAME = "payments"
_TRANSACTIONAL = 0x10


class HeldCoordinator:
    """The coordinator of a bench, whose answers to AddToTransaction leave when a test says so."""

    def __init__(self, bench: AdapterBench) -> None:
        self._apply = bench.topics.coordinate
        self.asked: list[tuple[AddToTransaction, Any]] = []
        bench.topics.coordinate = self._coordinate  # type: ignore[method-assign]

    def _coordinate(self, prg: int, command: Any, done: Any) -> None:
        if isinstance(command, AddToTransaction):
            self.asked.append((command, done))
        else:
            self._apply(prg, command, done)

    def apply(self) -> None:
        """Let the oldest take effect, and be answered."""
        command, done = self.asked.pop(0)
        self._apply(0, command, done)

    def answer(self, result: TransactionResult | None) -> None:
        """Answer the oldest, that took no effect."""
        self.asked.pop(0)[1](result)


@pytest.fixture
def bench() -> AdapterBench:
    made = AdapterBench()
    made.topics.create_topic("t", 2, (), UUID, lambda _reply: None)
    made.topics.transactions.apply(InitProducer(0, NAME, 60_000))
    return made


def produce_in(
    bench: AdapterBench, correlation: int, value: bytes, sequence: int, partitions: int = 1
) -> bytes:
    """Produce a value into so many partitions at once."""
    known = bench.topics.transactions.get(NAME)
    assert known is not None
    batch = build_batch(
        [KafkaRecord(0, 1_000, None, value)],
        producer_id=known.producer_id,
        producer_epoch=known.epoch,
        base_sequence=sequence,
        attributes=_TRANSACTIONAL,
    )
    data = [{"index": each, "records": batch} for each in reversed(range(partitions))]
    facts: dict[str, Any] = {"transactional_id": NAME, "acks": -1, "timeout": 30_000}
    facts["topic_data"] = [{"name": "t", "partition_data": data}]
    return request(ApiKey.PRODUCE, 12, correlation, facts)


def codes(wire: BenchWire) -> list[tuple[int, KafkaCode]]:
    schema = load_response_schema(ApiKey.PRODUCE, 12)
    found = []
    for correlation, body in answers(wire):
        told: Any = decode(schema, body, 1)
        found += [(correlation, each.error_code) for each in told.responses[0].partition_responses]
    return found


def kept(bench: AdapterBench) -> bytes:
    wire = bench.connect()
    wire.handler.received(fetch(99))
    bench.turn()
    return answers(wire)[0][1]


def test_a_batch_waits_behind_one_whose_partition_has_not_joined_yet(bench: AdapterBench) -> None:
    coordinator = HeldCoordinator(bench)
    wire = bench.connect()
    wire.handler.received(produce_in(bench, 1, b"first", 0) + produce_in(bench, 2, b"second", 1))
    bench.turn()
    assert len(coordinator.asked) == 1 and not wire.written
    coordinator.apply()
    bench.turn()
    while coordinator.asked:
        coordinator.apply()
        bench.turn()
    assert codes(wire) == [(1, KafkaCode.none), (2, KafkaCode.none)]
    assert kept(bench).index(b"first") < kept(bench).index(b"second")


def test_a_partition_that_is_in_its_transaction_is_not_asked_for_again(
    bench: AdapterBench,
) -> None:
    coordinator = HeldCoordinator(bench)
    wire = bench.connect()
    wire.handler.received(produce_in(bench, 1, b"first", 0))
    coordinator.apply()
    wire.handler.received(produce_in(bench, 2, b"second", 1))
    assert not coordinator.asked
    bench.turn()
    assert codes(wire) == [(1, KafkaCode.none), (2, KafkaCode.none)]


def test_nothing_passes_a_batch_of_its_partition_that_waits_for_another(
    bench: AdapterBench,
) -> None:
    coordinator = HeldCoordinator(bench)
    wire = bench.connect()
    wire.handler.received(produce_in(bench, 1, b"first", 0))
    coordinator.apply()
    wire.handler.received(
        produce_in(bench, 2, b"second", 1, partitions=2) + produce_in(bench, 3, b"third", 2)
    )
    bench.turn()
    assert b"third" not in kept(bench)
    while coordinator.asked:
        coordinator.apply()
    bench.turn()
    assert [each[0] for each in codes(wire) if each[1] is KafkaCode.none] == [1, 2, 2, 3]


@pytest.mark.parametrize(
    ("result", "code"),
    {
        "nobody knows": (None, KafkaCode.not_leader_or_follower),
        "fenced": (TransactionResult(StreamRefusal.FENCED), KafkaCode.producer_fenced),
    }.values(),
    ids=["nobody knows", "fenced"],
)
def test_what_waits_behind_a_batch_that_could_not_join_fails_with_it(
    bench: AdapterBench, result: TransactionResult | None, code: KafkaCode
) -> None:
    """A partition that never heard of a producer lets it begin anywhere: with its second batch."""
    coordinator = HeldCoordinator(bench)
    wire = bench.connect()
    wire.handler.received(produce_in(bench, 1, b"first", 0) + produce_in(bench, 2, b"second", 1))
    coordinator.answer(result)
    while coordinator.asked:
        coordinator.apply()
    bench.turn()
    assert codes(wire) == [(1, code), (2, code)]
    assert b"second" not in kept(bench)
    wire.handler.received(produce_in(bench, 3, b"first", 0) + produce_in(bench, 4, b"second", 1))
    while coordinator.asked:
        coordinator.apply()
    bench.turn()
    assert codes(wire) == [(3, KafkaCode.none), (4, KafkaCode.none)]
