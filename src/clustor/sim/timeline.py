"""Simulated time: what will happen, in order, and nothing in between."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, NewType, TypeVar

Microseconds = NewType("Microseconds", int)
EventT = TypeVar("EventT")


class Timeline(Generic[EventT]):
    """A queue of events by time; those of one moment come in the order they were scheduled."""

    def __init__(self) -> None:
        self._heap: list[tuple[Microseconds, int, EventT]] = []
        self._scheduled = 0
        self._now = Microseconds(0)

    @property
    def now(self) -> Microseconds:
        """The moment of the event taken last."""
        return self._now

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, at: Microseconds, event: EventT) -> None:
        """Let an event happen at a moment that is not over."""
        assert at >= self._now, (at, self._now)
        # The counter decides between equal moments, so events themselves are never compared.
        heappush(self._heap, (at, self._scheduled, event))
        self._scheduled += 1

    def next_at(self) -> Microseconds | None:
        """Say when the next event happens; None if nothing will."""
        return self._heap[0][0] if self._heap else None

    def take_next(self) -> EventT | None:
        """Move time to the next event and return it; None if nothing will happen."""
        if not self._heap:
            return None
        self._now, _, event = heappop(self._heap)
        return event
