"""How much room a node's disk must have: writes are refused before a log fails (clustor §9.6).

A log whose plan fails stops for good. So a leader gives fewer credits while only a few segments
more fit on its disk, and none when a segment could be the last one. Pure: bytes in, a level out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LOOK_MS: Final = 500
_AGAIN: Final = 1.25  # so much more than the bound must be free to come back


class DiskLevel(StrEnum):
    """How near its end a disk is; the names are those of the throttle's reasons."""

    ROOM = "None"
    SOFT = "DiskSoft"
    HARD = "DiskHard"


CREDIT_SHARE: Final = {DiskLevel.ROOM: 1.0, DiskLevel.SOFT: 0.25, DiskLevel.HARD: 0.0}


@dataclass(frozen=True, slots=True)
class DiskNumbers:
    """Bounds in segments: what rolls next must fit, and more beside it."""

    soft_segments: int = 4
    hard_segments: int = 2


START_BYTES_MIN: Final = 4 << 20
"""What a node that has its data already must find free to write down that it started."""


def bytes_to_start(
    numbers: DiskNumbers, segment_bytes: int, *, new_groups: int, step_bytes: int
) -> int:
    """Return what must be free: for new groups so much that they may take writes at once.

    A node that has its groups may start on a nearly full disk: it answers, says what it lacks,
    and takes writes again when there is room.
    """
    if not new_groups:
        return START_BYTES_MIN
    bound = int(numbers.hard_segments * segment_bytes * _AGAIN)
    return START_BYTES_MIN + bound + new_groups * min(step_bytes, segment_bytes)


class DiskRoom:
    """The level of one disk. It comes back only with a margin: no flapping at a bound."""

    def __init__(self, numbers: DiskNumbers, segment_bytes: int) -> None:
        self.soft_bytes = numbers.soft_segments * segment_bytes
        self.hard_bytes = numbers.hard_segments * segment_bytes
        self.level = DiskLevel.ROOM
        self.free_bytes: int | None = None
        self._due_ms = 0

    def is_due(self, now_ms: int) -> bool:
        """Say whether the disk must be asked again; asked once a period."""
        if now_ms < self._due_ms:
            return False
        self._due_ms = now_ms + LOOK_MS
        return True

    def take(self, free_bytes: int | None) -> DiskLevel:
        """Judge what is free; None, a disk that does not say, changes nothing."""
        if free_bytes is None:
            return self.level
        self.free_bytes = free_bytes
        fallen = self._level(free_bytes, 1.0)
        risen = self._level(free_bytes, _AGAIN)
        order = list(DiskLevel)
        if order.index(fallen) > order.index(self.level):
            self.level = fallen
        elif order.index(risen) < order.index(self.level):
            self.level = risen
        return self.level

    def _level(self, free_bytes: int, margin: float) -> DiskLevel:
        if free_bytes < self.hard_bytes * margin:
            return DiskLevel.HARD
        return DiskLevel.SOFT if free_bytes < self.soft_bytes * margin else DiskLevel.ROOM
