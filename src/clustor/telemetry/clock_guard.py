"""Whether this machine's clock may be believed: it neither jumps nor runs away (quantum §6.2).

The time of day is compared with the clock that only counts. A step between two looks is a jump;
a time of day that gains or loses more than any discipline would over a minute is a drift. The
alarm stands until the clock was steady for a while.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class ClockNumbers:
    """What is borne. Time services slew by half a thousandth at the most, and step rarely."""

    jump_ms_max: int = 250
    drift_ms_max: int = 250
    drift_window_ms: int = 60_000
    steady_ms: int = 10_000
    sample_ms: int = 1_000


class ClockAlarm(StrEnum):
    JUMP = "the time of day jumped"
    DRIFT = "the time of day runs away"


class ClockGuard:
    """Looks at two clocks; `alarm` says what is wrong, None: nothing."""

    def __init__(self, numbers: ClockNumbers = ClockNumbers()) -> None:  # noqa: B008 — frozen
        self.numbers = numbers
        self.alarm: ClockAlarm | None = None
        self.skew_ms = 0
        """By how much the time of day moved against the counting clock at the last alarm."""
        self._last: int | None = None
        self._samples: deque[tuple[int, int]] = deque()
        self._alarmed_ms = 0

    def look(self, counted_ms: int, wall_ms: int) -> bool:
        """Take both clocks; say whether the alarm is another than before."""
        before, offset = self.alarm, wall_ms - counted_ms
        found = self._judge(counted_ms, offset)
        self._last = offset
        if found is not None:
            kind, self.skew_ms = found
            self.alarm, self._alarmed_ms = kind, counted_ms
            self._samples.clear()
        elif self.alarm is not None and counted_ms - self._alarmed_ms >= self.numbers.steady_ms:
            self.alarm = None
        return self.alarm is not before

    def _judge(self, counted_ms: int, offset: int) -> tuple[ClockAlarm, int] | None:
        numbers = self.numbers
        if self._last is not None and abs(offset - self._last) > numbers.jump_ms_max:
            return ClockAlarm.JUMP, offset - self._last
        samples = self._samples
        if not samples or counted_ms - samples[-1][0] >= numbers.sample_ms:
            samples.append((counted_ms, offset))
        while samples and counted_ms - samples[0][0] > numbers.drift_window_ms:
            samples.popleft()
        moved = offset - samples[0][1] if samples else 0
        return (ClockAlarm.DRIFT, moved) if abs(moved) > numbers.drift_ms_max else None
