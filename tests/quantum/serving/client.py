"""A synchronous MQTT client that says what it is told, packet by packet, bytes if need be."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from quantum.protocols.mqtt.codec import (
    Connack,
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketId,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    RetainHandling,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
    Unsuback,
    UnsubscribePacket,
    Will,
    decode_packet,
    encode_packet,
)
from quantum.protocols.mqtt.codec.types import ClientId

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5
NONE = Properties()
DEADLINE_SECONDS = 120.0  # when a broker in another process is given up
_PacketT = TypeVar("_PacketT", bound=Packet)
_numbers = itertools.count(1)


class Line(Protocol):
    """How bytes get to a broker and back."""

    def send(self, data: bytes) -> None: ...
    def receive(self, count: int) -> bytes: ...
    def cut(self) -> None: ...


class SocketLine:
    """A line to a broker in another process."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS)

    def send(self, data: bytes) -> None:
        # What the broker said before it closed can still be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def receive(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                piece = self._socket.recv(count - len(data))
            except ConnectionResetError:
                piece = b""
            if not piece:
                break
            data += piece
        return data

    def cut(self) -> None:
        self._socket.close()


class Dialer(Protocol):
    """A broker that can be called."""

    def dial(self) -> Line: ...


@dataclass
class Client:
    """One connection."""

    line: Line
    version: ProtocolVersion = V5
    next_id: int = 0
    connack: Connack = field(default_factory=Connack)
    early: deque[Publish] = field(default_factory=deque)
    """Messages that came while another answer was awaited, as they may (§3.8.4)."""

    # Sending.

    def send(self, *packets: Packet | bytes) -> None:
        """Send packets in one piece."""
        self.line.send(
            b"".join(
                each if isinstance(each, bytes) else encode_packet(each, self.version)
                for each in packets
            )
        )

    def draw_id(self) -> PacketId:
        self.next_id += 1
        return PacketId(self.next_id)

    # Receiving.

    def receive(self) -> Packet | None:
        """Return the next packet, or None where the connection ended (or, in a lab, is quiet)."""
        if self.early:
            return self.early.popleft()
        return self._receive_next()

    def _receive_next(self) -> Packet | None:
        taken = self.receive_raw()
        if taken is None:
            return None
        return decode_packet(*taken, self.version, direction=Direction.TO_CLIENT)

    def receive_raw(self) -> tuple[int, bytes] | None:
        """Return first byte and body of the next packet."""
        head = self.line.receive(1)
        if not head:
            return None
        length, shift = 0, 0
        while byte := self.line.receive(1):
            length |= (byte[0] & 127) << shift
            shift += 7
            if byte[0] < 128:
                return head[0], self.line.receive(length)
        return None  # it ended in the middle

    def expect(self, kind: type[_PacketT]) -> _PacketT:
        packet = self.receive()
        assert isinstance(packet, kind), packet
        return packet

    def expect_answer(self, kind: type[_PacketT]) -> _PacketT:
        """Expect an answer; messages may come before it."""
        while isinstance(packet := self._receive_next(), Publish):
            self.early.append(packet)
        assert isinstance(packet, kind), packet
        return packet

    def expect_end(self) -> None:
        """Nothing more comes, and the connection is closed."""
        assert self.receive() is None
        assert getattr(self.line, "is_closed", True)

    def expect_disconnect(self, reason: ReasonCode) -> Disconnect:
        """The broker says why and closes; before MQTT 5 it only closes."""
        if self.version is not V5:
            self.expect_end()
            return Disconnect(reason)
        packet = self.expect(Disconnect)
        assert packet.reason_code is reason, packet
        self.expect_end()
        return packet

    def expect_refusal(self, reason: ReasonCode) -> Connack:
        packet = self.expect(Connack)
        assert packet.reason_code is reason and not packet.session_present
        self.expect_end()
        return packet

    def expect_quiet(self) -> None:
        """The connection lives, and nothing is there but the answer to a ping."""
        self.send(Pingreq())
        self.expect(Pingresp)

    # Whole exchanges.

    def subscribe(
        self,
        topic_filter: bytes,
        qos: int = 0,
        *,
        no_local: bool = False,
        as_published: bool = False,
        handling: RetainHandling = RetainHandling.SEND,
        identifier: int = 0,
    ) -> ReasonCode:
        """Subscribe and return what was granted."""
        line = Subscription(TopicFilter(topic_filter), qos, no_local, as_published, handling)
        return self.subscribe_all([line], identifier)[0]

    def subscribe_all(
        self, lines: list[Subscription], identifier: int = 0
    ) -> tuple[ReasonCode, ...]:
        packet_id = self.draw_id()
        properties = (
            Properties(subscription_identifiers=(identifier,)) if identifier else NONE  # type: ignore[arg-type]
        )
        self.send(SubscribePacket(packet_id, tuple(lines), properties))
        suback = self.expect_answer(Suback)
        assert suback.packet_id == packet_id
        return suback.reason_codes

    def unsubscribe(self, *filters: bytes) -> tuple[ReasonCode, ...]:
        packet_id = self.draw_id()
        self.send(UnsubscribePacket(packet_id, tuple(TopicFilter(each) for each in filters)))
        unsuback = self.expect_answer(Unsuback)
        assert unsuback.packet_id == packet_id
        return unsuback.reason_codes

    def publish(
        self,
        topic: bytes,
        payload: bytes = b"",
        qos: int = 0,
        *,
        retain: bool = False,
        properties: Properties = NONE,
    ) -> ReasonCode:
        """Publish, and see the exchange through."""
        packet_id = self.draw_id() if qos else PacketId(0)
        self.send(
            Publish(
                TopicName(topic),
                payload,
                qos,
                retain,
                packet_id=packet_id,
                properties=properties,
            )
        )
        if qos == 0:
            return ReasonCode.SUCCESS
        if qos == 1:
            puback = self.expect_answer(Puback)
            assert puback.packet_id == packet_id
            return puback.reason_code
        pubrec = self.expect_answer(Pubrec)
        assert pubrec.packet_id == packet_id
        if pubrec.reason_code.is_failure:
            return pubrec.reason_code
        self.send(Pubrel(packet_id))
        pubcomp = self.expect_answer(Pubcomp)
        assert pubcomp.packet_id == packet_id
        return pubcomp.reason_code

    def take(self) -> Publish:
        """Receive a message and see the exchange through."""
        message = self.expect(Publish)
        self.acknowledge(message)
        return message

    def acknowledge(self, message: Publish) -> None:
        if message.qos == 1:
            self.send(Puback(message.packet_id))
        elif message.qos == 2:
            self.send(Pubrec(message.packet_id))
            assert self.expect_answer(Pubrel).packet_id == message.packet_id
            self.send(Pubcomp(message.packet_id))

    def leave(self, reason: ReasonCode = ReasonCode.SUCCESS, properties: Properties = NONE) -> None:
        """Say goodbye."""
        self.send(Disconnect(reason, properties))
        self.expect_end()

    def cut(self) -> None:
        """Let the network fail."""
        self.line.cut()


def unique(word: str) -> str:
    """Return a name that no other test has: they share a broker."""
    return f"{word}{next(_numbers)}"


def topic(word: str = "topic") -> bytes:
    return unique(word).encode()


def dial(broker: Dialer, version: ProtocolVersion = V5) -> Client:
    """Open a connection and say nothing."""
    return Client(broker.dial(), version)


def connect(
    broker: Dialer,
    version: ProtocolVersion = V5,
    *,
    client_id: str | None = None,
    clean: bool = True,
    keep_alive: int = 0,
    will: Will | None = None,
    user_name: str | None = None,
    password: bytes | None = None,
    **properties: object,
) -> Client:
    """Connect, and have the CONNACK in `client.connack`."""
    client = dial(broker, version)
    name = ClientId(unique("client") if client_id is None else client_id)
    asked = Properties(**properties) if properties else NONE  # type: ignore[arg-type]
    try:
        client.send(Connect(version, name, clean, keep_alive, will, user_name, password, asked))
        client.connack = client.expect(Connack)
    except BaseException:
        client.cut()  # whoever asks again must not leave a socket to the collector
        raise
    return client


def will(
    topic_name: bytes,
    payload: bytes = b"gone",
    qos: int = 0,
    *,
    retain: bool = False,
    **rest: object,
) -> Will:
    properties = Properties(**rest) if rest else NONE  # type: ignore[arg-type]
    return Will(TopicName(topic_name), payload, qos, retain, properties)
