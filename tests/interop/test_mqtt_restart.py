"""One process that ends in every way: what was acknowledged is there when it comes back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.broker_process import DEADLINE_SECONDS, BrokerProcess
from tests.interop.stock_client import Opening, StockClient, Will, Wish
from tests.interop.stock_paho import Paho
from tests.interop.test_mqtt_torture import arrived, judge, until
from tests.interop.torture_clients import Publisher, Subscriber

KILLS = 4


def ctrl_c(broker: BrokerProcess) -> None:
    assert broker.interrupt() == 0


WAYS = pytest.mark.parametrize(
    "end", [ctrl_c, BrokerProcess.kill], ids=["ctrl-c", "kill-9"]
)  # fmt: skip


async def open_kept(broker: BrokerProcess, name: str, **how: object) -> StockClient:
    opening = Opening(name, broker.mqtt, clean=False, expiry=3600, **how)  # type: ignore[arg-type]
    return await Paho().open(opening)


def until_held(broker: BrokerProcess, client: str, messages: int) -> None:
    """Wait until the log knows how many messages a client has not acknowledged."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        session = broker.page(f"/v1/tenants/dev/sessions/{client}")
        if session["queued"] + session["in_flight"] == messages:
            return
        assert time.monotonic() < deadline, session


@WAYS
async def test_sessions_queues_and_retained_messages_come_back(
    tmp_path: Path, end: Callable[[BrokerProcess], None]
) -> None:
    with BrokerProcess(tmp_path / "var") as broker:
        for client in ("away", "here"):
            first = await open_kept(broker, client)
            await first.subscribe(Wish("queue/+", 2, identifier=5))
            await first.close()
        publisher = await open_kept(broker, "publisher")
        for number in range(30):
            topic = number % 5  # a client may see QoS 1 before an older QoS 2 message
            await publisher.publish(f"queue/{topic}", b"%d" % number, 1 + topic % 2)
        await publisher.publish("retained/a", b"kept", 1, retain=True)
        await publisher.publish("retained/b", b"removed", 1, retain=True)
        await publisher.publish("retained/b", b"", 1, retain=True)
        publisher.drop()
        end(broker)
        broker.start()
        for client in ("away", "here"):
            again = await open_kept(broker, client)
            assert again.session_present is True
            got = await again.take(30)
            for topic in range(5):
                mine = [int(each.payload) for each in got if each.topic == f"queue/{topic}"]
                assert mine == list(range(topic, 30, 5))
            assert {each.identifiers for each in got} == {(5,)}
            await again.close()
        late = await open_kept(broker, "late")
        await late.subscribe(Wish("retained/#", 1))
        assert (await late.take())[0].payload == b"kept"
        await late.publish("retained/end", b"end", 1)
        assert await late.take_until(b"end") == []
        await late.close()


@WAYS
async def test_what_was_in_flight_is_sent_again(
    tmp_path: Path, end: Callable[[BrokerProcess], None]
) -> None:
    """The client has the messages and did not say so: they come again, in their order."""
    with BrokerProcess(tmp_path / "var") as broker:
        taking = await open_kept(broker, "taking", manual_ack=True)
        await taking.subscribe(Wish("flight", 1))
        publisher = await open_kept(broker, "publisher")
        for number in range(6):
            await publisher.publish("flight", b"%d" % number, 1)
        seen = await taking.take(6)
        for got in seen[:2]:
            taking.acknowledge(got)
        await asyncio.to_thread(until_held, broker, "taking", 4)
        end(broker)
        await taking.wait_ended()
        await publisher.wait_ended()
        broker.start()
        again = await open_kept(broker, "taking")
        assert [got.payload for got in await again.take(4)] == [b"2", b"3", b"4", b"5"]
        await again.publish("flight", b"end", 1)
        assert await again.take_until(b"end") == []
        await again.close()


async def test_a_will_whose_client_died_with_the_broker_is_said(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "var") as broker:
        # It acknowledges nothing: a will that is said before the kill is said again after it.
        heir = await open_kept(broker, "heir", manual_ack=True)
        await heir.subscribe(Wish("wills", 1))
        await open_kept(broker, "mortal", keep_alive=1, will=Will("wills", b"gone"))
        broker.kill()
        await heir.wait_ended()
        broker.start()
        again = await open_kept(broker, "heir")
        assert (await again.take())[0].payload == b"gone"
        await again.close()


async def test_nothing_is_lost_or_doubled_by_repeated_kills_under_load(tmp_path: Path) -> None:
    """QoS 1 and 2 publishers go on through `kill -9` after `kill -9`, and so do subscribers."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    with BrokerProcess(tmp_path / "var") as broker:
        subscribers = [
            Subscriber("all-2", [broker.mqtt], random.Random(1), topic_filter="t/#", qos=2),
            Subscriber("all-1", [broker.mqtt], random.Random(2), topic_filter="t/+/x", qos=1),
        ]
        publishers = [
            Publisher(
                f"p{number}",
                [broker.mqtt],
                random.Random(number),
                topics=[f"t/{number}/{name}" for name in ("x", "y", "z")],
                qos=1 + number % 2,
            )
            for number in range(4)
        ]
        tasks = [asyncio.create_task(each.run()) for each in subscribers]
        async with asyncio.timeout(DEADLINE_SECONDS):
            for each in subscribers:
                await each.subscribed.wait()
        tasks += [asyncio.create_task(each.run()) for each in publishers]
        for _ in range(KILLS):
            goal = sum(len(each.acknowledged) for each in publishers) + rng.randrange(50, 400)
            await until(
                lambda goal=goal: sum(len(each.acknowledged) for each in publishers) >= goal,  # type: ignore[misc]
                lambda: f"the load goes on: {broker.last_words()}",
            )
            broker.kill()
            await asyncio.to_thread(broker.start)
        for publisher in publishers:
            publisher.limit = publisher.next_number - 1
        await until(lambda: all(each.idle for each in publishers), broker.last_words)
        await until(lambda: arrived(subscribers, publishers), broker.last_words)
        for client in (*subscribers, *publishers):
            client.finished.set()
            client.disturb()
        await asyncio.gather(*tasks)
        judge(subscribers, publishers)
