"""A client of this node without a socket: what a request asks for, said as MQTT 5.

It goes the way that every client goes: the tenant's rules, quotas and rates hold for it, it is
relayed to whoever leads its partition, and its publish is acknowledged when a quorum has it. What
it holds is bounded: above `held_bytes_max` it is a wire that takes nothing more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from quantum.edge.ports import ConnectionPeer, Transport
from quantum.protocols.mqtt.codec import (
    PACKET_BYTES_MAX,
    ClientId,
    Connack,
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketReader,
    Properties,
    ProtocolVersion,
    ReasonCode,
    decode_packet,
    encode_packet,
)

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

_V5: Final = ProtocolVersion.V5
_KEEP_ALIVE_SECONDS: Final = 300  # longer than any request takes
HELD_BYTES_MAX: Final = 256 << 10


class InnerClientRefused(Exception):
    """The broker said no; `reason` is MQTT's own code for it."""

    def __init__(self, reason: ReasonCode, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class ClientLost(Exception):
    """The connection ended without an answer: what was sent may or may not stand."""


class InnerWire:
    """A wire without a socket: a handler of MQTT's on one side, packets on the other."""

    def __init__(
        self,
        service: BrokerService,
        peer: ConnectionPeer,
        heard: Callable[[Packet, int], None],
        ended: Callable[[], None],
    ) -> None:
        """Open it. `heard` is given each packet with its size, `ended` is called at the end.

        Both are called while the handler speaks: whoever answers does it later.
        """
        self._heard = heard
        self._ended = ended
        self._reader = PacketReader(PACKET_BYTES_MAX)
        self.held_bytes = 0
        """What was heard and is not used yet; who uses it says so (`used`)."""
        self.is_closed = False
        self.is_paused = False
        """Whether the broker wants to hear nothing now."""
        self.on_resumed: Callable[[], None] = lambda: None
        self._handler = service.mqtt.new_connection()
        self._handler.opened(self, peer)

    def say(self, *packets: Packet) -> None:
        """Say something; raises MqttMisuse for what cannot be said."""
        data = b"".join(encode_packet(packet, _V5) for packet in packets)
        if not self.is_closed:
            self._handler.received(data)

    def used(self, size: int) -> None:
        """Note that so much of what was heard is held no more."""
        was_writable = self.writable
        self.held_bytes -= size
        if self.writable and not was_writable and not self.is_closed:
            self._handler.writable_again()

    def leave(self, goodbye: Disconnect | None) -> None:
        """Say goodbye and be forgotten; a session with an expiry stays for so long."""
        if not self.is_closed:
            self.is_closed = True
            if goodbye is not None:
                self._handler.received(encode_packet(goodbye, _V5))
        self._handler.lost()

    # What the handler calls.

    def write(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._reader.receive(data)
        while (found := self._reader.next_packet()) is not None:
            packet = decode_packet(*found, _V5, direction=Direction.TO_CLIENT)
            size = len(found[1])
            self.held_bytes += size
            self._heard(packet, size)

    @property
    def writable(self) -> bool:
        return self.held_bytes < HELD_BYTES_MAX

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._ended()

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False
        self.on_resumed()


class InnerClient:
    """One such client, who waits for every answer."""

    def __init__(self, service: BrokerService, peer: ConnectionPeer, client_id: str) -> None:
        self.client_id = client_id
        self.session_present = False
        self._packets: deque[tuple[Packet, int]] = deque()
        self._arrived = asyncio.Event()
        self._wire = InnerWire(service, peer, self._heard, self._arrived.set)

    async def connect(
        self, *, clean: bool, expiry_seconds: int, receive_maximum: int, packet_bytes_max: int
    ) -> None:
        """Be let in, or raise ClientRefused or ClientLost."""
        properties = Properties(
            session_expiry_interval=expiry_seconds,
            receive_maximum=receive_maximum,
            maximum_packet_size=packet_bytes_max,
        )
        self.send(
            Connect(
                _V5, ClientId(self.client_id), clean, _KEEP_ALIVE_SECONDS, properties=properties
            )
        )
        packet = await self.next()
        if not isinstance(packet, Connack):
            raise ClientLost("it was not let in")
        if packet.reason_code.is_failure:
            raise InnerClientRefused(packet.reason_code, packet.properties.reason_string or "")
        self.session_present = packet.session_present

    def send(self, *packets: Packet) -> None:
        """Say something; raises MqttMisuse for what cannot be said.

        Nothing is sent before the last word was answered, so nobody has to be asked to pause.
        """
        self._wire.say(*packets)

    async def next(self) -> Packet:
        """Take the next packet; raises ClientRefused for a DISCONNECT, ClientLost at the end."""
        while not self._packets:
            if self._wire.is_closed:
                raise ClientLost("the connection ended without an answer")
            self._arrived.clear()
            await self._arrived.wait()
        packet, size = self._packets.popleft()
        self._wire.used(size)
        if isinstance(packet, Disconnect):
            raise InnerClientRefused(packet.reason_code, packet.properties.reason_string or "")
        return packet

    def leave(self) -> None:
        """Say goodbye and be forgotten; a session with an expiry stays for so long."""
        self._wire.leave(Disconnect())

    def _heard(self, packet: Packet, size: int) -> None:
        self._packets.append((packet, size))
        self._arrived.set()


def peer_of(tenant: str, identity: str, *, encrypted: bool) -> ConnectionPeer:
    """Who a caller of the API is to the broker: its role has already bound it to the tenant."""
    transport: Transport = "tls" if encrypted else "tcp"
    return ConnectionPeer(transport, "api", tenant, identity, named_tenant=tenant)
