"""Topics by address for a stock AMQP client: MQTT's subscribers and publishers are at the other end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from proton import Message, symbol
from proton.reactor import AtMostOnce, DurableSubscription, LinkOption, Selector

from tests.interop.broker_process import BrokerProcess
from tests.interop.mqtt_tap import MqttTap, tapped
from tests.interop.stock_proton import DrainMode, LinkDetached, connected, is_empty, send_all

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours
WAIT = 30.0
TOPIC, RETAIN = symbol("x-opt-topic"), symbol("x-opt-retain")
_NUMBERS = count(1)


class Capable(LinkOption):
    """Say what kind of node a terminus is."""

    def __init__(self, *capabilities: str) -> None:
        self._capabilities = capabilities

    def apply(self, link: Any) -> None:
        end = link.source if link.is_receiver else link.target
        end.capabilities.put_array(False, 0x11 and end.capabilities.SYMBOL)
        end.capabilities.enter()
        for each in self._capabilities:
            end.capabilities.put_symbol(symbol(each))
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
