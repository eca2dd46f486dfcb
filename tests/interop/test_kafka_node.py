"""Kafka on one node as users meet it: stock clients, `kill -9`, MQTT's captures, bad input."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition

from quantum.cli.exits import Exit
from tests.interop.broker_process import BrokerProcess
from tests.interop.kafka_clients import (
    PATIENCE_S,
    make_topic,
    produce_all,
    read_all,
    read_partition,
    until,
)
from tests.quantum.kafka import golden
from tests.quantum.kafka.test_fuzz import mutated

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("kafka") / "var", partitions=2) as made:
        yield made


def address(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.kafka}"


def test_kcat_writes_and_reads(broker: BrokerProcess) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed here")
    at = ["kcat", "-b", address(broker), "-t", "by-kcat"]
    subprocess.run([*at, "-P"], input=b"one\ntwo\n", timeout=60, check=True)
    done = subprocess.run([*at, "-C", "-e", "-q"], capture_output=True, timeout=60, check=True)
    assert sorted(done.stdout.split()) == [b"one", b"two"]


def test_what_was_acknowledged_is_there_after_kill_nine(broker: BrokerProcess) -> None:
    make_topic(address(broker), "kept", 3)
    wanted = [f"value {number}" for number in range(500)]
    produce_all(address(broker), "kept", wanted, **{"compression.type": "zstd"})
    broker.kill()
    broker.start()
    assert sorted(read_all(address(broker), "kept", 3)) == sorted(wanted)
    produce_all(address(broker), "kept", ["and more"])
    assert "and more" in read_all(address(broker), "kept", 3)


def test_a_group_goes_on_where_it_was_after_kill_nine(broker: BrokerProcess) -> None:
    make_topic(address(broker), "followed", 1)
    produce_all(address(broker), "followed", ["a", "b", "c"])
    options = {"bootstrap.servers": address(broker), "group.id": "followers"}
    options |= {"auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    consumer = Consumer(options)
    consumer.subscribe(["followed"])
    found: list[bytes] = []

    def has_two() -> bool:
        message: Any = consumer.poll(0.5)
        if message is not None and message.error() is None and len(found) < 2:
            found.append(message.value())
        return len(found) == 2

    until(has_two, "two are read")
    consumer.commit(offsets=[TopicPartition("followed", 0, 2)], asynchronous=False)
    consumer.close()
    broker.kill()
    broker.start()
    again = Consumer(options)
    again.subscribe(["followed"])
    rest: list[bytes] = []

    def has_rest() -> bool:
        message: Any = again.poll(0.5)
        if message is not None and message.error() is None:
            rest.append(message.value())
        return bool(rest)

    until(has_rest, "the third is read")
    again.close()
    assert rest == [b"c"]


def test_how_far_a_group_is_behind_is_told_by_command_metric_and_doctor(
    broker: BrokerProcess,
) -> None:
    make_topic(address(broker), "lagging", 2)
    produce_all(address(broker), "lagging", [f"value {number}" for number in range(40)])
    options = {"bootstrap.servers": address(broker), "group.id": "slow"}
    consumer = Consumer(options)
    places = [TopicPartition("lagging", 0, 3), TopicPartition("lagging", 1, 1)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()

    def asked(*arguments: str) -> Any:
        command = [sys.executable, "-m", "quantum.cli", *arguments, "--json"]
        return json.loads(subprocess.run(command, capture_output=True, check=False).stdout)

    at = ("--broker", address(broker))
    rows = asked("kafka", "lag", "slow", *at)
    assert {row["partition"]: row["committed"] for row in rows} == {0: 3, 1: 1}
    assert sum(row["lag"] for row in rows) == 36
    (one,) = [each for each in asked("kafka", "lag", *at) if each["group"] == "slow"]
    assert (one["partitions"], one["lag"], one["state"]) == (2, 36, "Empty")
    with urllib.request.urlopen(f"http://{broker.admin}/metrics", timeout=PATIENCE_S) as found:
        metrics = found.read().decode()
    lags = re.findall(r'quantum_kafka_group_lag{tenant="dev",group="slow".*} (\d+)', metrics)
    assert sum(map(int, lags)) == 36
    found = asked("doctor", "--admin", str(broker.admin))["findings"]
    assert [
        each["what"] for each in found if each["check"] == "lag" and "slow" in each["what"]
    ] == ["group slow of tenant dev has no consumer and is 36 records behind"]


def test_the_server_assigns_and_members_go_on_after_kill_nine(broker: BrokerProcess) -> None:
    """KIP-848 on a real log: the assignment and the offsets are what the log says."""
    make_topic(address(broker), "assigned", 4)
    options = {"bootstrap.servers": address(broker), "group.id": "assigned"}
    options |= {"group.protocol": "consumer", "auto.offset.reset": "earliest", "log_level": "0"}
    first, second = Consumer(options), Consumer(options)
    members = [first, second]
    read: set[str] = set()

    def split() -> list[int]:
        for each in members:
            message: Any = each.poll(0.1)
            if message is not None and message.error() is None:
                read.add(message.value().decode())
        owned = [{part.partition for part in each.assignment()} for each in members]
        assert len(set().union(*owned)) == sum(map(len, owned)), "a partition has two owners"
        return [len(each) for each in owned]

    for each in members:
        each.subscribe(["assigned"])
    until(lambda: split() == [2, 2], "each has two partitions")
    produce_all(address(broker), "assigned", [f"before {number}" for number in range(20)])
    until(lambda: bool(split()) and len(read) == 20, "both read")
    broker.kill()
    broker.start()
    produce_all(address(broker), "assigned", [f"after {number}" for number in range(20)])
    until(lambda: split() == [2, 2] and len(read) == 40, "both read on")
    first.close()
    members.remove(first)
    until(lambda: split() == [4], "the other has all")
    second.close()


def test_members_share_a_topic_and_take_over_from_one_that_leaves(broker: BrokerProcess) -> None:
    make_topic(address(broker), "shared", 4)
    options = {"bootstrap.servers": address(broker), "group.id": "sharers"}
    options |= {"partition.assignment.strategy": "cooperative-sticky"}
    first, second = Consumer(options), Consumer(options)
    first.subscribe(["shared"])
    second.subscribe(["shared"])

    def split(*members: Consumer) -> list[int]:
        for each in members:
            each.poll(0.2)
        return [len(each.assignment()) for each in members]

    until(lambda: split(first, second) == [2, 2], "each has two partitions")
    second.close()
    until(lambda: split(first) == [4], "the first has all again")
    first.close()


def test_transactions_are_whole_or_absent(broker: BrokerProcess) -> None:
    make_topic(address(broker), "ledger", 2)
    producer = Producer({"bootstrap.servers": address(broker), "transactional.id": "ledger"})
    producer.init_transactions(PATIENCE_S)
    for number in range(10):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce("ledger", str(number), partition=partition)
        producer.flush(PATIENCE_S)
        if number % 3 == 0:
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    wanted = [str(number) for number in range(10) if number % 3]
    for partition in (0, 1):
        found = read_partition(address(broker), "ledger", partition)
        assert [value for _, value in found] == wanted


def test_kafka_python_and_aiokafka_read_each_other(broker: BrokerProcess) -> None:
    producer = KafkaProducer(bootstrap_servers=address(broker), acks="all")
    for number in range(10):
        producer.send("both", f"python {number}".encode())
    producer.flush(PATIENCE_S)
    producer.close()

    async def talk() -> list[bytes]:
        writer = AIOKafkaProducer(bootstrap_servers=address(broker), enable_idempotence=True)
        await writer.start()
        for number in range(10):
            await writer.send_and_wait("both", f"aio {number}".encode())
        await writer.stop()
        reader = AIOKafkaConsumer(
            "both", bootstrap_servers=address(broker), group_id="aio", auto_offset_reset="earliest"
        )
        await reader.start()
        found = [(await reader.getone()).value for _ in range(20)]
        await reader.stop()
        return found

    found = asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))
    consumer = KafkaConsumer(
        "both",
        bootstrap_servers=address(broker),
        auto_offset_reset="earliest",
        consumer_timeout_ms=PATIENCE_S * 1000,
    )
    assert [next(consumer).value for _ in range(20)] == found
    consumer.close()


def test_what_mqtt_published_into_a_capture_is_read_by_kafka(broker: BrokerProcess) -> None:
    admin = f"{broker.admin.host}:{broker.admin.port}"
    quantum("streams", "create", "telemetry", "--capture", "sensors/#", "--admin", admin)
    for number in range(5):
        words = ("pub", f"sensors/{number}", f"warm {number}", "--qos", "1")
        quantum(*words, "--port", str(broker.mqtt))
    found: list[tuple[str, str]] = []
    options = {"bootstrap.servers": address(broker), "group.id": "capture"}
    consumer = Consumer(options | {"auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("telemetry", p, 0) for p in range(2)])

    def has_all() -> bool:
        message: Any = consumer.poll(0.5)
        if message is not None and message.error() is None:
            headers = dict(message.headers())
            found.append((headers["mqtt.topic"].decode(), message.value().decode()))
            assert message.key() == headers["mqtt.topic"]
        return len(found) == 5

    until(has_all, "all five are read")
    consumer.close()
    assert sorted(found) == [(f"sensors/{number}", f"warm {number}") for number in range(5)]


def quantum(*arguments: str) -> str:
    command = [sys.executable, "-m", "quantum.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bad_requests_end_their_connection_alone(broker: BrokerProcess) -> None:
    """A thousand damaged requests of stock clients: a neighbour goes on, nothing is contained."""
    seed = 20
    print(f"seed {seed}")
    rng = random.Random(seed)
    real = golden.requests()
    make_topic(address(broker), "neighbour", 1)
    for number in range(1_000):
        body = mutated(rng, rng.choice(real))
        length = len(body) if rng.random() < 0.95 else rng.getrandbits(31)
        with socket.create_connection(("127.0.0.1", broker.kafka), timeout=10) as peer:
            peer.sendall((length & 0x7FFFFFFF).to_bytes(4, "big") + body)
        if number % 100 == 0:
            produce_all(address(broker), "neighbour", [str(number)])
    found = [value for _, value in read_partition(address(broker), "neighbour", 0)]
    assert found == [str(number) for number in range(0, 1_000, 100)]
    assert "an error of our own" not in broker.last_words()


def test_the_commands_do_what_kafka_s_scripts_do(broker: BrokerProcess) -> None:
    at = ("--broker", address(broker), "--json")
    made = quantum("kafka", "topics", "--create", "ordered", "--partitions", "2", *at)
    assert {"topic": "ordered", "partitions": 2} in json.loads(made)
    told = json.loads(quantum("kafka", "produce", "ordered", "a", "b", "c", *at))
    assert told == {"topic": "ordered", "partition": 0, "records": 3}
    lines = quantum("kafka", "consume", "ordered", *at).splitlines()
    rows = [(row["offset"], row["value"]) for row in map(json.loads, lines)]
    assert rows == [(0, "a"), (1, "b"), (2, "c")]
    described = json.loads(quantum("kafka", "describe", "ordered", *at))
    assert [row["end"] for row in described["partitions"]] == [3, 0]
    options = {"bootstrap.servers": address(broker), "group.id": "late"}
    consumer = Consumer(options)
    consumer.commit(offsets=[TopicPartition("ordered", 0, 1)], asynchronous=False)
    consumer.close()
    (behind,) = json.loads(quantum("kafka", "lag", "late", *at))
    assert (behind["committed"], behind["end"], behind["lag"]) == (1, 3, 2)
    assert "late" in {row["group"] for row in json.loads(quantum("kafka", "groups", *at))}
    assert isinstance(json.loads(quantum("kafka", "transactions", *at)), list)
    left = json.loads(quantum("kafka", "topics", "--delete", "ordered", *at))
    assert "ordered" not in {row["topic"] for row in left}


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("describe nosuch", Exit.NOT_FOUND, "no such topic or partition"),
        ("consume nosuch", Exit.NOT_FOUND, "no such topic or partition"),
        ("lag nosuch", Exit.NOT_FOUND, "no such group"),
        ("groups --delete nosuch", Exit.NOT_FOUND, "no such group"),
        ("topics --create there", Exit.FAILED, "a topic of that name already"),
        ("topics --broker 127.0.0.1:1", Exit.UNREACHABLE, "no Kafka at 127.0.0.1:1"),
        ("topics --broker there", Exit.USAGE, "--broker is HOST:PORT"),
    ],
)
def test_what_a_command_cannot_do_is_one_sentence(
    broker: BrokerProcess, line: str, code: Exit, says: str
) -> None:
    make_topic(address(broker), "there", 1)
    command = [sys.executable, "-m", "quantum.cli", "kafka", *line.split()]
    if "--broker" not in command:
        command += ["--broker", address(broker)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert says in done.stderr and done.stderr.count("\n") == 1
