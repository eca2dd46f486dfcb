"""Streams between partitions: everything arrives, in order, and counts once.

The sender's log makes the items, so every replica has them; they stay until the receiver's log
has them too. A leader sends what is there, a new leader sends it again, and the receiver drops
what it already counted. Nothing else is durable between two partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from enum import Enum
from itertools import islice

from quantum.broker.items import Item
from quantum.broker.types import Sequence


class Counted(Enum):
    """What became of something that another partition passed on."""

    COUNTS = 1
    AGAIN = 2  # it counted before
    TOO_EARLY = 3


class Outbox:
    """What this partition has for another one."""

    __slots__ = ("acked_through", "items")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.acked_through = Sequence(0)
        """The receiver has everything up to here; the first item is the next one."""

    @property
    def last(self) -> Sequence:
        return Sequence(self.acked_through + len(self.items))

    def append(self, item: Item) -> Sequence:
        """Add an item and return its place."""
        self.items.append(item)
        return self.last

    def acked(self, through: int) -> Iterator[tuple[Sequence, Item]]:
        """Take out what the receiver has; an older word than the last one takes out nothing."""
        while self.acked_through < through and self.items:
            self.acked_through = Sequence(self.acked_through + 1)
            yield self.acked_through, self.items.popleft()

    def after(self, sequence: int, limit: int) -> list[Item]:
        """Return up to `limit` items behind that place."""
        skip = max(0, sequence - self.acked_through)
        return list(islice(self.items, skip, skip + limit))


class Channels:
    """All streams of one partition, by the other partition's number."""

    __slots__ = ("_outboxes", "counted", "forwarded")

    def __init__(self) -> None:
        self._outboxes: dict[int, Outbox] = {}
        self.counted: dict[int, int] = {}
        """The last place of each stream to here that counted."""
        self.forwarded: dict[int, tuple[int, int]] = {}
        """The last publish that a leader elsewhere passed on: (its term, its number)."""

    def to(self, prg: int) -> Outbox:
        """Return the stream to a partition."""
        outbox = self._outboxes.get(prg)
        if outbox is None:
            outbox = self._outboxes[prg] = Outbox()
        return outbox

    def outboxes(self) -> dict[int, Outbox]:
        return self._outboxes

    def count(self, origin: int, sequence: int) -> bool:
        """Say whether an item counts: it does not the second time."""
        if sequence <= self.counted.get(origin, 0):
            return False
        self.counted[origin] = sequence
        return True

    def count_forward(self, origin: int, term: int, number: int) -> Counted:
        """Say whether a passed-on publish counts: not the second time, not of an old leader.

        A leader numbers what it passes on from 1. A number that is not the next one says that
        others before it were lost on the way: it must come again, behind them.
        """
        last_term, last = self.forwarded.get(origin, (0, 0))
        if term > last_term:
            last = 0
        if term < last_term or number <= last:
            return Counted.AGAIN
        if number > last + 1:
            return Counted.TOO_EARLY
        self.forwarded[origin] = (term, number)
        return Counted.COUNTS
