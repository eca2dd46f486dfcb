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
    PROFILE = "ProfileForbids"  # judged by the group: its profile has no Group-Fsync at all
    FEATURE_GATE = "FeatureGateShut"  # judged by the group: the control plane has not opened it
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


def group_fsync_clause(state: GroupFsyncConditions, violations_max: int = 3) -> GroupFsyncClause:
    """Return NONE where Group-Fsync may be enabled, else the first clause that forbids it."""
    if state.strict_fallback:
        return GroupFsyncClause.STRICT_FALLBACK
    if not state.cache_fresh:
        return GroupFsyncClause.CACHE_NOT_FRESH
    if state.now_ms < state.downgrade_backoff_deadline_ms:
        return GroupFsyncClause.DOWNGRADE_BACKOFF
    if any(mode is IoWriterMode.BLOCKING for mode in state.voter_modes):
        return GroupFsyncClause.BLOCKING_WRITER
    if state.device_latency_violations_in_window >= violations_max:
        return GroupFsyncClause.DEVICE_LATENCY
    if state.group_fsync_quarantine:
        return GroupFsyncClause.QUARANTINED
    return GroupFsyncClause.NONE


@dataclass(frozen=True, slots=True)
class GroupFsyncLimits:
    """How long a batch may wait, and how much may be under way; a profile may say less."""

    batch_bytes_max: int = 64 << 10
    batch_ms_max: int = 5
    inflight_bytes_max: int = 4 << 20  # per partition


@dataclass(frozen=True, slots=True)
class FsyncBatch:
    """What was handed to the writer: whoever judges overruns compares both with the limits."""

    batch_bytes: int
    waited_ms: int


class Batcher:
    """Says when the entries that wait must be written.

    In Strict that is as soon as the writer is free. In Group-Fsync a batch may wait until it
    has its bytes or its age. Which mode holds is decided by the group, by overruns and by the
    predicate above.
    """

    def __init__(self, limits: GroupFsyncLimits | None = None) -> None:
        self.limits = limits or GroupFsyncLimits()
        self.mode = DurabilityMode.STRICT
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

    def take(self, now_ms: int) -> FsyncBatch:
        """Hand what waits to the writer."""
        assert self._oldest_ms is not None, "nothing waits"
        batch = FsyncBatch(self._waiting_bytes, now_ms - self._oldest_ms)
        self._waiting_bytes, self._oldest_ms = 0, None
        self._inflight_bytes += batch.batch_bytes
        return batch

    def written(self, batch: FsyncBatch) -> None:
        """Count a batch as durable."""
        self._inflight_bytes -= batch.batch_bytes
