"""Transactions as one partition sees them: which are open, and which offsets were aborted."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass(slots=True)
class OpenTransaction:
    """A transaction that the coordinator let in; it has an offset once a batch of it is here."""

    epoch: int
    first_offset: int | None = None


@dataclass(slots=True, frozen=True)
class AbortedRange:
    """Offsets of a producer from its first batch to its abort marker."""

    producer_id: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class AbortedIndex:
    """What was aborted, in the order of the markers, so by `last_offset`."""

    ranges: list[AbortedRange] = field(default_factory=list)

    def add(self, aborted: AbortedRange) -> None:
        assert not self.ranges or self.ranges[-1].last_offset < aborted.last_offset
        self.ranges.append(aborted)

    def between(self, start: int, end: int) -> list[AbortedRange]:
        """List what a reader of [start, end) must skip; it may end in the middle of a range."""
        first = bisect_left(self.ranges, start, key=lambda each: each.last_offset)
        return [each for each in self.ranges[first:] if each.first_offset < end]

    def trim(self, start: int) -> None:
        """Forget ranges that lie wholly before the first offset that can be read."""
        del self.ranges[: bisect_left(self.ranges, start, key=lambda each: each.last_offset)]
