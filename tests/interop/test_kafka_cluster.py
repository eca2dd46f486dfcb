"""Kafka on three nodes whose leaders are killed: nothing lost, nothing twice, no gap.

Transactions are whole or absent. The checker knows the protocol and not the code: what a client
was told is compared with what any
reader finds afterwards.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.kafka_clients import (
    PATIENCE_S,
    kafka_of,
    make_topic,
    produce_all,
    read_all,
    read_partition,
    until,
)

pytestmark = pytest.mark.filterwarnings("default")
PARTITIONS = 4
TORTURE_SECONDS = 60.0
KILL_SECONDS = 2.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("kafka3")
    with ClusterProcess(data, tenant_prgs=3, patience=UNHURRIED) as made:
        yield made


def test_any_node_tells_who_leads_and_all_is_read(cluster: ClusterProcess) -> None:
    first = kafka_of(cluster).split(",")[0]
    admin = make_topic(kafka_of(cluster), "spread", 6)
    wanted = [f"v{number}" for number in range(300)]
    produce_all(first, "spread", wanted)
    assert sorted(read_all(first, "spread", 6)) == sorted(wanted)
    metadata = admin.list_topics("spread", 20)
    assert set(metadata.brokers) == {1, 2, 3}


class Plain(threading.Thread):
    """An idempotent producer; what was acknowledged, with its place."""

    def __init__(self, address: str, name: str, stopping: threading.Event) -> None:
        super().__init__(daemon=True)
        options = {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5}
        self._producer = Producer(options | {"message.timeout.ms": 180_000})
        self._name = name
        self._stopping = stopping
        self.acked: dict[str, tuple[int, int]] = {}
        self.failed: list[object] = []

    def run(self) -> None:
        try:
            self._produce()
        except KafkaException as error:
            self.failed.append(error)  # a fatal one: this producer may never produce again

    def _produce(self) -> None:
        number = 0
        while not self._stopping.is_set():
            value = f"{self._name} {number}"
            self._producer.produce("plain", value, key=value, on_delivery=self._told)
            number += 1
            self._producer.poll(0.002)
        self._producer.flush(PATIENCE_S)

    def _told(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(error)
            return
        value = message.value().decode()  # type: ignore[attr-defined]
        self.acked[value] = (message.partition(), message.offset())  # type: ignore[attr-defined]


class Banker(threading.Thread):
    """A transactional producer: each transaction says the same in every partition."""

    def __init__(self, address: str, name: str, stopping: threading.Event, seed: int) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._name = name
        self._stopping = stopping
        self._rng = random.Random(seed)
        self.committed: set[str] = set()
        self.aborted: set[str] = set()
        self.unknown: set[str] = set()
        self.anew = 0

    def run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            try:
                producer = self._begin()
                while not self._stopping.is_set():
                    self._one(producer, f"{self._name} {number}")
                    number += 1
            except KafkaException:
                self.anew += 1
                number += 1

    def _begin(self) -> Producer:
        options = {"bootstrap.servers": self._address, "transactional.id": self._name}
        producer = Producer(options | {"transaction.timeout.ms": 30_000})
        producer.init_transactions(30)
        return producer

    def _one(self, producer: Producer, value: str) -> None:
        self.unknown.add(value)
        producer.begin_transaction()
        try:
            for partition in range(PARTITIONS):
                producer.produce("bank", value, partition=partition)
            producer.flush(30)
            if self._rng.random() < 0.25:
                producer.abort_transaction(30)
                self._settle(value, self.aborted)
            else:
                producer.commit_transaction(30)
                self._settle(value, self.committed)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(30)
            self._settle(value, self.aborted)

    def _settle(self, value: str, into: set[str]) -> None:
        self.unknown.discard(value)
        into.add(value)


def test_torture_by_kill_nine_every_two_seconds(cluster: ClusterProcess) -> None:
    seed = 16
    print(f"seed {seed}")
    rng = random.Random(seed)
    address = kafka_of(cluster)
    make_topic(address, "plain", PARTITIONS)
    make_topic(address, "bank", PARTITIONS)
    stopping = threading.Event()
    plain = [Plain(address, f"plain{number}", stopping) for number in range(2)]
    bankers = [Banker(address, f"bank{number}", stopping, number) for number in range(2)]
    for each in (*plain, *bankers):
        each.start()
    ends = time.monotonic() + TORTURE_SECONDS
    kills = 0
    while time.monotonic() < ends:
        time.sleep(KILL_SECONDS)
        cluster.kill(rng.randint(1, 3))
        kills += 1
    stopping.set()
    for each in (*plain, *bankers):
        each.join(180)
        assert not each.is_alive()
    _check_plain(address, plain)
    _check_bank(address, bankers)
    acked = sum(len(each.acked) for each in plain)
    committed = sum(len(each.committed) for each in bankers)
    print(f"{kills} kills, {acked} acknowledged, {committed} transactions committed")
    assert acked > 100 and committed > 3


def _check_plain(address: str, plain: list[Plain]) -> None:
    found = {p: read_partition(address, "plain", p) for p in range(PARTITIONS)}
    for rows in found.values():
        offsets = [offset for offset, _ in rows]
        assert offsets == list(range(len(offsets))), "no gap, none out of order"
    values = Counter(value for rows in found.values() for _, value in rows)
    twice = [value for value, count in values.items() if count > 1]
    assert not twice, f"twice: {twice[:5]}"
    places = {value: (p, offset) for p, rows in found.items() for offset, value in rows}
    for each in plain:
        assert not each.failed, each.failed[:3]
        lost = [value for value, place in each.acked.items() if places.get(value) != place]
        assert not lost, f"acknowledged and not where it was said: {lost[:5]}"


def _check_bank(address: str, bankers: list[Banker]) -> None:
    found = [
        Counter(value for _, value in read_partition(address, "bank", p)) for p in range(PARTITIONS)
    ]
    for rows in found:
        assert not [value for value, count in rows.items() if count > 1], "nothing twice"
    assert all(rows.keys() == found[0].keys() for rows in found), "whole or absent"
    seen = set(found[0])
    for each in bankers:
        assert each.committed <= seen, "committed and not there"
        assert not each.aborted & seen, "aborted and there"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_survives_the_node_that_coordinates_it(
    cluster: ClusterProcess, protocol: str
) -> None:
    address, topic = kafka_of(cluster), f"watched-{protocol}"
    make_topic(address, topic, 2)
    options = {"bootstrap.servers": address, "group.id": f"survivors-{protocol}"}
    options |= {"group.protocol": protocol, "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    consumer.subscribe([topic])
    found: set[str] = set()

    def reads(wanted: set[str]) -> bool:
        message: Any = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.add(message.value().decode())
        return wanted <= found

    produce_all(address, topic, ["before"])
    until(lambda: reads({"before"}), "the first is read")
    for node in (1, 2, 3):
        cluster.kill(node)
        produce_all(address, topic, [f"after {node}"])
        until(lambda node=node: reads({f"after {node}"}), "it goes on")  # type: ignore[misc]
    consumer.close()
