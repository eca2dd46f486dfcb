"""Clients that keep count: they publish and receive numbered messages through every disturbance.

They speak MQTT 3.1.1 with persistent sessions, reconnect to any node, and do what the standard
says after a reconnect. What they saw is judged afterwards, by rules of our own making.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from quantum.protocols.mqtt.codec import (
    Connack,
    Connect,
    Direction,
    Packet,
    PacketId,
    PacketReader,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
    decode_packet,
    encode_packet,
)
from quantum.protocols.mqtt.codec.types import ClientId

V311 = ProtocolVersion.V311
WINDOW = 16


class Gone(Exception):
    """The connection ended; connect again."""


class Line:
    """One connection of one client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._packets = PacketReader(1 << 20)

    def send(self, *packets: Packet) -> None:
        self._writer.write(b"".join(encode_packet(packet, V311) for packet in packets))

    async def receive(self) -> list[Packet]:
        """Wait for packets; raises Gone."""
        while True:
            found = list(self._whole())
            if found:
                return found
            try:
                data = await self._reader.read(1 << 16)
            except OSError as error:
                raise Gone(str(error)) from error
            if not data:
                raise Gone("closed")
            self._packets.receive(data)

    def _whole(self) -> Iterator[Packet]:
        while (taken := self._packets.next_packet()) is not None:
            yield decode_packet(*taken, V311, direction=Direction.TO_CLIENT)

    def drop(self) -> None:
        """End the connection without a word."""
        self._writer.transport.abort()


@dataclass
class Client:
    """A persistent session, and the way to it through any node."""

    name: str
    ports: list[int]
    rng: random.Random
    line: Line | None = None
    connects: int = 0
    sessions_lost: int = 0
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Stay connected until finished, whatever happens."""
        while not self.finished.is_set():
            with suppress(Gone, OSError, TimeoutError):
                await self._live()
            if self.line is not None:
                self.line.drop()
                self.line = None
            if not self.finished.is_set():
                await asyncio.sleep(0.05)  # a pause between dials, not a wait for anything

    async def _live(self) -> None:
        port = self.rng.choice(self.ports)
        async with asyncio.timeout(10):
            line = Line(*await asyncio.open_connection("127.0.0.1", port))
            self.line = line
            line.send(Connect(V311, ClientId(self.name), clean_start=False, keep_alive=30))
            first, *rest = await line.receive()
        if not isinstance(first, Connack) or first.reason_code != 0:
            raise Gone(f"refused: {first}")
        if self.connects and not first.session_present:
            self.sessions_lost += 1
        self.connects += 1
        self.on_connected(line)
        for packet in rest:
            self.on_packet(line, packet)
        while not self.finished.is_set():
            for packet in await line.receive():
                self.on_packet(line, packet)

    def disturb(self) -> None:
        """Lose the connection."""
        if self.line is not None:
            self.line.drop()

    def on_connected(self, line: Line) -> None:
        raise NotImplementedError

    def on_packet(self, line: Line, packet: Packet) -> None:
        raise NotImplementedError


@dataclass
class Publisher(Client):
    """Publishes 1, 2, 3 … to its topics in turn, and remembers what was acknowledged."""

    topics: list[str] = field(default_factory=list)
    qos: int = 1
    limit: int | None = None
    next_number: int = 1
    acknowledged: set[int] = field(default_factory=set, repr=False)
    _open: dict[int, tuple[int, str]] = field(default_factory=dict)  # by packet id, in order
    _released: set[int] = field(default_factory=set)  # PUBREC came
    _free: deque[int] = field(default_factory=lambda: deque(range(1, 200)), repr=False)

    def on_connected(self, line: Line) -> None:
        """Send again what was not acknowledged, in order, then more."""
        for packet_id, (number, topic) in self._open.items():
            if packet_id in self._released:
                line.send(Pubrel(PacketId(packet_id)))
            else:
                line.send(self._packet(packet_id, number, topic, again=True))
        self._publish_more(line)

    def _publish_more(self, line: Line) -> None:
        while len(self._open) < WINDOW and (self.limit is None or self.next_number <= self.limit):
            packet_id, number = self._free.popleft(), self.next_number
            topic = self.topics[number % len(self.topics)]
            self.next_number += 1
            self._open[packet_id] = (number, topic)
            line.send(self._packet(packet_id, number, topic, again=False))

    def _packet(self, packet_id: int, number: int, topic: str, *, again: bool) -> Publish:
        return Publish(
            TopicName(topic.encode()),
            f"{self.name}:{number}".encode(),
            self.qos,
            dup=again,
            packet_id=PacketId(packet_id),
        )

    def on_packet(self, line: Line, packet: Packet) -> None:
        if isinstance(packet, Pubrec):
            self._released.add(packet.packet_id)
            line.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Puback | Pubcomp):
            number, _ = self._open.pop(packet.packet_id)
            self._released.discard(packet.packet_id)
            self._free.append(packet.packet_id)
            self.acknowledged.add(number)
            self._publish_more(line)

    @property
    def idle(self) -> bool:
        """Whether everything that was begun is acknowledged."""
        return not self._open


@dataclass
class Subscriber(Client):
    """Takes everything below a filter, and remembers each delivery in order."""

    topic_filter: str = "#"
    qos: int = 2
    deliveries: list[tuple[str, str, int]] = field(default_factory=list)  # publisher, topic, number
    subscribed: asyncio.Event = field(default_factory=asyncio.Event)
    _held: set[int] = field(default_factory=set)  # QoS 2 messages that are not released

    def on_connected(self, line: Line) -> None:
        if not self.subscribed.is_set():
            wanted = Subscription(TopicFilter(self.topic_filter.encode()), self.qos)
            line.send(SubscribePacket(PacketId(1), (wanted,)))

    def on_packet(self, line: Line, packet: Packet) -> None:
        match packet:
            case Suback():
                self.subscribed.set()
            case Publish(qos=1):
                self._keep(packet)
                line.send(Puback(packet.packet_id))
            case Publish(qos=2):
                if packet.packet_id not in self._held:
                    self._held.add(packet.packet_id)
                    self._keep(packet)
                line.send(Pubrec(packet.packet_id))
            case Pubrel():
                self._held.discard(packet.packet_id)
                line.send(Pubcomp(packet.packet_id))
            case _:
                pass

    def _keep(self, packet: Publish) -> None:
        publisher, _, number = packet.payload.decode().partition(":")
        self.deliveries.append((publisher, packet.topic.decode(), int(number)))
