"""Group-Fsync: when a batch may wait on purpose, for how long, and when not (clustor §9.3).

Strict already writes everything that waits as one batch (ruling C16). Group-Fsync delays the
write a little to let more come: it never changes what an acknowledgement means, only when the
four steps are run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from clustor.log.types import DurabilityMode, IoWriterMode


class GroupFsyncClause(StrEnum):
    """Why Group-Fsync is refused; the first that fails is named."""

    NONE = "None"
    STRICT_FALLBACK = "StrictFallback"
    CACHE_NOT_FRESH = "CacheNotFresh"
    DOWNGRADE_BACKOFF = "DowngradeBackoff"
    BLOCKING_WRITER = "BlockingWriter"
    DEVICE_LATENCY = "DeviceLatency"
    QUARANTINED = "GroupFsyncQuarantine"


@dataclass(frozen=True, slots=True)
class GroupFsyncConditions:
    """What the predicate looks at."""

    strict_fallback: bool
    cache_fresh: bool
    now_ms: int
    downgrade_backoff_deadline_ms: int
    voter_modes: Sequence[IoWriterMode]
    device_latency_violations_in_window: int
    group_fsync_quarantine: bool


def can_enable_group_fsync(state: GroupFsyncConditions) -> GroupFsyncClause:
    """Return NONE where Group-Fsync may be enabled, else the clause that forbids it."""
    if state.strict_fallback:
        return GroupFsyncClause.STRICT_FALLBACK
    if not state.cache_fresh:
        return GroupFsyncClause.CACHE_NOT_FRESH
    if state.now_ms < state.downgrade_backoff_deadline_ms:
        return GroupFsyncClause.DOWNGRADE_BACKOFF
    if any(mode is IoWriterMode.BLOCKING for mode in state.voter_modes):
        return GroupFsyncClause.BLOCKING_WRITER
    if state.device_latency_violations_in_window >= 3:
        return GroupFsyncClause.DEVICE_LATENCY
    if state.group_fsync_quarantine:
        return GroupFsyncClause.QUARANTINED
    return GroupFsyncClause.NONE


@dataclass(frozen=True, slots=True)
class GroupFsyncLimits:
    """The ceilings of §9.3; a profile may tighten them."""

    batch_bytes_max: int = 64 << 10
    batch_ms_max: int = 5
    inflight_bytes_max: int = 4 << 20  # per partition
    node_inflight_bytes_max: int = 64 << 20
    overrun_limit: int = 2
    backoff_first_ms: int = 1_000
    backoff_ms_max: int = 15 * 60 * 1_000


class Batcher:
    """Says when the entries that wait must be written.

    In Strict that is as soon as the writer is free. In Group-Fsync a batch may wait until it
    has its bytes or its age. A batch that was written later than it should have been is an
    overrun; more than `overrun_limit` in a row end Group-Fsync, for longer each time.
    """

    def __init__(self, limits: GroupFsyncLimits | None = None) -> None:
        self.limits = limits or GroupFsyncLimits()
        self.mode = DurabilityMode.STRICT
        self.backoff_deadline_ms = 0
        self._backoff_ms = 0
        self._overruns = 0
        self._waiting_bytes = 0
        self._oldest_ms: int | None = None
        self._inflight_bytes = 0

    def add(self, entry_bytes: int, now_ms: int) -> None:
        """Count an entry that waits."""
        self._waiting_bytes += entry_bytes
        if self._oldest_ms is None:
            self._oldest_ms = now_ms

    def deadline_ms(self) -> int | None:
        """Return when what waits must be written; None where nothing waits."""
        if self._oldest_ms is None:
            return None
        if self.mode is DurabilityMode.STRICT:
            return self._oldest_ms
        return self._oldest_ms + self.limits.batch_ms_max

    def must_write(self, now_ms: int) -> bool:
        """Say whether the batch goes now; never beyond what may be in flight."""
        deadline = self.deadline_ms()
        if deadline is None or self._inflight_bytes >= self.limits.inflight_bytes_max:
            return False
        return now_ms >= deadline or self._waiting_bytes >= self.limits.batch_bytes_max

    def take(self, now_ms: int) -> int:
        """Hand the batch to the writer; return its bytes."""
        deadline = self.deadline_ms()
        assert deadline is not None, "nothing waits"
        if self.mode is DurabilityMode.GROUP_FSYNC:
            self._judge(now_ms - deadline, now_ms)
        taken, self._waiting_bytes, self._oldest_ms = self._waiting_bytes, 0, None
        self._inflight_bytes += taken
        return taken

    def written(self, batch_bytes: int) -> None:
        """Count a batch as durable."""
        self._inflight_bytes -= batch_bytes

    def enable_group_fsync(self, state: GroupFsyncConditions) -> GroupFsyncClause:
        """Change to Group-Fsync where the predicate allows it; return the clause otherwise."""
        clause = can_enable_group_fsync(state)
        if clause is GroupFsyncClause.NONE and state.now_ms < self.backoff_deadline_ms:
            clause = GroupFsyncClause.DOWNGRADE_BACKOFF
        if clause is GroupFsyncClause.NONE:
            self.mode = DurabilityMode.GROUP_FSYNC
            self._overruns = 0
        return clause

    def fall_back(self, now_ms: int) -> None:
        """Return to Strict, and stay there for twice as long as the last time."""
        self.mode = DurabilityMode.STRICT
        doubled = max(self.limits.backoff_first_ms, self._backoff_ms * 2)
        self._backoff_ms = min(doubled, self.limits.backoff_ms_max)
        self.backoff_deadline_ms = now_ms + self._backoff_ms

    def _judge(self, late_ms: int, now_ms: int) -> None:
        self._overruns = self._overruns + 1 if late_ms > self.limits.batch_ms_max else 0
        if self._overruns > self.limits.overrun_limit:
            self.fall_back(now_ms)
