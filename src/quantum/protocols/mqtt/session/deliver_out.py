"""Messages on their way to one client: encoding, aliases, the window, and what it answers."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, Protocol

from quantum.broker import PUBREC, Delivery, Message, Outbound
from quantum.broker.outbound import SENT
from quantum.broker.receiving import REFUSED
from quantum.broker.types import PacketId
from quantum.protocols.mqtt.codec.hot import PUBREL, encode_ack
from quantum.protocols.mqtt.codec.primitives import encode_variable
from quantum.protocols.mqtt.session.delivery import Outgoing, property_block
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.protocols.mqtt.session.mqtt_node import MqttNode
from quantum.protocols.mqtt.session.slowing import SLOW_BYTES_MAX
from quantum.protocols.mqtt.session.tenant_sessions import TenantSessions
from quantum.protocols.mqtt.session.terms import ConnectionTerms
from quantum.tenancy import RECALCULATE_EVERY_MS, WHOLE, ClientAccess, InFlightSlots, LeaderLoad

UPPER_HALF: Final = 0x8000
"""Packet ids from here on are this connection's; the machine's are below."""
_LAST_PACKET_ID: Final = 0xFFFF
_QOS_BITS: Final = 6
_DUP: Final = 8


class OutwardSight(NamedTuple):
    """The window of one client, and what is before and behind it."""

    under_way: int
    window: int
    ceiling: int
    """The lower of its Receive Maximum and the broker's own bound."""
    waiting: int
    queued_bytes: int
    is_full: bool


class Receiver(Protocol):
    """The client that messages are for."""

    node: MqttNode
    client_id: bytes
    is_v5: bool
    last_seen_ms: int
    withholds: ClientAccess | None

    @property
    def home(self) -> TenantSessions: ...
    @property
    def limits(self) -> MqttLimits: ...
    @property
    def writable(self) -> bool: ...
    def now_ms(self) -> int: ...
    def stage(self, data: bytes) -> None: ...
    def delivery_pieces(self) -> list[bytes]: ...
    def acknowledge(self, kind: int, packet_id: int) -> None: ...
    def kept_utilization(self) -> int: ...
    def note_queued(self, queued_bytes: int) -> None: ...
    def slow_down(self, publisher: bytes) -> None: ...
    def count_dropped(self) -> None: ...


class Outward:
    """What one connection sends. Made when the first message comes.

    Messages that the machine keeps come with a packet id, those that only this connection keeps
    get one here. Both take the same slots: the client's Receive Maximum knows no difference
    ([MQTT-3.3.4-9]). A slot is free again when the client ends the exchange.
    """

    __slots__ = (
        "_aliases",
        "_aliases_max",
        "_connection",
        "_has_room",
        "_held",
        "_home",
        "_kept",
        "_packet_max",
        "_queue",
        "_recalculated_ms",
        "_sent",
        "_slots",
        "_traces",
    )

    def __init__(self, connection: Receiver, terms: ConnectionTerms) -> None:
        self._connection = connection
        self._has_room = False  # exchanges ended since the slots were filled last
        self._aliases_max = terms.aliases_max
        self._packet_max = terms.packet_bytes_max  # 0: no limit
        self._aliases: dict[bytes, int] = {}
        self._sent = connection.node.meters.publishes_out
        self._traces = connection.node.traces
        self._home = connection.home
        self._slots = InFlightSlots(terms.receive_maximum, connection.limits.in_flight_max)
        self._recalculated_ms = connection.last_seen_ms
        self._kept: set[int] = set()
        """The packet ids of the machine's messages that are under way."""
        self._held: deque[tuple[Delivery, bool]] = deque()
        """The machine's messages that wait for a slot, and whether they were sent before."""
        self._queue = Outbound(self._slots.window, UPPER_HALF, _LAST_PACKET_ID)

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
        if not connection.writable:
            self._queue.window = 0  # until `send_more`: what nobody reads stays in the queue
        queue = self._queue
        weight = queue.weight + outgoing.message.weight if queue.queue else 0
        if weight and weight > connection.limits.queue_bytes_max:
            connection.count_dropped()  # its publishers are held long before, as far as they can be
            return
        delivery = Delivery(outgoing.message, qos, retain != 0, identifiers)
        if queue.push(delivery):
            first = 0x30 | qos << 1 | retain
            self._encode(outgoing, first, delivery.packet_id, identifiers)
        else:
            connection.note_queued(queue.weight)
            if queue.weight > SLOW_BYTES_MAX:
                connection.slow_down(outgoing.message.client_id)

    def send_kept(self, delivery: Delivery, *, again: bool) -> None:
        """Send a message that the machine keeps for this client, as soon as a slot is free."""
        if delivery.qos == 0:
            self._send(delivery, again=False)
        elif self._held or self._is_full or not self._connection.writable:
            self._held.append((delivery, again))
        else:
            self._start_kept(delivery, again=again)

    def _start_kept(self, delivery: Delivery, *, again: bool) -> None:
        self._kept.add(delivery.packet_id)
        self._share_window()
        self._send(delivery, again=again)

    def _send(self, delivery: Delivery, *, again: bool) -> None:
        first = 0x30 | delivery.qos << 1 | delivery.retain
        if again:
            first |= _DUP
        self._encode(Outgoing(delivery.message), first, delivery.packet_id, delivery.identifiers)

    def send_more(self) -> None:
        """Send what the slots have room for, if the client reads."""
        if not self._connection.writable:
            return
        self._share_window()
        while self._held and not self._is_full:
            delivery, again = self._held.popleft()
            # The client may have answered what its last leader sent it. To send that again would
            # be another message to it: with its PUBREL it has forgotten the packet id.
            if delivery.state == SENT:
                self._start_kept(delivery, again=again)
        # Again, where what was ready is too large for the client and left its slots free.
        while self._queue.queue and (ready := self._queue.take_ready(self._connection.now_ms())):
            for delivery in ready:
                self._send(delivery, again=False)
            self._connection.note_queued(self._queue.weight if self._queue.queue else 0)

    def unsent_from(self) -> int:
        """Name the first message that the machine believes in flight and that never left, or 0."""
        return next((delivery.packet_id for delivery, again in self._held if not again), 0)

    def sight(self) -> OutwardSight:
        """Return what waits for the client, for who asks why."""
        return OutwardSight(
            self._under_way,
            self._slots.window,
            self._slots.ceiling,
            len(self._held) + len(self._queue.queue),
            self._queue.weight,
            self._is_full,
        )

    @property
    def _is_full(self) -> bool:
        return self._under_way >= self._slots.window

    @property
    def _under_way(self) -> int:
        return len(self._kept) + len(self._queue.in_flight)

    def _share_window(self) -> None:
        """Leave to this connection's own messages what the machine's do not take."""
        self._queue.window = self._slots.window - len(self._kept)

    # What the client answers. The machine's own answers go into the log as well.

    def settle_kept(self, packet_id: int) -> None:
        """The client ended an exchange of the machine's: its slot is free."""
        if packet_id in self._kept:
            self._kept.discard(packet_id)
            self._has_room = True

    def on_pubacks(self, packet_ids: list[int]) -> None:
        """End QoS 1 exchanges, the machine's and this connection's own."""
        kept, own = self._kept, self._queue
        for packet_id in packet_ids:
            if packet_id >= UPPER_HALF:
                self._has_room |= own.on_puback(PacketId(packet_id))
            elif packet_id in kept:
                kept.discard(packet_id)
                self._has_room = True

    def on_pubrec(self, packet_id: int) -> bool:
        """Say whether there is such an exchange; its PUBREL is on its way then."""
        if not self._queue.on_pubrec(PacketId(packet_id)):
            return False
        self._connection.stage(encode_ack(PUBREL, packet_id))
        return True

    def on_pubcomp(self, packet_id: int) -> None:
        self._has_room |= self._queue.on_pubcomp(PacketId(packet_id))

    def on_refused(self, packet_id: int) -> None:
        self._has_room |= self._queue.on_refused(PacketId(packet_id))

    def use_room(self) -> None:
        """Fill the slots that became free; move the window when it is time (C13)."""
        if not self._has_room:
            return
        self._has_room = False
        now_ms = self._connection.last_seen_ms
        if now_ms - self._recalculated_ms >= RECALCULATE_EVERY_MS:
            self._recalculated_ms = now_ms
            self._slots.recalculate(LeaderLoad(self._queue_utilization()))
        self.send_more()

    def _queue_utilization(self) -> int:
        """How full the fuller of this client's two queues is, in thousandths."""
        connection = self._connection
        own = WHOLE * self._queue.weight // connection.limits.queue_bytes_max
        return max(own, connection.kept_utilization())

    # Encoding.

    def _encode(
        self, outgoing: Outgoing, first: int, packet_id: int, identifiers: tuple[int, ...]
    ) -> None:
        connection = self._connection
        access = connection.withholds
        if access is not None and not access.may_receive(outgoing.message.topic):
            self._settle_unsent(first, packet_id)
            return
        self._sent[first & _QOS_BITS] += 1
        self._home.deliveries += 1
        if not connection.is_v5:
            outgoing.plain().append_to(connection.delivery_pieces(), first, packet_id)
        elif identifiers or self._aliases_max or self._packet_max:
            self._encode_own(outgoing.message, first, packet_id, identifiers)
        else:
            shared = outgoing.with_properties(connection.now_ms())
            shared.append_to(connection.delivery_pieces(), first, packet_id)
        if self._traces is not None and outgoing.message.properties:
            self._traces.delivered(outgoing.message, connection.client_id, connection.home.name)

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
        self._connection.delivery_pieces().append(b"".join((begin, head, block, message.payload)))

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
        self._settle_unsent(first, packet_id)

    def _settle_unsent(self, first: int, packet_id: int) -> None:
        """End the exchange of a message that does not leave, as if the client had it."""
        if first & _QOS_BITS:
            if packet_id >= UPPER_HALF:
                self._queue.on_refused(PacketId(packet_id))
            else:
                self._kept.discard(packet_id)
                self._share_window()
                self._connection.acknowledge(REFUSED, packet_id)


def answer_stray_pubrec(connection: Receiver, packet_id: int) -> None:
    """Let a client go on that has a message we know nothing of."""
    connection.stage(encode_ack(PUBREL, packet_id))


__all__ = ["PUBREC", "UPPER_HALF", "Outward", "answer_stray_pubrec"]
