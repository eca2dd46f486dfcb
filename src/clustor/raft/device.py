"""The disk's latency, with hysteresis: when it counts as stalled, and when as well again."""

from __future__ import annotations

from collections import deque

from clustor.raft.profiles import DeviceNumbers

SAMPLES_MAX = 4096


class DeviceLatency:
    """§10.1: three samples in a row above the bound, or the average of a window, is a stall.

    Five samples in a row below 80 % of the bound end it.
    """

    def __init__(self, numbers: DeviceNumbers) -> None:
        self._numbers = numbers
        self._window: deque[tuple[int, float]] = deque(maxlen=SAMPLES_MAX)
        self._sum = 0.0
        self.violations = 0
        """How many samples of the window are above the bound."""
        self._above = 0
        self._below = 0
        self.stalled = False

    @property
    def average_ms(self) -> float:
        """What a sync took lately; 0 where there was none."""
        return self._sum / len(self._window) if self._window else 0.0

    def sample(self, latency_ms: float, now_ms: int) -> bool:
        """Take one sample of a sync; return whether `stalled` changed."""
        numbers = self._numbers
        self._above = self._above + 1 if latency_ms > numbers.latency_max_ms else 0
        calm = latency_ms < numbers.recovery_ratio * numbers.latency_max_ms
        self._below = self._below + 1 if calm else 0
        before = self.stalled
        average = self._average(latency_ms, now_ms)
        if self._above >= numbers.violations_to_stall or average > numbers.latency_max_ms:
            self.stalled = True
        elif self._below >= numbers.samples_to_recover:
            self.stalled = False
        return self.stalled != before

    def _average(self, latency_ms: float, now_ms: int) -> float:
        window = self._window
        if len(window) == SAMPLES_MAX:
            self._forget(window.popleft()[1])
        window.append((now_ms, latency_ms))
        self._sum += latency_ms
        self.violations += latency_ms > self._numbers.latency_max_ms
        while window[0][0] <= now_ms - self._numbers.average_window_ms:
            self._forget(window.popleft()[1])
        # One slow sync after a quiet second is a sample, not an average.
        few = len(window) < self._numbers.violations_to_stall
        return 0.0 if few else self._sum / len(window)

    def _forget(self, latency_ms: float) -> None:
        self._sum -= latency_ms
        self.violations -= latency_ms > self._numbers.latency_max_ms
