"""When to ask for a snapshot, and how far the log may be forgotten behind one."""

from __future__ import annotations

from clustor.log.compaction import CompactionState, compaction_floor
from clustor.log.types import LogIndex
from clustor.raft.core import Core
from clustor.raft.membership import MemberKind
from clustor.raft.output import SnapshotEmit, SnapshotReason
from clustor.raft.types import NO_INDEX, ReplicaId


class SnapshotRequests:
    """One snapshot is asked for at a time; more may be emitted because their time has come."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._open = False
        self._compact_from = core.log.base_index
        """Snapshots up to here were emitted so that the log behind them can go."""
        self.emit: SnapshotEmit | None = None
        self.compacted: LogIndex | None = None
        self.hold_through: LogIndex | None = None
        """How far the product lets the log be forgotten (ruling C6); None: it has no say."""

    @property
    def newest_index(self) -> LogIndex:
        """What an authorised snapshot covers."""
        return self._core.snapshot_index

    @property
    def waits_to_compact(self) -> bool:
        """Whether the log behind a snapshot is to go and is still there."""
        return self._compact_from > self._core.log.base_index

    def lead(self) -> None:
        self._open = False

    def on_tick(self) -> None:
        """Ask for a snapshot when the log is long, or when a replica is far behind."""
        self._compact()
        if self._open:
            return
        core, numbers = self._core, self._core.profile.replication
        log = core.log
        fresh = log.bytes_through(core.applied_index) - log.bytes_through(self.newest_index)
        if fresh >= numbers.snapshot_log_bytes_target:
            self._ask(SnapshotReason.LOG_BYTES)
        elif fresh >= numbers.snapshot_lag_bytes and core.leads:
            worst = max(self.lag_bytes(member) for member in core.progress)
            if worst >= numbers.snapshot_lag_bytes:
                self._ask(SnapshotReason.FOLLOWER_LAG)

    def request(self) -> None:
        if not self._open and self._core.applied_index > self.newest_index:
            self._ask(SnapshotReason.STRUCTURAL_LAG)

    def _ask(self, reason: SnapshotReason) -> None:
        self._open = True
        self.emit = SnapshotEmit(reason)

    def emitted(self, base_index: LogIndex, *, compacts: bool) -> None:
        core = self._core
        self._open = False
        core.snapshot_index = max(core.snapshot_index, base_index)
        if compacts:
            self._compact_from = max(self._compact_from, base_index)
        self._compact()

    def installed(self) -> None:
        core = self._core
        core.snapshot_index = max(core.snapshot_index, core.log.base_index)

    def _compact(self) -> None:
        """Forget what the newest snapshot covers, as far as every bound allows it by now."""
        core = self._core
        if self.newest_index <= core.log.base_index or core.installing is not None:
            return
        floor = self.compaction_floor()
        target = core.profile.replication.snapshot_log_bytes_target
        wanted = self.waits_to_compact or core.log.bytes_through(floor) >= target
        if floor > core.log.base_index and wanted:
            core.log.compact_through(floor)
            core.heal_through(floor)
            self.compacted = floor

    def compaction_floor(self) -> LogIndex:
        """Return how far the log may be deleted behind the newest authorised snapshot (C5)."""
        core = self._core
        learning = [p for p in core.progress.values() if p.kind is not MemberKind.VOTER]
        floor = compaction_floor(
            CompactionState(
                min(self.newest_index, core.applied_index),
                core.quorum_applied_index,
                core.quorum_sm_durable_index,
                min((p.match_index for p in learning), default=NO_INDEX),
            )
        )
        return floor if self.hold_through is None else min(floor, self.hold_through)

    def lag_bytes(self, member: ReplicaId) -> int:
        """Return how many committed bytes a replica lacks, as far as this leader knows."""
        core = self._core
        if member == core.id:
            return 0
        match = core.progress[member].match_index
        return core.log.bytes_through(core.commit_index) - core.log.bytes_through(match)
