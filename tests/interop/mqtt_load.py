"""A load generator: raw sockets, packets made beforehand, one process: `python -m … '{"…": …}'`.

It asks for more than any broker can take (every answered publish is followed by the next), keeps
one prober that waits for each answer, and reads as some subscribers do: slowly. What it saw is
one line of JSON. Kept simple, because what it costs is taken from the broker it measures.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

HOST = "127.0.0.1"
_READ_BYTES = 1 << 16
_SLOW_READ_BYTES = 1 << 14
_SLOW_PAUSE = 0.05
_HELD_UP_BYTES = 1 << 20
_ANSWER_SECONDS = 180.0
"""When a broker is given up that does not answer a handshake, or delivers nothing at all."""
_CONNACK = b"\x20\x02\x00\x00"
_PUBACK = 0x40


@dataclass
class Plan:
    """What is asked of the broker."""

    ports: list[int]
    seconds: float
    publishers: int = 50
    window: int = 100
    size: int = 256
    slow_subscribers: int = 1
    slow_publishers: int = 2
    prefix: str = "load"


@dataclass
class Seen:
    """What came of it. Times are milliseconds."""

    acked: int = 0
    acked_per_second: float = 0.0
    received: int = 0
    received_slowly: int = 0
    closed: int = 0
    closed_who: list[str] = field(default_factory=list)
    ack_p50: float = 0.0
    ack_p999: float = 0.0
    probe_count: int = 0
    probe_p50: float = 0.0
    probe_p999: float = 0.0
    probe_max: float = 0.0


def _packet(first: int, body: bytes) -> bytes:
    length, encoded = len(body), bytearray()
    while True:
        length, digit = length >> 7, length & 0x7F
        encoded.append(digit | (0x80 if length else 0))
        if not length:
            return bytes((first,)) + bytes(encoded) + body


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def connect_packet(client_id: str) -> bytes:
    """Connect with ten minutes to keep alive: who waits for a thousand others says nothing."""
    return _packet(0x10, _text("MQTT") + b"\x04\x02\x02\x58" + _text(client_id))


def subscribe_packet(topic_filter: str) -> bytes:
    return _packet(0x82, b"\x00\x01" + _text(topic_filter) + b"\x01")


def publish_packet(topic: str, packet_id: int, payload: bytes) -> bytes:
    return _packet(0x32, _text(topic) + packet_id.to_bytes(2, "big") + payload)


class Client:
    """One connection: connected with blocking calls, then driven by the loop."""

    def __init__(self, load: Load, port: int, name: str) -> None:
        self.name = name
        self._load = load
        self._socket = socket.create_connection((HOST, port), _ANSWER_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(connect_packet(name))
        answer = self._exactly(4)
        if answer != _CONNACK:
            raise ConnectionError(f"{name}: {answer!r}")
        self._out = bytearray()
        self._writes = False

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                raise ConnectionError(f"{self.name}: closed during its handshake")
            data += more
        return data

    def subscribe(self, topic_filter: str) -> None:
        self._socket.sendall(subscribe_packet(topic_filter))
        answer = self._exactly(5)
        if answer[0] != 0x90 or answer[4] > 2:
            raise ConnectionError(f"{self.name}: SUBACK {answer!r}")

    def begin(self) -> None:
        self._socket.setblocking(False)  # noqa: FBT003  # as it is called
        self._load.selector.register(self._socket, selectors.EVENT_READ, self)

    def write(self, data: bytes) -> None:
        self._out += data
        self.flush()

    def flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._socket.send(self._out[: 1 << 18])]
        except BlockingIOError:
            pass
        except OSError as error:
            self.ended(error)
            return
        if bool(self._out) != self._writes:
            self._writes = bool(self._out)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._writes else 0)
            self._load.selector.modify(self._socket, events, self)

    def read(self, size: int = _READ_BYTES) -> bytes:
        try:
            data = self._socket.recv(size)
        except BlockingIOError:
            return b""
        except OSError as error:
            self.ended(error)
            return b""
        if not data:
            self.ended(None)
        return data

    def ended(self, error: OSError | None) -> None:
        """The broker ended it: that is what a load must never lead to."""
        self._load.seen.closed += 1
        if len(self._load.seen.closed_who) < 10:
            self._load.seen.closed_who.append(f"{self.name}: {error or 'closed'}")
        self.leave()

    def leave(self) -> None:
        if self._socket.fileno() >= 0:
            self._load.selector.unregister(self._socket)
            self._socket.close()

    def on_event(self, events: int) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Keeps its window full; the same packets again and again."""

    def __init__(  # what a publisher is
        self, load: Load, port: int, name: str, topic: str, window: int, size: int
    ) -> None:
        super().__init__(load, port, name)
        payload = bytes(size)
        self._packets = [publish_packet(topic, number, payload) for number in range(1, window + 1)]
        self._sent = [0.0] * window
        self._in = b""
        self.times: list[float] = []
        self.acked = 0

    def begin(self) -> None:
        super().begin()
        self._sent = [time.monotonic()] * len(self._packets)
        self.write(b"".join(self._packets))

    def on_event(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.flush()
        if not events & selectors.EVENT_READ:
            return
        data = self._in + self.read()
        whole = len(data) // 4 * 4
        self._in, now, again = data[whole:], time.monotonic(), []
        for at in range(0, whole, 4):
            number = data[at + 2] << 8 | data[at + 3]
            if data[at] != _PUBACK:
                raise ConnectionError(f"{self.name}: {data[at]:#x} is no PUBACK")
            self.times.append(now - self._sent[number - 1])
            self._sent[number - 1] = now
            again.append(self._packets[number - 1])
        self.acked += whole // 4
        if again:
            self.write(b"".join(again))


class Subscriber(Client):
    """Reads and acknowledges; a slow one so many bytes a while, and rests."""

    def __init__(self, load: Load, port: int, name: str, topic_filter: str, *, slow: bool) -> None:
        super().__init__(load, port, name)
        self.subscribe(topic_filter)
        self._slow = slow
        self._in = bytearray()
        self.received = 0

    def on_event(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self.flush()
        if events & selectors.EVENT_READ:
            self._take(self.read(self._load.slow_bytes if self._slow else _READ_BYTES))
            if self._slow and self._socket.fileno() >= 0:
                self._load.rest(self)

    def rest(self) -> None:
        self._load.selector.unregister(self._socket)

    def go_on(self) -> None:
        if self._socket.fileno() >= 0:
            self._writes = False
            self._load.selector.register(self._socket, selectors.EVENT_READ, self)
            self.flush()

    def leave(self) -> None:
        if self._socket.fileno() >= 0:
            with suppress(KeyError):  # it rests
                self._load.selector.unregister(self._socket)
            self._socket.close()

    def _take(self, data: bytes) -> None:
        held, at, acks = self._in, 0, []
        held += data
        while (found := _head(held, at)) is not None:
            body, end = found
            if held[at] >> 4 == 3:
                topic_bytes = held[body] << 8 | held[body + 1]
                place = body + 2 + topic_bytes
                acks.append(b"\x40\x02" + bytes(held[place : place + 2]))
                self.received += 1
            at = end
        del held[:at]
        if acks:
            self.write(b"".join(acks))


def _head(data: bytearray, at: int) -> tuple[int, int] | None:
    """Return where the body of the packet at `at` begins and ends; None: it is not whole."""
    length = shift = 0
    place = at + 1
    while place < len(data):
        length |= (data[place] & 0x7F) << shift
        shift += 7
        place += 1
        if data[place - 1] < 0x80:
            end = place + length
            return (place, end) if end <= len(data) else None
    return None


class Load:
    """All connections of one run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.seen = Seen()
        self.selector = selectors.DefaultSelector()
        self._resting: deque[tuple[float, Subscriber]] = deque()
        self.slow_bytes = max(_SLOW_READ_BYTES, min(_READ_BYTES, plan.size))
        """What a slow subscriber reads at a time: twenty times a second."""

    def rest(self, subscriber: Subscriber) -> None:
        subscriber.rest()
        self._resting.append((time.monotonic() + _SLOW_PAUSE, subscriber))

    def run(self) -> Seen:
        plan, prefix = self.plan, self.plan.prefix
        ports = [plan.ports[number % len(plan.ports)] for number in range(10_000)]
        reader = Subscriber(self, ports[0], f"{prefix}-reader", f"{prefix}/fast/+", slow=False)
        slow = [
            Subscriber(self, ports[n + 1], f"{prefix}-slow-{n}", f"{prefix}/slow/#", slow=True)
            for n in range(plan.slow_subscribers)
        ]
        probe = Publisher(self, ports[1], f"{prefix}-probe", f"{prefix}/probe", 1, 64)
        many = [
            Publisher(
                self, ports[n], f"{prefix}-p{n}", f"{prefix}/fast/{n}", plan.window, plan.size
            )
            for n in range(plan.publishers)
        ]
        window = max(1, min(20, _HELD_UP_BYTES // plan.size))
        held_up = [
            Publisher(self, ports[n], f"{prefix}-s{n}", f"{prefix}/slow/{n}", window, plan.size)
            for n in range(plan.slow_publishers)
        ]
        clients: list[Client] = [reader, *slow, probe, *many, *held_up]
        for client in clients:
            client.begin()
        began = time.monotonic()
        while self._goes_on(now := time.monotonic(), began, [reader, *slow], many):
            while self._resting and self._resting[0][0] <= now:
                self._resting.popleft()[1].go_on()
            for key, events in self.selector.select(0.02):
                key.data.on_event(events)
        self._sum_up(many, probe, now - began)
        self.seen.received = reader.received
        self.seen.received_slowly = sum(each.received for each in slow)
        for client in clients:
            client.leave()
        return self.seen

    def _goes_on(
        self, now: float, began: float, readers: list[Subscriber], writers: list[Publisher]
    ) -> bool:
        """Say whether the time is not over; a machine that stood still is given more of it."""
        if now < began + self.plan.seconds:
            return True
        all_saw = all(each.received for each in readers) and any(each.acked for each in writers)
        is_over = bool(self.seen.closed) or all_saw
        return not is_over and now < began + self.plan.seconds + _ANSWER_SECONDS

    def _sum_up(self, many: list[Publisher], probe: Publisher, took: float) -> None:
        seen, times = self.seen, sorted(time for each in many for time in each.times)
        probes = sorted(probe.times)
        seen.acked = sum(each.acked for each in many)
        seen.acked_per_second = round(seen.acked / took, 1)
        seen.ack_p50, seen.ack_p999 = _share(times, 0.5), _share(times, 0.999)
        seen.probe_count = len(probes)
        seen.probe_p50, seen.probe_p999 = _share(probes, 0.5), _share(probes, 0.999)
        seen.probe_max = _share(probes, 1.0)


def _share(ordered: list[float], share: float) -> float:
    """Return the value below which such a share lies, in milliseconds."""
    if not ordered:
        return 0.0
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(asdict(Load(Plan(**asked)).run())) + "\n")


if __name__ == "__main__":
    main()
