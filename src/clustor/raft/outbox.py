"""What a group wants done outside, gathered from its parts in the order in which it must happen.

The parts change when an input comes; nothing leaves before it is taken here, once.
"""

from __future__ import annotations

from clustor.log.types import Entry, LogIndex
from clustor.raft.access import AccessGate
from clustor.raft.core import Core
from clustor.raft.durability import EVERYTHING, Durability
from clustor.raft.following import Following
from clustor.raft.hold import HardStateHold
from clustor.raft.idempotency import IdempotencyTable
from clustor.raft.leadership import Leadership
from clustor.raft.output import Acked, Output
from clustor.raft.repair import Repair
from clustor.raft.replication import Replication
from clustor.raft.snapshots import SnapshotRequests
from clustor.raft.types import NO_INDEX, CommitVisibility


class GroupOutbox:
    """The one place that takes from a group's parts."""

    def __init__(
        self,
        core: Core,
        *,
        access: AccessGate,
        durability: Durability,
        following: Following,
        hold: HardStateHold,
        keys: IdempotencyTable,
        leadership: Leadership,
        repair: Repair,
        replication: Replication,
        snapshots: SnapshotRequests,
    ) -> None:
        self.core = core
        self.access = access
        self.durability = durability
        self.following = following
        self.hold = hold
        self.keys = keys
        self.leadership = leadership
        self.repair = repair
        self.replication = replication
        self.snapshots = snapshots
        self._acked = NO_INDEX
        """How far this term's leader has told that entries are safe."""

    def begin_term(self) -> None:
        """Tell anew what is safe: a leader has just won."""
        self._acked = NO_INDEX

    def has_output(self) -> bool:
        """Say whether `take` has anything to give now."""
        core = self.core
        if core.outbox or core.notes or core.role_change is not None or self.durability.waits:
            return True
        if core.reads_moved and self.access.has_waiting:
            return True
        if core.leads and self._leader_has_output():
            return True
        return (
            (core.commit_index > core.handed_index and self._apply_limit() > core.handed_index)
            or self.hold.has_output
            or bool(self.access.answers)
            or bool(self.repair.fetches)
            or self.following.install is not None
            or self.repair.write is not None
            or self.snapshots.emit is not None
            or self.snapshots.compacted is not None
        )

    def _leader_has_output(self) -> bool:
        committed = self.core.wal_committed_index
        return self.replication.has_output() or (committed > self._acked and self.hold.is_open)

    def take(self) -> Output:
        """Return all that must happen now, once; equal inputs give equal outputs."""
        core = self.core
        if core.reads_moved and self.access.has_waiting:
            self.access.advance()
        core.reads_moved = False
        leads = core.leads
        if leads:
            self.replication.fill()
        waits = self.durability.waits
        output = Output(
            hard_state=self.hold.take_hard_state(),
            appends=self.durability.take_appends(strict=self.writes_strict()) if waits else [],
            messages=self.hold.take_messages(),
            apply=self._take_apply(),
        )
        if leads:
            self._take_leader(output)
        self._take_rest(output)
        return output

    def writes_strict(self) -> bool:
        """Clamp a leader's own disk; a follower keeps to the transitions in its log (§9.1)."""
        return self.leadership.must_write_strict() if self.core.leads else False

    def _take_apply(self) -> list[Entry]:
        core = self.core
        if core.commit_index <= core.handed_index:
            return []
        limit = self._apply_limit()
        if limit <= core.handed_index:
            return []
        entries = core.log.slice(core.handed_index + 1, limit, EVERYTHING)
        core.handed_index = limit
        self.keys.applied(entries)
        return entries

    def _apply_limit(self) -> LogIndex:
        """Apply what is committed and durable: on a quorum for a leader, here for a follower."""
        core = self.core
        if not core.leads:
            limit = min(core.commit_index, core.local_wal_durable_index)
        elif self.access.visibility is CommitVisibility.DURABLE_ONLY:
            limit = core.wal_committed_index
        else:
            limit = core.commit_index
        if core.damaged is not None and core.damaged[0] > core.handed_index:
            limit = min(limit, LogIndex(core.damaged[0] - 1))
        return limit

    def _take_leader(self, output: Output) -> None:
        core = self.core
        # A transition's epoch, or new members, are durable before anything on them is told (§7.1).
        if core.wal_committed_index > self._acked and self.hold.is_open:
            self._acked = core.wal_committed_index
            output.wal_committed_index = core.wal_committed_index
            output.acked = Acked(core.hard.term, core.wal_committed_index)
        output.publish_proof = self.access.proof_to_publish()
        output.record_membership = self.leadership.membership_to_record()
        if self.replication.fetches:
            output.fetches, self.replication.fetches = self.replication.fetches, []
        if self.replication.snapshot_sends:
            output.snapshot_sends = self.replication.snapshot_sends
            self.replication.snapshot_sends = []

    def _take_rest(self, output: Output) -> None:
        core = self.core
        if self.access.answers:
            output.reads, self.access.answers = self.access.answers, []
        if core.notes:
            output.notes, core.notes = core.notes, []
        if self.repair.fetches:
            output.fetches = output.fetches + self.repair.fetches
            self.repair.fetches = []
        output.role, core.role_change = core.role_change, None
        output.install, self.following.install = self.following.install, None
        output.repair, self.repair.write = self.repair.write, None
        output.emit_snapshot, self.snapshots.emit = self.snapshots.emit, None
        output.compact_through, self.snapshots.compacted = self.snapshots.compacted, None
