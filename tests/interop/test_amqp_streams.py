"""Streams by address for a stock AMQP client: what Kafka and MQTT brought, from any place on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from proton import Described, Message, symbol, timestamp, ulong
from proton.reactor import AtMostOnce, Filter, Selector
from proton.utils import SendException

from tests.interop.broker_process import BrokerProcess
from tests.interop.kafka_clients import PATIENCE_S, make_topic, produce_all, read_partition, until
from tests.interop.stock_proton import DrainMode, LinkDetached, connected, is_empty, send_all
from tests.interop.test_access_and_quotas import done
from tests.interop.test_kafka_node import quantum

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours
WAIT = 30.0
OFFSET, PARTITION = symbol("x-stream-offset"), symbol("x-opt-stream-partition")
KEY = symbol("x-opt-partition-key")
PARTITIONS = 3
_NUMBERS = count(1)


class From(Filter):
    """Begin at a place, as RabbitMQ's clients say it."""

    def __init__(self, place: Any) -> None:
        descriptor = symbol("rabbitmq:stream-offset-spec")
        super().__init__({symbol("offset"): Described(descriptor, place)})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("amqp-streams") / "var"
    with BrokerProcess(data, partitions=PARTITIONS) as process:
        yield process


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[Any]:
    with connected(broker.amqp) as found:
        yield found


def kafka(broker: BrokerProcess) -> str:
    return f"127.0.0.1:{broker.kafka}"


def take(receiver: Any, wanted: int) -> list[Any]:
    found = []
    for _ in range(wanted):
        found.append(receiver.receive(timeout=WAIT))
        receiver.accept()
    return found


def bodies(messages: list[Any]) -> list[str]:
    return [bytes(each.body).decode() for each in messages]


def reader(connection: Any, address: str, place: Any, *more: Any, credit: int = 100) -> Any:
    options = [From(place), *more]
    name = f"reader {next(_NUMBERS)}"  # one that comes again would be the same link
    return connection.create_receiver(address, credit=credit, name=name, options=options)


def test_what_kafka_brought_is_read_with_all_its_fields(
    broker: BrokerProcess, connection: Any
) -> None:
    make_topic(kafka(broker), "fields", 1)
    producer = Producer({"bootstrap.servers": kafka(broker)})
    headers: list[tuple[str, str | bytes | None]] = [
        ("colour", b"red"),
        ("colour", b"blue"),
        ("raw", b"\xff\x00"),
        ("content-type", b"text/plain"),
        ("correlation-id", b"\x01\x02"),
        ("reply-to", b"/queues/answers"),
        ("expires-at", b"4000000000000"),
    ]
    producer.produce("fields", b"warm", key=b"k1", headers=headers, timestamp=1_700_000_000_000)
    producer.produce("fields", None, key=b"\xff", timestamp=1_700_000_000_500)
    assert producer.flush(PATIENCE_S) == 0
    first, second = take(reader(connection, "/streams/fields", "first"), 2)
    assert (bytes(first.body), first.annotations[KEY], first.group_id) == (b"warm", "k1", "k1")
    assert (first.annotations[OFFSET], first.annotations[PARTITION]) == (0, 0)
    assert (first.address, first.reply_to) == ("/streams/fields", "/queues/answers")
    assert (first.content_type, first.correlation_id) == ("text/plain", b"\x01\x02")
    assert (first.creation_time, first.expiry_time) == (1_700_000_000, 4_000_000_000)
    assert first.properties == {"colour": "blue", "raw": b"\xff\x00"}
    assert first.durable
    assert (second.body, second.annotations[KEY], second.annotations[OFFSET]) == (None, b"\xff", 1)


def test_a_receiver_begins_where_it_asks_to(broker: BrokerProcess, connection: Any) -> None:
    make_topic(kafka(broker), "places", 1)
    producer = Producer({"bootstrap.servers": kafka(broker), "compression.type": "zstd"})
    for number in range(200):
        producer.produce("places", f"{number}", timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(PATIENCE_S) == 0
    wanted = [f"{number}" for number in range(200)]
    assert bodies(take(reader(connection, "/streams/places", "first"), 200)) == wanted
    assert bodies(take(reader(connection, "/streams/places/0", ulong(150)), 50)) == wanted[150:]
    assert bodies(take(reader(connection, "/streams/places", "last"), 1)) == ["199"]
    at = timestamp(1_700_000_000_000 + 120_500)
    assert bodies(take(reader(connection, "/streams/places", at), 79)) == wanted[121:]
    later = reader(connection, "/streams/places", timestamp(4_000_000_000_000))
    plain = connection.create_receiver("/streams/places", credit=10)
    ahead = reader(connection, "/streams/places", ulong(202))
    assert is_empty(plain)
    produce_all(kafka(broker), "places", ["200", "201", "202"])
    assert bodies(take(plain, 3)) == ["200", "201", "202"]
    assert bodies(take(later, 3)) == ["200", "201", "202"]
    assert bodies(take(ahead, 1)) == ["202"]


def test_nothing_is_taken_and_credit_is_kept_to(broker: BrokerProcess, connection: Any) -> None:
    make_topic(kafka(broker), "looked-at", 1)
    produce_all(kafka(broker), "looked-at", [f"{number}" for number in range(10)])
    few = reader(connection, "/streams/looked-at", "first", credit=3)
    assert [few.receive(timeout=WAIT).annotations[OFFSET] for _ in range(3)] == [0, 1, 2]
    assert not few.fetcher.has_message
    for word in ("accept", "reject", "release"):
        getattr(few, word)()
    again = reader(connection, "/streams/looked-at", "first", AtMostOnce(), credit=10)
    assert [again.receive(timeout=WAIT).annotations[OFFSET] for _ in range(10)] == list(range(10))


def test_who_drains_hears_that_there_is_no_more(broker: BrokerProcess, connection: Any) -> None:
    make_topic(kafka(broker), "drained", 2)
    produce_all(kafka(broker), "drained", ["a", "b", "c", "d"])
    receiver = reader(connection, "/streams/drained", "first", DrainMode(), credit=50)
    assert sorted(bodies(take(receiver, 4))) == ["a", "b", "c", "d"]
    connection.wait(lambda: receiver.link.credit == 0, timeout=WAIT)


def test_what_a_transaction_took_back_is_not_given(broker: BrokerProcess, connection: Any) -> None:
    make_topic(kafka(broker), "whole", 1)
    producer = Producer({"bootstrap.servers": kafka(broker), "transactional.id": "for-amqp"})
    producer.init_transactions(PATIENCE_S)
    receiver = reader(connection, "/streams/whole", "first", credit=50)
    for number, is_kept in enumerate((True, False, True)):
        producer.begin_transaction()
        for part in ("a", "b"):
            producer.produce("whole", f"{number}{part}")
        producer.flush(PATIENCE_S)
        if is_kept:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    assert bodies(take(receiver, 4)) == ["0a", "0b", "2a", "2b"]
    producer.begin_transaction()
    producer.produce("whole", "undecided")
    producer.flush(PATIENCE_S)
    assert is_empty(receiver)
    producer.commit_transaction(PATIENCE_S)
    assert bodies(take(receiver, 1)) == ["undecided"]


def test_a_selector_chooses_and_the_attach_says_what_is_in_force(
    broker: BrokerProcess, connection: Any
) -> None:
    make_topic(kafka(broker), "selected", 1)
    producer = Producer({"bootstrap.servers": kafka(broker)})
    for number in range(30):
        colour = b"red" if number % 3 else b"blue"
        producer.produce("selected", f"{number}", headers=[("colour", colour)])
    assert producer.flush(PATIENCE_S) == 0
    blue = Selector("colour = 'blue'").filter_set
    no_local = {symbol("no"): Described(symbol("apache.org:no-local-filter:list"), [])}
    asked = Filter({**From("first").filter_set, **blue, **no_local})
    receiver = connection.create_receiver("/streams/selected", credit=50, options=asked)
    assert bodies(take(receiver, 10)) == [f"{number}" for number in range(0, 30, 3)]
    assert is_empty(receiver)
    source = receiver.link.remote_source
    source.filter.rewind()
    source.filter.next()
    assert set(source.filter.get_dict()) == {symbol("offset"), symbol("selector")}
    assert source.distribution_mode == source.DIST_MODE_COPY


def test_what_mqtt_published_is_read_from_all_partitions(
    broker: BrokerProcess, connection: Any
) -> None:
    admin = f"{broker.admin.host}:{broker.admin.port}"
    quantum("streams", "create", "telemetry", "--capture", "sensors/#", "--admin", admin)
    receiver = connection.create_receiver("/streams/telemetry", credit=100)
    for number in range(6):
        words = ("pub", f"sensors/{number}", f"warm {number}", "--qos", "1")
        quantum(*words, "--port", str(broker.mqtt))
    found = take(receiver, 6)
    assert {each.subject: bytes(each.body) for each in found} == {
        f"sensors/{number}": f"warm {number}".encode() for number in range(6)
    }
    assert {each.address for each in found} == {f"/topics/sensors/{n}" for n in range(6)}
    alone = []
    for partition in range(PARTITIONS):
        here = sum(each.annotations[PARTITION] == partition for each in found)
        one = reader(connection, f"/streams/telemetry/{partition}", ulong(0))
        alone += take(one, here)
        assert is_empty(one, 0.2)
    assert sorted(each.subject for each in alone) == sorted(each.subject for each in found)
    with pytest.raises(LinkDetached, match="attach to /streams/telemetry/0"):
        reader(connection, "/streams/telemetry", ulong(0))


def test_much_is_read_from_the_disk_while_others_are_served(
    broker: BrokerProcess, connection: Any
) -> None:
    make_topic(kafka(broker), "much", 1)
    filler = "x" * 20_000
    produce_all(kafka(broker), "much", [f"{number} {filler}" for number in range(1_000)])
    slow = reader(connection, "/streams/much", "first", credit=1)
    quick = reader(connection, "/streams/much", "first")
    found = [each.split(" ")[0] for each in bodies(take(quick, 1_000))]
    assert found == [f"{number}" for number in range(1_000)]
    assert bodies([slow.receive(timeout=WAIT)])[0].startswith("0 ")


@pytest.mark.parametrize(
    ("address", "start", "why"),
    [
        ("/streams/nothing", "first", "amqp:not-found.*no stream of this name"),
        ("/streams/refusing/1", "first", "amqp:not-found.*no partition 1: there are 1"),
        ("/streams/refusing/x", "first", "amqp:not-found"),
        ("/streams/", "first", "amqp:not-found"),
        ("/streams/refusing", "yesterday", "amqp:invalid-field.*first, last, next"),
        ("/streams/refusing", -1, "amqp:invalid-field"),
        ("/streams/refusing", True, "amqp:invalid-field"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(
    broker: BrokerProcess, connection: Any, address: str, start: Any, why: str
) -> None:
    make_topic(kafka(broker), "refusing", 1)
    with pytest.raises(LinkDetached, match=why):
        reader(connection, address, start)


def test_readers_of_a_stream_hear_that_it_is_gone(broker: BrokerProcess, connection: Any) -> None:
    admin = make_topic(kafka(broker), "short-lived", 1)
    produce_all(kafka(broker), "short-lived", ["a"])
    receiver = reader(connection, "/streams/short-lived", "first")
    assert bodies(take(receiver, 1)) == ["a"]
    admin.delete_topics(["short-lived"])["short-lived"].result(PATIENCE_S)
    with pytest.raises(LinkDetached, match="amqp:resource-deleted"):
        receiver.receive(timeout=WAIT)


def test_an_appended_message_is_read_as_it_was_sent(broker: BrokerProcess, connection: Any) -> None:
    make_topic(kafka(broker), "round", 1)
    sent = Message(
        id="one",
        subject="greeting",
        address="/streams/round",
        reply_to="/queues/answers",
        correlation_id=7,
        content_type="text/plain",
        priority=9,
        properties={"colour": "blue", "count": 3, "is": True, "nothing": None},
        annotations={symbol("x-opt-mine"): "kept"},
        body={"a": [1, 2, 3], "b": "text"},
    )
    more = [Message(body=b"data"), Message(body=[1, "two"]), Message(body="x")]
    send_all(connection, "/streams/round", sent, *more)
    first, *rest = take(reader(connection, "/streams/round", "first"), 4)
    assert (first.id, first.subject, first.address) == ("one", "greeting", "/streams/round")
    assert (first.reply_to, first.correlation_id) == ("/queues/answers", 7)
    assert (first.content_type, first.priority) == ("text/plain", 9)
    assert first.properties == sent.properties
    assert first.annotations == {symbol("x-opt-mine"): "kept", OFFSET: 0, PARTITION: 0}
    assert first.body == sent.body
    assert [each.body for each in rest] == [each.body for each in more]
    assert [each.annotations[OFFSET] for each in rest] == [1, 2, 3]


def test_kafka_reads_what_amqp_appended(broker: BrokerProcess, connection: Any) -> None:
    make_topic(kafka(broker), "outward", 1)
    sent = Message(
        subject="greeting",
        reply_to="/queues/answers",
        correlation_id="c1",
        content_type="text/plain",
        creation_time=1_700_000_000,
        expiry_time=4_000_000_000,
        properties={"colour": "blue", "count": 3, "is": True, "nothing": None},
        annotations={symbol("x-opt-partition-key"): "k1"},
        body=b"warm",
    )
    send_all(connection, "/streams/outward", sent, Message(body="text", group_id="g"), [1])
    consumer = Consumer({"bootstrap.servers": kafka(broker), "group.id": "outward"})
    consumer.assign([TopicPartition("outward", 0, 0)])
    first, second, third = consumer.consume(3, PATIENCE_S)
    consumer.close()
    assert (first.value(), first.key(), first.timestamp()[1]) == (b"warm", b"k1", 1_700_000_000_000)
    headers = dict(first.headers() or [])
    assert headers.pop("amqp.head")
    assert headers == {
        "amqp.body": b"binary",
        "colour": b"blue",
        "count": b"3",
        "is": b"true",
        "nothing": None,
        "subject": b"greeting",
        "reply-to": b"/queues/answers",
        "correlation-id": b"c1",
        "content-type": b"text/plain",
        "expires-at": b"4000000000000",
    }
    assert (second.value(), second.key()) == (b"text", b"g")
    assert dict(third.headers() or [])["content-type"] == b"application/vnd.amqp.sections"


def test_a_key_chooses_the_partition_that_apache_s_clients_choose(
    broker: BrokerProcess, connection: Any
) -> None:
    make_topic(kafka(broker), "keyed", 5)
    keys = [f"key-{number}" for number in range(20)]
    for key in keys:
        note = {symbol("x-opt-partition-key"): key}
        send_all(connection, "/streams/keyed", Message(body=key.encode(), annotations=note))
    produce_all(kafka(broker), "keyed", keys, partitioner="murmur2_random")
    for partition in range(5):
        found = [value for _, value in read_partition(kafka(broker), "keyed", partition)]
        half = len(found) // 2
        assert found[:half] == found[half:]
    send_all(connection, "/streams/keyed/4", Message(body=b"there"))
    assert read_partition(kafka(broker), "keyed", 4)[-1][1] == "there"


def test_senders_without_keys_keep_their_order(broker: BrokerProcess, connection: Any) -> None:
    make_topic(kafka(broker), "ordered", 4)
    sender = connection.create_sender("/streams/ordered", options=AtMostOnce())
    for number in range(2_000):
        sender.send(Message(body=f"{number}".encode()))
    found = take(reader(connection, "/streams/ordered", "first"), 2_000)
    assert bodies(found) == [f"{number}" for number in range(2_000)]
    assert len({each.annotations[PARTITION] for each in found}) == 1


def test_what_was_accepted_outlives_a_kill(broker: BrokerProcess) -> None:
    make_topic(kafka(broker), "lasting", 1)
    with connected(broker.amqp) as connection:
        send_all(connection, "/streams/lasting", *range(100))
    broker.kill()
    broker.start()
    with connected(broker.amqp) as connection:
        send_all(connection, "/streams/lasting", "after")
        found = [each.body for each in take(reader(connection, "/streams/lasting", "first"), 101)]
    assert found == [*range(100), "after"]


def test_what_cannot_be_written_is_refused_with_a_reason(
    broker: BrokerProcess, connection: Any
) -> None:
    admin = f"{broker.admin.host}:{broker.admin.port}"
    quantum("streams", "create", "captured", "--capture", "captured/#", "--admin", admin)
    topics = make_topic(kafka(broker), "narrow", 1, **{"max.message.bytes": "1000"})
    for address, why in (
        ("/streams/nothing", "amqp:not-found"),
        ("/streams/narrow/1", "amqp:not-found.*there are 1"),
        ("/streams/captured", "amqp:not-allowed.*what MQTT publishes"),
    ):
        with pytest.raises(LinkDetached, match=why):
            connection.create_sender(address)
    with pytest.raises(LinkDetached, match="amqp:link:message-size-exceeded"):
        connection.create_sender("/streams/narrow", name="large").send(Message(body=b"x" * 2_000))
    sender = connection.create_sender("/streams/narrow", name="small")
    sender.send(Message(body=b"x"))
    topics.delete_topics(["narrow"])["narrow"].result(PATIENCE_S)
    with pytest.raises((LinkDetached, SendException)):
        sender.send(Message(body=b"x"), timeout=WAIT)


def test_the_tenant_s_rules_say_who_reads_and_who_writes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "var", partitions=1) as ruled:
        for name in ("readable", "writable"):
            make_topic(kafka(ruled), name, 1)
        produce_all(kafka(ruled), "readable", ["a"])
        rules = [
            {"effect": "Allow", "action": "Consume", "resource": "Stream", "name": "readable"},
            {"effect": "Allow", "action": "Produce", "resource": "Stream", "name": "writable"},
        ]
        with connected(ruled.amqp) as connection:
            set_rules(ruled, rules)

            def is_refused() -> bool:
                try:
                    reader(connection, "/streams/writable", "first").close()
                except LinkDetached as detached:
                    return "amqp:unauthorized-access" in str(detached)
                return False

            until(is_refused, "the rules are in force")
            with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
                connection.create_sender("/streams/readable")
            send_all(connection, "/streams/writable", "x")
            receiver = reader(connection, "/streams/readable", "first")
            assert bodies(take(receiver, 1)) == ["a"]
            set_rules(ruled, rules[1:])
            with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
                receiver.receive(timeout=WAIT)


def set_rules(broker: BrokerProcess, rules: list[dict[str, str]]) -> None:
    done(broker, "admin", "tenants", "set-acls", "dev", "--rules", json.dumps(rules))
