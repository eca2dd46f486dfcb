"""What stock Kafka clients do in tests of real nodes: produce, read, and wait for a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.interop.cluster_process import ClusterProcess

KAFKA_ROLE = 5
PATIENCE_S = 120


def kafka_of(cluster: ClusterProcess) -> str:
    """Return where a cluster's nodes serve Kafka."""
    ports = (cluster.base_port + 10 * node + KAFKA_ROLE for node in range(1, cluster.nodes + 1))
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)


def make_topic(address: str, name: str, partitions: int = 1, **config: str) -> AdminClient:
    """Create a topic; a cluster whose leaders are not known yet is asked again."""
    admin = AdminClient({"bootstrap.servers": address})

    def is_made() -> bool:
        wanted = [NewTopic(name, partitions, config=config)]
        made = admin.create_topics(wanted, request_timeout=10)
        try:
            made[name].result(60)
        except KafkaException as error:
            return bool(error.args[0].name() == "TOPIC_ALREADY_EXISTS")
        return True

    until(is_made, f"topic {name} is made")
    return admin


def produce_all(address: str, topic: str, values: Iterable[str], **options: object) -> list[int]:
    """Produce values and wait for every acknowledgement; return their offsets."""
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, **options})
    offsets: list[int] = []
    failed: list[object] = []

    def told(error: object, message: object) -> None:
        if error is None:
            offsets.append(message.offset())  # type: ignore[attr-defined]
        else:
            failed.append(error)

    for value in values:
        producer.produce(topic, value, key=value, on_delivery=told)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed, failed[:3]
    return offsets


def read_partition(address: str, topic: str, partition: int) -> list[tuple[int, str]]:
    """Read a partition from its beginning to its end, what was committed alone."""
    options = {"bootstrap.servers": address, "group.id": "reader", "enable.auto.commit": False}
    options |= {"isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer(options)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[tuple[int, str]] = []
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message: Any = consumer.poll(0.5)
        if message is None:
            continue
        if message.error() is None:
            found.append((message.offset(), message.value().decode()))
        elif message.error().name() == "_PARTITION_EOF":
            break
    consumer.close()
    return found


def read_all(address: str, topic: str, partitions: int) -> list[str]:
    return [
        value for each in range(partitions) for _, value in read_partition(address, topic, each)
    ]
