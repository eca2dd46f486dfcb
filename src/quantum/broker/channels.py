"""Channels between partitions: everything arrives, in order, and counts once.

The sender's log makes the items, so every replica has them; they stay until the receiver's log
has them too. A leader sends what is there, a new leader sends it again, and the receiver drops
what it already counted. Nothing else is durable between two partitions.

Beside the channels, a leader passes publishes on with numbers of its term (`Forwarded`): they are
kept only by the publisher until they are answered, so an answer that was lost must come out the
same when the publish is sent again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from quantum.broker.items import (
    Deliver,
    Forward,
    Item,
    MovedDeliveries,
    MovedRetained,
    Returned,
    SectionItem,
    Targeted,
)
from quantum.broker.reasons import QUOTA_EXCEEDED, SUCCESS
from quantum.broker.types import Sequence

ITEM_BYTES: Final = 64  # what an item without a record costs, about
REFUSALS_MAX: Final = 16_384


class Outbox:
    """What this partition has for another one."""

    __slots__ = ("_bytes_max", "_items_max", "acked_through", "is_full", "items", "weight")

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self._items_max = items_max
        self._bytes_max = bytes_max
        self.is_full = False
        self.items: deque[Item] = deque()
        self.acked_through = Sequence(0)
        """The receiver has everything up to here; the first item is the next one."""
        self.weight = 0
        """The bytes of all items."""

    @property
    def last(self) -> Sequence:
        return Sequence(self.acked_through + len(self.items))

    def append(self, item: Item) -> Sequence:
        """Add an item and return its place."""
        self.items.append(item)
        self.weight += item_weight(item)
        self.weigh()
        return Sequence(self.acked_through + len(self.items))

    def acked(self, through: int) -> list[tuple[Sequence, Forward]]:
        """Take out what the receiver has and return the publishes that were passed on.

        An older word than the last one takes out nothing.
        """
        first = self.acked_through + 1
        count = max(0, min(through - self.acked_through, len(self.items)))
        taken = [self.items.popleft() for _ in range(count)]
        self.acked_through = Sequence(self.acked_through + count)
        self.weight -= sum(map(item_weight, taken))
        self.weigh()
        return [(Sequence(n), item) for n, item in enumerate(taken, first) if type(item) is Forward]

    def advance(self, acked_through: int, after: int) -> bool:
        """Forget what the receiver has by a delta; say whether what follows it is the next."""
        self.acked(acked_through)
        if not self.items:
            self.acked_through = Sequence(acked_through)
        return self.last == after

    def weigh(self) -> None:
        """Note whether there is too much in it."""
        self.is_full = len(self.items) >= self._items_max or self.weight >= self._bytes_max

    def after(self, sequence: int, limit: int) -> list[Item]:
        """Return up to `limit` items behind that place."""
        skip = max(0, sequence - self.acked_through)
        return list(islice(self.items, skip, skip + limit))


def item_weight(item: Item) -> int:
    """How many bytes an item costs to keep, about."""
    if type(item) is Deliver:
        return len(item.record) + ITEM_BYTES
    if isinstance(item, Forward | Targeted | Returned):
        return len(item.record) + ITEM_BYTES
    if type(item) is SectionItem:
        return len(item.data) + ITEM_BYTES
    if isinstance(item, MovedRetained):
        return sum(message.weight for message in item.messages)
    if isinstance(item, MovedDeliveries):
        return sum(each[0].weight for each in item.deliveries)
    return ITEM_BYTES


@dataclass(slots=True)
class Forwarded:
    """What was passed on by the leader of another partition, in its term."""

    term: int
    number: int = 0
    """The last one that counted; they come without gaps."""
    refused: dict[int, int] = field(default_factory=dict)
    """Why some did not get in, the latest `REFUSALS_MAX` of them."""
    forgotten_through: int = 0
    """Nobody knows any more which of the numbers up to here were refused."""

    def refuse(self, number: int, reason: int) -> None:
        self.refused[number] = reason
        if len(self.refused) > REFUSALS_MAX:
            self.forgotten_through = next(iter(self.refused))
            del self.refused[self.forgotten_through]

    def answer(self, number: int) -> int:
        """Repeat the answer to a publish that counted; never a better one than it got."""
        if number <= self.forgotten_through:
            return QUOTA_EXCEEDED
        return self.refused.get(number, SUCCESS)


class Channels:
    """All channels of one partition, by the other partition's number."""

    __slots__ = ("_bytes_max", "_items_max", "_outboxes", "counted", "forwarded")

    def __init__(self, items_max: int, bytes_max: int) -> None:
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._outboxes: dict[int, Outbox] = {}
        self.counted: dict[int, int] = {}
        """The last place of each channel to here that counted."""
        self.forwarded: dict[int, Forwarded] = {}

    def to(self, prg: int) -> Outbox:
        """Return the channel to a partition."""
        outbox = self._outboxes.get(prg)
        if outbox is None:
            outbox = self._outboxes[prg] = Outbox(self._items_max, self._bytes_max)
        return outbox

    def outboxes(self) -> dict[int, Outbox]:
        return self._outboxes

    def full(self) -> frozenset[int]:
        """Name the partitions whose channels hold too much."""
        return frozenset(prg for prg, outbox in self._outboxes.items() if outbox.is_full)

    def count(self, origin: int, sequence: int) -> bool:
        """Say whether an item counts: it does not the second time."""
        if sequence <= self.counted.get(origin, 0):
            return False
        self.counted[origin] = sequence
        return True

    def forwarded_by(self, origin: int, term: int) -> Forwarded | None:
        """Return what a leader passed on so far; None for one that has a successor."""
        forwarded = self.forwarded.get(origin)
        if forwarded is None or forwarded.term < term:
            forwarded = self.forwarded[origin] = Forwarded(term)
        return forwarded if forwarded.term == term else None
