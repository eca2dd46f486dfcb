"""What one client sends at once, or gets at once, holds nobody up: a witness waits 250 ms at most.

A turn of the loop takes a share of what came, and goes on with the rest when the others had theirs.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from quantum.protocols.mqtt.codec import Suback, Unsuback
from quantum.protocols.mqtt.codec.primitives import encode_variable
from tests.interop.broker_process import BrokerProcess
from tests.interop.test_half_open import Port
from tests.interop.witness import Idle, Witness, bound_seconds, publish
from tests.quantum.serving.client import V311, Client, SocketLine, connect

PINGREQ = b"\xc0\x00"
MIB = 1 << 20
RETAINED = 100_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("turns") / "var") as broker:
        client = connect(Port(broker.mqtt))
        for _ in range(50):  # what comes first waits for a start's own work
            publish(client)
        client.cut()
        yield broker


@contextmanager
def witnessed(broker: BrokerProcess, scratch: Path) -> Iterator[None]:
    """A neighbour publishes all the while, and no publish waits longer than it may."""
    neighbour = connect(Port(broker.mqtt))
    witness, idle = Witness(neighbour), Idle(scratch)
    witness.start()
    try:
        yield
    finally:
        witness.stopping.set()
        witness.join(60)
        neighbour.cut()
        idle_seconds = idle.worst_seconds()
    print(f"worst of {witness.published}: {witness.worst_seconds:.3f} s, idle {idle_seconds:.3f} s")
    assert witness.published and not witness.is_alive()
    assert witness.worst_seconds < bound_seconds(idle_seconds), broker.last_words()


def wire_of(client: Client) -> socket.socket:
    assert isinstance(client.line, SocketLine)
    return client.line._socket


def receive_all(line: socket.socket, size: int) -> None:
    while size > 0:
        piece = line.recv(MIB)
        assert piece, "the broker closed the connection"
        size -= len(piece)


def packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_variable(len(body)) + body


def filters(count: int, first: int, start: int = 0) -> bytes:
    """Return a SUBSCRIBE (0x82) or an UNSUBSCRIBE (0xA2) of MQTT 3.1.1."""
    end = b"\0" if first == 0x82 else b""
    lines = (b"\0\x06%06d%s" % (number, end) for number in range(start, start + count))
    return packet(first, b"\0\x07" + b"".join(lines))


def publish_packet(first: int, topic: bytes, packet_id: int, payload: bytes) -> bytes:
    """Return a PUBLISH; packet id 0 is that of QoS 0, which has none."""
    number = packet_id.to_bytes(2, "big") if packet_id else b""
    return packet(first, len(topic).to_bytes(2, "big") + topic + number + payload)


def send_aside(line: socket.socket, data: bytes) -> threading.Thread:
    def send() -> None:
        with suppress(TimeoutError, OSError):
            line.sendall(data)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_megabytes_of_pingreq(broker: BrokerProcess, tmp_path: Path) -> None:
    with witnessed(broker, tmp_path):
        client = connect(Port(broker.mqtt), V311)
        sending = send_aside(wire_of(client), PINGREQ * (2 * MIB))
        receive_all(wire_of(client), 4 * MIB)
        sending.join()
        client.cut()


def test_megabytes_of_pingreq_from_one_that_does_not_read(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with witnessed(broker, tmp_path):
        client = connect(Port(broker.mqtt), V311)
        wire_of(client).settimeout(1.0)
        with pytest.raises(TimeoutError):
            wire_of(client).sendall(PINGREQ * (21 * MIB // 2))
        client.cut()


def test_ten_thousand_filters(broker: BrokerProcess, tmp_path: Path) -> None:
    """Subscribed to in three packets, and unsubscribed from, all in one piece."""
    with witnessed(broker, tmp_path):
        client = connect(Port(broker.mqtt), V311)
        starts = [(3_400, 0), (3_400, 3_400), (3_200, 6_800)]
        client.send(b"".join(filters(count, 0x82, start) for count, start in starts))
        granted = [code for _ in starts for code in client.expect_answer(Suback).reason_codes]
        assert len(granted) == 10_000 and not any(code.is_failure for code in granted)
        client.send(b"".join(filters(count, 0xA2, start) for count, start in starts))
        for _ in starts:
            client.expect_answer(Unsuback)
        client.cut()


@pytest.mark.parametrize("count", [1, 1_000])
def test_what_follows_filters_takes_effect_behind_them(broker: BrokerProcess, count: int) -> None:
    client = connect(Port(broker.mqtt), V311)
    names = [b"%06d" % number for number in (0, count - 1)]
    said = [publish_packet(0x30, name, 0, b"!") for name in names]
    client.send(filters(count, 0x82) + b"".join(said) + filters(count, 0xA2) + PINGREQ)
    client.expect(Suback)
    # In any order: each topic has its own partition, and a pong waits for nobody.
    answers = [(0xB0, b"\0\x07"), (0xD0, b"")]
    wanted = [(0x30, b"\0\x06" + name + b"!") for name in names] + answers
    assert sorted(client.receive_raw() or (0, b"") for _ in wanted) == sorted(wanted)
    client.cut()


def test_publishes_of_a_mebibyte(broker: BrokerProcess, tmp_path: Path) -> None:
    with witnessed(broker, tmp_path):
        client = connect(Port(broker.mqtt), V311)
        pieces = [publish_packet(0x32, b"large", 1 + n, bytes(MIB)) for n in range(24)]
        sending = send_aside(wire_of(client), b"".join(pieces))
        receive_all(wire_of(client), 4 * len(pieces))
        sending.join()
        client.cut()


def test_a_hundred_thousand_retained_messages(broker: BrokerProcess, tmp_path: Path) -> None:
    keep_retained(broker)
    with witnessed(broker, tmp_path):
        client = connect(Port(broker.mqtt), V311)
        client.send(packet(0x82, b"\0\x01" + b"\0\x03k/#" + b"\0"))
        client.expect_answer(Suback)
        each = len(publish_packet(0x31, b"k/000000", 0, b"x" * 32))
        receive_all(wire_of(client), RETAINED * each)
        client.cut()


def keep_retained(broker: BrokerProcess) -> None:
    client = connect(Port(broker.mqtt), V311)
    for start in range(0, RETAINED, 10_000):
        numbers = range(start, start + 10_000)
        data = [publish_packet(0x33, b"k/%06d" % n, 1 + n - start, b"x" * 32) for n in numbers]
        sending = send_aside(wire_of(client), b"".join(data))
        receive_all(wire_of(client), 4 * len(data))
        sending.join()
    client.cut()
