"""When a device counts as too slow to lead on (clustor §10.1), decided from sync durations alone.

Three samples in a row above the threshold, or an average above it over the last 500 ms, make the
device slow; five in a row below 80 % of the threshold make it well again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SLOW_SAMPLES = 3
WELL_SAMPLES = 5
WELL_PERCENT = 80
WINDOW_NS = 500_000_000
WINDOW_SAMPLES_MAX = 65_536


@dataclass(slots=True)
class DeviceLatency:
    """Feed every sync's duration to `observe`; `is_slow` is the verdict."""

    threshold_ns: int
    """`durability.max_device_latency_ms`, in nanoseconds."""
    is_slow: bool = False
    _above: int = 0
    _below: int = 0
    _window: deque[tuple[int, int]] = field(default_factory=deque)
    _window_sum_ns: int = 0

    def observe(self, now_ns: int, duration_ns: int) -> bool:
        """Count one sync that ended at `now_ns`; return whether the device is slow now."""
        self._slide(now_ns, duration_ns)
        self._above = self._above + 1 if duration_ns > self.threshold_ns else 0
        well = duration_ns * 100 < self.threshold_ns * WELL_PERCENT
        self._below = self._below + 1 if well else 0
        if not self.is_slow:
            self.is_slow = self._above >= SLOW_SAMPLES or self._average_is_above()
        elif self._below >= WELL_SAMPLES:
            self._become_well()
        return self.is_slow

    def _become_well(self) -> None:
        """Start anew: the samples that made it slow must not condemn it a second time."""
        self.is_slow = False
        self._window.clear()
        self._window_sum_ns = 0

    def _slide(self, now_ns: int, duration_ns: int) -> None:
        self._window.append((now_ns, duration_ns))
        self._window_sum_ns += duration_ns
        while self._window[0][0] <= now_ns - WINDOW_NS or len(self._window) > WINDOW_SAMPLES_MAX:
            self._window_sum_ns -= self._window.popleft()[1]

    def _average_is_above(self) -> bool:
        # Fewer samples are no average: one slow sync alone is what the hysteresis is against.
        if len(self._window) < SLOW_SAMPLES:
            return False
        return self._window_sum_ns > self.threshold_ns * len(self._window)
