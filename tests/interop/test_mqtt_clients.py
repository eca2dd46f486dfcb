"""Stock clients of every version: what MQTT has had since 3.1, through one node and through two."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from clustor.runtime.pki.identity import utc_now
from quantum.edge.tls_development import issue_client
from quantum.protocols.mqtt.codec.primitives import encode_variable
from tests.interop.stock_client import Can, Refused, StockClient, Will, Wish
from tests.interop.stock_libraries import Room, libraries, room

__all__ = ["room"]

VERSIONS = pytest.mark.parametrize("version", [4, 5], ids=["3.1.1", "5"])


@libraries()
@VERSIONS
async def test_every_qos_meets_every_other(room: Room, version: int) -> None:
    """A message arrives with the lower one of its own QoS and its subscription's."""
    publisher = await room.near("publisher", version=version)
    for wanted in (0, 1, 2):
        subscriber = await room.far(f"subscriber{wanted}", version=version)
        await subscriber.subscribe(Wish(f"{room.topic}/{wanted}/+", wanted))
        for qos in (0, 1, 2):
            await publisher.publish(f"{room.topic}/{wanted}/{qos}", b"%d" % qos, qos)
            (got,) = await subscriber.take()
            assert (got.topic, got.payload) == (f"{room.topic}/{wanted}/{qos}", b"%d" % qos)
            assert (got.qos, got.retain) == (min(qos, wanted), False)


@libraries(Can.VERSION_31)
async def test_version_3_1(room: Room) -> None:
    publisher = await room.near("p", version=3)
    subscriber = await room.far("s", version=3)
    await subscriber.subscribe(Wish(f"{room.topic}/#", 2))
    for qos in (0, 1, 2):
        await publisher.publish(f"{room.topic}/{qos}", b"old", qos)
        (got,) = await subscriber.take()
        assert (got.qos, got.payload) == (qos, b"old")


@libraries()
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_order_is_kept(room: Room, qos: int) -> None:
    publisher, subscriber = await room.near("publisher"), await room.far("subscriber")
    await subscriber.subscribe(Wish(room.topic, qos))
    sent = [b"%d" % number for number in range(100)]
    await asyncio.gather(*(publisher.publish(room.topic, payload, qos) for payload in sent))
    assert [got.payload for got in await subscriber.take(len(sent))] == sent


@libraries()
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_large_message(room: Room, qos: int) -> None:
    large = bytes(range(256)) * 3_000
    publisher, subscriber = await room.near("publisher"), await room.far("subscriber")
    await subscriber.subscribe(Wish(room.topic, qos))
    await publisher.publish(room.topic, large, qos)
    assert (await subscriber.take())[0].payload == large


@libraries()
@VERSIONS
async def test_a_retained_message_is_kept_replaced_and_removed(room: Room, version: int) -> None:
    publisher = await room.near("publisher", version=version)
    await publisher.publish(room.topic, b"old", 1, retain=True)
    await publisher.publish(room.topic, b"new", 2, retain=True)
    late = await room.far("late", version=version)
    await late.subscribe(Wish(f"{room.topic}/#", 2))
    (got,) = await late.take()
    assert (got.payload, got.qos, got.retain) == (b"new", 2, True)
    await publisher.publish(room.topic, b"", 1, retain=True)
    (removal,) = await late.take()
    assert (removal.payload, removal.retain) == (b"", False)
    later = await room.near("later", version=version)
    await later.subscribe(Wish(f"{room.topic}/#", 2))
    await publisher.publish(f"{room.topic}/end", b"end", 1)
    assert await later.take_until(b"end") == []


@libraries()
@VERSIONS
async def test_a_will_is_said_for_who_vanishes_and_not_for_who_leaves(
    room: Room, version: int
) -> None:
    heir = await room.far("heir", version=version)
    await heir.subscribe(Wish(f"{room.topic}/+", 2))
    leaving = await room.near("leaving", version=version, will=Will(f"{room.topic}/a", b"left"))
    await leaving.close()
    mortal = await room.near("mortal", version=version, will=Will(f"{room.topic}/a", b"gone", 2))
    mortal.drop()
    (got,) = await heir.take()
    assert (got.payload, got.qos) == (b"gone", 2)


@libraries()
@VERSIONS
async def test_a_session_outlives_its_connection_with_its_queue(room: Room, version: int) -> None:
    kept = {"version": version, "expiry": 600 if version == 5 else 0}
    first = await room.far("kept", clean=True, **kept)
    await first.close()
    first = await room.far("kept", clean=False, **kept)
    for qos in (1, 2):
        await first.subscribe(Wish(f"{room.topic}/{qos}", qos))
    await first.close()
    publisher = await room.near("publisher", version=version)
    sent = [(f"{room.topic}/{1 + number % 2}", b"%d" % number) for number in range(20)]
    for topic, payload in sent:
        await publisher.publish(topic, payload, 2)
    again = await room.near("kept", clean=False, **kept)
    if Can.SESSION_PRESENT in room.library.can:
        assert again.session_present is True
    got = await again.take(20)
    for qos in (1, 2):
        topic = f"{room.topic}/{qos}"
        mine = [payload for where, payload in sent if where == topic]
        assert [each.payload for each in got if each.topic == topic] == mine
        assert {each.qos for each in got if each.topic == topic} == {qos}


@libraries()
@VERSIONS
async def test_a_clean_start_forgets_everything(room: Room, version: int) -> None:
    kept = {"version": version, "expiry": 600 if version == 5 else 0}
    first = await room.far("kept", clean=False, **kept)
    await first.subscribe(Wish(f"{room.topic}/#", 1))
    await first.close()
    publisher = await room.near("publisher", version=version)
    await publisher.publish(room.topic, b"forgotten", 1)
    fresh = await room.near("kept", clean=True, **kept)
    if Can.SESSION_PRESENT in room.library.can:
        assert fresh.session_present is False
    await publisher.publish(room.topic, b"nobody", 1)
    await fresh.subscribe(Wish(f"{room.topic}/#", 1))
    await publisher.publish(room.topic, b"end", 1)
    assert await fresh.take_until(b"end") == []


@libraries()
@VERSIONS
async def test_unsubscribing_ends_it(room: Room, version: int) -> None:
    publisher = await room.near("publisher", version=version)
    subscriber = await room.far("subscriber", version=version)
    await subscriber.subscribe(Wish(f"{room.topic}/a", 1))
    await subscriber.subscribe(Wish(f"{room.topic}/b", 1))
    await subscriber.unsubscribe(f"{room.topic}/a")
    await publisher.publish(f"{room.topic}/a", b"unwanted", 1)
    await publisher.publish(f"{room.topic}/b", b"end", 1)
    assert await subscriber.take_until(b"end") == []


@libraries()
@VERSIONS
async def test_the_newer_connection_takes_over(room: Room, version: int) -> None:
    """The older one ends, told why in MQTT 5; the session goes on through another node."""
    kept = {"version": version, "expiry": 600 if version == 5 else 0}
    older = await room.near("twice", clean=False, **kept)
    await older.subscribe(Wish(room.topic, 1))
    newer = await room.far("twice", clean=False, **kept)
    await older.wait_ended()
    if version == 5 and Can.SAYS_WHY in room.library.can:
        assert older.end_reason == 0x8E
    publisher = await room.near("publisher", version=version)
    await publisher.publish(room.topic, b"to the newer", 1)
    assert (await newer.take())[0].payload == b"to the newer"


@libraries()
async def test_tls_with_a_certificate(room: Room) -> None:
    mine = room.place.certificate("lamp")
    secure = await room.far("secure", port=room.place.far.mqtts, identity=mine)
    await secure.subscribe(Wish(room.topic, 2))
    plain = await room.near("plain")
    await plain.publish(room.topic, b"in", 2)
    assert (await secure.take())[0].payload == b"in"
    await plain.subscribe(Wish(f"{room.topic}/out", 1))
    await secure.publish(f"{room.topic}/out", b"x" * 100_000, 1)
    assert (await plain.take())[0].payload == b"x" * 100_000


@libraries(Can.NOTICES_REFUSAL)
async def test_tls_without_a_certificate_of_ours_ends_before_mqtt(
    room: Room, tmp_path: Path
) -> None:
    mine = room.place.certificate("lamp")
    theirs = replace(issue_client(tmp_path, "lamp", utc_now()), authority=mine.authority)
    with pytest.raises((Refused, OSError)):
        await room.near("stranger", port=room.place.near.mqtts, identity=theirs)


@libraries(Can.WEBSOCKET)
@VERSIONS
async def test_websocket(room: Room, version: int) -> None:
    through = await room.far("web", port=room.place.far.ws, websocket=True, version=version)
    plain = await room.near("plain", version=version)
    await through.subscribe(Wish(f"{room.topic}/in", 2))
    await plain.subscribe(Wish(f"{room.topic}/out", 2))
    for qos in (0, 1, 2):
        await plain.publish(f"{room.topic}/in", b"i" * 70_000, qos)
        assert (await through.take())[0].payload == b"i" * 70_000
        await through.publish(f"{room.topic}/out", b"o" * 70_000, qos)
        assert (await plain.take())[0].payload == b"o" * 70_000


@libraries()
async def test_who_is_silent_is_dropped_and_who_pings_is_kept(room: Room) -> None:
    """Both have the same keep-alive; only one of them has a library that pings.

    A library that gets no turn for half a second more than one is dropped rightly, and another one
    is tried, with more time: a broker that did not count pings would drop them all.
    """
    for seconds in (1, 2, 4, 8, 16):
        heir = await room.far(f"heir-{seconds}", keep_alive=seconds)
        hearing = asyncio.create_task(_hears(room, heir, f"{room.topic}/{seconds}", seconds))
        ended = asyncio.create_task(heir.ended.wait())
        await asyncio.wait({hearing, ended}, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if not heir.ended.is_set():
            await hearing
            return
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
    raise AssertionError("everybody was dropped, who pings too")


async def _hears(room: Room, heir: StockClient, topic: str, seconds: int) -> None:
    """Do nothing but ping while two live and die in silence, and be there for what comes next."""
    await heir.subscribe(Wish(f"{topic}/next", 1))
    watcher = await room.near(f"watcher-{seconds}")
    await watcher.subscribe(Wish(f"{topic}/wills", 1))
    for _ in range(2):
        with contextlib.closing(_silent(room.place.near.mqtt, f"{topic}/wills".encode(), seconds)):
            (will,) = await watcher.take()
        assert will.payload == b"silent"
    await watcher.publish(f"{topic}/next", b"still there", 1)
    assert (await heir.take())[0].payload == b"still there"


def _silent(port: int, topic: bytes, seconds: int) -> socket.socket:
    """Connect with a keep-alive and a will, and say no more."""

    def text(value: bytes) -> bytes:
        return len(value).to_bytes(2, "big") + value

    body = text(b"MQTT") + b"\x04\x0e" + seconds.to_bytes(2, "big") + text(b"silent-" + topic[-20:])
    body += text(topic) + text(b"silent")
    line = socket.create_connection(("127.0.0.1", port), 60)
    line.sendall(b"\x10" + encode_variable(len(body)) + body)
    return line
