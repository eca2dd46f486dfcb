"""Durable links over `kill -9`: who comes back settles each delivery once, in both directions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from quantum.protocols.amqp.engine import AcceptedOutcome, RejectedOutcome
from quantum.protocols.amqp.engine.composites import DispositionFrame
from quantum.protocols.amqp.engine.messages import encode_data
from tests.interop.broker_process import BrokerProcess
from tests.interop.raw_amqp import RawClient, Unsettled, connect_raw
from tests.interop.stock_proton import browse, connected, is_empty, send_all, take_all

ROUNDS = 4
PER_ROUND = 40


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("resumption") / "var") as process:
        yield process


def send_over_kills(ports: list[int], kill: Callable[[], None], queue: str) -> int:
    """Send numbered messages; each round ends with a kill at a drawn moment. Return how many."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    made = told = 0
    unsettled: dict[bytes, bytes] = {}
    for _ in range(ROUNDS):
        client = connect_raw(ports, "sender-container")
        with client:
            known = client.attach_sender("sender-link", queue, dict.fromkeys(unsettled)) or {}
            assert set(known) <= set(unsettled)
            for tag in known:
                del unsettled[tag]
                told += 1
            waiting = dict(unsettled)
            for _ in range(PER_ROUND):
                waiting[b"t%d" % made] = encode_data(b"%d" % made)
                made += 1
            unsettled |= waiting
            numbers = dict(enumerate(waiting))
            for number, tag in numbers.items():
                client.send(number, tag, waiting[tag])
            told += hear_some(client, numbers, unsettled, rng.randrange(PER_ROUND))
            kill()
    with connect_raw(ports, "sender-container") as client:
        known = client.attach_sender("sender-link", queue, dict.fromkeys(unsettled)) or {}
        rest = [tag for tag in unsettled if tag not in known]
        for number, tag in enumerate(rest):
            client.send(number, tag, unsettled[tag])
        hear_some(client, dict(enumerate(rest)), dict(unsettled), len(rest))
        client.detach(closed=False)
    print(f"{made} messages, {told} told in time")
    return made


def hear_some(
    client: RawClient, numbers: dict[int, bytes], unsettled: dict[bytes, bytes], count: int
) -> int:
    """Read dispositions until so many are settled."""
    done = 0
    while done < count:
        said, _ = client.hear(DispositionFrame)
        for number in range(said.first, (said.last if said.last is not None else said.first) + 1):
            done += unsettled.pop(numbers[number], None) is not None
    return done


def test_a_sender_that_resumes_sends_each_message_once(broker: BrokerProcess) -> None:
    def kill() -> None:
        broker.kill()
        broker.start()

    made = send_over_kills([broker.amqp], kill, "resumed-in")
    with connected(broker.amqp) as connection:
        found = sorted(int(each.body) for each in take_all(connection, "resumed-in", made))
        assert found == list(range(made))
        assert is_empty(connection.create_receiver("resumed-in", credit=1))


def test_a_receiver_that_resumes_settles_each_delivery_once(broker: BrokerProcess) -> None:
    with connected(broker.amqp) as connection:
        send_all(connection, "resumed-out", *(str(n) for n in range(10)))
    with connect_raw([broker.amqp], "receiver-container") as client:
        client.attach_receiver("receiver-link", "resumed-out", None)
        client.grant(6)
        deliveries = [client.receive() for _ in range(6)]
    broker.kill()
    broker.start()
    with connected(broker.amqp) as connection:
        others = [each.body for each in take_all(connection, "resumed-out", 4)]
        assert others == ["6", "7", "8", "9"], "what is held is nobody else's"
        assert is_empty(connection.create_receiver("resumed-out", credit=1))
    # It accepted three and rejected one before the end, and nobody heard of it.
    tags = [tag for _, tag, _ in deliveries]
    unsettled: Unsettled = {tag: AcceptedOutcome() for tag in tags[:3]}
    unsettled |= {tags[3]: RejectedOutcome(None), tags[4]: None, tags[5]: None}
    with connect_raw([broker.amqp], "receiver-container") as client:
        assert not client.attach_receiver("receiver-link", "resumed-out", unsettled)
        client.grant(10)
        again = [client.receive() for _ in range(2)]
        assert [tag for _, tag, _ in again] == tags[4:]
        for number, _, _ in again:
            client.accept(number)
            done, _ = client.hear(DispositionFrame)
            assert done.settled, "the log has it"
        client.detach(closed=True)
    with connected(broker.amqp) as connection:
        assert is_empty(connection.create_receiver("resumed-out", credit=1))
        dead = browse(connection, "resumed-out/$dead-letters", 1)
        assert [each.body for each in dead] == ["3"]


def test_who_closes_its_link_gives_back_what_it_holds(broker: BrokerProcess) -> None:
    with connected(broker.amqp) as connection:
        send_all(connection, "given-back", "a", "b")
        with connect_raw([broker.amqp], "closing-container") as client:
            client.attach_receiver("closing-link", "given-back", None)
            client.grant(2)
            client.receive()
            client.receive()
            client.detach(closed=True)
        assert [each.body for each in take_all(connection, "given-back", 2)] == ["a", "b"]


def test_a_link_that_comes_back_elsewhere_is_taken_from_its_first_connection(
    broker: BrokerProcess,
) -> None:
    with connected(broker.amqp) as connection:
        send_all(connection, "stolen", *range(4))
        first = connect_raw([broker.amqp], "stolen-container")
        with first:
            first.attach_receiver("stolen-link", "stolen", None)
            first.grant(2)
            tags = [first.receive()[1] for _ in range(2)]
            with connect_raw([broker.amqp], "stolen-container") as second:
                second.attach_receiver("stolen-link", "stolen", {tags[0]: AcceptedOutcome()})
                second.grant(10)
                assert sorted(second.receive()[1][-1] for _ in range(3)) == [1, 2, 3]
                body, _ = first.next()
                while body is None or not hasattr(body, "closed"):
                    body, _ = first.next()
                assert body.error.condition == "amqp:link:stolen"
