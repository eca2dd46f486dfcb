"""Topics of a node that is killed again and again: stock producers and a stock reader judge it.

Nothing that was acknowledged is lost or there twice, and transactions are whole or absent.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.interop.broker_process import HOST, BrokerProcess

PARTITIONS = 4
KILLS = 3
DEADLINE_SECONDS = 120.0
PLAIN, WHOLE = "plain", "whole"


class TopicsProcess(BrokerProcess):
    """A broker as stock clients find it."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"{HOST}:{self.kafka}", "log_level": 0}


class PlainProducer(threading.Thread):
    """Sends numbers until it is told to stop; remembers those that were acknowledged."""

    def __init__(self, process: TopicsProcess, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            process.settings | {"enable.idempotence": True, "linger.ms": 2, "partitioner": "random"}
        )
        self._stop_asked = stop
        self.acknowledged: list[int] = []
        self.errors: list[Any] = []

    def run(self) -> None:
        number = 0
        while not self._stop_asked.is_set():
            for _ in range(20):
                number += 1
                self._producer.produce(PLAIN, b"%d" % number, on_delivery=self._told)
            self._producer.poll(0.02)
        self._producer.flush(DEADLINE_SECONDS)

    def _told(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(int(message.value()))
        else:
            self.errors.append(error)


class WholeProducer(threading.Thread):
    """Writes the same number into every partition in one transaction, or into none."""

    def __init__(self, process: TopicsProcess, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._settings = process.settings | {"transactional.id": "whole"}
        self._stop_asked = stop
        self.committed: list[int] = []
        self.aborted: list[int] = []

    def run(self) -> None:
        number, producer = 0, None
        while not self._stop_asked.is_set():
            number += 1
            try:
                if producer is None:
                    producer = Producer(self._settings)
                    producer.init_transactions(DEADLINE_SECONDS)
                self._write(producer, number)
            except KafkaException as error:
                facts = error.args[0]
                try:
                    if facts.fatal() or not facts.txn_requires_abort():
                        producer = None  # whoever comes next has its id, and fences it
                    else:
                        assert producer is not None
                        producer.abort_transaction(DEADLINE_SECONDS)
                        self.aborted.append(number)
                except KafkaException:
                    producer = None

    def _write(self, producer: Producer, number: int) -> None:
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(WHOLE, b"%d" % number, partition=partition)
        if number % 4 == 0:
            producer.abort_transaction(DEADLINE_SECONDS)
            self.aborted.append(number)
        else:
            producer.commit_transaction(DEADLINE_SECONDS)
            self.committed.append(number)


def read_all(process: TopicsProcess, topic: str) -> list[tuple[int, int, int]]:
    """Read a topic from its start to its last stable end: partition, offset, number."""
    settings = {"group.id": "judge", "isolation.level": "read_committed"}
    reader = Consumer(
        process.settings
        | settings
        | {"auto.offset.reset": "earliest", "enable.partition.eof": True}
    )
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found, ended = [], set[int]()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        message: Any = reader.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found.append((message.partition(), message.offset(), int(message.value())))
    reader.close()
    assert len(ended) == PARTITIONS
    return found


def test_a_killed_node_loses_nothing_and_keeps_transactions_whole(tmp_path: Path) -> None:
    with TopicsProcess(tmp_path / "data") as process:
        admin = AdminClient(process.settings)
        for made in admin.create_topics(
            [NewTopic(PLAIN, PARTITIONS), NewTopic(WHOLE, PARTITIONS)]
        ).values():
            made.result(DEADLINE_SECONDS)
        stop = threading.Event()
        plain, whole = PlainProducer(process, stop), WholeProducer(process, stop)
        plain.start()
        whole.start()
        for nth in range(KILLS):
            goal = len(plain.acknowledged) + 300, len(whole.committed) + 3
            deadline = time.monotonic() + DEADLINE_SECONDS
            while (len(plain.acknowledged), len(whole.committed)) < goal:
                assert time.monotonic() < deadline, (nth, goal, plain.errors[:3])
                time.sleep(0.02)
            process.kill()
            process.start()
        stop.set()
        plain.join(DEADLINE_SECONDS)
        whole.join(DEADLINE_SECONDS)
        _judge(process, plain, whole)


def _judge(process: TopicsProcess, plain: PlainProducer, whole: WholeProducer) -> None:
    numbers = Counter(number for _, _, number in read_all(process, PLAIN))
    assert not plain.errors
    assert set(plain.acknowledged) <= set(numbers)
    assert [number for number, count in numbers.items() if count > 1] == []
    found = Counter(number for _, _, number in read_all(process, WHOLE))
    assert set(found.values()) == {PARTITIONS}, "whole, or absent"
    assert set(whole.committed) <= set(found)
    assert not set(whole.aborted) & set(found)
