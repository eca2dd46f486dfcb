"""MQTT from CONNECT to DISCONNECT, driven by bytes alone: no loop, no socket, no node."""

from __future__ import annotations

import asyncio

import pytest

from tests.quantum.protocols.mqtt.bench_of_bytes import Bench, Line

CONNACK = b"\x20\x02\x00\x00"
CONNACK_PRESENT = b"\x20\x02\x01\x00"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
DISCONNECT = b"\xe0\x00"


@pytest.fixture(autouse=True)
def no_loop() -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def string(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes((first, len(body))) + body


def connect(client: bytes, flags: int = 0x02, rest: bytes = b"", *, level: int = 4) -> bytes:
    properties = b"\x00" if level == 5 else b""
    head = string(b"MQTT") + bytes((level, flags)) + b"\x00\x3c"
    return packet(0x10, head + properties + string(client) + rest)


def publish(
    topic: bytes, payload: bytes, qos: int = 0, packet_id: int = 0, flags: int = 0
) -> bytes:
    number = packet_id.to_bytes(2, "big") if qos else b""
    return packet(0x30 | qos << 1 | flags, string(topic) + number + payload)


def subscribe(packet_id: int, topic_filter: bytes, qos: int) -> bytes:
    return packet(0x82, packet_id.to_bytes(2, "big") + string(topic_filter) + bytes((qos,)))


def suback(packet_id: int, granted: int) -> bytes:
    return packet(0x90, packet_id.to_bytes(2, "big") + bytes((granted,)))


def ack(first: int, packet_id: int) -> bytes:
    return packet(first, packet_id.to_bytes(2, "big"))


def joined(bench: Bench, client: bytes, flags: int = 0x02) -> Line:
    line = bench.dial()
    assert line.say(connect(client, flags)) in (CONNACK, CONNACK_PRESENT)
    return line


def test_a_client_comes_pings_and_goes() -> None:
    bench = Bench()
    line = bench.dial()
    assert line.say(connect(b"c")) == CONNACK
    assert line.say(PINGREQ) == PINGRESP
    assert line.say(DISCONNECT) == b"" and line.is_closed
    assert bench.adapter.connections == 0


def test_it_does_not_matter_how_the_bytes_are_cut() -> None:
    line = Bench().dial()
    said = b"".join(
        line.say(bytes((byte,)))
        for byte in connect(b"c") + publish(b"a", b"x", 1, 7) + PINGREQ + DISCONNECT
    )
    assert said == CONNACK + ack(0x40, 7) + PINGRESP and line.is_closed


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_reaches_its_subscriber_at_each_quality_of_service(qos: int) -> None:
    bench = Bench()
    reader, writer = joined(bench, b"reader"), joined(bench, b"writer")
    assert reader.say(subscribe(1, b"a/+", qos)) == suback(1, qos)
    answer = writer.say(publish(b"a/b", b"hello", qos, 5))
    assert answer == (b"", ack(0x40, 5), ack(0x50, 5))[qos]
    got = reader.hear()
    packet_id = int.from_bytes(got[7:9], "big") if qos else 0
    assert got == publish(b"a/b", b"hello", qos, packet_id)
    if qos == 1:
        assert reader.say(ack(0x40, packet_id)) == b""
    elif qos == 2:
        assert writer.say(ack(0x62, 5)) == ack(0x70, 5)
        assert reader.say(ack(0x50, packet_id)) == ack(0x62, packet_id)
        assert reader.say(ack(0x70, packet_id)) == b""


def test_an_acknowledgement_leaves_when_the_log_is_durable_and_not_before() -> None:
    bench = Bench()
    reader, writer = joined(bench, b"reader"), joined(bench, b"writer")
    reader.say(subscribe(1, b"a", 0))
    bench.group.is_stuck = True
    assert writer.say(publish(b"a", b"1", 1, 1) + publish(b"a", b"2", 1, 2)) == b""
    assert reader.hear() == b""
    bench.group.is_stuck = False
    bench.settle()
    assert writer.hear() == ack(0x40, 1) + ack(0x40, 2), "in the order of the publishes"
    assert reader.hear() == publish(b"a", b"1") + publish(b"a", b"2")


def test_what_is_retained_waits_for_who_subscribes_later() -> None:
    bench = Bench()
    writer = joined(bench, b"writer")
    assert writer.say(publish(b"lamp", b"on", 1, 1, flags=1)) == ack(0x40, 1)
    reader = joined(bench, b"reader")
    said = reader.say(subscribe(9, b"lamp", 0))
    assert said == suback(9, 0) + publish(b"lamp", b"on", flags=1)


def test_a_lasting_session_keeps_what_comes_while_its_client_is_away() -> None:
    bench = Bench()
    away = joined(bench, b"away", flags=0)
    away.say(subscribe(1, b"a", 1))
    away.cut()
    writer = joined(bench, b"writer")
    assert writer.say(publish(b"a", b"kept", 1, 1)) == ack(0x40, 1)
    back = bench.dial()
    said = back.say(connect(b"away", 0))
    assert said.startswith(CONNACK_PRESENT)
    assert said.endswith(b"\x00\x01a" + said[-6:-4] + b"kept")


def test_a_second_connection_takes_the_session_over() -> None:
    bench = Bench()
    older = joined(bench, b"same", flags=0)
    newer = bench.dial()
    assert newer.say(connect(b"same", 0)) == CONNACK_PRESENT
    assert older.is_closed and not newer.is_closed
    assert newer.say(PINGREQ) == PINGRESP


def test_a_will_is_said_when_its_client_breaks_off_and_not_when_it_takes_leave() -> None:
    bench = Bench()
    reader = joined(bench, b"reader")
    reader.say(subscribe(1, b"gone", 0))
    polite, rude = bench.dial(), bench.dial()
    will = string(b"gone") + string(b"!")
    for line, name in ((polite, b"polite"), (rude, b"rude")):
        assert line.say(connect(name, 0x06, will)) == CONNACK
    polite.say(DISCONNECT)
    assert reader.hear() == b""
    rude.cut()
    assert reader.hear() == publish(b"gone", b"!")


BAD = {
    "no CONNECT first": (PINGREQ, b""),
    "a protocol that is none": (packet(0x10, string(b"HTTP") + b"\4\2\0\0" + string(b"c")), b""),
    "a level that is too new": (
        packet(0x10, string(b"MQTT") + b"\x09\2\0\0" + string(b"c")),
        b"\x20\x03\x00\x84\x00",  # as MQTT 5: Unsupported Protocol Version
    ),
    "reserved flags of PINGREQ": (connect(b"c") + b"\xc1\x00", CONNACK),
    "a second CONNECT": (connect(b"c") * 2, CONNACK),
    "a QoS of three": (connect(b"c") + packet(0x36, string(b"a") + b"\0\1x"), CONNACK),
    "a wildcard in a topic": (connect(b"c") + publish(b"a/#", b"x", 1, 1), CONNACK),
}


@pytest.mark.parametrize(("said", "answer"), BAD.values(), ids=BAD.keys())
def test_who_breaks_the_protocol_is_closed_and_nobody_else_notices(
    said: bytes, answer: bytes
) -> None:
    bench = Bench()
    other = joined(bench, b"other")
    bad = bench.dial()
    assert bad.say(said) == answer and bad.is_closed
    assert bench.refused == ["MalformedPacket"]
    assert other.say(PINGREQ) == PINGRESP


def test_what_was_whole_before_a_bad_packet_is_carried_out() -> None:
    bench = Bench()
    reader, writer = joined(bench, b"reader"), joined(bench, b"writer")
    reader.say(subscribe(1, b"a", 0))
    writer.say(publish(b"a", b"good", 1, 1) + b"\xc1\x00")
    assert writer.is_closed and reader.hear() == publish(b"a", b"good")


def test_mqtt_5_is_told_why() -> None:
    bench = Bench()
    line = bench.dial()
    assert line.say(connect(b"c", level=5))[:1] == b"\x20"
    said = line.say(b"\xc1\x00")
    assert said[0] == 0xE0 and said[2] == 0x81 and line.is_closed  # Malformed Packet


def test_who_is_silent_for_too_long_is_closed() -> None:
    bench = Bench()
    line = joined(bench, b"c")
    bench.wait(89)
    assert not line.is_closed
    bench.wait(2)
    assert line.is_closed, "one and a half of its keep-alive of a minute"


def test_who_loses_its_leader_is_closed_and_what_was_not_durable_is_not_acknowledged() -> None:
    bench = Bench()
    writer = joined(bench, b"writer")
    bench.group.is_stuck = True
    assert writer.say(publish(b"a", b"x", 1, 1)) == b""
    bench.group.leads, bench.group.leader_id = False, None
    bench.turn_soon()
    bench.settle()
    assert writer.is_closed and writer.hear() == b""


def test_a_lasting_session_publishes_once_however_often_its_client_asks() -> None:
    bench = Bench()
    reader, writer = joined(bench, b"reader"), joined(bench, b"writer", flags=0)
    reader.say(subscribe(1, b"a", 0))
    assert writer.say(publish(b"a", b"once", 2, 8)) == ack(0x50, 8)
    writer.cut()
    writer = bench.dial()
    assert writer.say(connect(b"writer", 0)) == CONNACK_PRESENT
    assert writer.say(publish(b"a", b"once", 2, 8, flags=8)) == ack(0x50, 8)
    assert writer.say(ack(0x62, 8)) == ack(0x70, 8)
    assert reader.hear() == publish(b"a", b"once")
