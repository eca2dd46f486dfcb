"""The one wall clock: what time it is for people, in milliseconds since 1970.

It may jump either way. What measures a span asks the loop's monotonic clock, and what is pure is
told the time by its caller.
"""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Return the time of day in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
