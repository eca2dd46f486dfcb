"""One queue at its leader: which message goes to which receiver, and who holds what.

Acquisition is memory: it ends with the leadership. Messages go in the order of their priority and
number to the receivers in turn; what one receiver may not have, or has no room for, never keeps
another waiting. Nothing here waits: bodies that are not at hand are asked for, and come later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from quantum.broker.queues import Queue, QueueEntry
from quantum.protocols.amqp.session.dispatch_words import ReceiverMode

AHEAD_BYTES_MAX: Final = 4 << 20
"""What may be on its way to one receiver before its client's connection has taken it."""
HELD_MAX: Final = 20_000
"""Messages that one receiver may hold unsettled."""
BODIES_BYTES_MAX: Final = 32 << 20
"""Bodies of one queue that are kept at hand; others are read when their turn comes."""
GIVEN_AT_ONCE: Final = 512


class ReceiverPort(Protocol):
    """A receiver's connection, on this node or another."""

    def deliver(self, deliveries: list[tuple[QueueEntry, bytes]]) -> None: ...
    def settled(self, numbers: list[int]) -> None: ...
    def drained(self, drain: int) -> None: ...
    def ended(self, why: int) -> None: ...


Wants = Callable[[QueueEntry, bytes], bool]


class QueueReceiver:
    """One receiver of a queue, as its leader knows it."""

    __slots__ = (
        "ahead",
        "ahead_bytes",
        "cursor",
        "drain",
        "drained",
        "given",
        "held",
        "limit",
        "mode",
        "port",
        "taken",
        "terminus",
        "waiting",
        "wants",
    )

    def __init__(self, port: ReceiverPort, mode: ReceiverMode, wants: Wants | None) -> None:
        self.port = port
        self.mode = mode
        self.wants = wants
        self.terminus = b""
        """Its durable end: what it holds stays its own when it goes."""
        self.limit = 0
        self.given = 0
        self.taken = 0
        self.drain = self.drained = 0
        self.held: set[int] = set()
        self.ahead: deque[int] = deque()  # the sizes of what was given and not taken
        self.ahead_bytes = 0
        self.cursor = -1
        """The last message that was shown to one that only looks."""
        self.waiting: list[tuple[int, int]] = []
        """Messages that only this receiver may have: those of its groups."""

    @property
    def has_room(self) -> bool:
        return (
            self.given < self.limit
            and self.ahead_bytes < AHEAD_BYTES_MAX
            and len(self.held) < HELD_MAX
        )

    def note_taken(self, taken: int) -> None:
        """So many have left for the client since it was attached."""
        while self.taken < min(taken, self.given):
            self.taken += 1
            self.ahead_bytes -= self.ahead.popleft()


class QueueDispatch:
    """The receivers of one queue, or of its dead letters."""

    def __init__(self, name: bytes, *, dead: bool, read: Callable[[QueueDispatch, int], None]):
        self.name = name
        self.dead = dead
        self._read = read
        self.receivers: deque[QueueReceiver] = deque()
        self.browsers: list[QueueReceiver] = []
        self._available: list[tuple[int, int]] = []
        self._aside: list[tuple[int, int]] = []
        """What no receiver that is here wants."""
        self._stalled: list[tuple[int, int]] = []
        """What only receivers without room want: none of them keeps the others waiting."""
        self.holders: dict[int, QueueReceiver] = {}
        self.settling: set[int] = set()
        """What was said of them is on its way into the log."""
        self.excluded: dict[int, set[int]] = {}
        """Which receivers a message cannot be delivered to (undeliverable-here)."""
        self._bodies: dict[int, bytes] = {}
        self._bodies_bytes = 0
        self._groups: dict[bytes, QueueReceiver] = {}
        self._reading = -1
        self._is_giving = self._asked_again = False

    @property
    def is_idle(self) -> bool:
        return not (self.receivers or self.browsers or self.settling)

    def entries(self, queue: Queue) -> dict[int, QueueEntry]:
        return queue.dead if self.dead else queue.live

    # What there is.

    def begin(self, queue: Queue) -> None:
        """Take in what the queue holds."""
        self._available = [
            (-entry.priority, number)
            for number, entry in self.entries(queue).items()
            if self._is_free(queue, entry)
        ]
        heapify(self._available)

    def _is_free(self, queue: Queue, entry: QueueEntry) -> bool:
        """Say whether nobody has a message, in memory or in the log, and no transaction."""
        number = entry.number
        is_known = number in self.holders or number in self.settling
        return not (is_known or entry.holder or number in queue.locked)

    def grew(self, queue: Queue, numbers: list[int], payloads: list[bytes]) -> None:
        entries = self.entries(queue)
        for place, number in enumerate(numbers):
            entry = entries.get(number)
            if entry is not None:
                heappush(self._available, (-entry.priority, number))
                if payloads and self._bodies_bytes < BODIES_BYTES_MAX:
                    self._keep_body(number, payloads[place])

    def _keep_body(self, number: int, payload: bytes) -> None:
        if number not in self._bodies:
            self._bodies[number] = payload
            self._bodies_bytes += len(payload)

    def _drop_body(self, number: int) -> None:
        payload = self._bodies.pop(number, None)
        if payload is not None:
            self._bodies_bytes -= len(payload)

    def shrank(self, numbers: Iterable[int]) -> None:
        """Forget messages that are gone; who holds one hears nothing, and settles in vain."""
        for number in numbers:
            self._drop_body(number)
            self.excluded.pop(number, None)
            holder = self.holders.pop(number, None)
            if holder is not None:
                holder.held.discard(number)

    def read_done(self, bodies: list[tuple[int, bytes]]) -> None:
        """Take what was read; nothing: it could not be read now."""
        self._reading = -1
        while bodies and self._bodies and self._bodies_bytes >= BODIES_BYTES_MAX:
            self._drop_body(next(reversed(self._bodies)))  # those whose turn comes last
        for number, payload in bodies:
            if number not in self.holders and number not in self.settling:
                self._keep_body(number, payload)

    # Who is there.

    def add(self, receiver: QueueReceiver, queue: Queue, held: list[int]) -> None:
        """Attach a receiver; what it has from an earlier leader is its own if nobody else's."""
        if receiver.mode.is_copy:
            self.browsers.append(receiver)
            return
        self.receivers.append(receiver)
        entries = self.entries(queue)
        for number in held:
            is_free = number not in self.holders and number not in self.settling
            if is_free and number in entries:
                self._hold(receiver, number)
        self._look_again()

    def _look_again(self) -> None:
        """Who is there is another one: what nobody wanted may be wanted."""
        for place in (*self._aside, *self._stalled):
            heappush(self._available, place)
        self._aside, self._stalled = [], []

    def remove(self, receiver: QueueReceiver) -> list[int]:
        """Detach a receiver; return what it held, which nobody has yet."""
        if receiver.mode.is_copy:
            self.browsers.remove(receiver)
            return []
        self.receivers.remove(receiver)
        for place in receiver.waiting:
            heappush(self._available, place)
        receiver.waiting = []
        self._look_again()
        for group in [each for each, owner in self._groups.items() if owner is receiver]:
            del self._groups[group]
        held = sorted(receiver.held)
        for number in held:
            del self.holders[number]
        receiver.held = set()
        return held

    def _hold(self, receiver: QueueReceiver, number: int) -> None:
        self.holders[number] = receiver
        receiver.held.add(number)

    def release(self, queue: Queue, number: int) -> None:
        """Let a message be given again."""
        holder = self.holders.pop(number, None)
        if holder is not None:
            holder.held.discard(number)
        self.settling.discard(number)
        entry = self.entries(queue).get(number)
        if entry is not None and self._is_free(queue, entry):
            heappush(self._available, (-entry.priority, number))

    def exclude(self, receiver: QueueReceiver, number: int) -> None:
        self.excluded.setdefault(number, set()).add(id(receiver))

    # Giving.

    def dispatch(self, queue: Queue) -> None:
        """Give what can be given now; a receiver that asks for more meanwhile waits its turn."""
        self._asked_again = True
        if self._is_giving:
            return
        self._is_giving = True
        while self._asked_again:
            self._asked_again = False
            self._give_all(queue)
        self._is_giving = False

    def _give_all(self, queue: Queue) -> None:
        for browser in self.browsers:
            self._show(queue, browser)
        entries = self.entries(queue)
        given: dict[QueueReceiver, list[tuple[QueueEntry, bytes]]] = {}
        for receiver in self.receivers:
            self._give_waiting(queue, receiver, given)
        while self._available and any(each.has_room for each in self.receivers):
            place = heappop(self._available)
            number = place[1]
            entry = entries.get(number)
            if entry is None or not self._is_free(queue, entry):
                continue
            payload = self._bodies.get(number)
            if payload is None:
                heappush(self._available, place)
                self._ask(number)
                break
            chosen = self._choose(entry, payload, place)
            if chosen is not None:
                self._give(chosen, entry, payload, given)
        for receiver, deliveries in given.items():
            receiver.port.deliver(deliveries)
        self._tell_drained(queue)

    def _choose(
        self, entry: QueueEntry, payload: bytes, place: tuple[int, int]
    ) -> QueueReceiver | None:
        """Return whose turn it is; None: nobody's now, and the message waits where it should."""
        owner = self._groups.get(entry.group) if entry.group else None
        if owner is not None:
            if owner.has_room and not owner.waiting:
                return owner
            heappush(owner.waiting, place)
            return None
        excluded = self.excluded.get(entry.number, ())
        wanted_by_full = False
        for _ in range(len(self.receivers)):
            receiver = self.receivers[0]
            self.receivers.rotate(-1)
            if id(receiver) in excluded:
                continue
            if receiver.wants is not None and not receiver.wants(entry, payload):
                continue
            if receiver.has_room:
                if entry.group:
                    self._groups[entry.group] = receiver
                return receiver
            wanted_by_full = True
        if wanted_by_full:
            heappush(self._stalled, place)
        else:
            self._aside.append(place)
        return None

    def room_again(self) -> None:
        """Look again at some of what only receivers without room wanted."""
        for _ in range(min(len(self._stalled), GIVEN_AT_ONCE)):
            heappush(self._available, heappop(self._stalled))

    def _give_waiting(
        self,
        queue: Queue,
        receiver: QueueReceiver,
        given: dict[QueueReceiver, list[tuple[QueueEntry, bytes]]],
    ) -> None:
        entries = self.entries(queue)
        while receiver.waiting and receiver.has_room:
            number = receiver.waiting[0][1]
            entry = entries.get(number)
            if entry is None or not self._is_free(queue, entry):
                heappop(receiver.waiting)
                continue
            payload = self._bodies.get(number)
            if payload is None:
                self._ask(number)
                return
            heappop(receiver.waiting)
            self._give(receiver, entry, payload, given)

    def _give(
        self,
        receiver: QueueReceiver,
        entry: QueueEntry,
        payload: bytes,
        given: dict[QueueReceiver, list[tuple[QueueEntry, bytes]]],
    ) -> None:
        if not receiver.mode.is_copy:
            self._drop_body(entry.number)
            self._hold(receiver, entry.number)
        receiver.given += 1
        receiver.ahead.append(len(payload))
        receiver.ahead_bytes += len(payload)
        given.setdefault(receiver, []).append((entry, payload))

    def _show(self, queue: Queue, browser: QueueReceiver) -> None:
        """Show messages in order to one that only looks."""
        given: dict[QueueReceiver, list[tuple[QueueEntry, bytes]]] = {}
        entries = self.entries(queue)
        for number in [each for each in sorted(entries) if each > browser.cursor][:GIVEN_AT_ONCE]:
            if not browser.has_room:
                break
            payload = self._bodies.get(number)
            if payload is None:
                self._ask(number)
                break
            browser.cursor = number
            if browser.wants is None or browser.wants(entries[number], payload):
                self._give(browser, entries[number], payload, given)
        for deliveries in given.values():
            browser.port.deliver(deliveries)

    def _ask(self, number: int) -> None:
        if self._reading < 0:
            self._reading = number
            self._read(self, number)

    def _tell_drained(self, queue: Queue) -> None:
        """Answer drains: a receiver with room and nothing to be read has had all there is."""
        if self._reading >= 0:
            return
        for receiver in (*self.receivers, *self.browsers):
            is_shown = not receiver.mode.is_copy or not any(
                each > receiver.cursor for each in self.entries(queue)
            )
            if receiver.drain != receiver.drained and (is_shown or not receiver.has_room):
                receiver.drained = receiver.drain
                receiver.port.drained(receiver.drain)
