"""Stock clients against the real adapter: every API that they use is answered as they expect."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from clustor.runtime.containment import contained
from tests.quantum.kafka.session.adapter_server import AdapterServer

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours
PATIENCE_S = 20
SPEC: Any = OffsetSpec  # its methods have no types


@pytest.fixture
def server() -> Iterator[AdapterServer]:
    before = dict(contained.counts)
    with AdapterServer() as made:
        yield made
    assert contained.counts == before
    assert not made.bench.adapter.faults


def make(server: AdapterServer, name: str, partitions: int = 1, **config: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": server.address})
    wanted = NewTopic(name, partitions, config=config)
    for each in admin.create_topics([wanted]).values():
        each.result(PATIENCE_S)
    return admin


def read(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        message: Any = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value())
    return found


ASSIGNORS = ("uniform", "range")


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_librdkafka_is_assigned_by_the_server(server: AdapterServer, assignor: str) -> None:
    """KIP-848: members come and go, each partition has one owner, and offsets go on."""
    admin = make(server, "assigned", 4)
    options = {
        "bootstrap.servers": server.address,
        "group.id": "assigned",
        "group.protocol": "consumer",
        "group.remote.assignor": assignor,
        "auto.offset.reset": "earliest",
    }
    first = Consumer(options)
    first.subscribe(["assigned"])

    def split(*members: Consumer) -> list[set[int]]:
        for each in members:
            each.poll(0.1)
        found = [{part.partition for part in each.assignment()} for each in members]
        assert len(set().union(*found)) == sum(map(len, found)), "a partition has two owners"
        return found

    def until_split(*members: Consumer, shares: list[int]) -> list[set[int]]:
        deadline = time.monotonic() + 60
        found = split(*members)
        while [len(each) for each in found] != shares:
            assert time.monotonic() < deadline, found
            found = split(*members)
        return found

    until_split(first, shares=[4])
    second = Consumer(options)
    second.subscribe(["assigned"])
    owned = until_split(first, second, shares=[2, 2])
    if assignor == "range":
        assert {frozenset(each) for each in owned} == {frozenset({0, 1}), frozenset({2, 3})}
    (described,) = admin.describe_consumer_groups(["assigned"]).values()
    group = described.result(PATIENCE_S)
    assert group.state.name == "STABLE" and len(group.members) == 2
    assert group.type.name == "CONSUMER" and group.partition_assignor == assignor
    parts = [{p.partition for p in each.assignment.topic_partitions} for each in group.members]
    assert sorted(parts, key=sorted) == sorted(owned, key=sorted)
    first.commit(offsets=[TopicPartition("assigned", min(owned[0]), 7)], asynchronous=False)
    admin.create_partitions([NewPartitions("assigned", 6)])["assigned"].result(PATIENCE_S)
    until_split(first, second, shares=[3, 3])
    first.close()
    until_split(second, shares=[6])
    mine = TopicPartition("assigned", min(owned[0]))
    assert [each.offset for each in second.committed([mine])] == [7]
    second.close()
    (described,) = admin.describe_consumer_groups(["assigned"]).values()
    assert described.result(PATIENCE_S).state.name == "EMPTY"


def test_librdkafka_produces_in_every_codec_and_reads_in_a_group(server: AdapterServer) -> None:
    make(server, "codecs", 3)
    wanted = set()
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        options = {"bootstrap.servers": server.address, "compression.type": codec}
        producer = Producer(options | {"enable.idempotence": True})
        for number in range(50):
            wanted.add(f"{codec}-{number}".encode())
            producer.produce("codecs", f"{codec}-{number}")
        assert producer.flush(PATIENCE_S) == 0
    options = {"bootstrap.servers": server.address, "auto.offset.reset": "earliest"}
    consumer = Consumer(options | {"group.id": "g", "enable.auto.commit": False})
    consumer.subscribe(["codecs"])
    found = read(consumer, len(wanted))
    assert sorted(found) == sorted(wanted)
    consumer.commit(asynchronous=False)
    committed = consumer.committed([TopicPartition("codecs", p) for p in range(3)])
    assert sum(each.offset for each in committed) == len(wanted)
    consumer.close()


def test_an_aborted_transaction_is_never_seen_and_offsets_go_with_it(server: AdapterServer) -> None:
    make(server, "bank")
    producer = Producer({"bootstrap.servers": server.address, "transactional.id": "till"})
    producer.init_transactions(PATIENCE_S)
    options = {"bootstrap.servers": server.address, "group.id": "readers"}
    consumer = Consumer(options | {"isolation.level": "read_committed"})
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce("bank", f"{number}")
        producer.send_offsets_to_transaction(
            [TopicPartition("bank", 0, number)], consumer.consumer_group_metadata(), PATIENCE_S
        )
        if commits:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
    consumer.assign([TopicPartition("bank", 0, OFFSET_BEGINNING)])
    assert read(consumer, 2) == [b"0", b"2"]
    assert consumer.committed([TopicPartition("bank", 0)])[0].offset == 2
    consumer.close()


def test_a_second_instance_fences_the_first(server: AdapterServer) -> None:
    make(server, "bank")
    options = {"bootstrap.servers": server.address, "transactional.id": "till"}
    first, second = Producer(options), Producer(options)
    first.init_transactions(PATIENCE_S)
    first.begin_transaction()
    first.produce("bank", "late")
    first.flush(PATIENCE_S)
    second.init_transactions(PATIENCE_S)
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(PATIENCE_S)
    assert raised.value.args[0].fatal()


def test_the_admin_client_changes_what_it_can_and_is_told_the_rest(server: AdapterServer) -> None:
    admin = make(server, "kept", 2, **{"retention.ms": "60000"})
    described = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "kept")])
    (configs,) = (each.result(PATIENCE_S) for each in described.values())
    assert configs["retention.ms"].value == "60000"
    for each in admin.create_partitions([NewPartitions("kept", 4)]).values():
        each.result(PATIENCE_S)
    metadata = admin.list_topics("kept", PATIENCE_S)
    assert len(metadata.topics["kept"].partitions) == 4
    refused = admin.create_topics([NewTopic("odd", 1, config={"no.such.key": "1"})])
    with pytest.raises(KafkaException, match=r"no\.such\.key"):
        refused["odd"].result(PATIENCE_S)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic("kept", 1)])["kept"].result(PATIENCE_S)
    admin.delete_topics(["kept"])["kept"].result(PATIENCE_S)
    assert "kept" not in admin.list_topics(timeout=PATIENCE_S).topics


def test_records_are_deleted_up_to_an_offset_and_found_by_time(server: AdapterServer) -> None:
    admin = make(server, "timed")
    producer = Producer({"bootstrap.servers": server.address})
    for number in range(10):
        producer.produce("timed", str(number), timestamp=1_000_000 + number)
        producer.flush(PATIENCE_S)
    place = TopicPartition("timed", 0)
    admin.delete_records([TopicPartition("timed", 0, 4)])[place].result(PATIENCE_S)

    def offset(spec: OffsetSpec) -> int:
        return int(admin.list_offsets({place: spec})[place].result(PATIENCE_S).offset)

    assert offset(SPEC.earliest()) == 4
    assert offset(SPEC.latest()) == 10
    assert offset(SPEC.for_timestamp(1_000_007)) == 7
    assert offset(SPEC.max_timestamp()) == 9


def test_groups_are_listed_described_and_deleted(server: AdapterServer) -> None:
    admin = make(server, "watched")
    options = {"bootstrap.servers": server.address, "group.id": "watchers"}
    consumer = Consumer(options | {"auto.offset.reset": "earliest"})
    consumer.subscribe(["watched"])
    producer = Producer({"bootstrap.servers": server.address})
    producer.produce("watched", "x")
    producer.flush(PATIENCE_S)
    assert read(consumer, 1) == [b"x"]
    described = admin.describe_consumer_groups(["watchers"])["watchers"].result(PATIENCE_S)
    assert [each.assignment.topic_partitions[0].topic for each in described.members] == ["watched"]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["watchers"])["watchers"].result(PATIENCE_S)
    consumer.close()
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert [each.group_id for each in listed.valid] == ["watchers"]
    admin.delete_consumer_groups(["watchers"])["watchers"].result(PATIENCE_S)
    assert not admin.list_consumer_groups().result(PATIENCE_S).valid


def test_kafka_python_creates_on_first_use_and_reads_what_it_wrote(server: AdapterServer) -> None:
    producer = KafkaProducer(bootstrap_servers=server.address, acks="all")
    for number in range(20):
        producer.send("fresh", str(number).encode(), headers=[("n", b"1")])
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(
        "fresh",
        bootstrap_servers=server.address,
        group_id="py",
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_S * 1000,
    )
    found = [next(consumer).value for _ in range(20)]
    assert found == [str(number).encode() for number in range(20)]
    consumer.close()


def test_aiokafka_writes_transactions_and_reads_them(server: AdapterServer) -> None:
    make(server, "aio", 2)

    async def talk() -> list[bytes]:
        producer = AIOKafkaProducer(bootstrap_servers=server.address, transactional_id="aio")
        await producer.start()
        for number in range(4):
            async with producer.transaction():
                await producer.send_and_wait("aio", str(number).encode(), partition=number % 2)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            "aio",
            bootstrap_servers=server.address,
            group_id="aio",
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        found = [(await consumer.getone()).value for _ in range(4)]
        await consumer.stop()
        return sorted(found)

    assert asyncio.run(asyncio.wait_for(talk(), PATIENCE_S)) == [b"0", b"1", b"2", b"3"]
