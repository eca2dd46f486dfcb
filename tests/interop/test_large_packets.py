"""Messages larger than an entry of the log: whole at the other end, or refused by the bound."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from quantum.protocols.mqtt.codec import ReasonCode
from tests.interop.broker_process import HOST
from tests.interop.mqtt_places import Place
from tests.quantum.serving.client import V5, V311, SocketLine, connect, unique

DEADLINE_SECONDS = 180
MIB = 1 << 20
SIZE = 8 * MIB
WRITERS = 25
GROWN_BYTES_MAX = 512 * MIB
"""What a node may grow by: 64 MiB that come, as much on its way into logs, and copies of both."""


@dataclass
class Port:
    number: int

    def dial(self) -> SocketLine:
        return SocketLine(self.number)


def payload(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


@dataclass
class Reader:
    """A subscriber that notes digests of what it gets."""

    client: paho.Client
    got: list[tuple[str, int, str]]
    ready: threading.Event

    def wait_for(self, count: int) -> list[tuple[str, int, str]]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(set(self.got)) < count:
            assert time.monotonic() < deadline, f"{len(self.got)} of {count} came"
            time.sleep(0.01)
        return self.got


def reader(port: int, topic: str, *, lasting: bool) -> Reader:
    client = paho.Client(CallbackAPIVersion.VERSION2, unique("reader"), clean_session=not lasting)
    found = Reader(client, [], threading.Event())
    client.on_connect = cast("Any", lambda *_: client.subscribe(topic, 2))
    client.on_subscribe = lambda *_: found.ready.set()
    client.on_message = lambda _c, _u, message: found.got.append(
        (message.topic, message.qos, hashlib.sha256(message.payload).hexdigest())
    )
    client.connect(HOST, port)
    client.loop_start()
    assert found.ready.wait(DEADLINE_SECONDS)
    return found


def writer(port: int) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, unique("writer"), clean_session=False)
    client.connect(HOST, port)
    client.loop_start()
    return client


@pytest.mark.parametrize("lasting", [False, True], ids=["clean", "lasting"])
def test_large_messages_arrive_whole_at_each_qos(place: Place, lasting: bool) -> None:
    base = unique("large")
    subscriber = reader(place.far.mqtt, f"{base}/#", lasting=lasting)
    publisher = writer(place.near.mqtt)
    send_all(publisher, subscriber, base, [1_000_001, MIB + 1, 3 * MIB])
    publisher.disconnect()
    subscriber.client.disconnect()


@pytest.mark.soak
def test_the_largest_arrive_whole_at_each_qos(place: Place) -> None:
    base = unique("largest")
    subscriber = reader(place.far.mqtt, f"{base}/#", lasting=True)
    publisher = writer(place.near.mqtt)
    send_all(publisher, subscriber, base, [16 * MIB])
    publisher.disconnect()
    subscriber.client.disconnect()


def send_all(publisher: paho.Client, subscriber: Reader, base: str, sizes: list[int]) -> None:
    expected = set()
    for nth, size in enumerate(sizes):
        for qos in (0, 1, 2):
            body = payload(nth, size)
            topic = f"{base}/{nth}/{qos}"
            expected.add((topic, qos, hashlib.sha256(body).hexdigest()))
            publisher.publish(topic, body, qos).wait_for_publish(DEADLINE_SECONDS)
            subscriber.wait_for(len(expected))  # QoS 0 is for who takes what came before
    assert set(subscriber.wait_for(len(expected))) == expected


def test_a_retained_one_comes_with_the_subscription(place: Place) -> None:
    topic, body = unique("kept"), payload(7, 5 * MIB)
    publisher = writer(place.near.mqtt)
    publisher.publish(topic, body, 1, retain=True).wait_for_publish(DEADLINE_SECONDS)
    subscriber = reader(place.far.mqtt, topic, lasting=False)
    assert subscriber.wait_for(1) == [(topic, 1, hashlib.sha256(body).hexdigest())]
    publisher.publish(topic, b"", 1, retain=True).wait_for_publish(DEADLINE_SECONDS)
    publisher.disconnect()
    subscriber.client.disconnect()


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
def test_beyond_the_bound_it_is_refused_on_its_header(place: Place, version: object) -> None:
    client = connect(Port(place.near.mqtt), version)  # type: ignore[arg-type]
    most = (16 << 20) + (64 << 10)
    if version is V5:
        assert client.connack.properties.maximum_packet_size == most
    length = most  # with its header it is more
    header = bytes([0x32]) + bytes(
        [length & 0x7F | 0x80, length >> 7 & 0x7F | 0x80, length >> 14 & 0x7F | 0x80, length >> 21]
    )
    client.send(header)
    if version is V5:
        client.expect_disconnect(ReasonCode.PACKET_TOO_LARGE)
    else:
        client.expect_end()
    client.cut()


@pytest.mark.soak
def test_many_at_once_arrive(place: Place) -> None:
    """As many as a clean subscriber's queue may hold, however slowly it reads (64 MiB)."""
    base = unique("many")
    subscriber = reader(place.far.mqtt, f"{base}/#", lasting=False)
    writers = [writer(place.near.mqtt) for _ in range(7)]
    expected = publish_each(writers, base)
    assert set(subscriber.wait_for(len(expected))) == expected
    for each in writers:
        each.disconnect()
    subscriber.client.disconnect()


@pytest.mark.soak
def test_many_at_once_leave_memory_bounded(place: Place) -> None:
    """25 clients send 8 MiB each, four times: three times what may come at once, and 800 MiB."""
    base = unique("much")
    writers = [writer(place.near.mqtt) for _ in range(WRITERS)]
    publish_each(writers[:1], base)  # what one of them leaves behind is the base's
    with Peaks(place.pids) as peaks:
        for _ in range(4):
            publish_each(writers, base)
    for each in writers:
        each.disconnect()
    print(f"at most {[f'{each / MIB:.0f} MiB' for each in peaks.grown]} more, by node")
    assert max(peaks.grown) < GROWN_BYTES_MAX


def publish_each(writers: list[paho.Client], base: str) -> set[tuple[str, int, str]]:
    """Let everybody publish at once; return what must arrive."""
    expected, sent = set(), []
    for nth, each in enumerate(writers):
        body, topic = payload(nth, SIZE), f"{base}/{nth}"
        expected.add((topic, 1, hashlib.sha256(body).hexdigest()))
        sent.append(each.publish(topic, body, 1))
    for info in sent:
        info.wait_for_publish(DEADLINE_SECONDS)
        assert info.is_published()
    return expected


@dataclass
class Peaks:
    """How much more memory processes had than at the beginning, at most."""

    pids: tuple[int, ...]
    grown: list[int] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._base = [resident_bytes(pid) for pid in self.pids]
        self.grown = [0] * len(self.pids)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            for nth, pid in enumerate(self.pids):
                self.grown[nth] = max(self.grown[nth], resident_bytes(pid) - self._base[nth])

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise AssertionError("no such process")
