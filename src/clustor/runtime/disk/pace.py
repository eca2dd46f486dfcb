"""Whether the disk is quick enough to be waited for.

A ring hands buffered writes to a worker thread of the kernel: waking it, and being woken by it,
costs nearly as much as the syncs of a small plan (340 µs against 210 µs, measured), and a thread
of our own costs more. So a small plan that has the disk to itself is run where it is submitted,
as long as syncs are quick. A disk that becomes slow holds its owner up once, by the sync that
shows it; from then on ring or thread do the waiting, until syncs were quick for a while again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from clustor.log.steps import Plan, Sync, WriteFile

QUICK_NS_MAX: Final = 1_000_000
"""Syncs that take longer than this on average are not waited for."""
BYTES_MAX: Final = 256 * 1024
"""What a plan may write and still count as small."""

_WEIGHT: Final = 16  # the newest sample is a sixteenth of the average
_AVERAGE_AT_START_NS: Final = 4 * QUICK_NS_MAX  # a disk has to show that it is quick


class Pace:
    """A running average of what syncs took."""

    __slots__ = ("_average_ns",)

    def __init__(self) -> None:
        self._average_ns = _AVERAGE_AT_START_NS

    @property
    def is_quick(self) -> bool:
        return self._average_ns <= QUICK_NS_MAX

    def sample(self, durations_ns: Iterable[int]) -> None:
        """Take what the syncs of a plan took."""
        for duration in durations_ns:
            self._average_ns += (duration - self._average_ns) // _WEIGHT


def is_small(plan: Plan) -> bool:
    """Say whether a plan only writes and syncs, and not much."""
    total = 0
    for step in plan:
        if type(step) is WriteFile:
            total += len(step.data)
        elif type(step) is not Sync:
            return False
    return total <= BYTES_MAX
