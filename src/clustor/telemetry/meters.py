"""Counts that cost nanoseconds where the work is done, and are read when somebody asks.

A counter is an int in a slot: whoever does the work adds to it. A histogram is a list of ints.
Nothing here has names, labels or locks; those come with the scrape (`exposition`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import Final

# Clustor §13.1: inclusive upper bounds, an implicit +Inf behind them.
FSYNC_LATENCY_MS: Final = (
    0.25,
    0.5,
    1.0,
    2.0,
    4.0,
    6.0,
    8.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    60.0,
    80.0,
    100.0,
)
COMMIT_LATENCY_MS: Final = (
    0.5,
    1.0,
    2.0,
    4.0,
    6.0,
    8.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    60.0,
    80.0,
    100.0,
)
APPLY_BATCH_LATENCY_MS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)
TRANSFER_SECONDS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
BATCH_REQUESTS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)

UNCOMMITTED_MAX: Final = 256
"""So many appends of one group are timed at once; what comes while they wait is not."""


class Histogram:
    """Observations by bucket. `counts` has one more member than `bounds`: +Inf."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        assert list(bounds) == sorted(set(bounds)), "bounds ascend"
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value; a value that equals a bound is below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_many(self, value: float, count: int) -> None:
        """Count a value so many times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float | None:
        """Return the bound below which such a share of the observations lies; None: beyond all."""
        wanted, seen = share * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound
        return None


class NodeMeters:
    """What one node counts for all its groups; each name is one series of `/metrics`."""

    __slots__ = (
        "apply_batch_latency_ms",
        "batch_requests",
        "batches",
        "commit_latency_ms",
        "elections_lost",
        "elections_won",
        "fsync_latency_ms",
        "notes",
        "refused",
        "requests",
        "role_changes",
        "step_downs",
        "transfer_seconds",
    )

    def __init__(self) -> None:
        self.fsync_latency_ms = Histogram(FSYNC_LATENCY_MS)
        self.commit_latency_ms = Histogram(COMMIT_LATENCY_MS)
        self.apply_batch_latency_ms = Histogram(APPLY_BATCH_LATENCY_MS)
        self.transfer_seconds = Histogram(TRANSFER_SECONDS)
        self.batch_requests = Histogram(BATCH_REQUESTS)
        self.batches = 0
        self.requests = 0
        self.refused: dict[str, int] = {}  # by why; the reasons are a closed list
        self.role_changes: dict[str, int] = {}
        self.elections_won = 0
        self.elections_lost = 0
        self.step_downs = 0
        self.notes: dict[str, int] = {}


class CommitClock:
    """Times the appends of one leader: from when they are in its log to their quorum's fsync."""

    __slots__ = ("_began", "_histogram", "_seen_index", "_term")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._began: deque[tuple[int, float]] = deque()
        self._seen_index = 0
        self._term = 0

    def looked(self, term: int, last_index: int, wal_committed_index: int, now: float) -> None:
        """Look at a leader's log after a turn; `now` is in seconds."""
        if term != self._term:
            self._term, self._seen_index = term, last_index
            self._began.clear()
            return
        began = self._began
        if last_index != self._seen_index:
            self._seen_index = last_index
            if len(began) < UNCOMMITTED_MAX:
                began.append((last_index, now))
        while began and began[0][0] <= wal_committed_index:
            self._histogram.observe((now - began.popleft()[1]) * 1000)
