"""Apache Qpid Proton against `quantum up`: queues, outcomes, dead letters, restarts, bad peers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Disposition, Message, symbol
from proton.reactor import AtMostOnce
from proton.utils import SendException

from tests.interop.broker_process import BrokerProcess
from tests.interop.stock_proton import (
    LinkDetached,
    browse,
    connected,
    is_empty,
    send_all,
    take_all,
)

WAIT = 30.0
_HOLDS = """
import time
from proton.utils import BlockingConnection
receiver = BlockingConnection("127.0.0.1:%d", timeout=30).create_receiver("%s", credit=1)
print(receiver.receive(timeout=30).body, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("amqp") / "var") as process:
        yield process


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[Any]:
    with connected(broker.amqp) as found:
        yield found


def test_messages_come_in_order_with_all_their_parts(connection: Any) -> None:
    sent = Message(
        id="one",
        subject="greeting",
        reply_to="/queues/answers",
        correlation_id=7,
        content_type="text/plain",
        properties={"colour": "blue", "count": 3},
        annotations={symbol("x-opt-mine"): "kept"},
        body={"a": [1, 2, 3], "b": "text"},
    )
    send_all(connection, "/queues/parts", sent, *range(50))
    first, *rest = take_all(connection, "/queues/parts", 51)
    assert (first.id, first.subject, first.reply_to) == ("one", "greeting", "/queues/answers")
    assert (first.correlation_id, first.content_type) == (7, "text/plain")
    assert first.properties == {"colour": "blue", "count": 3}
    assert first.annotations == {symbol("x-opt-mine"): "kept"}
    assert first.body == {"a": [1, 2, 3], "b": "text"}
    assert first.delivery_count == 0
    assert [each.body for each in rest] == list(range(50))


def test_a_bare_name_is_the_same_queue(connection: Any) -> None:
    send_all(connection, "bare", "x")
    assert take_all(connection, "/queues/bare", 1)[0].body == "x"


def test_a_large_message_comes_whole(connection: Any) -> None:
    body = bytes(range(256)) * 12_000
    send_all(connection, "large", body)
    assert take_all(connection, "large", 1)[0].body == body


def test_settled_messages_need_no_answer(connection: Any) -> None:
    sender = connection.create_sender("settled", options=AtMostOnce())
    for number in range(10):
        sender.send(Message(body=number))
    receiver = connection.create_receiver("settled", credit=10, options=AtMostOnce())
    assert [receiver.receive(timeout=WAIT).body for _ in range(10)] == list(range(10))
    receiver.close()
    assert is_empty(connection.create_receiver("settled", credit=1))


@pytest.mark.parametrize(("delivered", "count"), [(False, 0), (True, 1)])
def test_released_and_modified_messages_come_again(
    connection: Any, delivered: bool, count: int
) -> None:
    send_all(connection, f"again-{count}", "task")
    receiver = connection.create_receiver(f"again-{count}", credit=1)
    assert receiver.receive(timeout=WAIT).delivery_count == 0
    receiver.fetcher.unsettled[0].local.failed = delivered
    receiver.release(delivered=delivered)
    again = receiver.receive(timeout=WAIT)
    assert (again.body, again.delivery_count) == ("task", count)
    receiver.accept()
    assert is_empty(receiver)


def test_a_rejected_message_is_a_dead_letter_with_its_reason(
    connection: Any,
) -> None:
    send_all(connection, "rejects", "bad")
    receiver = connection.create_receiver("rejects", credit=1)
    receiver.receive(timeout=WAIT)
    receiver.reject()
    assert is_empty(receiver)
    receiver.close()
    (dead,) = take_all(connection, "/queues/rejects/$dead-letters", 1)
    assert dead.body == "bad"
    assert dead.annotations[symbol("x-opt-dead-letter-reason")] == "rejected"


def test_a_poison_message_becomes_a_dead_letter(connection: Any) -> None:
    send_all(connection, "poison", "bad")
    receiver = connection.create_receiver("poison", credit=1)
    for failures in range(10):
        assert receiver.receive(timeout=WAIT).delivery_count == failures
        receiver.fetcher.unsettled[0].local.failed = True
        receiver.release(delivered=True)
    assert is_empty(receiver)
    receiver.close()
    (dead,) = take_all(connection, "poison/$dead-letters", 1)
    assert (dead.body, dead.delivery_count) == ("bad", 10)


def test_who_browses_takes_nothing(connection: Any) -> None:
    send_all(connection, "browsed", *range(20))
    assert [each.body for each in browse(connection, "browsed", 20)] == list(range(20))
    assert [each.body for each in take_all(connection, "browsed", 20)] == list(range(20))


def test_receivers_compete_and_each_message_goes_to_one(broker: BrokerProcess) -> None:
    with connected(broker.amqp) as one, connected(broker.amqp) as two:
        first = one.create_receiver("shared-work", credit=5)
        second = two.create_receiver("shared-work", credit=5)
        send_all(one, "shared-work", *range(10))
        found = []
        for receiver in (first, second):
            for _ in range(5):
                found.append(receiver.receive(timeout=WAIT).body)
        assert sorted(found) == list(range(10))


def test_what_a_lost_client_held_goes_to_another(broker: BrokerProcess) -> None:
    with connected(broker.amqp) as one:
        send_all(one, "left-behind", "task")
        program = _HOLDS % (broker.amqp, "left-behind")
        holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"task\n"
        holder.kill()
        holder.wait()
        holder.stdout.close()
        (again,) = take_all(one, "left-behind", 1)
        assert (again.body, again.delivery_count) == ("task", 1)


def test_priorities_overtake_and_groups_stay_together(connection: Any) -> None:
    send_all(
        connection,
        "urgent",
        *(Message(body=each, priority=each) for each in (1, 9, 4)),
    )
    assert [each.body for each in take_all(connection, "urgent", 3)] == [9, 4, 1]


def test_messages_expire(connection: Any) -> None:
    send_all(connection, "short-lived", Message(body="gone", ttl=0.05), "stays")
    deadline_receiver = connection.create_receiver("waits", credit=1)
    assert is_empty(deadline_receiver, 1.0)
    assert [each.body for each in take_all(connection, "short-lived", 1)] == ["stays"]


def test_a_dynamic_node_serves_request_and_answer(broker: BrokerProcess) -> None:
    with connected(broker.amqp) as client, connected(broker.amqp) as server:
        answers = client.create_receiver(None, dynamic=True, credit=1)
        address = answers.link.remote_source.address
        assert address.startswith("/queues/dynamic.")
        send_all(client, "requests", Message(body="2 + 2", reply_to=address))
        (request,) = take_all(server, "requests", 1)
        send_all(server, request.reply_to, "4")
        assert answers.receive(timeout=WAIT).body == "4"
        answers.accept()


def test_an_anonymous_sender_names_each_message_s_queue(connection: Any) -> None:
    sender = connection.create_sender(None)
    for name in ("relay-a", "relay-b"):
        sender.send(Message(address=f"/queues/{name}", body=name))
    for name in ("relay-a", "relay-b"):
        assert take_all(connection, name, 1)[0].body == name


@pytest.mark.parametrize("address", ["/nothing/here", "/queues/" + "x" * 600])
def test_an_address_that_is_none_is_refused(connection: Any, address: str) -> None:
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_receiver(address, credit=1)


def test_what_was_accepted_outlives_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "var") as process:
        with connected(process.amqp) as connection:
            send_all(connection, "lasting", *range(200))
            receiver = connection.create_receiver("lasting", credit=50)
            for number in range(100):
                assert receiver.receive(timeout=WAIT).body == number
                receiver.accept()
            receiver.close()
        process.kill()
        process.start()
        with connected(process.amqp) as connection:
            found = [each.body for each in take_all(connection, "lasting", 100)]
            assert found == list(range(100, 200))
            send_all(connection, "lasting", "after")
            assert take_all(connection, "lasting", 1)[0].body == "after"


def test_every_send_is_told_as_accepted(connection: Any) -> None:
    sender = connection.create_sender("told")
    delivery: Delivery = sender.send(Message(body="x"))
    assert delivery.remote_state == Disposition.ACCEPTED


def test_a_sender_hears_that_nothing_is_sent_to_dead_letters(
    connection: Any,
) -> None:
    with pytest.raises((LinkDetached, SendException)):
        connection.create_sender("/queues/x/$dead-letters").send(Message(body="x"))
