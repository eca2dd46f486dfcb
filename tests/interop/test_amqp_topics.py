"""Topics by address for a stock AMQP client, with MQTT at the other end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from proton import Data, Described, Message, symbol
from proton.reactor import AtMostOnce, Filter, LinkOption, Selector

from tests.interop.broker_process import BrokerProcess
from tests.interop.kafka_clients import until
from tests.interop.mqtt_tap import MqttTap, tapped
from tests.interop.stock_proton import DrainMode, LinkDetached, connected, is_empty, send_all
from tests.interop.test_amqp_streams import set_rules

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours
WAIT = 30.0
TOPIC, RETAIN = symbol("x-opt-topic"), symbol("x-opt-retain")
_NUMBERS = count(1)


class NullBody(Message):
    """A message whose body is null: proton alone would send none at all."""

    def encode(self) -> bytes:
        return bytes(super().encode()) + b"\x00\x53\x77\x40"


class Capable(LinkOption):
    """Say what kind of node a terminus is."""

    def __init__(self, *capabilities: str) -> None:
        self._capabilities = capabilities

    def apply(self, link: Any) -> None:
        end = link.source if link.is_receiver else link.target
        end.capabilities.put_array(False, Data.SYMBOL)  # noqa: FBT003  # proton's own
        end.capabilities.enter()
        for each in self._capabilities:
            end.capabilities.put_symbol(each)
        end.capabilities.exit()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("amqp-topics") / "var"
    with BrokerProcess(data, partitions=3) as process:
        yield process


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[Any]:
    with connected(broker.amqp) as found:
        yield found


@pytest.fixture
def mqtt(broker: BrokerProcess) -> Iterator[MqttTap]:
    with tapped(broker.mqtt) as found:
        yield found


def receiver_on(
    connection: Any, address: str, *options: Any, credit: int = 100, **more: Any
) -> Any:
    name = more.pop("name", f"receiver {next(_NUMBERS)}")
    return connection.create_receiver(
        address, credit=credit, name=name, options=list(options), **more
    )


def take(receiver: Any, wanted: int) -> list[Any]:
    found = []
    for _ in range(wanted):
        found.append(receiver.receive(timeout=WAIT))
        receiver.accept()
    return found


def test_mqtt_subscribers_get_what_amqp_sends(mqtt: MqttTap, connection: Any) -> None:
    mqtt.subscribe("out/#")
    for number in range(20):
        send_all(connection, f"/topics/out/{number % 5}", Message(body=b"%d" % number))
    found = mqtt.take(20)
    assert sorted(int(each.payload) for each in found) == list(range(20))
    assert all(each.topic == f"out/{int(each.payload) % 5}" for each in found)
    assert {each.qos for each in found} == {2}


def test_amqp_receivers_get_what_mqtt_publishes(mqtt: MqttTap, connection: Any) -> None:
    receiver = receiver_on(connection, "/topics/in/+/news")
    for number in range(20):
        mqtt.publish(f"in/{number % 5}/news", b"%d" % number, qos=number % 3)
    found = take(receiver, 20)
    assert sorted(int(bytes(each.body)) for each in found) == list(range(20))
    assert {(each.address, each.subject) for each in found} == {
        (f"/topics/in/{number}/news", f"in/{number}/news") for number in range(5)
    }
    assert is_empty(receiver)


def test_mqtt_reads_every_field_that_amqp_sent(mqtt: MqttTap, connection: Any) -> None:
    mqtt.subscribe("fields/mqtt")
    sent = Message(
        subject="greeting",
        reply_to="/topics/answers/here",
        correlation_id="c1",
        content_type="text/plain",
        ttl=600.0,
        properties={"colour": "blue", "count": 3, "is": True, "nothing": None, "raw": b"\xff"},
        annotations={symbol("x-opt-partition-key"): "k1"},
        inferred=True,
        body=b"warm",
    )
    send_all(connection, "/topics/fields/mqtt", sent, Message(body="text"), Message(body=[1]))
    first, second, third = mqtt.take(3)
    said = dict(first.properties.UserProperty)
    assert said.pop("amqp.head")
    assert said == {
        "colour": "blue",
        "count": "3",
        "is": "true",
        "key": "k1",
        "subject": "greeting",
    }
    assert (first.payload, first.retain) == (b"warm", False)
    assert (first.properties.ContentType, first.properties.CorrelationData) == ("text/plain", b"c1")
    assert first.properties.ResponseTopic == "answers/here"
    assert 500 < first.properties.MessageExpiryInterval <= 600
    assert (second.payload, second.properties.PayloadFormatIndicator) == (b"text", 1)
    assert third.properties.ContentType == "application/vnd.amqp.sections"


def test_amqp_reads_every_field_that_mqtt_published(mqtt: MqttTap, connection: Any) -> None:
    receiver = receiver_on(connection, "/topics/fields/amqp")
    mqtt.publish(
        "fields/amqp",
        b"warm",
        ContentType="text/plain",
        CorrelationData=b"\x01\x02",
        ResponseTopic="answers/here",
        MessageExpiryInterval=600,
        PayloadFormatIndicator=1,
        UserProperty=[("colour", "red"), ("colour", "blue"), ("key", "k1")],
    )
    (found,) = take(receiver, 1)
    assert (bytes(found.body), found.durable, found.delivery_count) == (b"warm", True, 0)
    assert (found.address, found.subject) == ("/topics/fields/amqp", "fields/amqp")
    assert (found.content_type, found.correlation_id) == ("text/plain", b"\x01\x02")
    assert (found.reply_to, found.group_id) == ("/topics/answers/here", "k1")
    assert found.properties == {"colour": "blue", "key": "k1"}
    assert found.annotations == {
        TOPIC: "fields/amqp",
        symbol("x-opt-payload-format"): 1,
        symbol("x-opt-partition-key"): "k1",
    }
    assert 0 < found.expiry_time - time.time() <= 601


def test_amqp_reads_from_a_topic_what_amqp_sent(connection: Any) -> None:
    receiver = receiver_on(connection, "/topics/round/#")
    sent = Message(
        id="one",
        subject="greeting",
        reply_to="/queues/answers",
        correlation_id=7,
        content_type="text/plain",
        priority=9,
        properties={"colour": "blue", "count": 3, "is": True, "nothing": None},
        annotations={symbol("x-opt-mine"): "kept"},
        body={"a": [1, 2, 3], "b": "text"},
    )
    more = [Message(body=b"data"), Message(body=[1, "two"]), Message(body="x"), NullBody()]
    send_all(connection, "/topics/round/trip", sent, *more)
    first, *rest = take(receiver, 5)
    assert (first.id, first.subject, first.reply_to) == ("one", "greeting", "/queues/answers")
    assert (first.correlation_id, first.content_type, first.priority) == (7, "text/plain", 9)
    assert first.properties == sent.properties
    assert first.annotations == {symbol("x-opt-mine"): "kept", TOPIC: "round/trip"}
    assert [each.body for each in (first, *rest)] == [each.body for each in (sent, *more)]
    assert rest[-1].annotations == {TOPIC: "round/trip", RETAIN: True}


def test_a_retained_message_is_given_to_who_comes_later_and_deleted_by_a_null_body(
    mqtt: MqttTap, connection: Any
) -> None:
    send_all(connection, "/topics/kept/a", Message(body=b"old", annotations={RETAIN: True}))
    mqtt.publish("kept/b", b"new", retain=True)
    found = take(receiver_on(connection, "/topics/kept/+"), 2)
    assert sorted((each.subject or "", bytes(each.body)) for each in found) == [
        ("", b"old"),
        ("kept/b", b"new"),
    ]
    assert [each.annotations[RETAIN] for each in found] == [True, True]
    send_all(connection, "/topics/kept/b", NullBody())
    send_all(connection, "/topics/kept/a", NullBody())
    mqtt.subscribe("kept/#")
    later = receiver_on(connection, "/topics/kept/+")
    mqtt.publish("kept/c", b"last")
    assert [each.topic for each in mqtt.take(1)] == ["kept/c"]
    assert [each.subject for each in take(later, 1)] == ["kept/c"]


def test_a_bare_name_is_a_topic_if_its_capability_says_so(mqtt: MqttTap, connection: Any) -> None:
    mqtt.subscribe("bare")
    receiver = receiver_on(connection, "bare", Capable("topic"))
    other = receiver_on(connection, "topic://bare")
    sender = connection.create_sender("bare", options=Capable("topic"))
    sender.send(Message(body=b"x"), timeout=WAIT)
    assert [each.payload for each in mqtt.take(1)] == [b"x"]
    assert [bytes(each.body) for each in take(receiver, 1) + take(other, 1)] == [b"x", b"x"]


def test_what_a_receiver_gives_back_it_is_given_again(mqtt: MqttTap, connection: Any) -> None:
    receiver = receiver_on(connection, "/topics/again", credit=1)
    mqtt.publish("again", b"a")
    seen = []
    for has_failed in (False, True, None):
        found = receiver.receive(timeout=WAIT)
        seen.append((bytes(found.body), found.delivery_count))
        if has_failed is None:
            receiver.reject()
        else:
            receiver.fetcher.unsettled[0].local.failed = has_failed
            receiver.release(delivered=has_failed)
    assert seen == [(b"a", 0), (b"a", 0), (b"a", 1)]
    mqtt.publish("again", b"b")
    assert [bytes(each.body) for each in take(receiver, 1)] == [b"b"]


def test_a_receiver_with_little_credit_is_given_no_more_and_drains(
    mqtt: MqttTap, connection: Any
) -> None:
    receiver = receiver_on(connection, "/topics/little", DrainMode(), credit=0)
    for number in range(3):
        mqtt.publish("little", b"%d" % number)
    receiver.link.flow(2)
    assert [bytes(each.body) for each in take(receiver, 2)] == [b"0", b"1"]
    receiver.link.drain(10)
    assert [bytes(each.body) for each in take(receiver, 1)] == [b"2"]
    connection.wait(lambda: receiver.link.credit == 0, timeout=WAIT, msg="all credit comes back")


def test_selectors_and_no_local_hold(broker: BrokerProcess, connection: Any, mqtt: MqttTap) -> None:
    blue = receiver_on(connection, "/topics/chosen", Selector("colour = 'blue'"))
    no_local = {symbol("no"): Described(symbol("apache.org:no-local-filter:list"), [])}
    others = receiver_on(connection, "/topics/chosen", Filter(no_local))
    for colour in ("red", "blue"):
        send_all(connection, "/topics/chosen", Message(body=colour, properties={"colour": colour}))
    with connected(broker.amqp, container_id="another") as another:
        send_all(another, "/topics/chosen", Message(body="theirs"))
    mqtt.publish("chosen", b"mqtt", UserProperty=[("colour", "blue")])
    assert [_text(each) for each in take(blue, 2)] == ["blue", "mqtt"]
    assert [_text(each) for each in take(others, 2)] == ["theirs", "mqtt"]


def _text(message: Any) -> str:
    return message.body if isinstance(message.body, str) else bytes(message.body).decode()


def test_settled_messages_keep_their_order(mqtt: MqttTap, connection: Any) -> None:
    mqtt.subscribe("quick")
    receiver = receiver_on(connection, "/topics/quick", AtMostOnce(), credit=2_000)
    sender = connection.create_sender("/topics/quick", options=AtMostOnce())
    for number in range(2_000):
        sender.send(Message(body=b"%d" % number))
    found = [receiver.receive(timeout=WAIT) for _ in range(2_000)]
    assert [int(bytes(each.body)) for each in found] == list(range(2_000))
    assert [int(each.payload) for each in mqtt.take(2_000)] == list(range(2_000))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("/topics/a/+", "amqp:invalid-field.*a wildcard"),
        ("/topics/$SYS/broker", "amqp:not-allowed"),
        ("/topics/", "amqp:not-found"),
    ],
)
def test_what_is_no_topic_is_refused_to_senders(connection: Any, address: str, why: str) -> None:
    with pytest.raises(LinkDetached, match=why):
        connection.create_sender(address)


@pytest.mark.parametrize("address", ["/topics/a/#/b", "/topics/a+", "/topics/$share/g"])
def test_what_is_no_filter_is_refused_to_receivers(connection: Any, address: str) -> None:
    with pytest.raises(LinkDetached, match="amqp:invalid-field"):
        connection.create_receiver(address)


def test_the_tenant_s_rules_say_who_publishes_and_who_subscribes(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "var", partitions=1) as ruled:
        rules = [
            {"effect": "Allow", "action": "Subscribe", "filter": "from/%c/#"},
            {"effect": "Allow", "action": "Publish", "filter": "to/#"},
            {"effect": "Allow", "action": "Any", "filter": "from/me/#"},
        ]
        with connected(ruled.amqp, container_id="me") as connection:
            set_rules(ruled, rules[:2])

            def is_refused() -> bool:
                try:
                    receiver_on(connection, "/topics/to/x").close()
                except LinkDetached as detached:
                    return "amqp:unauthorized-access" in str(detached)
                return False

            until(is_refused, "the rules are in force")
            with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
                connection.create_sender("/topics/from/me/x")
            with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
                receiver_on(connection, "/topics/from/you/x")
            send_all(connection, "/topics/to/x", b"x")
            receiver = receiver_on(connection, "/topics/from/me/x")
            set_rules(ruled, rules)
            until(
                lambda: _may_send(connection, "/topics/from/me/x"), "the other rules are in force"
            )
            assert [bytes(each.body) for each in take(receiver, 1)] == [b"x"]
            set_rules(ruled, rules[1:2])
            with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
                receiver.receive(timeout=WAIT)


def _may_send(connection: Any, address: str) -> bool:
    try:
        send_all(connection, address, b"x")
    except LinkDetached:
        return False
    return True
