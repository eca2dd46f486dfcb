"""Selectors and no-local as a stock client asks for them, on a running node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from proton import Data, Described, Message, symbol
from proton.reactor import Copy, Filter, Selector
from proton.utils import BlockingConnection

from tests.interop.broker_process import BrokerProcess
from tests.interop.stock_proton import LinkDetached, connected, is_empty, send_all

WAIT = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("filters") / "var") as process:
        yield process


@pytest.fixture
def connection(broker: BrokerProcess) -> Iterator[Any]:
    with connected(broker.amqp) as found:
        yield found


def numbered(count: int) -> list[Message]:
    colours = ("blue", "red", "green")
    return [
        Message(body=n, priority=n % 10, properties={"n": n, "colour": colours[n % 3]})
        for n in range(count)
    ]


def bodies(receiver: Any, count: int) -> list[int]:
    found = []
    for _ in range(count):
        found.append(int(receiver.receive(timeout=WAIT).body))
        receiver.accept()
    return found


def test_a_receiver_gets_what_its_selector_is_true_of(connection: Any) -> None:
    blue = connection.create_receiver(
        "selected",
        credit=20,
        name="blue",
        options=Selector("colour = 'blue' AND n BETWEEN 3 AND 12"),
    )
    rest = connection.create_receiver(
        "selected",
        credit=20,
        name="rest",
        options=Selector("NOT (colour = 'blue' AND n BETWEEN 3 AND 12)"),
    )
    send_all(
        connection,
        "selected",
        *(Message(body=m.body, properties=m.properties) for m in numbered(15)),
    )
    assert bodies(blue, 4) == [3, 6, 9, 12]
    assert bodies(rest, 11) == [n for n in range(15) if n not in (3, 6, 9, 12)]
    assert is_empty(blue)
    assert is_empty(rest)


def test_what_nobody_wants_waits_for_who_does(connection: Any) -> None:
    few = connection.create_receiver("unwanted", credit=5, options=Selector("n > 100"))
    send_all(connection, "unwanted", *numbered(3))
    assert is_empty(few)
    anything = connection.create_receiver("unwanted", credit=5, name="anything")
    assert sorted(bodies(anything, 3)) == [0, 1, 2]


def test_who_browses_may_select(connection: Any) -> None:
    send_all(connection, "browsed", *numbered(6))
    looking = connection.create_receiver(
        "browsed", credit=10, options=[Copy(), Selector("colour LIKE 're_'")]
    )
    assert [looking.receive(timeout=WAIT).body for _ in range(2)] == [1, 4]
    assert is_empty(looking)


def test_the_attach_says_which_filters_are_in_force(connection: Any) -> None:
    selector = Selector("n = 1").filter_set
    unknown = {symbol("other"): Described(symbol("acme:other:string"), "x")}
    both = Filter({**selector, **unknown})
    receiver = connection.create_receiver("told", credit=1, options=both)
    told: Data = receiver.link.remote_source.filter
    told.rewind()
    told.next()
    assert set(told.get_dict()) == {symbol("selector")}


@pytest.mark.parametrize("text", ["n =", "n = 1 AND", "(" * 100 + "n", "x" * 5_000])
def test_a_selector_that_is_none_is_refused(connection: Any, text: str) -> None:
    with pytest.raises(LinkDetached, match="amqp:invalid-field"):
        connection.create_receiver("refused", credit=1, options=Selector(text))


class NoLocal(Filter):
    def __init__(self) -> None:
        name = symbol("no-local")
        super().__init__({name: Described(symbol("apache.org:no-local-filter:list"), [])})


def test_no_local_leaves_out_what_the_same_container_sent(broker: BrokerProcess) -> None:
    one: Any = BlockingConnection(f"127.0.0.1:{broker.amqp}", timeout=WAIT)
    two: Any = BlockingConnection(f"127.0.0.1:{broker.amqp}", timeout=WAIT)
    assert one.container.container_id != two.container.container_id
    try:
        receiver = one.create_receiver("local", credit=5, options=NoLocal())
        send_all(one, "local", "mine")
        send_all(two, "local", "yours")
        assert receiver.receive(timeout=WAIT).body == "yours"
        receiver.accept()
        assert is_empty(receiver)
        other = two.create_receiver("local", credit=5)
        assert other.receive(timeout=WAIT).body == "mine"
    finally:
        one.close()
        two.close()
