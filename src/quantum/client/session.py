"""A client's side of MQTT, without a socket or a clock: calls and bytes in, events and bytes out.

A session outlives its connections. What is unfinished is sent again after a reconnect: in its
order, as DUP, where the broker still knows the session; as new where it does not (§4.4, §4.1).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from quantum.client.events import (
    Acknowledged,
    Connected,
    ConnectionEnded,
    Event,
    Received,
    Rejected,
    Silent,
    SubscribeAnswered,
    Token,
)
from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    PACKET_BYTES_MAX,
    PACKET_ID_MAX,
    ClientId,
    Connack,
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketId,
    PacketReader,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    ProtocolViolation,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
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

_IN_FLIGHT_MAX: Final = 65_000
"""Some packet ids are left for requests."""
_IN_FLIGHT_BEFORE_V5: Final = 20
"""A broker cannot tell an older client how much it takes, and may cut one that has more open;
this is what brokers expect."""


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a client introduces itself."""

    client_id: str = ""
    version: ProtocolVersion = ProtocolVersion.V5
    clean_start: bool = True
    keep_alive: int = 60
    session_expiry: int | None = None
    user_name: str | None = None
    password: bytes | None = None
    will: Will | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int = 16
    packet_bytes_max: int = PACKET_BYTES_MAX


@dataclass(slots=True)
class _Outbound:
    """A publish above QoS 0 that is not at its end."""

    token: Token
    publish: Publish
    released: bool = False
    """QoS 2: whether the broker has it, so that only its PUBREL may be sent again."""


class ClientSession:
    """One client. Bytes that must be sent wait in `take_outgoing`."""

    def __init__(self, options: ClientOptions) -> None:
        self.options = options
        self.version = options.version
        self.connected = False
        self._reader = PacketReader(options.packet_bytes_max)
        self._outgoing: list[bytes] = []
        self._in_flight: dict[PacketId, _Outbound] = {}
        self._waiting: deque[_Outbound] = deque()
        self._requests: dict[PacketId, tuple[Token, SubscribePacket | UnsubscribePacket]] = {}
        self._subscriptions: dict[TopicFilter, tuple[Subscription, Properties]] = {}
        self._received: set[PacketId] = set()
        self._aliases: dict[int, TopicName] = {}
        self._quota = 0
        self._last_id = 0
        self._last_token = 0
        self._ever_connected = False
        self._keep_alive = options.keep_alive
        self._sent_at = 0.0
        self._ping_at: float | None = None

    # What the owner asks for.

    def connect(self, now: float) -> None:
        """Begin a connection; everything of an older one but the session is forgotten."""
        self.connected = False
        self._reader = PacketReader(self.options.packet_bytes_max)
        self._aliases.clear()
        self._ping_at = None
        self._outgoing = []
        self._send(self._introduction())
        self._sent_at = now

    def publish(
        self,
        topic: TopicName,
        payload: bytes,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> Token | None:
        """Send a message, now or as soon as the broker takes it; None: QoS 0, of which nobody
        will hear again, and which is lost without a connection."""
        message = Publish(topic, payload, qos, retain, properties=properties)
        if qos == 0:
            if self.connected:
                self._send(message)
            return None
        token = self._new_token()
        self._waiting.append(_Outbound(token, message))
        self._send_waiting()
        return token

    def subscribe(
        self, subscriptions: tuple[Subscription, ...], properties: Properties = NO_PROPERTIES
    ) -> Token:
        """Ask for messages; asked again by itself where the broker forgot the session."""
        return self._request(SubscribePacket(self._free_id(), subscriptions, properties))

    def unsubscribe(self, topic_filters: tuple[TopicFilter, ...]) -> Token:
        return self._request(UnsubscribePacket(self._free_id(), topic_filters))

    def disconnect(self, reason_code: ReasonCode = ReasonCode.NORMAL_DISCONNECTION) -> None:
        """Say goodbye."""
        if self.connected:
            self._send(Disconnect(reason_code))
            self.connected = False

    def lost(self) -> None:
        """The connection is gone; the session stays."""
        self.connected = False

    @property
    def unfinished(self) -> int:
        """How many publishes above QoS 0 the broker has not acknowledged to their end."""
        return len(self._in_flight) + len(self._waiting)

    # Bytes and time.

    def receive(self, data: bytes) -> None:
        """Take bytes of the broker; ask for events next."""
        self._reader.receive(data)

    def next_event(self) -> Event | None:
        """Take the next event, or None where more bytes are needed. Raises PeerFault."""
        while (found := self._reader.next_packet()) is not None:
            packet = decode_packet(*found, self.version, direction=Direction.TO_CLIENT)
            if (event := self._on_packet(packet)) is not None:
                return event
        return None

    def take_outgoing(self, now: float) -> bytes:
        """Take what must be written."""
        if not self._outgoing:
            return b""
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._sent_at = now
        return data

    def next_deadline(self) -> float | None:
        """Say when `on_time` has something to do, if nothing happens before."""
        if not self.connected or not self._keep_alive:
            return None
        return (self._sent_at if self._ping_at is None else self._ping_at) + self._keep_alive

    def on_time(self, now: float) -> Event | None:
        """Keep the connection alive; Silent where the broker does not."""
        deadline = self.next_deadline()
        if deadline is None or now < deadline:
            return None
        if self._ping_at is not None:
            return Silent()
        self._ping_at = now
        self._send(Pingreq())
        return None

    # Packets of the broker.

    def _on_packet(self, packet: Packet) -> Event | None:
        if isinstance(packet, Connack) == self.connected:
            raise _violation("a CONNACK is the first packet and the only one")
        match packet:
            case Connack():
                return self._on_connack(packet)
            case Publish():
                return self._on_publish(packet)
            case Puback():
                return self._on_finished(packet.packet_id, packet, qos=1)
            case Pubrec():
                return self._on_pubrec(packet)
            case Pubcomp():
                return self._on_finished(packet.packet_id, packet, qos=2)
            case Pubrel():
                self._received.discard(packet.packet_id)
                self._send(Pubcomp(packet.packet_id))
                return None
            case Suback() | Unsuback():
                return self._on_answer(packet)
            case Pingresp():
                self._ping_at = None
                return None
            case Disconnect():
                self.connected = False
                return ConnectionEnded(packet.reason_code, packet.properties.reason_string)
            case _:
                raise _violation("a packet that was not asked for")

    def _on_connack(self, packet: Connack) -> Event:
        if packet.reason_code.is_failure:
            return Rejected(packet.reason_code, packet.properties.reason_string)
        self.connected = True
        properties = packet.properties
        if properties.assigned_client_identifier is not None:
            self.options = replace(self.options, client_id=properties.assigned_client_identifier)
        granted = properties.server_keep_alive
        self._keep_alive = self.options.keep_alive if granted is None else granted
        before = self.version is not ProtocolVersion.V5
        allowed = _IN_FLIGHT_BEFORE_V5 if before else properties.receive_maximum
        self._quota = min(allowed or _IN_FLIGHT_MAX, _IN_FLIGHT_MAX)
        if packet.session_present:
            self._resume()
        else:
            self._start_over()
        self._ever_connected = True
        for _, request in self._requests.values():
            self._send(request)
        self._send_waiting()
        return Connected(packet.session_present, properties)

    def _resume(self) -> None:
        """Send again what the broker did not finish, in its order (§4.4)."""
        for packet_id, outbound in self._in_flight.items():
            self._quota -= 1
            if outbound.released:
                self._send(Pubrel(packet_id))
            else:
                self._send(replace(outbound.publish, dup=True))

    def _start_over(self) -> None:
        """The broker knows nothing of us: what it did not acknowledge is published as new.

        Of a QoS 2 message that it had and forgot with the session we cannot know whether
        anybody got it; twice is the lesser evil.
        """
        self._received.clear()
        unfinished = list(self._in_flight.values())
        self._in_flight.clear()
        for outbound in reversed(unfinished):
            outbound.released = False
            self._waiting.appendleft(outbound)
        if self._ever_connected:
            for subscription, properties in self._subscriptions.values():
                request = SubscribePacket(self._free_id(), (subscription,), properties)
                self._requests[request.packet_id] = (self._new_token(), request)

    def _on_publish(self, packet: Publish) -> Event | None:
        message = self._with_topic(packet)
        if packet.qos == 1:
            self._send(Puback(packet.packet_id))
        elif packet.qos == 2:
            self._send(Pubrec(packet.packet_id))
            if packet.packet_id in self._received:
                return None
            self._received.add(packet.packet_id)
        return Received(message)

    def _with_topic(self, packet: Publish) -> Publish:
        alias = packet.properties.topic_alias
        if alias is None:
            return packet
        if alias > self.options.topic_alias_maximum:
            raise _violation("a topic alias beyond our maximum", ReasonCode.TOPIC_ALIAS_INVALID)
        if packet.topic:
            self._aliases[alias] = packet.topic
        elif alias not in self._aliases:
            raise _violation("an unknown topic alias")
        properties = replace(packet.properties, topic_alias=None)
        return replace(packet, topic=self._aliases[alias], properties=properties)

    def _on_pubrec(self, packet: Pubrec) -> Event | None:
        outbound = self._in_flight.get(packet.packet_id)
        if outbound is None:
            self._send(Pubrel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
            return None
        if outbound.publish.qos != 2:
            raise _violation("a PUBREC for a publish of QoS 1")
        if packet.reason_code.is_failure:
            return self._finish(packet.packet_id, packet)
        outbound.released = True
        self._send(Pubrel(packet.packet_id))
        return None

    def _on_finished(
        self, packet_id: PacketId, packet: Puback | Pubcomp, *, qos: int
    ) -> Event | None:
        outbound = self._in_flight.get(packet_id)
        if outbound is None:
            return None  # the end of an exchange of a session that we started over
        if outbound.publish.qos != qos or (qos == 2 and not outbound.released):
            raise _violation("an acknowledgement that does not fit its publish")
        return self._finish(packet_id, packet)

    def _finish(self, packet_id: PacketId, packet: Puback | Pubrec | Pubcomp) -> Event:
        outbound = self._in_flight.pop(packet_id)
        self._quota += 1
        self._send_waiting()
        return Acknowledged(outbound.token, packet.reason_code, packet.properties.reason_string)

    def _on_answer(self, packet: Suback | Unsuback) -> Event | None:
        if packet.packet_id not in self._requests:
            raise _violation("an answer to no request")
        token, request = self._requests.pop(packet.packet_id)
        if isinstance(request, SubscribePacket) != isinstance(packet, Suback):
            raise _violation("an answer to another request")
        self._remember(request, packet.reason_codes)
        return SubscribeAnswered(token, packet.reason_codes, packet.properties.reason_string)

    def _remember(
        self, request: SubscribePacket | UnsubscribePacket, codes: tuple[ReasonCode, ...]
    ) -> None:
        if isinstance(request, UnsubscribePacket):
            for topic_filter in request.topic_filters:
                self._subscriptions.pop(topic_filter, None)
            return
        if len(codes) != len(request.subscriptions):
            raise _violation("a SUBACK with another number of codes")
        for subscription, code in zip(request.subscriptions, codes, strict=True):
            if not code.is_failure:
                known = (subscription, request.properties)
                self._subscriptions[subscription.topic_filter] = known

    # Sending.

    def _introduction(self) -> Connect:
        options = self.options
        properties = NO_PROPERTIES
        clean_start = options.clean_start
        if self.version is ProtocolVersion.V5:
            properties = Properties(
                session_expiry_interval=options.session_expiry,
                receive_maximum=options.receive_maximum,
                topic_alias_maximum=options.topic_alias_maximum or None,
            )
            clean_start = clean_start and not self._ever_connected
        return Connect(
            options.version,
            ClientId(options.client_id),
            clean_start,
            options.keep_alive,
            options.will,
            options.user_name,
            options.password,
            properties,
        )

    def _send(self, packet: Packet) -> None:
        self._outgoing.append(encode_packet(packet, self.version))

    def _send_waiting(self) -> None:
        while self.connected and self._waiting and self._quota > 0:
            outbound = self._waiting.popleft()
            packet_id = self._free_id()
            outbound.publish = replace(outbound.publish, packet_id=packet_id, dup=False)
            self._in_flight[packet_id] = outbound
            self._quota -= 1
            self._send(outbound.publish)

    def _request(self, request: SubscribePacket | UnsubscribePacket) -> Token:
        token = self._new_token()
        self._requests[request.packet_id] = (token, request)
        if self.connected:
            self._send(request)
        return token

    def _new_token(self) -> Token:
        self._last_token += 1
        return Token(self._last_token)

    def _free_id(self) -> PacketId:
        assert len(self._in_flight) + len(self._requests) < PACKET_ID_MAX
        while True:
            self._last_id = self._last_id % PACKET_ID_MAX + 1
            packet_id = PacketId(self._last_id)
            if packet_id not in self._in_flight and packet_id not in self._requests:
                return packet_id


def _violation(reason: str, code: ReasonCode = ReasonCode.PROTOCOL_ERROR) -> ProtocolViolation:
    return ProtocolViolation(code, reason)
