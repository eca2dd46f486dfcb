"""Ruling C19: a node that is late itself gives its leaders more time before it asks for votes.

What is measured (how late ticks come, how long appends take) comes in from outside; here is only
what follows from it. A draw that is widened in vain costs a slower failover; one that is too
narrow elects somebody while everybody is well, again and again.
"""

from __future__ import annotations

from typing import Final

from clustor.raft.profiles import Profile

HEALTHY_MS: Final = 30_000
"""For so long nothing may be late before the draw narrows."""
WIDEST_MS: Final = 3_000
_SHARE: Final = 4
"""Lateness beyond this part of the lower bound does not fit into the draw."""


class ElectionRange:
    """From what the election timeout is drawn: as the profile says, or wider while we are late."""

    __slots__ = ("_late_ms", "_profile", "_range", "measured_ms")

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._range = profile.election_timeout_ms
        self._late_ms = 0  # when it was last too late to be narrow
        self.measured_ms = 0
        """The 99th percentile of what ticks and appends took together, as last told."""

    @property
    def is_widened(self) -> bool:
        return self._range != self._profile.election_timeout_ms

    def bounds(self, *, high_rtt: bool) -> tuple[int, int]:
        """Return the lowest and the highest timeout that may be drawn now."""
        if not high_rtt:
            return self._range
        return max(self._range, self._profile.wan_election_timeout_ms)

    def measured(self, lateness_ms: int, now_ms: int) -> None:
        """Take what was measured lately."""
        self.measured_ms = lateness_ms
        if lateness_ms * _SHARE > self._profile.election_timeout_ms[0]:
            self._late_ms = now_ms
            self._range = max(self._range, self._wide_for(lateness_ms))
        elif now_ms - self._late_ms >= HEALTHY_MS:
            self._range = self._profile.election_timeout_ms

    def _wide_for(self, lateness_ms: int) -> tuple[int, int]:
        """Return the WAN's range, or one that begins at twice what was measured."""
        low, high = self._profile.wan_election_timeout_ms
        widest = max(WIDEST_MS, high)
        low = max(low, min(2 * lateness_ms, widest // 2))
        return low, min(max(high, 2 * low), widest)
