"""Clients that keep count: numbered messages through every disturbance, by the standard's rules.

They hold persistent sessions, go to any node, and after a reconnect they do what MQTT says. What
they saw is judged afterwards, by rules that know nothing of the broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from clustor.sim.scenario import MS
from quantum.protocols.mqtt.codec import (
    Connack,
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketId,
    PacketReader,
    Properties,
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
from quantum.sim.wire import ClientEnd, SimLine

WINDOW: Final = 8
_ANSWER_MAX: Final = 4_000 * MS
_PACKET_BYTES_MAX: Final = 1 << 20
_FAILURE: Final = 0x80
_EXPIRY_SECONDS: Final = 3_600


class ClientsWorld(Protocol):
    """What clients ask of the world that they live in."""

    @property
    def is_heard(self) -> bool: ...
    def later(self, delay: int, action: Callable[[], None], /) -> None: ...
    def dial(self, client: ClientEnd, rng: Random) -> SimLine | None: ...


class SimClient:
    """A persistent session, and the way to it through any node."""

    def __init__(
        self, world: ClientsWorld, name: str, version: ProtocolVersion, rng: Random
    ) -> None:
        self._world = world
        self.name = name
        self.version = version
        self._rng = rng
        self.line: SimLine | None = None
        self.is_live = False
        self._packets = PacketReader(_PACKET_BYTES_MAX)
        self._attempt = 0
        self.connects = 0
        self.sessions_lost = 0
        world.later(rng.randint(100 * MS, 300 * MS), self.connect)

    # Connections.

    def connect(self) -> None:
        """Go to a node that runs, whichever it is; try again if nobody answers."""
        if self.line is not None:
            return
        self._attempt += 1
        attempt = self._attempt
        self.line = self._world.dial(self, self._rng)
        if self.line is None:
            self._again()
            return
        self._packets = PacketReader(_PACKET_BYTES_MAX)
        properties = Properties()
        if self.version is ProtocolVersion.V5:
            properties.session_expiry_interval = _EXPIRY_SECONDS
        self.send(
            Connect(
                self.version,
                ClientId(self.name),
                clean_start=False,
                keep_alive=0,
                properties=properties,
            )
        )
        self._world.later(_ANSWER_MAX, lambda: self._give_up(attempt))

    def _give_up(self, attempt: int) -> None:
        if self._attempt == attempt and not self.is_live:
            self.disturb()

    def _again(self) -> None:
        self._world.later(self._rng.randint(5 * MS, 100 * MS), self.connect)

    def disturb(self) -> None:
        """Lose the connection."""
        if self.line is not None:
            line, self.line, self.is_live = self.line, None, False
            line.drop()
            self._again()

    def lost(self, line: SimLine) -> None:
        if line is self.line:
            self.line, self.is_live = None, False
            self._again()

    # Packets.

    def send(self, *packets: Packet) -> None:
        if self.line is not None:
            self.line.send(b"".join(encode_packet(packet, self.version) for packet in packets))

    def received(self, line: SimLine, data: bytes) -> None:
        if line is not self.line:
            return
        self._packets.receive(data)
        while line is self.line and (taken := self._packets.next_packet()) is not None:
            packet = decode_packet(*taken, self.version, direction=Direction.TO_CLIENT)
            self._on_any(packet)

    def _on_any(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self._on_connack(packet)
        elif isinstance(packet, Disconnect):
            self.disturb()
        else:
            self.on_packet(packet)

    def _on_connack(self, connack: Connack) -> None:
        if connack.reason_code != 0:
            self.disturb()
            return
        if self.connects and not connack.session_present:
            self.sessions_lost += 1
        self.connects += 1
        self.is_live = True
        self.on_connected()

    def on_connected(self) -> None:
        raise NotImplementedError

    def on_packet(self, packet: Packet) -> None:
        raise NotImplementedError


class SimPublisher(SimClient):
    """Publishes 1, 2, 3 … to its topics in turn, and remembers what it was told."""

    def __init__(
        self,
        world: ClientsWorld,
        name: str,
        version: ProtocolVersion,
        rng: Random,
        *,
        topics: list[str],
        qos: int,
        limit: int,
    ) -> None:
        self.topics = topics
        self.qos = qos
        self.limit = limit
        self.next_number = 1
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.before_subscriptions: set[int] = set()
        """What it said before every subscriber was sure of its subscription."""
        self.said_again: set[int] = set()
        """What it sent once more: where the broker can say no, it may have said so before."""
        self._open: dict[int, tuple[int, str]] = {}  # by packet id, in order
        self._released: set[int] = set()  # PUBREC came
        self._free = deque(range(1, 4 * WINDOW))
        self._pause = rng.choice((0, 0, 2 * MS, 20 * MS))
        super().__init__(world, name, version, rng)

    @property
    def is_idle(self) -> bool:
        """Whether all that it wanted to say is acknowledged or refused."""
        return not self._open and self.next_number > self.limit

    def on_connected(self) -> None:
        for packet_id, (number, topic) in self._open.items():
            if packet_id in self._released:
                self.send(Pubrel(PacketId(packet_id)))
            else:
                self.said_again.add(number)
                self.send(self._packet(packet_id, number, topic, again=True))
        self.publish_more()

    def publish_more(self) -> None:
        while self.is_live and len(self._open) < WINDOW and self.next_number <= self.limit:
            packet_id, number = self._free.popleft(), self.next_number
            topic = self.topics[number % len(self.topics)]
            self.next_number += 1
            self._open[packet_id] = (number, topic)
            if not self._world.is_heard:
                self.before_subscriptions.add(number)
            self.send(self._packet(packet_id, number, topic, again=False))

    def _packet(self, packet_id: int, number: int, topic: str, *, again: bool) -> Publish:
        return Publish(
            TopicName(topic.encode()),
            f"{self.name}:{number}".encode(),
            self.qos,
            dup=again,
            packet_id=PacketId(packet_id),
        )

    def on_packet(self, packet: Packet) -> None:
        if isinstance(packet, Pubrec):
            if packet.reason_code >= _FAILURE:
                self._settle(packet.packet_id, self.refused)
            else:
                self._released.add(packet.packet_id)
                self.send(Pubrel(packet.packet_id))
        elif isinstance(packet, Puback):
            failed = packet.reason_code >= _FAILURE
            self._settle(packet.packet_id, self.refused if failed else self.acknowledged)
        elif isinstance(packet, Pubcomp):
            self._settle(packet.packet_id, self.acknowledged)

    def _settle(self, packet_id: int, where: set[int]) -> None:
        number, _ = self._open.pop(packet_id)
        self._released.discard(packet_id)
        self._free.append(packet_id)
        where.add(number)
        self._world.later(self._pause, self.publish_more)


class SimSubscriber(SimClient):
    """Takes everything below a filter, and remembers each delivery in order."""

    def __init__(
        self,
        world: ClientsWorld,
        name: str,
        version: ProtocolVersion,
        rng: Random,
        *,
        topic_filter: str,
        qos: int,
    ) -> None:
        self.topic_filter = topic_filter
        self.qos = qos
        self.is_subscribed = False
        self.deliveries: list[tuple[str, str, int]] = []  # publisher, topic, number
        self._held: set[int] = set()  # QoS 2 messages that are not released
        super().__init__(world, name, version, rng)

    def on_connected(self) -> None:
        if not self.is_subscribed:
            wanted = Subscription(TopicFilter(self.topic_filter.encode()), self.qos)
            self.send(SubscribePacket(PacketId(1), (wanted,)))

    def on_packet(self, packet: Packet) -> None:
        match packet:
            case Suback():
                self.is_subscribed = True
            case Publish(qos=1):
                self._keep(packet)
                self.send(Puback(packet.packet_id))
            case Publish(qos=2):
                if packet.packet_id not in self._held:
                    self._held.add(packet.packet_id)
                    self._keep(packet)
                self.send(Pubrec(packet.packet_id))
            case Pubrel():
                self._held.discard(packet.packet_id)
                self.send(Pubcomp(packet.packet_id))
            case _:
                pass

    def _keep(self, packet: Publish) -> None:
        publisher, _, number = packet.payload.decode().partition(":")
        self.deliveries.append((publisher, packet.topic.decode(), int(number)))

    def wants(self, topic: str) -> bool:
        return self.topic_filter == "t/#" or topic.endswith("/x")
