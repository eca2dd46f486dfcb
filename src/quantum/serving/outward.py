"""Messages on their way to one client: encoding, aliases, the window, and what it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quantum.broker import PUBREC, Delivery, Message, Outbound
from quantum.broker.receiving import REFUSED
from quantum.broker.types import PacketId
from quantum.mqtt import ReasonCode
from quantum.mqtt.hot import PUBREL, encode_ack
from quantum.mqtt.primitives import encode_variable
from quantum.serving.delivery import Outgoing, property_block

if TYPE_CHECKING:
    from quantum.serving.connection import Connection

UPPER_HALF: Final = 0x8000
"""Packet ids from here on are this connection's; the machine's are below."""
_LAST_PACKET_ID: Final = 0xFFFF
_QOS_BITS: Final = 6
_DUP: Final = 8


class Outward:
    """What one connection sends. Made when the first message comes."""

    __slots__ = ("_aliases", "_aliases_max", "_connection", "_packet_max", "_queue", "_window_max")

    def __init__(
        self, connection: Connection, window_max: int, aliases_max: int, packet_bytes_max: int
    ) -> None:
        self._connection = connection
        self._aliases_max = aliases_max
        self._packet_max = packet_bytes_max  # 0: no limit
        self._window_max = window_max
        self._aliases: dict[bytes, int] = {}
        first = min(connection.limits.in_flight_first, window_max)
        self._queue = Outbound(first, UPPER_HALF, _LAST_PACKET_ID)

    def deliver(
        self, outgoing: Outgoing, qos: int, retain: int, identifiers: tuple[int, ...]
    ) -> None:
        """Deliver a message that only this connection keeps."""
        connection = self._connection
        if qos == 0:
            if connection.writable:
                self._encode(outgoing, 0x30 | retain, 0, identifiers)
            else:
                connection.count_dropped()
            return
        delivery = Delivery(outgoing.message, qos, retain != 0, identifiers)
        if self._queue.push(delivery):
            first = 0x30 | qos << 1 | retain
            self._encode(outgoing, first, delivery.packet_id, identifiers)
        elif self._queue.weight > connection.limits.queue_bytes_max:
            connection.end_soon(ReasonCode.QUOTA_EXCEEDED, "the client does not keep up")

    def send_kept(self, delivery: Delivery, *, again: bool) -> None:
        """Send a message that the machine keeps for this client."""
        first = 0x30 | delivery.qos << 1 | delivery.retain
        if again and delivery.qos:
            first |= _DUP
        self._encode(Outgoing(delivery.message), first, delivery.packet_id, delivery.identifiers)

    def send_more(self) -> None:
        """Send what the window has room for, if the client reads."""
        if self._queue.queue and self._connection.writable:
            for delivery in self._queue.take_ready(self._connection.now_ms()):
                self.send_kept(delivery, again=False)

    # What the client answers; the connection has seen that the packet id is ours.

    def on_puback(self, packet_id: int) -> None:
        if self._queue.on_puback(PacketId(packet_id)):
            self._room()

    def on_pubrec(self, packet_id: int) -> bool:
        """Say whether there is such an exchange; its PUBREL is on its way then."""
        if not self._queue.on_pubrec(PacketId(packet_id)):
            return False
        self._connection.stage(encode_ack(PUBREL, packet_id))
        return True

    def on_pubcomp(self, packet_id: int) -> None:
        if self._queue.on_pubcomp(PacketId(packet_id)):
            self._room()

    def on_refused(self, packet_id: int) -> None:
        if self._queue.on_refused(PacketId(packet_id)):
            self._room()

    def _room(self) -> None:
        """Let more be in flight to a client that keeps up (C13), and send it."""
        if self._queue.window < self._window_max:
            self._queue.window += 1
        self.send_more()

    # Encoding.

    def _encode(
        self, outgoing: Outgoing, first: int, packet_id: int, identifiers: tuple[int, ...]
    ) -> None:
        connection = self._connection
        if not connection.is_v5:
            outgoing.plain().append_to(connection.pieces(), first, packet_id)
        elif identifiers or self._aliases_max or self._packet_max:
            self._encode_own(outgoing.message, first, packet_id, identifiers)
        else:
            shared = outgoing.with_properties(connection.now_ms())
            shared.append_to(connection.pieces(), first, packet_id)

    def _encode_own(
        self, message: Message, first: int, packet_id: int, identifiers: tuple[int, ...]
    ) -> None:
        """Encode a copy that is this client's alone: identifiers, an alias, a size to respect."""
        topic, alias = self._alias_for(message.topic)
        block = property_block(message, self._connection.now_ms(), identifiers, alias)
        head = len(topic).to_bytes(2, "big") + topic
        if first & _QOS_BITS:
            head += packet_id.to_bytes(2, "big")
        length = len(head) + len(block) + len(message.payload)
        begin = bytes((first,)) + encode_variable(length)
        if self._packet_max and len(begin) + length > self._packet_max:
            self._leave_out(first, packet_id)
            return
        if alias and topic:
            self._aliases[topic] = alias
        self._connection.stage(b"".join((begin, head, block, message.payload)))

    def _alias_for(self, topic: bytes) -> tuple[bytes, int]:
        """Name a topic by a number once the client knows which (MQTT 5, 3.3.2.3.4)."""
        if not self._aliases_max:
            return topic, 0
        alias = self._aliases.get(topic)
        if alias is not None:
            return b"", alias
        room = len(self._aliases) < self._aliases_max
        return topic, len(self._aliases) + 1 if room else 0

    def _leave_out(self, first: int, packet_id: int) -> None:
        """Leave out what the client cannot take, as if it had it ([MQTT-3.1.2-25])."""
        self._connection.count_dropped()
        if first & _QOS_BITS:
            if packet_id >= UPPER_HALF:
                self._queue.on_refused(PacketId(packet_id))
            else:
                self._connection.acknowledge(REFUSED, packet_id)


def answer_stray_pubrec(connection: Connection, packet_id: int) -> None:
    """Let a client go on that has a message we know nothing of."""
    connection.stage(encode_ack(PUBREL, packet_id))


__all__ = ["PUBREC", "UPPER_HALF", "Outward", "answer_stray_pubrec"]
