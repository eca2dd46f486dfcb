"""Transactions whose queues are in several partitions, by Qpid Proton, on one node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from proton import Message
from proton.utils import SendException

from quantum.cli.admin_client import post
from tests.interop.broker_process import BrokerProcess
from tests.interop.proton_transactions import BlockingTransactions, spread_over
from tests.interop.stock_proton import browse, connected, is_empty, send_all, take_all


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("spread") / "var", partitions=3) as process:
        yield process


def bodies(connection: object, queue: str, count: int) -> list[object]:
    return [each.body for each in take_all(connection, queue, count)]


@pytest.mark.parametrize("commit", [True, False])
def test_sends_to_all_partitions_count_together_or_never(
    broker: BrokerProcess, commit: bool
) -> None:
    queues = spread_over(broker.admin, f"sends-{commit}")
    with connected(broker.amqp) as connection:
        transactions = BlockingTransactions(connection)
        transaction = transactions.begin()
        for name in queues:
            sender = connection.create_sender(name)
            for number in range(3):
                transactions.send(transaction, sender, Message(body=number))
        for name in queues:
            receiver = connection.create_receiver(name, credit=1)
            assert is_empty(receiver)
            receiver.close()
        transactions.end(transaction, commit=commit)
        for name in queues:
            assert bodies(connection, name, 3 if commit else 0) == ([0, 1, 2] if commit else [])
            assert is_empty(connection.create_receiver(name, credit=1))


def test_what_is_taken_and_what_is_sent_count_together(broker: BrokerProcess) -> None:
    first, second, third = spread_over(broker.admin, "taken")
    with connected(broker.amqp) as connection:
        send_all(connection, first, "a", "b", "c")
        transactions = BlockingTransactions(connection)
        receiver = connection.create_receiver(first, credit=3)
        sender = connection.create_sender(second)
        transaction = transactions.begin()
        assert receiver.receive(timeout=30).body == "a"
        transactions.accept(transaction, receiver)
        assert receiver.receive(timeout=30).body == "b"
        transactions.reject(transaction, receiver)
        assert receiver.receive(timeout=30).body == "c"
        transactions.release(transaction, receiver)
        transactions.send(transaction, sender, Message(body="from a"))
        transactions.send(transaction, connection.create_sender(third), Message(body="of a"))
        transactions.end(transaction)
        assert bodies(connection, second, 1) == ["from a"]
        assert bodies(connection, third, 1) == ["of a"]
        # What was released is given again, to the same receiver too.
        assert receiver.receive(timeout=30).body == "c"
        receiver.accept()
        assert is_empty(receiver)
        dead = browse(connection, f"{first}/$dead-letters", 1)
        assert [each.body for each in dead] == ["b"]


def test_what_is_rolled_back_is_given_again(broker: BrokerProcess) -> None:
    first, second, _ = spread_over(broker.admin, "rolled")
    with connected(broker.amqp) as connection:
        send_all(connection, first, "a")
        transactions = BlockingTransactions(connection)
        receiver = connection.create_receiver(first, credit=2)
        transaction = transactions.begin()
        receiver.receive(timeout=30)
        transactions.accept(transaction, receiver)
        transactions.send(transaction, connection.create_sender(second), Message(body="from a"))
        transactions.end(transaction, commit=False)
        again = receiver.receive(timeout=30)
        assert (again.body, again.delivery_count) == ("a", 1)
        receiver.accept()
        assert is_empty(connection.create_receiver(second, credit=1))


def test_a_queue_without_room_refuses_the_whole_transaction(broker: BrokerProcess) -> None:
    first, second, third = spread_over(broker.admin, "full")
    body: dict[str, object] = {"name": third, "messages_max": 1}
    code, page = post(broker.admin, "/v1/tenants/dev/queues", body)
    assert code in {200, 201}, page
    with connected(broker.amqp) as connection:
        send_all(connection, first, "a")
        transactions = BlockingTransactions(connection)
        receiver = connection.create_receiver(first, credit=2)
        transaction = transactions.begin()
        receiver.receive(timeout=30)
        transactions.accept(transaction, receiver)
        transactions.send(transaction, connection.create_sender(second), Message(body="b"))
        sender = connection.create_sender(third)
        transactions.send(transaction, sender, Message(body="c"))
        transactions.send(transaction, sender, Message(body="d"))
        with pytest.raises(SendException):
            transactions.end(transaction)
        assert receiver.receive(timeout=30).body == "a", "it is there again"
        receiver.accept()
        assert is_empty(connection.create_receiver(second, credit=1))
        assert is_empty(connection.create_receiver(third, credit=1))


def test_who_is_gone_before_the_discharge_leaves_nothing(broker: BrokerProcess) -> None:
    first, second, _ = spread_over(broker.admin, "gone")
    with connected(broker.amqp) as connection:
        send_all(connection, first, "a")
        with connected(broker.amqp) as short:
            transactions = BlockingTransactions(short)
            transaction = transactions.begin()
            receiver = short.create_receiver(first, credit=1)
            receiver.receive(timeout=30)
            transactions.accept(transaction, receiver)
            transactions.send(transaction, short.create_sender(second), Message(body="b"))
        assert bodies(connection, first, 1) == ["a"]
        assert is_empty(connection.create_receiver(second, credit=1))


def test_a_closed_coordinator_rolls_its_transactions_back(broker: BrokerProcess) -> None:
    first, _, _ = spread_over(broker.admin, "closed")
    with connected(broker.amqp) as connection:
        send_all(connection, first, "a")
        transactions = BlockingTransactions(connection)
        transaction = transactions.begin()
        receiver = connection.create_receiver(first, credit=2)
        receiver.receive(timeout=30)
        transactions.accept(transaction, receiver)
        transactions.link.close()
        assert receiver.receive(timeout=30).body == "a"
        receiver.accept()


def test_committed_work_outlives_the_process(broker: BrokerProcess) -> None:
    queues = spread_over(broker.admin, "killed")
    with connected(broker.amqp) as connection:
        transactions = BlockingTransactions(connection)
        transaction = transactions.begin()
        for name in queues:
            sender = connection.create_sender(name)
            transactions.send(transaction, sender, Message(body=name))
        transactions.end(transaction)
        broker.kill()
    broker.start()
    with connected(broker.amqp) as connection:
        for name in queues:
            assert bodies(connection, name, 1) == [name]
            assert is_empty(connection.create_receiver(name, credit=1))


def test_messages_move_between_partitions_whole(broker: BrokerProcess) -> None:
    first, second, _ = spread_over(broker.admin, "moved")
    with connected(broker.amqp) as connection:
        send_all(connection, first, *range(20))
        path = f"/v1/tenants/dev/queues/{first}/move"
        code, page = post(broker.admin, path, {"target": second})
        assert code == 200, page
        assert bodies(connection, second, 20) == list(range(20))
        assert is_empty(connection.create_receiver(first, credit=1))
