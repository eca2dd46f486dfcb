"""Messages on their way to one client: a queue, a window in flight, and packet ids.

The same class serves sessions that the machine keeps (its state changes only when a command is
applied) and connections that forget everything when they end. It has no clock: whoever asks
says what time it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from quantum.broker.message import Message
from quantum.broker.types import PacketId

SENT: Final = 1  # PUBLISH is out
RECEIVED: Final = 2  # PUBREC came: only the packet id is still held, and PUBREL is out


class Delivery:
    """One message for one client. `packet_id` is 0 while it waits in the queue."""

    __slots__ = (
        "filter",
        "identifiers",
        "message",
        "packet_id",
        "qos",
        "retain",
        "share",
        "state",
    )

    def __init__(  # noqa: PLR0917  # hot: positional
        self,
        message: Message,
        qos: int,
        retain: bool,  # hot: positional
        identifiers: tuple[int, ...],
        share: bytes = b"",
        filter_: bytes = b"",
    ) -> None:
        self.message = message
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.share = share
        self.filter = filter_
        self.packet_id = 0
        self.state = SENT


class Outbound:
    """In order: what is in flight, then what waits. Packet ids are reused when they are free."""

    __slots__ = ("_first_id", "_last_id", "_next_id", "in_flight", "queue", "weight", "window")

    def __init__(self, window: int, first_id: int, last_id: int) -> None:
        self.window = window
        self.queue: deque[Delivery] = deque()
        self.in_flight: dict[int, Delivery] = {}
        self.weight = 0
        """The bytes of all that is queued or in flight."""
        self._first_id = first_id
        self._last_id = last_id
        self._next_id = first_id

    def __len__(self) -> int:
        return len(self.queue) + len(self.in_flight)

    def push(self, delivery: Delivery) -> bool:
        """Take a message; say whether it may leave now, with its packet id set."""
        self.weight += delivery.message.weight
        if self.queue or len(self.in_flight) >= self.window:
            self.queue.append(delivery)
            return False
        self._start(delivery)
        return True

    def _start(self, delivery: Delivery) -> None:
        packet_id = self._next_id
        while packet_id in self.in_flight:
            packet_id = packet_id + 1 if packet_id < self._last_id else self._first_id
        self._next_id = packet_id + 1 if packet_id < self._last_id else self._first_id
        delivery.packet_id = packet_id
        self.in_flight[packet_id] = delivery

    def take_ready(self, now_ms: int) -> list[Delivery]:
        """Move what the window has room for into flight; what has expired is dropped."""
        ready: list[Delivery] = []
        while self.queue and len(self.in_flight) < self.window:
            delivery = self.queue.popleft()
            expires_at_ms = delivery.message.expires_at_ms
            if expires_at_ms and expires_at_ms <= now_ms:
                self.weight -= delivery.message.weight
                continue
            self._start(delivery)
            ready.append(delivery)
        return ready

    def on_puback(self, packet_id: PacketId) -> bool:
        """End a QoS 1 exchange; say whether there was one."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None or delivery.qos != 1:
            return False
        self._end(packet_id)
        return True

    def on_pubrec(self, packet_id: PacketId) -> bool:
        """Note that the client has a QoS 2 message; say whether a PUBREL is due."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return False
        delivery.state = RECEIVED
        return True

    def on_pubcomp(self, packet_id: PacketId) -> bool:
        """End a QoS 2 exchange; say whether there was one."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return False
        self._end(packet_id)
        return True

    def on_refused(self, packet_id: PacketId) -> bool:
        """End an exchange that the client refused with a reason code (MQTT 5, 4.3.3)."""
        if packet_id not in self.in_flight:
            return False
        self._end(packet_id)
        return True

    def _end(self, packet_id: PacketId) -> None:
        self.weight -= self.in_flight.pop(packet_id).message.weight

    def unsend(self, packet_ids: list[int]) -> None:
        """Let messages wait again that are in flight for us and never left."""
        for packet_id in reversed(packet_ids):
            delivery = self.in_flight.pop(packet_id, None)
            if delivery is not None:
                delivery.packet_id = 0
                self.queue.appendleft(delivery)

    def unfinished(self) -> Iterator[Delivery]:
        """All that the client has not acknowledged, in order."""
        yield from self.in_flight.values()
        yield from self.queue

    def drop_oldest_qos_0(self) -> bool:
        """Make room (quantumqtt §7.2); say whether there was something to drop."""
        for delivery in self.queue:
            if delivery.qos == 0:
                self.queue.remove(delivery)
                self.weight -= delivery.message.weight
                return True
        return False

    def drop_expired(self, now_ms: int) -> int:
        """Drop what waits and has expired; return how many."""
        kept = [each for each in self.queue if not _expired(each.message, now_ms)]
        dropped = len(self.queue) - len(kept)
        if dropped:
            gone = sum(each.message.weight for each in self.queue if _expired(each.message, now_ms))
            self.weight -= gone
            self.queue = deque(kept)
        return dropped

    @property
    def next_id(self) -> int:
        """Where the search for a free packet id goes on: part of the state."""
        return self._next_id

    def restore(self, in_flight: list[Delivery], queued: list[Delivery], next_id: int) -> None:
        """Become what a snapshot says; the deliveries in flight have their packet ids."""
        self.in_flight = {each.packet_id: each for each in in_flight}
        self.queue = deque(queued)
        self.weight = sum(each.message.weight for each in self.unfinished())
        self._next_id = next_id


def _expired(message: Message, now_ms: int) -> bool:
    return message.expires_at_ms != 0 and message.expires_at_ms <= now_ms
