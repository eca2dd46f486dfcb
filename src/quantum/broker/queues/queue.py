"""One queue: which of its messages are open, and how far its file reaches."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

import msgspec

from quantum.broker.queues.commands import PRIORITY_DEFAULT, QueueSpec

FILE_FAMILY: Final = 2 << 60
"""Files of queues have numbers that no stream has."""
TRIM_STEP: Final = 256
"""The file's start follows so far behind: each step is a word to the replica's files."""
BLOCK: Final = 256
"""So many messages stand on one page."""


class QueueEntry(msgspec.Struct, array_like=True, gc=False):
    """A message that is open. Its number is its turn, and its body's first place in the file."""

    number: int
    size: int
    enqueued_ms: int
    priority: int = PRIORITY_DEFAULT
    expires_ms: int = 0
    group: bytes = b""
    failures: int = 0
    """Deliveries that failed; AMQP's delivery-count."""
    annotations: list[tuple[bytes, bytes]] = []
    dead: bytes = b""
    """Why it is a dead letter; empty: it is none."""
    place: int = -1
    """Where its body stands since it was carried forward; -1: at its number."""
    sender: bytes = b""
    """The mark of who sent it: receivers of the same may not want it."""
    holder: bytes = b""
    """The durable receiver that holds it; empty: none does, as far as the log knows."""

    @property
    def at(self) -> int:
        """The place of its body in the queue's file."""
        return self.number if self.place < 0 else self.place


class QueueHead(msgspec.Struct, array_like=True):
    """A queue without its messages, as it stands on a page."""

    number: int
    spec: QueueSpec
    start: int
    next: int
    created_ms: int
    dropped: int


class QueueTotals:
    """What all queues of a partition hold together; it follows from their entries."""

    __slots__ = ("bytes", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size


class Queue:
    """The state of one queue. `live` and `dead` are open; no number is in both."""

    __slots__ = (
        "_carried",
        "_holders",
        "_open",
        "_totals",
        "bytes",
        "created_ms",
        "dead",
        "dropped",
        "live",
        "locked",
        "next",
        "number",
        "spec",
        "staged",
        "start",
    )

    def __init__(
        self, number: int, spec: QueueSpec, created_ms: int, totals: QueueTotals | None = None
    ) -> None:
        self._totals = totals if totals is not None else QueueTotals()
        self.number = number
        self.spec = spec
        self.created_ms = created_ms
        self.live: dict[int, QueueEntry] = {}
        self.dead: dict[int, QueueEntry] = {}
        self.staged: dict[int, QueueEntry] = {}
        """Messages of transactions that are not decided: they have room, and nobody sees them."""
        self.locked: set[int] = set()
        """What such transactions settle: nobody else is given it, and no other word counts."""
        self.start = 0
        """Where its file begins; at most the lowest place of what is open."""
        self.next = 0
        """The number of the next message, and its place in the file."""
        self.dropped = 0
        """How many messages expired and were dropped, ever."""
        self.bytes = 0
        """What all that is open weighs; it follows from the entries."""
        self._open: list[int] = []
        """A heap of places that were open; those that are not any more do no harm."""
        self._carried: dict[int, int] = {}
        """Whose body stands at a place that is no number of its own."""
        self._holders: dict[bytes, set[int]] = {}
        """What durable receivers hold."""

    @property
    def file_id(self) -> int:
        return FILE_FAMILY | self.number

    @property
    def name(self) -> bytes:
        return self.spec.name

    def head(self) -> QueueHead:
        return QueueHead(
            self.number, self.spec, self.start, self.next, self.created_ms, self.dropped
        )

    def find(self, number: int) -> QueueEntry | None:
        """Return what is open under a number, a message or a dead letter."""
        found = self.live.get(number)
        return found if found is not None else self.dead.get(number)

    def entry_at(self, place: int) -> QueueEntry | None:
        """Return whose body stands at a place of the file, if it is open or staged."""
        number = self._carried.get(place, place)
        entry = self.find(number) or self.staged.get(number)
        return entry if entry is not None and entry.at == place else None

    def put(self, entry: QueueEntry) -> None:
        """Open an entry."""
        self._insert(entry)
        heappush(self._open, entry.at)

    def _insert(self, entry: QueueEntry) -> None:
        (self.dead if entry.dead else self.live)[entry.number] = entry
        if entry.place >= 0:
            self._carried[entry.place] = entry.number
        self._note_holder(entry)
        self.bytes += entry.size
        self._totals.add(1, entry.size)

    @property
    def count(self) -> int:
        """How many messages have their room: those that wait, and those that are staged."""
        return len(self.live) + len(self.staged)

    def stage(self, entry: QueueEntry) -> None:
        """Take a message of a transaction that is not decided."""
        self.staged[entry.number] = entry
        heappush(self._open, entry.at)
        self.bytes += entry.size
        self._totals.add(1, entry.size)

    def unstage(self, number: int) -> QueueEntry | None:
        """Let go of a message whose transaction is decided."""
        entry = self.staged.pop(number, None)
        if entry is not None:
            self.bytes -= entry.size
            self._totals.add(-1, -entry.size)
        return entry

    def change(self, entry: QueueEntry) -> None:
        """Put another entry in the place of an open one; it may be a dead letter from now on."""
        if not entry.dead and entry.number in self.live:
            self._drop_holder(self.live[entry.number])
            self.live[entry.number] = entry  # the oldest stays the first
            self._note_holder(entry)
        else:
            self.close(entry.number)
            self._insert(entry)

    def _note_holder(self, entry: QueueEntry) -> None:
        if entry.holder:
            self._holders.setdefault(entry.holder, set()).add(entry.number)

    def _drop_holder(self, entry: QueueEntry) -> None:
        held = self._holders.get(entry.holder)
        if held is not None:
            held.discard(entry.number)
            if not held:
                del self._holders[entry.holder]

    def held_by(self, link: bytes) -> list[int]:
        """Return what a durable receiver holds, by number."""
        return sorted(self._holders.get(link, ()))

    def carry(self, number: int, place: int) -> None:
        """Note that the body of an open entry stands at another place from now on."""
        entry = self.close(number)
        assert entry is not None
        self.put(msgspec.structs.replace(entry, place=place))

    def close(self, number: int) -> QueueEntry | None:
        """Let go of an entry."""
        entry = self.live.pop(number, None)
        if entry is None:
            entry = self.dead.pop(number, None)
        if entry is not None:
            self._carried.pop(entry.place, None)
            self._drop_holder(entry)
            self.bytes -= entry.size
            self._totals.add(-1, -entry.size)
        return entry

    def close_all(self) -> None:
        """Let go of everything: the queue ends."""
        self._totals.add(-self.count - len(self.dead), -self.bytes)

    def lowest(self) -> int:
        """Return the first place that is open; the next one where nothing is."""
        heap = self._open
        while heap and self.entry_at(heap[0]) is None:
            heappop(heap)
        return heap[0] if heap else self.next

    def sort(self) -> None:
        """Let the oldest messages be the first again."""
        self.live = dict(sorted(self.live.items()))
        self.dead = dict(sorted(self.dead.items()))

    def rebuild(self, staged: list[QueueEntry], locked: Iterable[int]) -> None:
        """Work out what pages do not say, after they came in any order."""
        self.sort()
        self._totals.add(-self.count - len(self.dead), -self.bytes)
        self.staged = {each.number: each for each in staged}
        self.locked = set(locked)
        entries = (*self.live.values(), *self.dead.values(), *staged)
        self._open = [each.at for each in entries]
        heapify(self._open)
        self._carried = {each.place: each.number for each in entries if each.place >= 0}
        self._holders = {}
        for each in entries:
            self._note_holder(each)
        self.bytes = sum(each.size for each in entries)
        self._totals.add(len(entries), self.bytes)

    def oldest_ms(self) -> int | None:
        """Return since when the oldest message waits; None: none does."""
        first = next(iter(self.live.values()), None)
        return None if first is None else first.enqueued_ms

    def block(self, block: int) -> list[QueueEntry]:
        """Return the entries of one page, by number."""
        numbers: Iterable[int] = range(block * BLOCK, (block + 1) * BLOCK)
        return [each for each in map(self.find, numbers) if each is not None]

    def blocks(self) -> list[int]:
        """Name the pages that have entries."""
        return sorted({number // BLOCK for number in (*self.live, *self.dead)})
