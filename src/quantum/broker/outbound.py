"""Messages on their way to one client: a queue, a window in flight, and packet ids.

The same class serves sessions that the machine keeps (its state changes only when a command is
applied) and connections that forget everything when they end. It has no clock: whoever asks
says what time it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

import msgspec

from quantum.broker.message import Message
from quantum.broker.types import PacketId

SENT: Final = 1  # PUBLISH is out
RECEIVED: Final = 2  # PUBREC came: only the packet id is still held, and PUBREL is out
ENDED: Final = 3  # the exchange is over: nothing of it is here any more


class Delivery(msgspec.Struct, eq=False, gc=False):
    """One message for one client. `packet_id` is 0 while it waits in the queue."""

    message: Message
    qos: int
    retain: bool
    identifiers: tuple[int, ...]
    share: bytes = b""
    filter: bytes = b""
    packet_id: int = 0
    state: int = SENT
    """SENT while it waits, too; whoever refers to one sees when its client has answered."""
    drop_at_ms: int = 0
    """When it is not worth sending any more, if that is before its message expires; 0: never."""

    def has_expired(self, now_ms: int) -> bool:
        return 0 < self.drop_at_ms <= now_ms or 0 < self.message.expires_at_ms <= now_ms


class Total:
    """What many queues weigh together."""

    __slots__ = ("amount",)

    def __init__(self) -> None:
        self.amount = 0


class Outbound:
    """In order: what is in flight, then what waits. Packet ids are reused when they are free."""

    __slots__ = (
        "_first_id",
        "_last_id",
        "_next_id",
        "_total",
        "in_flight",
        "queue",
        "unsent",
        "weight",
        "window",
    )

    def __init__(
        self, window: int, first_id: int, last_id: int, total: Total | None = None
    ) -> None:
        self._total = Total() if total is None else total
        self._first_id = first_id
        self._last_id = last_id
        self._next_id = first_id
        self.window = 1
        self.set_window(window)
        self.queue: deque[Delivery] = deque()
        self.in_flight: dict[int, Delivery] = {}
        self.weight = 0
        """The bytes of all that is queued or in flight."""
        self.unsent: list[int] = []
        """Packet ids in flight that this connection has not seen yet, in order: a client that
        came back with a smaller window gets them as it has room."""

    def set_window(self, window: int) -> None:
        """Say how many may be in flight; no more than there are packet ids."""
        self.window = max(1, min(window, self._last_id - self._first_id + 1))

    def __len__(self) -> int:
        return len(self.queue) + len(self.in_flight)

    def put_on(self, weight: int) -> None:
        """Weigh so much more, or less."""
        self.weight += weight
        self._total.amount += weight

    def leave(self) -> None:
        """Weigh no more among the others: the session is no more, or not here."""
        self._total.amount -= self.weight
        self._total = Total()

    def push(self, delivery: Delivery) -> bool:
        """Take a message; say whether it may leave now, with its packet id set."""
        weight = delivery.message.weight
        self.weight += weight
        self._total.amount += weight
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

    def resume(self) -> list[Delivery]:
        """A connection begins: return the exchanges of which only PUBREL is to be sent again.

        The others in flight are unsent, as far as this connection goes.
        """
        self.unsent = [each.packet_id for each in self.in_flight.values() if each.state == SENT]
        return [each for each in self.in_flight.values() if each.state == RECEIVED]

    def take_unsent(self) -> list[Delivery]:
        """Return what was in flight before and the window has room for now, in the old order."""
        room = self.window - len(self.in_flight) + len(self.unsent)
        if not self.unsent or room <= 0:
            return []
        again, self.unsent = self.unsent[:room], self.unsent[room:]
        return [self.in_flight[packet_id] for packet_id in again]

    def take_ready(self, now_ms: int) -> list[Delivery]:
        """Move what the window has room for into flight; what has expired is dropped."""
        ready: list[Delivery] = []
        while self.queue and len(self.in_flight) < self.window:
            delivery = self.queue.popleft()
            if delivery.has_expired(now_ms):
                self.put_on(-delivery.message.weight)
                continue
            self._start(delivery)
            ready.append(delivery)
        return ready

    def on_puback(self, packet_id: PacketId) -> bool:
        """End a QoS 1 exchange; say whether there was one."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None or delivery.qos != 1:
            return False
        del self.in_flight[packet_id]
        delivery.state = ENDED
        weight = delivery.message.weight
        self.weight -= weight
        self._total.amount -= weight
        if self.unsent and packet_id in self.unsent:
            self.unsent.remove(packet_id)
        return True

    def on_pubrec(self, packet_id: PacketId) -> bool:
        """Note that the client has a QoS 2 message; say whether a PUBREL is due."""
        delivery = self.in_flight.get(packet_id)
        if delivery is None or delivery.qos != 2:
            return False
        delivery.state = RECEIVED
        if self.unsent and packet_id in self.unsent:
            self.unsent.remove(packet_id)
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
        delivery = self.in_flight.pop(packet_id)
        delivery.state = ENDED
        self.put_on(-delivery.message.weight)
        if self.unsent and packet_id in self.unsent:
            self.unsent.remove(packet_id)

    def unsend(self, first: int) -> None:
        """Let messages wait again that are in flight for us and never left: one, and all behind.

        Messages leave in order. Where one did not, none behind it did, known to the connection
        or not: to leave those in flight would let them overtake it.
        """
        if first not in self.in_flight:
            return
        packet_ids = list(self.in_flight)
        for packet_id in reversed(packet_ids[packet_ids.index(first) :]):
            delivery = self.in_flight[packet_id]
            if delivery.state == SENT:
                del self.in_flight[packet_id]
                delivery.packet_id = 0
                self.queue.appendleft(delivery)
        self.unsent = [each for each in self.unsent if each in self.in_flight]

    def unfinished(self) -> Iterator[Delivery]:
        """All that the client has not acknowledged, in order."""
        yield from self.in_flight.values()
        yield from self.queue

    def drop_oldest_qos_0(self) -> bool:
        """Make room (quantumqtt §7.2); say whether there was something to drop."""
        for delivery in self.queue:
            if delivery.qos == 0:
                self.queue.remove(delivery)
                self.put_on(-delivery.message.weight)
                return True
        return False

    def drop_expired(self, now_ms: int) -> int:
        """Drop what waits and has expired; return how many."""
        kept = deque(each for each in self.queue if not each.has_expired(now_ms))
        dropped = len(self.queue) - len(kept)
        if dropped:
            self.queue = kept
            self._weigh()
        return dropped

    def take_out(self, unwanted: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out, and return in order, whatever is unwanted."""
        gone = [each for each in self.unfinished() if unwanted(each)]
        if gone:
            self.in_flight = {
                packet_id: each for packet_id, each in self.in_flight.items() if not unwanted(each)
            }
            self.queue = deque(each for each in self.queue if not unwanted(each))
            self.unsent = [each for each in self.unsent if each in self.in_flight]
            self._weigh()
        return gone

    def next_expiry_ms(self) -> int | None:
        """When something that waits expires next."""
        times = chain.from_iterable(
            (each.drop_at_ms, each.message.expires_at_ms) for each in self.queue
        )
        return min(filter(None, times), default=None)

    def _weigh(self) -> None:
        self.put_on(sum(each.message.weight for each in self.unfinished()) - self.weight)

    @property
    def next_id(self) -> int:
        """Where the search for a free packet id goes on: part of the state."""
        return self._next_id

    def restore(self, in_flight: list[Delivery], queued: list[Delivery], next_id: int) -> None:
        """Become what a snapshot says; the deliveries in flight have their packet ids."""
        self.in_flight = {each.packet_id: each for each in in_flight}
        self.queue = deque(queued)
        self._weigh()
        self._next_id = next_id
