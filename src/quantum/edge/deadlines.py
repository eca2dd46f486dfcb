"""Many deadlines, one timer: a wheel that its owner turns at a steady pace.

Setting and cancelling cost one entry in a set; an object per deadline would cost more memory
than the idle connection it watches. The wheel counts turns and knows no clock: a process that
was held up turns late, so its peers get more time, never less.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, NewType, TypeVar

Watched = TypeVar("Watched", bound=Hashable)
Slot = NewType("Slot", int)

NO_SLOT: Final = Slot(-1)


class DeadlineWheel(Generic[Watched]):
    """Deadlines up to `turns_max` turns away."""

    def __init__(self, turns_max: int) -> None:
        assert turns_max > 0
        self._slots: list[set[Watched]] = [set() for _ in range(turns_max + 1)]
        self._next = 0
        self._armed = 0

    def __len__(self) -> int:
        return self._armed

    def arm(self, watched: Watched, turns: int) -> Slot:
        """Watch for `turns` whole turns; the caller keeps the slot for `cancel`."""
        assert 0 < turns < len(self._slots)
        # The turn that comes next is already partly over, so it does not count.
        slot = Slot((self._next + turns) % len(self._slots))
        assert watched not in self._slots[slot]
        self._slots[slot].add(watched)
        self._armed += 1
        return slot

    def cancel(self, watched: Watched, slot: Slot) -> None:
        """Watch no longer."""
        self._slots[slot].remove(watched)
        self._armed -= 1

    def turn(self) -> set[Watched]:
        """Turn by one slot, and take everything that is due."""
        due = self._slots[self._next]
        if due:
            self._slots[self._next] = set()
            self._armed -= len(due)
        self._next = (self._next + 1) % len(self._slots)
        return due
