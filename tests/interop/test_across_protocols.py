"""Each kind of message through every way between MQTT, Kafka and AMQP, field by field.

What Kafka brought is not published to topics of MQTT: that way is not built. The others are here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from proton import Message, symbol

from tests.interop.broker_process import BrokerProcess
from tests.interop.kafka_clients import PATIENCE_S, make_topic
from tests.interop.mqtt_tap import tapped
from tests.interop.stock_proton import connected, send_all
from tests.interop.test_amqp_streams import From
from tests.interop.test_amqp_topics import NullBody, take
from tests.interop.test_kafka_node import quantum

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours
KEY, TOPIC = symbol("x-opt-partition-key"), symbol("x-opt-topic")
RETAIN, FORMAT = symbol("x-opt-retain"), symbol("x-opt-payload-format")
OFFSET, PARTITION = symbol("x-stream-offset"), symbol("x-opt-stream-partition")
MADE, ENDS = 1_700_000_000, 4_000_000_000
"""When a message was made, and when it expires, in seconds."""
FOR_EVER = {"retention.ms": "-1"}  # what was made then would not be kept


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("across") / "var"
    with BrokerProcess(data, partitions=1) as process:
        admin = f"{process.admin.host}:{process.admin.port}"
        for name in ("m2k", "m2a", "a2m"):
            quantum("streams", "create", name, "--capture", f"{name}/#", "--admin", admin)
        yield process


# What is sent: a message with every field, one without any, and one that deletes.


def publish_all(broker: BrokerProcess, topic: str) -> None:
    with tapped(broker.mqtt, "publisher") as mqtt:
        mqtt.publish(
            topic,
            b"warm",
            ContentType="text/plain",
            CorrelationData=b"\x01\x02",
            ResponseTopic="answers/here",
            MessageExpiryInterval=1_000_000,
            PayloadFormatIndicator=1,
            UserProperty=[("colour", "red"), ("colour", "blue"), ("key", "k1")],
        )
        mqtt.publish(topic, b"")
        mqtt.publish(topic, b"", retain=True)


def amqp_messages() -> list[Message]:
    return [
        Message(
            subject="greeting",
            reply_to="/topics/answers/here",
            correlation_id=b"\x01\x02",
            content_type="text/plain",
            creation_time=MADE,
            expiry_time=ENDS,
            properties={"colour": "blue", "count": 3, "is": True},
            annotations={KEY: "k1"},
            body=b"warm",
            inferred=True,
        ),
        Message(body=b"", inferred=True),
        NullBody(),
        Message(body="text"),
        Message(body={"a": [1, 2]}),
    ]


def produce(broker: BrokerProcess, topic: str) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{broker.kafka}"})
    headers: list[tuple[str, str | bytes | None]] = [
        ("colour", b"red"),
        ("colour", b"blue"),
        ("raw", b"\xff"),
        ("content-type", b"text/plain"),
        ("correlation-id", b"\x01\x02"),
        ("reply-to", b"/topics/answers/here"),
        ("expires-at", b"%d" % (1000 * ENDS)),
    ]
    producer.produce(topic, b"warm", key=b"k1", headers=headers, timestamp=1000 * MADE)
    producer.produce(topic, b"", timestamp=1000 * MADE)
    producer.produce(topic, None, key=b"k1", timestamp=1000 * MADE)
    assert producer.flush(PATIENCE_S) == 0


# How it is read.


def consume(broker: BrokerProcess, topic: str, wanted: int) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": f"127.0.0.1:{broker.kafka}", "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < wanted and time.monotonic() < deadline:
        found += consumer.consume(wanted - len(found), 1.0)
    consumer.close()
    assert len(found) == wanted
    return found


def receive(broker: BrokerProcess, stream: str, wanted: int) -> list[Any]:
    with connected(broker.amqp) as connection:
        address = f"/streams/{stream}"
        return take(connection.create_receiver(address, credit=10, options=From("first")), wanted)


def test_from_mqtt_to_kafka(broker: BrokerProcess) -> None:
    began_ms = 1000 * time.time()
    publish_all(broker, "m2k/x")
    full, empty, gone = consume(broker, "m2k", 3)
    assert (full.value(), full.key()) == (b"warm", b"k1")
    headers = full.headers() or []
    assert [each for each in headers if each[0] == "colour"] == [
        ("colour", b"red"),
        ("colour", b"blue"),
    ]
    said = dict(headers)
    assert (said["mqtt.topic"], said["content-type"]) == (b"m2k/x", b"text/plain")
    assert (said["correlation-id"], said["reply-to"]) == (b"\x01\x02", b"answers/here")
    assert 0 < int(said["expires-at"]) - began_ms - 1e9 < 1e6
    assert began_ms - 1e3 < full.timestamp()[1] < began_ms + 1e6
    assert (empty.value() or b"", empty.key(), dict(empty.headers())) == (
        b"",
        b"m2k/x",
        {"mqtt.topic": b"m2k/x"},
    )
    assert (gone.value(), gone.key()) == (None, b"m2k/x")


@pytest.mark.parametrize("way", ["topic", "stream"])
def test_from_mqtt_to_amqp(broker: BrokerProcess, way: str) -> None:
    with connected(broker.amqp) as connection:
        topic = f"m2a/{way}"
        address = f"/topics/{topic}" if way == "topic" else "/streams/m2a"
        receiver = connection.create_receiver(address, credit=10, name=way)
        began = time.time()
        publish_all(broker, topic)
        full, empty, gone = take(receiver, 3)
    assert (bytes(full.body), full.durable, full.group_id) == (b"warm", True, "k1")
    assert (full.address, full.subject) == (f"/topics/{topic}", topic)
    assert (full.content_type, full.correlation_id) == ("text/plain", b"\x01\x02")
    assert full.reply_to == "/topics/answers/here"
    assert full.properties == {"colour": "blue", "key": "k1"}
    assert 0 < full.expiry_time - began - 1e6 < 1e3
    assert full.annotations[KEY] == "k1"
    assert (bytes(empty.body), empty.properties, empty.group_id) == (b"", None, topic)
    assert gone.body is None
    if way == "topic":
        assert full.annotations == {KEY: "k1", TOPIC: topic, FORMAT: 1}
        assert gone.annotations[RETAIN] is True
    else:
        assert set(full.annotations) == {KEY, OFFSET, PARTITION}
        assert began - 1 < full.creation_time < began + 1e3


def test_from_amqp_to_mqtt_and_back_by_a_capture(broker: BrokerProcess) -> None:
    sent = amqp_messages()
    with connected(broker.amqp) as connection, tapped(broker.mqtt) as mqtt:
        mqtt.subscribe("a2m/#")
        send_all(connection, "/topics/a2m/x", *sent)
        full, empty, gone, text, mapped = mqtt.take(len(sent))
        again = receive(broker, "a2m", len(sent))
    said = full.properties
    assert (full.topic, full.payload, full.qos, full.retain) == ("a2m/x", b"warm", 2, False)
    assert (said.ContentType, said.CorrelationData) == ("text/plain", b"\x01\x02")
    assert said.ResponseTopic == "answers/here"
    assert abs(said.MessageExpiryInterval + time.time() - ENDS) < 1e3
    user = dict(said.UserProperty)
    assert user.pop("amqp.head")
    assert user == {
        "colour": "blue",
        "count": "3",
        "is": "true",
        "key": "k1",
        "subject": "greeting",
    }
    assert (empty.payload, empty.retain) == (b"", False)
    assert (gone.payload, gone.retain) == (b"", True)
    assert (text.payload, text.properties.PayloadFormatIndicator) == (b"text", 1)
    assert mapped.properties.ContentType == "application/vnd.amqp.sections"
    _check_amqp(again)


def _check_amqp(found: list[Any]) -> None:
    """Compare what AMQP reads with what AMQP sent, whatever it went through."""
    full, empty, gone, text, mapped = found
    assert (bytes(full.body), full.subject, full.reply_to) == (
        b"warm",
        "greeting",
        "/topics/answers/here",
    )
    assert (full.correlation_id, full.content_type) == (b"\x01\x02", "text/plain")
    assert (full.creation_time, full.expiry_time) == (MADE, ENDS)
    assert full.properties == {"colour": "blue", "count": 3, "is": True}
    assert full.annotations[KEY] == "k1"
    assert (bytes(empty.body), gone.body, text.body, mapped.body) == (
        b"",
        None,
        "text",
        {"a": [1, 2]},
    )


def test_from_amqp_to_kafka_and_back(broker: BrokerProcess) -> None:
    make_topic(f"127.0.0.1:{broker.kafka}", "a2k", 1, **FOR_EVER)
    sent = amqp_messages()
    with connected(broker.amqp) as connection:
        send_all(connection, "/streams/a2k", *sent)
    full, empty, gone, text, mapped = consume(broker, "a2k", len(sent))
    assert (full.value(), full.key(), full.timestamp()[1]) == (b"warm", b"k1", 1000 * MADE)
    said = dict(full.headers())
    assert said.pop("amqp.head")
    assert said == {
        "colour": b"blue",
        "count": b"3",
        "is": b"true",
        "subject": b"greeting",
        "content-type": b"text/plain",
        "correlation-id": b"\x01\x02",
        "reply-to": b"/topics/answers/here",
        "expires-at": b"%d" % (1000 * ENDS),
    }
    assert (empty.value() or b"", gone.value(), text.value()) == (b"", None, b"text")
    assert dict(mapped.headers())["content-type"] == b"application/vnd.amqp.sections"
    _check_amqp(receive(broker, "a2k", len(sent)))


def test_from_kafka_to_amqp(broker: BrokerProcess) -> None:
    make_topic(f"127.0.0.1:{broker.kafka}", "k2a", 1, **FOR_EVER)
    produce(broker, "k2a")
    full, empty, gone = receive(broker, "k2a", 3)
    assert (bytes(full.body), full.group_id, full.durable) == (b"warm", "k1", True)
    assert (full.address, full.reply_to) == ("/streams/k2a", "/topics/answers/here")
    assert (full.content_type, full.correlation_id) == ("text/plain", b"\x01\x02")
    assert (full.creation_time, full.expiry_time) == (MADE, ENDS)
    assert full.properties == {"colour": "blue", "raw": b"\xff"}
    assert full.annotations == {KEY: "k1", OFFSET: 0, PARTITION: 0}
    assert (bytes(empty.body), empty.properties) == (b"", None)
    assert (gone.body, gone.annotations[KEY]) == (None, "k1")
