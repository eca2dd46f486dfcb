"""A follower's side of replication: match, append, answer when it is durable; snapshots."""

from __future__ import annotations

from clustor.log.types import Entry, IoWriterMode, LogIndex, SegmentSeq, Term
from clustor.raft.core import Core
from clustor.raft.durability import Durability
from clustor.raft.messages import (
    AppendEntries,
    AppendResponse,
    DurabilityAck,
    InstallSnapshot,
    ModeConflict,
    SnapshotResponse,
)
from clustor.raft.output import NoteKind, SnapshotInstall
from clustor.raft.types import LeaseEpoch, ReplicaId

ACK_REPEAT_MS = 500
"""So often a leader hears at the least how far a follower is, whether that changed or not."""


class Following:
    def __init__(self, core: Core, durability: Durability) -> None:
        self._core = core
        self._durability = durability
        self._acked = (Term(0), LogIndex(0))  # newest ack to the leader of that term
        self._acked_ms = 0
        self.install: SnapshotInstall | None = None
        self.lease_epoch = LeaseEpoch(0)

    def conflicts(self, sender: ReplicaId, epoch: int) -> bool:
        """Refuse a leader whose log ends before a transition that is committed here."""
        core = self._core
        if epoch >= core.hard.durability_mode_epoch:
            return False
        core.note(
            NoteKind.DURABILITY_MODE_EPOCH_CONFLICT,
            sender=sender,
            theirs=epoch,
            ours=core.hard.durability_mode_epoch,
        )
        core.send(sender, ModeConflict(core.hard.term, core.id, core.hard.durability_mode_epoch))
        return True

    def on_append(self, message: AppendEntries) -> None:
        """Take the leader's entries where the logs meet, or say where they may meet."""
        core = self._core
        self.lease_epoch = message.lease_epoch
        core.quorum_applied_index = message.quorum_applied_index
        core.quorum_sm_durable_index = message.quorum_sm_durable_index
        if core.installing is not None:
            self._answer(message, ok=True)
            return
        prev = message.prev_log_index
        if not _is_well_formed(message):
            core.note(NoteKind.MALFORMED_ENTRY, sender=message.sender, prev=prev)
            return
        if not self._meets(message):
            self._refuse(message)
            return
        last = LogIndex(prev + len(message.entries))
        appended = bool(message.entries) and self._append(message.entries)
        if message.entries and appended is None:
            return
        core.matched_index = max(core.matched_index, last)
        core.commit_index = max(core.commit_index, min(message.commit_index, last))
        if message.wal_committed_index and message.wal_committed_index <= last:
            self._durability.claim_is_usable(message.wal_committed_index)
        if not appended:
            self._answer(message, ok=True)
            self.acknowledge(message.sender, news_only=not self._must_repeat(message))

    def _meets(self, message: AppendEntries) -> bool:
        prev = message.prev_log_index
        if prev <= self._core.commit_index:
            return True  # committed entries are everyone's
        return self._core.log.term_at(prev) == message.prev_log_term

    def _append(self, entries: list[Entry]) -> bool | None:
        """Append what is new; None when it must not be taken, False when nothing is new."""
        core = self._core
        position = core.log.first_conflict(entries)
        if position == len(entries):
            return False
        fresh = entries[position:] if position else entries
        first = fresh[0].index
        if first <= core.commit_index:
            core.note(NoteKind.COMMITTED_CONFLICT, index=first, term=fresh[0].term)
            return None
        if not core.read_system_entries(fresh):
            return None
        if first <= core.log.last_index:
            self._cut(first)
        before = len(core.log.system)
        core.log.append(fresh)
        self._durability.appended(first)
        if len(core.log.system) != before:
            core.read_configuration()
        return True

    def _cut(self, first: LogIndex) -> None:
        core = self._core
        core.log.truncate_from(first)
        self._durability.cut(first)
        if core.damaged is not None and core.damaged[1] >= first:
            kept = LogIndex(first - 1)
            core.damaged = (core.damaged[0], kept) if core.damaged[0] <= kept else None
        core.read_configuration()

    def _answer(self, message: AppendEntries, *, ok: bool) -> None:
        core = self._core
        core.send(
            message.sender,
            self._response(message, Term(0), LogIndex(0), ok=ok),
        )

    def _refuse(self, message: AppendEntries) -> None:
        """Say where this log may meet the leader's: one answer per term, not per entry."""
        core = self._core
        prev = message.prev_log_index
        term = core.log.term_at(prev)
        if term is None:
            at = LogIndex(min(core.log.last_index, prev) + 1)
            response = self._refusal(message, Term(0), at)
        else:
            at = LogIndex(max(core.log.run_start(prev), core.commit_index + 1))
            response = self._refusal(message, term, at)
        core.send(message.sender, response)

    def _refusal(
        self, message: AppendEntries, conflict_term: Term, conflict_index: LogIndex
    ) -> AppendResponse:
        return self._response(message, conflict_term, conflict_index, ok=False)

    def _response(
        self, message: AppendEntries, conflict_term: Term, conflict_index: LogIndex, *, ok: bool
    ) -> AppendResponse:
        core = self._core
        return AppendResponse(
            core.hard.term,
            core.id,
            ok,
            self.acknowledgeable(),
            message.prev_log_index,
            conflict_term,
            conflict_index,
            message.read_seq,
            message.sent_ms,
            core.applied_index,
            core.sm_durable_index,
            core.io_writer_mode,
            core.installing is not None,
            core.hard.rejoining,
        )

    def refuse_older(self, message: AppendEntries) -> None:
        """Tell a leader of an older term that it leads no more."""
        self._core.send(message.sender, self._refusal(message, Term(0), LogIndex(0)))

    def acknowledgeable(self) -> LogIndex:
        """Return what is durable here *and* equal to the leader's log (C17)."""
        core = self._core
        return min(core.local_wal_durable_index, core.matched_index)

    def _must_repeat(self, heartbeat: AppendEntries) -> bool:
        """Say whether an attestation that was sent before has to be sent again: it may be lost.

        A leader whose quorum is behind it may wait for this one. Else it is only behind in what it
        knows of this replica, and hears it now and then.
        """
        core = self._core
        overdue = core.now_ms - self._acked_ms >= ACK_REPEAT_MS
        behind = heartbeat.wal_committed_index < self._acked[1]
        return overdue or behind or core.damaged is not None

    def acknowledge(self, leader: ReplicaId, *, news_only: bool = False) -> None:
        """Attest to the leader how far its log is durable here."""
        core = self._core
        index = self.acknowledgeable()
        if index == 0 or (news_only and (core.hard.term, index) == self._acked):
            return
        self._acked = (core.hard.term, index)
        self._acked_ms = core.now_ms
        receipt = self._durability.receipt
        core.send(
            leader,
            DurabilityAck(
                core.hard.term,
                core.identity.partition_id,
                core.id,
                index,
                receipt.segment_seq if receipt else SegmentSeq(0),
                receipt.io_writer_mode if receipt else IoWriterMode.BLOCKING,
                core.damaged is not None,
            ),
        )

    # Snapshots.

    def on_install(self, message: InstallSnapshot) -> None:
        """Ask for the snapshot's installation, unless its base is committed here already."""
        core = self._core
        if message.base_term > message.term:
            return  # no leader has such a log
        heals = core.damaged is not None and core.damaged[0] <= message.base_index
        if message.base_index <= core.commit_index and not heals:
            core.send(
                message.sender,
                SnapshotResponse(core.hard.term, core.id, message.base_index, ok=True),
            )
            core.matched_index = max(core.matched_index, core.commit_index)
            self.acknowledge(message.sender)
            return
        if core.installing is not None:
            return
        core.installing = message.base_index
        self.install = SnapshotInstall(
            message.sender,
            message.base_term,
            message.base_index,
            message.configuration,
            message.configuration_index,
            message.routing_epoch,
            message.durability_mode,
            message.committed_epoch,
            core.log.term_at(message.base_index) == message.base_term,
        )

    def installed(self, install: SnapshotInstall, *, ok: bool) -> None:
        """Start behind a durable snapshot, or go on without it."""
        core = self._core
        core.installing = None
        if ok:
            core.log.restore(install.base_index, install.base_term)
            self._durability.restart_at(install.base_index)
            core.commit_index = max(core.commit_index, install.base_index)
            core.handed_index = max(core.handed_index, install.base_index)
            core.applied_index = max(core.applied_index, install.base_index)
            core.sm_durable_index = max(core.sm_durable_index, install.base_index)
            core.matched_index = max(core.matched_index, install.base_index)
            core.heal_through(install.base_index)
            self._adopt_committed(install)
        if core.leader_id is not None:
            core.send(
                core.leader_id,
                SnapshotResponse(core.hard.term, core.id, install.base_index, ok),
            )
            self.acknowledge(core.leader_id)

    def _adopt_committed(self, install: SnapshotInstall) -> None:
        """Take over what the sender had committed: members, and a mode that is not older."""
        core = self._core
        core.set_hard(
            membership=install.configuration,
            membership_index=min(install.configuration_index, install.base_index),
            routing_epoch=install.routing_epoch,
        )
        core.readmit(install.routing_epoch)
        if install.durability_mode_epoch > core.hard.durability_mode_epoch:
            core.set_hard(
                durability_mode=install.durability_mode,
                durability_mode_epoch=install.durability_mode_epoch,
            )
        core.read_configuration()


def _is_well_formed(message: AppendEntries) -> bool:
    """Say whether the entries can be a piece of a log: without gaps, terms never falling."""
    index, term = message.prev_log_index, message.prev_log_term
    for entry in message.entries:
        index = LogIndex(index + 1)
        if entry.index != index or entry.term < term:
            return False
        term = entry.term
    return term <= message.term and message.prev_log_index >= 0
