"""Durable and shared subscriptions of stock AMQP clients: what waits, and for whom."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from proton.reactor import DurableSubscription, LinkOption

from tests.interop.broker_process import BrokerProcess
from tests.interop.kafka_clients import until
from tests.interop.mqtt_tap import tapped
from tests.interop.stock_proton import LinkDetached, connected, is_empty
from tests.interop.test_amqp_topics import Capable, take

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours
WAIT = 30.0
_NUMBERS = count(1)


class Nowhere(LinkOption):
    """Ask for no source: only for what is known of the link's name."""

    def apply(self, link: Any) -> None:
        link.source.type = 0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("amqp-subscriptions") / "var"
    with BrokerProcess(data, partitions=3) as process:
        yield process


def subscribe(
    connection: Any, topics: str, name: str, *capabilities: str, credit: int = 100
) -> Any:
    options = [DurableSubscription(), Capable("topic", *capabilities)]
    return connection.create_receiver(topics, credit=credit, name=name, options=options)


def detach(connection: Any, receiver: Any) -> None:
    """Leave the link and not its subscription; what is answered behind it is heard after it."""
    receiver.link.detach()
    connection.create_sender("/topics/barrier").close()


def bodies(messages: list[Any]) -> list[str]:
    return [bytes(each.body).decode() for each in messages]


def publish(broker: BrokerProcess, topic: str, *payloads: str) -> None:
    with tapped(broker.mqtt) as mqtt:
        for each in payloads:
            mqtt.publish(topic, each.encode())


def test_a_durable_subscription_keeps_what_comes_while_its_receiver_is_away(
    broker: BrokerProcess,
) -> None:
    with connected(broker.amqp, container_id="home") as connection:
        receiver = subscribe(connection, "away/#", "sub")
        assert receiver.link.remote_source.durability == 2
        publish(broker, "away/x", "1", "2")
        assert bodies(take(receiver, 1)) == ["1"]
        assert bodies([receiver.receive(timeout=WAIT)]) == ["2"]  # and says nothing of it
    publish(broker, "away/x", "3", "4")
    broker.kill()
    broker.start()
    publish(broker, "away/y", "5")
    with connected(broker.amqp, container_id="home") as connection:
        found = take(subscribe(connection, "away/#", "sub"), 4)
        assert sorted(bodies(found)) == ["2", "3", "4", "5"]
        assert {bytes(each.body): each.delivery_count for each in found}[b"2"] == 1
    with connected(broker.amqp, container_id="another") as connection:
        assert is_empty(subscribe(connection, "away/#", "sub"))


def test_a_detach_keeps_a_subscription_and_a_close_ends_it(broker: BrokerProcess) -> None:
    with connected(broker.amqp, container_id="leaver") as connection:
        detach(connection, subscribe(connection, "left", "sub"))
        publish(broker, "left", "kept")
    with connected(broker.amqp, container_id="leaver") as connection:
        receiver = subscribe(connection, "left", "sub")
        assert bodies(take(receiver, 1)) == ["kept"]
        receiver.close()
        publish(broker, "left", "lost")
    with connected(broker.amqp, container_id="leaver") as connection:
        receiver = subscribe(connection, "left", "sub")
        publish(broker, "left", "new")
        assert bodies(take(receiver, 1)) == ["new"]
        receiver.close()


def test_a_subscription_is_found_by_its_name_and_ended_by_it(broker: BrokerProcess) -> None:
    with connected(broker.amqp, container_id="seeker") as connection:
        with pytest.raises(LinkDetached, match="amqp:not-found"):
            connection.create_receiver(None, name="never", options=Nowhere())
        detach(connection, subscribe(connection, "sought/+", "sought"))
        publish(broker, "sought/1", "x")
    with connected(broker.amqp, container_id="seeker") as connection:
        found = connection.create_receiver(None, name="sought", options=Nowhere())
        assert found.link.remote_source.address == "/topics/sought/+"
        found.close()

        def is_gone() -> bool:
            try:
                connection.create_receiver(None, name="sought", options=Nowhere()).close()
            except LinkDetached:
                return True
            return False

        until(is_gone, "the subscription is ended")


def test_another_filter_under_the_same_name_takes_the_place_of_the_first(
    broker: BrokerProcess,
) -> None:
    with connected(broker.amqp, container_id="changer") as connection:
        detach(connection, subscribe(connection, "before", "sub"))
    with connected(broker.amqp, container_id="changer") as connection:
        receiver = subscribe(connection, "after", "sub")
        publish(broker, "before", "old")
        publish(broker, "after", "new")
        assert bodies(take(receiver, 1)) == ["new"]
        assert is_empty(receiver)
        receiver.close()


def test_who_attaches_a_durable_subscription_again_takes_it(broker: BrokerProcess) -> None:
    with (
        connected(broker.amqp, container_id="thief") as one,
        connected(broker.amqp, container_id="thief") as two,
    ):
        first = subscribe(one, "stolen", "sub")
        second = subscribe(two, "stolen", "sub")
        with pytest.raises(LinkDetached, match="amqp:link:stolen"):
            first.receive(timeout=WAIT)
        publish(broker, "stolen", "x")
        assert bodies(take(second, 1)) == ["x"]
        second.close()


def test_receivers_that_share_have_each_message_once(broker: BrokerProcess) -> None:
    with (
        connected(broker.amqp, container_id="worker") as one,
        connected(broker.amqp, container_id="worker-2") as two,
    ):
        own = [
            one.create_receiver(
                "/topics/work", credit=50, name=f"pool|{n}", options=Capable("shared")
            )
            for n in (1, 2)
        ]
        everybody = [
            each.create_receiver(
                "/topics/work", credit=50, name=f"all|{n}", options=Capable("shared", "global")
            )
            for n, each in enumerate((one, two))
        ]
        publish(broker, "work", *(f"{n}" for n in range(40)))
        for pair in (own, everybody):
            halves = [take(each, 20) for each in pair]
            found = [body for half in halves for body in bodies(half)]
            assert sorted(found, key=int) == [f"{n}" for n in range(40)]


def test_mqtt_and_amqp_share_one_subscription(broker: BrokerProcess) -> None:
    with connected(broker.amqp) as connection, tapped(broker.mqtt) as mqtt:
        options = Capable("shared", "global")
        receiver = connection.create_receiver(
            "/topics/mixed", credit=50, name="crew", options=options
        )
        mqtt.subscribe("$share/crew/mixed")
        publish(broker, "mixed", *(f"{n}" for n in range(10)))
        found = bodies(take(receiver, 5)) + [each.payload.decode() for each in mqtt.take(5)]
        assert sorted(found, key=int) == [f"{n}" for n in range(10)]


def test_what_waited_for_receivers_that_left_is_given_to_who_comes(broker: BrokerProcess) -> None:
    """All receivers of a lasting shared subscription leave; another one has all that came."""
    for n in (1, 2):
        with connected(broker.amqp, container_id=f"left-{n}") as connection:
            subscribe(connection, "backlog/#", f"crew|{n}", "shared", "global")
    publish(broker, "backlog/x", *(f"{n}" for n in range(30)))
    broker.kill()
    broker.start()
    with connected(broker.amqp, container_id="fresh") as connection:
        receiver = subscribe(connection, "backlog/#", "crew|3", "shared", "global")
        found = bodies(take(receiver, 30))
        assert sorted(found, key=int) == [f"{n}" for n in range(30)]
        publish(broker, "backlog/y", "more")
        assert bodies(take(receiver, 1)) == ["more"]
        receiver.close()


def test_a_subscription_that_does_not_last_ends_with_its_link(broker: BrokerProcess) -> None:
    with connected(broker.amqp, container_id="passing") as connection:
        name = f"passing {next(_NUMBERS)}"
        receiver = connection.create_receiver("/topics/passing", credit=10, name=name)
        assert receiver.link.remote_source.durability == 0
        detach(connection, receiver)
        publish(broker, "passing", "missed")
    with connected(broker.amqp, container_id="passing") as connection:
        again = connection.create_receiver("/topics/passing", credit=10, name=name)
        publish(broker, "passing", "seen")
        assert bodies(take(again, 1)) == ["seen"]
