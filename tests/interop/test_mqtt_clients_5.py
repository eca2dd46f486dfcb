"""Stock clients and what MQTT 5 added: every property and option that a library can say."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.interop.mqtt_places import ONE_PROCESS
from tests.interop.stock_client import Can, Extras, Will, Wish
from tests.interop.stock_libraries import Room, libraries, room

__all__ = ["room"]

EVERYTHING = Extras(
    user=(("a", "1"), ("a", "2"), ("b", "")),
    content_type="text/plain",
    response_topic="answers/here",
    correlation=b"\x00\xff",
    is_text=True,
)


@libraries()
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_properties_travel_unchanged_and_in_order(room: Room, qos: int) -> None:
    publisher, subscriber = await room.near("publisher"), await room.far("subscriber")
    await subscriber.subscribe(Wish(room.topic, 2))
    await publisher.publish(room.topic, "grüße".encode(), qos, extras=EVERYTHING)
    (got,) = await subscriber.take()
    assert got.extras == EVERYTHING


@libraries()
async def test_a_request_is_answered_where_it_says(room: Room) -> None:
    asker, helper = await room.near("asker"), await room.far("helper")
    await helper.subscribe(Wish(f"{room.topic}/questions", 1))
    await asker.subscribe(Wish(f"{room.topic}/answers", 1))
    question = Extras(response_topic=f"{room.topic}/answers", correlation=b"7")
    await asker.publish(f"{room.topic}/questions", b"6 x 7?", 1, extras=question)
    (asked,) = await helper.take()
    assert asked.extras.response_topic is not None
    answer = Extras(correlation=asked.extras.correlation)
    await helper.publish(asked.extras.response_topic, b"42", 1, extras=answer)
    (answered,) = await asker.take()
    assert (answered.payload, answered.extras.correlation) == (b"42", b"7")


@libraries()
async def test_overlapping_subscriptions_give_one_copy_with_all_identifiers(room: Room) -> None:
    publisher, subscriber = await room.near("publisher"), await room.far("subscriber")
    await subscriber.subscribe(Wish(f"{room.topic}/#", 0, identifier=1))
    await subscriber.subscribe(Wish(f"{room.topic}/+", 2, identifier=268_435_455))
    await subscriber.subscribe(Wish(f"{room.topic}/other", 1, identifier=3))
    await publisher.publish(f"{room.topic}/a", b"once", 2)
    (got,) = await subscriber.take()
    assert (got.payload, got.qos) == (b"once", 2)
    await publisher.publish(f"{room.topic}/a", b"end", 2)
    assert await subscriber.take_until(b"end") == []
    assert sorted(got.identifiers) == [1, 268_435_455]


@libraries()
async def test_no_local_keeps_ones_own_messages_away(room: Room) -> None:
    talker, other = await room.near("talker"), await room.far("other")
    await talker.subscribe(Wish(room.topic, 1, no_local=True))
    await talker.publish(room.topic, b"mine", 1)
    await other.publish(room.topic, b"theirs", 1)
    assert (await talker.take())[0].payload == b"theirs"


@libraries()
async def test_retain_as_published(room: Room) -> None:
    publisher = await room.near("publisher")
    keeping, plain = await room.far("keeping"), await room.far("plain")
    await keeping.subscribe(Wish(room.topic, 1, as_published=True))
    await plain.subscribe(Wish(room.topic, 1))
    await publisher.publish(room.topic, b"kept", 1, retain=True)
    assert (await keeping.take())[0].retain is True
    assert (await plain.take())[0].retain is False
    await publisher.publish(room.topic, b"", 1, retain=True)


@libraries()
async def test_retain_handling(room: Room) -> None:
    """0: at every subscribe; 1: at the first one only; 2: never.

    What is retained and the marker have one topic: between topics there is no order.
    """
    publisher, subscriber = await room.near("publisher"), await room.far("subscriber")
    await publisher.publish(f"{room.topic}/kept", b"kept", 1, retain=True)
    for handling, expected in ((0, [1, 1]), (1, [1, 0]), (2, [0, 0])):
        topic_filter = f"{room.topic}/{'#' if handling == 0 else '+' if handling == 1 else 'kept'}"
        for count in expected:
            await subscriber.subscribe(Wish(topic_filter, 1, retain_handling=handling))
            await publisher.publish(f"{room.topic}/kept", b"end", 1)
            before = await subscriber.take_until(b"end")
            assert [(got.payload, got.retain) for got in before] == [(b"kept", True)] * count
        await subscriber.unsubscribe(topic_filter)
    await publisher.publish(f"{room.topic}/kept", b"", 1, retain=True)


@libraries(Can.SEND_ALIAS)
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_alias_of_the_clients_stands_for_its_topic(room: Room, qos: int) -> None:
    publisher, subscriber = await room.near("publisher"), await room.far("subscriber")
    await subscriber.subscribe(Wish(f"{room.topic}/#", 2))
    await publisher.publish(f"{room.topic}/long", b"long: named", qos, extras=Extras(alias=3))
    await publisher.publish("", b"long: by number", qos, extras=Extras(alias=3))
    await publisher.publish(f"{room.topic}/next", b"next: renamed", qos, extras=Extras(alias=3))
    await publisher.publish("", b"next: by number", qos, extras=Extras(alias=3))
    got = await subscriber.take(4)
    assert len({each.payload for each in got}) == 4
    for each in got:  # in any order: there are two topics
        assert each.payload.startswith(each.topic.rpartition("/")[2].encode() + b": ")


@libraries(Can.TAKE_ALIAS)
async def test_an_alias_of_the_brokers_is_understood(room: Room) -> None:
    publisher = await room.near("publisher")
    subscriber = await room.far("subscriber", alias_maximum=2)
    await subscriber.subscribe(Wish(f"{room.topic}/#", 1))
    topics = [f"{room.topic}/{number % 3}" for number in range(12)]
    for number, topic in enumerate(topics):
        await publisher.publish(topic, b"%d" % number, 1)
    got = await subscriber.take(12)
    assert {int(each.payload): each.topic for each in got} == dict(enumerate(topics))
    for topic in set(topics):  # between topics there is no order
        mine = [int(each.payload) for each in got if each.topic == topic]
        assert mine == sorted(mine)


@libraries()
async def test_a_message_says_how_long_it_still_lives(room: Room) -> None:
    kept = await room.far("kept", clean=False, expiry=600)
    await kept.subscribe(Wish(room.topic, 1))
    await kept.close()
    await room.until_away("kept")  # what was once sent to it would not expire
    publisher = await room.near("publisher")
    await publisher.publish(room.topic, b"short", 1, extras=Extras(expiry=1))
    await publisher.publish(room.topic, b"long", 1, extras=Extras(expiry=1000))
    marker = await room.near("marker")
    await marker.subscribe(Wish(f"{room.topic}/wills", 1))
    mortal = await room.near("mortal", expiry=600, will=Will(f"{room.topic}/wills", b"w", delay=2))
    mortal.drop()
    await marker.take()  # two seconds went by, by the broker's own clock
    again = await room.near("kept", clean=False, expiry=600)
    (got,) = await again.take()
    assert got.payload == b"long"
    assert got.extras.expiry is not None and 900 < got.extras.expiry <= 999


@libraries()
async def test_a_will_waits_for_its_delay_and_not_if_the_client_is_back(room: Room) -> None:
    """Whoever is back later than its delay has proved nothing, and another one is tried."""
    for number in range(10):
        if await _is_back_in_time(room, f"{number}"):
            return
    raise AssertionError("nobody was back within two seconds")


async def _is_back_in_time(room: Room, name: str) -> bool:
    """Lose two clients, come back as one of them, and see the will of the other alone."""
    heir, topic = await room.far(f"heir{name}"), f"{room.topic}/{name}"
    await heir.subscribe(Wish(f"{topic}/+", 1))
    returning = {"clean": False, "expiry": 600}
    back = await room.near(f"back{name}", will=Will(f"{topic}/a", b"early", delay=2), **returning)
    gone = await room.near(f"gone{name}", will=Will(f"{topic}/b", b"in time", delay=2), **returning)
    began = time.monotonic()
    back.drop()
    await back.wait_ended()
    again = await room.far(f"back{name}", **returning)
    if time.monotonic() - began > 1.5:
        return False
    gone.drop()
    (got,) = await heir.take()
    assert got.payload == b"in time"
    await again.publish(f"{topic}/a", b"end", 1)
    assert await heir.take_until(b"end") == []
    return True


@libraries()
async def test_a_shared_subscription_shares(room: Room) -> None:
    publisher = await room.near("publisher")
    members = [await room.near("one"), await room.far("two"), await room.far("three")]
    for member in members:
        await member.subscribe(Wish(f"$share/group/{room.topic}/+", 1))
        await member.subscribe(Wish(f"{room.topic}/end/now", 1))
    sent = {b"%d" % number for number in range(30)}
    for payload in sent:
        await publisher.publish(f"{room.topic}/x", payload, 1)
    await publisher.publish(f"{room.topic}/end/now", b"end", 1)
    shares: list[list[bytes]] = []
    seen: set[bytes] = set()
    for member in members:
        got = [each.payload for each in await member.take_until(b"end")]
        shares.append(got)
        seen.update(got)
    while sent - seen:  # a share may come behind the marker, from another partition
        missing = [asyncio.create_task(member.take()) for member in members]
        done, rest = await asyncio.wait(missing, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        for task in done:
            shares[missing.index(task)] += [task.result()[0].payload]
            seen.add(task.result()[0].payload)
    assert sum(map(len, shares)) == len(sent)
    assert all(shares), "every member gets its share"


@libraries()
async def test_a_member_that_dies_leaves_its_share_to_the_others(room: Room) -> None:
    publisher, staying = await room.near("publisher"), await room.near("staying")
    dying = await room.far("dying")
    for member in (staying, dying):
        await member.subscribe(Wish(f"$share/group/{room.topic}", 1))
    dying.drop()
    sent = {b"%d" % number for number in range(20)}
    for payload in sent:
        await publisher.publish(room.topic, payload, 1)
    await dying.wait_ended()
    got = {each.payload for each in dying._inbox._queue}  # type: ignore[attr-defined]
    while got != sent:  # what it had and did not acknowledge comes again
        got.add((await staying.take())[0].payload)


@libraries(Can.MANUAL_ACK)
async def test_the_clients_receive_maximum_holds_messages_back(room: Room) -> None:
    """QoS 0 passes by, so that a marker shows what was not sent before it."""
    publisher = await room.near("publisher")
    slow = await room.far("slow", receive_maximum=2, manual_ack=True)
    await slow.subscribe(Wish(f"{room.topic}/+", 1))
    for number in range(5):
        await publisher.publish(f"{room.topic}/a", b"%d" % number, 1)
    held = await slow.take(2)
    assert [got.payload for got in held] == [b"0", b"1"]
    await publisher.publish(f"{room.topic}/a", b"end", 0)
    assert await slow.take_until(b"end") == []
    for got in held:
        slow.acknowledge(got)
    assert [got.payload for got in await slow.take(2)] == [b"2", b"3"]


@libraries()
async def test_a_message_too_large_for_the_client_is_left_out(room: Room) -> None:
    publisher = await room.near("publisher")
    small = await room.far("small", packet_maximum=1000)
    await small.subscribe(Wish(room.topic, 1))
    await publisher.publish(room.topic, b"x" * 2000, 1)
    await publisher.publish(room.topic, b"end", 1)
    assert await small.take_until(b"end") == []


@libraries(Can.REASONS)
async def test_reasons_reach_the_application(room: Room) -> None:
    publisher, subscriber = await room.near("publisher"), await room.far("subscriber")
    nobody = await publisher.publish(f"{room.topic}/nobody", b"x", 1)
    assert nobody in ((0x10,) if room.place.name == ONE_PROCESS else (0, 0x10))
    assert await subscriber.subscribe(Wish(f"{room.topic}/somebody", 2)) == 2
    for qos in (1, 2):
        assert await publisher.publish(f"{room.topic}/somebody", b"x", qos) == 0
    not_text = Extras(is_text=True)
    assert await publisher.publish(room.topic, b"\xff", 1, extras=not_text) == 0x99


@libraries(Can.ASSIGNED_ID)
async def test_an_id_is_assigned_to_who_has_none(room: Room) -> None:
    opening = room.opening("", client_id="")
    first, second = await room.open(opening), await room.open(opening)
    assert first.assigned_id and second.assigned_id
    assert first.assigned_id != second.assigned_id


@libraries(Can.EXPIRY_AT_END | Can.SESSION_PRESENT)
async def test_a_client_may_give_its_session_up_when_it_leaves(room: Room) -> None:
    kept = {"clean": False, "expiry": 600}
    first = await room.near("kept", **kept)
    await first.subscribe(Wish(room.topic, 1))
    await first.close(expiry=0)
    await room.until_gone("kept")
    again = await room.far("kept", **kept)
    assert again.session_present is False
