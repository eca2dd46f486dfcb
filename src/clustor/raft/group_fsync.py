"""Group-Fsync: when it may be on, and what it may batch (clustor §9.3)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from clustor.log.group_fsync import (
    GroupFsyncClause,
    GroupFsyncConditions,
    group_fsync_clause,
)
from clustor.log.types import IoWriterMode
from clustor.raft.control_plane import CacheState
from clustor.raft.profiles import GroupFsyncNumbers

QUARANTINE_FLAG = "GroupFsyncQuarantine"


@dataclass(slots=True)
class GroupFsyncState:
    """What the predicate looks at; a voter whose mode is not known yet counts as Blocking."""

    strict_fallback: bool
    cache_state: CacheState
    now_ms: int
    downgrade_backoff_deadline_ms: int
    voter_io_modes: Collection[IoWriterMode | None]
    device_latency_violations_in_window: int
    incident_flags: Collection[str]


def can_enable_group_fsync(state: GroupFsyncState, numbers: GroupFsyncNumbers) -> bool:
    """Say whether §9.3's predicate holds."""
    return failed_clause(state, numbers) is GroupFsyncClause.NONE


def failed_clause(state: GroupFsyncState, numbers: GroupFsyncNumbers) -> GroupFsyncClause:
    """Name the first clause of §9.3's predicate that does not hold."""
    conditions = GroupFsyncConditions(
        strict_fallback=state.strict_fallback,
        cache_fresh=state.cache_state is CacheState.FRESH,
        now_ms=state.now_ms,
        downgrade_backoff_deadline_ms=state.downgrade_backoff_deadline_ms,
        voter_modes=[mode or IoWriterMode.BLOCKING for mode in state.voter_io_modes],
        device_latency_violations_in_window=state.device_latency_violations_in_window,
        group_fsync_quarantine=QUARANTINE_FLAG in state.incident_flags,
    )
    return group_fsync_clause(conditions, numbers.violations_max)


class GroupFsyncBudget:
    """One partition's limits: what a batch may hold, and the back-off after overruns."""

    def __init__(self, numbers: GroupFsyncNumbers) -> None:
        self._numbers = numbers
        self._overruns = 0
        self._backoff_ms = numbers.backoff_first_ms
        self.downgrade_backoff_deadline_ms = 0

    def batch_is_full(self, batch_bytes: int, batch_age_ms: int) -> bool:
        """Say whether the open batch must be synced now."""
        numbers = self._numbers
        return batch_bytes >= numbers.batch_bytes_max or batch_age_ms >= numbers.batch_ms_max

    def may_queue(self, partition_inflight_bytes: int, node_inflight_bytes: int) -> bool:
        numbers = self._numbers
        return (
            partition_inflight_bytes <= numbers.inflight_bytes_max
            and node_inflight_bytes <= numbers.node_inflight_bytes_max
        )

    def overran(self, now_ms: int) -> bool:
        """Count a batch that broke a limit; return whether Group-Fsync must go off.

        Each downgrade waits twice as long as the one before it, up to a quarter of an hour.
        """
        self._overruns += 1
        if self._overruns < self._numbers.overrun_limit:
            return False
        self._overruns = 0
        self.downgrade_backoff_deadline_ms = now_ms + self._backoff_ms
        self._backoff_ms = min(2 * self._backoff_ms, self._numbers.backoff_max_ms)
        return True

    def kept(self) -> None:
        """Count a batch within its limits: overruns must follow each other to matter."""
        self._overruns = 0
