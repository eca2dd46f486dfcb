"""A leader's side of replication: what goes to whom, and what came back.

Everything that waits for a replica goes into one message, up to a size; messages are made when
the driver takes the output, so that a turn of its loop is one batch. A replica that needs
entries below the window gets them through a fetch; one that needs what is compacted gets a
snapshot.
"""

from __future__ import annotations

from clustor.log.types import Entry, LogIndex, Term
from clustor.raft.core import Core
from clustor.raft.membership import MemberKind
from clustor.raft.memory_log import ENTRY_OVERHEAD_BYTES
from clustor.raft.messages import (
    AppendEntries,
    AppendResponse,
    DurabilityAck,
    InstallSnapshot,
    SnapshotResponse,
)
from clustor.raft.output import EntriesFetch, NoteKind, SnapshotSend
from clustor.raft.progress import Progress, ProgressState
from clustor.raft.types import LeaseEpoch, ReadSeq, ReplicaId

RTT_WEIGHT = 4  # the newest sample is a quarter of the average
HEARTBEAT_EARLY_MS = 5
"""Ticks that are as far apart as heartbeats may come a little early; to wait for the next one
would leave out every second heartbeat."""


class Replication:
    def __init__(self, core: Core) -> None:
        self._core = core
        self.fetches: list[EntriesFetch] = []
        self.snapshot_sends: list[SnapshotSend] = []
        self.read_seq = ReadSeq(0)
        self._sent_read_seq = ReadSeq(0)
        self.lease_epoch = LeaseEpoch(0)
        self._heartbeat_due_ms = 0
        self._heartbeat_now = False
        self._observer_bytes = 0.0
        self._observer_filled_ms = 0
        self.observers_allowed = False

    def lead(self) -> None:
        """Begin a term: nothing is known of anyone, and everyone hears of it at once."""
        self.fetches.clear()
        self.snapshot_sends.clear()
        self.read_seq = self._sent_read_seq = ReadSeq(0)
        self.lease_epoch = LeaseEpoch(self._core.hard.term)
        self._observer_bytes = 0.0
        self._observer_filled_ms = self._core.now_ms
        self._heartbeat_now = True

    # Out.

    def on_tick(self) -> None:
        core = self._core
        if core.now_ms + HEARTBEAT_EARLY_MS >= self._heartbeat_due_ms:
            self._heartbeat_now = True
        self._fill_observer_bucket()

    def next_read_round(self) -> ReadSeq:
        """Begin a round that proves leadership; reads that come before it is sent share it.

        A message that carries the round's number must be younger than the read, or an answer
        could prove a leadership that was lost before the read began.
        """
        if self.read_seq == self._sent_read_seq:
            self.read_seq = ReadSeq(self.read_seq + 1)
        self._heartbeat_now = True
        return self.read_seq

    def has_output(self) -> bool:
        """Say whether `fill` may make a message, or something waits that was asked for."""
        core = self._core
        if self._heartbeat_now or self.fetches or self.snapshot_sends:
            return True
        last = core.log.last_index
        for replica_id, progress in core.progress.items():
            if progress.next_index <= last and replica_id != core.id:
                return True
        return False

    def fill(self) -> None:
        """Make the messages that are due for every replica."""
        core = self._core
        heartbeat = self._heartbeat_now
        if heartbeat:
            self._heartbeat_now = False
            self._heartbeat_due_ms = core.now_ms + core.profile.heartbeat_ms
            self._find_quorum_applied()
        last = core.log.last_index
        for replica_id, progress in core.progress.items():
            if replica_id == core.id:
                continue
            if progress.next_index <= last:
                self._send_entries(replica_id, progress)
            if heartbeat:
                self._send_heartbeat(replica_id, progress)

    def _find_quorum_applied(self) -> None:
        core = self._core
        core.quorum_applied_index = LogIndex(core.config.reached(self._applied_on))
        core.quorum_sm_durable_index = LogIndex(core.config.reached(self._sm_durable_on))

    def _applied_on(self, member: ReplicaId) -> int:
        core = self._core
        return core.applied_index if member == core.id else core.progress[member].applied_index

    def _sm_durable_on(self, member: ReplicaId) -> int:
        core = self._core
        own = member == core.id
        return core.sm_durable_index if own else core.progress[member].sm_durable_index

    def _send_entries(self, replica_id: ReplicaId, progress: Progress) -> None:
        core = self._core
        numbers = core.profile.replication
        last = self._sendable(progress)
        while progress.next_index <= last and progress.may_send(
            numbers.inflight_messages_max, numbers.inflight_bytes_max
        ):
            first = progress.next_index
            if first <= core.log.base_index:
                self.offer_snapshot(replica_id, progress)
                return
            if first < core.log.cache_first:
                self._fetch(replica_id, progress, first)
                return
            entries = core.log.slice(first, last, numbers.message_bytes_max)
            if not self._send(replica_id, progress, entries):
                return

    def _sendable(self, progress: Progress) -> LogIndex:
        """Observers see only what is committed and durable on a quorum."""
        core = self._core
        if progress.kind is not MemberKind.OBSERVER:
            return core.log.last_index
        return core.wal_committed_index if self.observers_allowed else LogIndex(0)

    def _send(self, replica_id: ReplicaId, progress: Progress, entries: list[Entry]) -> bool:
        core = self._core
        prev = LogIndex(entries[0].index - 1)
        prev_term = core.log.term_at(prev)
        if prev_term is None:
            self.offer_snapshot(replica_id, progress)
            return False
        last = entries[-1].index
        size = core.log.bytes_through(last) - core.log.bytes_through(prev)
        if progress.kind is MemberKind.OBSERVER:
            if self._observer_bytes <= 0:
                return False
            self._observer_bytes -= size
        core.send(replica_id, self._append_entries(progress, prev, prev_term, entries))
        progress.sent(last, size)
        return True

    def _send_heartbeat(self, replica_id: ReplicaId, progress: Progress) -> None:
        """Send no entries, at the position where the next ones would go.

        A replica that lost a message in between refuses this, and is probed again. Behind a
        snapshot there is no such position; index 0 is where all logs meet.
        """
        core = self._core
        prev = LogIndex(progress.next_index - 1)
        prev_term = core.log.term_at(prev)
        behind = progress.state is not ProgressState.SNAPSHOT and prev_term is None
        if behind and self._sendable(progress) > 0:
            # What it was sent is lost or late, and compacted here since: only a snapshot helps.
            self.offer_snapshot(replica_id, progress)
        if progress.state is ProgressState.SNAPSHOT or prev_term is None:
            prev, prev_term = LogIndex(0), Term(0)
        core.send(replica_id, self._append_entries(progress, prev, prev_term, []))

    def _append_entries(
        self, progress: Progress, prev: LogIndex, prev_term: Term, entries: list[Entry]
    ) -> AppendEntries:
        core = self._core
        self._sent_read_seq = self.read_seq
        return AppendEntries(
            core.hard.term,
            core.id,
            prev_term,
            prev,
            entries,
            self._visible_commit(progress),
            core.wal_committed_index,
            core.message_epoch,
            self.read_seq,
            core.now_ms,
            progress.rtt_ms,
            self.lease_epoch,
            core.quorum_applied_index,
            core.quorum_sm_durable_index,
        )

    def _visible_commit(self, progress: Progress) -> LogIndex:
        core = self._core
        if progress.kind is MemberKind.OBSERVER:
            return min(core.wal_committed_index, core.commit_index)
        return core.commit_index

    def _fill_observer_bucket(self) -> None:
        """Give observers their share of the snapshot bandwidth, a second's worth at most."""
        core = self._core
        numbers = core.profile.replication
        rate = numbers.observer_share * numbers.snapshot_bytes_per_second_max
        elapsed_ms = core.now_ms - self._observer_filled_ms
        self._observer_filled_ms = core.now_ms
        self._observer_bytes = min(rate, self._observer_bytes + rate * elapsed_ms / 1000)

    def _fetch(self, replica_id: ReplicaId, progress: Progress, first: LogIndex) -> None:
        core = self._core
        if progress.fetching:
            return
        progress.fetching = True
        last = LogIndex(core.log.cache_first - 1)
        numbers = core.profile.replication
        self.fetches.append(EntriesFetch(replica_id, first, last, numbers.fetch_bytes_max))

    def fetched(self, replica_id: ReplicaId, entries: list[Entry]) -> None:
        """Send entries that the runtime read from disk, if they are still what is needed."""
        core = self._core
        progress = core.progress.get(replica_id)
        if progress is None or not core.leads:
            return
        progress.fetching = False
        if not entries or entries[0].index != progress.next_index:
            return
        numbers = core.profile.replication
        settled = all(core.log.holds(entry.term, entry.index) for entry in entries)
        if settled and progress.may_send(numbers.inflight_messages_max, numbers.inflight_bytes_max):
            prev = LogIndex(entries[0].index - 1)
            prev_term = core.log.term_at(prev)
            if prev_term is None:
                return
            core.send(replica_id, self._append_entries(progress, prev, prev_term, entries))
            size = sum(len(entry.payload) + ENTRY_OVERHEAD_BYTES for entry in entries)
            progress.sent(entries[-1].index, size)

    def offer_snapshot(self, replica_id: ReplicaId, progress: Progress) -> None:
        core = self._core
        base = max(core.log.base_index, core.snapshot_index)
        base_term = core.log.term_at(base)
        assert base_term is not None, "the newest snapshot is of this log"
        progress.become_snapshot(base)
        progress.snapshot_offered_ms = core.now_ms
        core.send(
            replica_id,
            InstallSnapshot(
                core.hard.term,
                core.id,
                base_term,
                base,
                core.hard.membership,
                core.hard.membership_index,
                core.hard.routing_epoch,
                core.hard.durability_mode,
                core.hard.durability_mode_epoch,
                core.message_epoch,
            ),
        )
        numbers = core.profile.replication
        share = numbers.observer_share if progress.kind is MemberKind.OBSERVER else 1.0
        rate = int(numbers.snapshot_bytes_per_second_max * share)
        self.snapshot_sends.append(SnapshotSend(replica_id, base, rate))

    # In.

    def on_response(self, message: AppendResponse) -> None:
        core = self._core
        progress = core.progress.get(message.sender)
        if progress is None:
            return
        self._heard(progress, message)
        if message.match_index > core.log.last_index:
            return  # not of this log
        if not message.ok:
            self._back_off(progress, message)
        elif progress.matched(message.match_index):
            core.progress_moved = True
        if progress.state is ProgressState.SNAPSHOT:
            self._retry_snapshot(message.sender, progress, installing=message.installing)

    def _heard(self, progress: Progress, message: AppendResponse) -> None:
        core = self._core
        progress.last_contact_ms = core.now_ms
        progress.applied_index = message.applied_index
        progress.sm_durable_index = message.sm_durable_index
        progress.io_writer_mode = message.io_writer_mode
        progress.read_seq = max(progress.read_seq, message.read_seq)
        if message.sent_ms > progress.echoed_ms:
            progress.echoed_ms = message.sent_ms
            sample = core.now_ms - message.sent_ms
            progress.rtt_ms += (sample - progress.rtt_ms) // RTT_WEIGHT
        core.reads_moved = True

    def _back_off(self, progress: Progress, message: AppendResponse) -> None:
        """Go back by whole terms to where the logs may meet; never below what matched."""
        core = self._core
        prev = message.prev_log_index
        if message.rejoining and message.conflict_index <= progress.match_index:
            progress.fell_back(LogIndex(max(0, message.conflict_index - 1)))
            progress.become_probe(message.conflict_index)
            return
        if progress.state is ProgressState.SNAPSHOT or prev <= progress.match_index:
            return
        if progress.state is ProgressState.PROBE and progress.next_index != prev + 1:
            return  # an old refusal
        meets = message.conflict_index
        if message.conflict_term:
            below = core.log.last_at_or_below_term(message.conflict_term, prev)
            if below >= message.conflict_index:
                meets = LogIndex(below + 1)
        progress.become_probe(min(meets, prev))

    def on_ack(self, message: DurabilityAck) -> None:
        """Count an attestation of this term; it says that the logs are equal, too."""
        core = self._core
        progress = core.progress.get(message.sender)
        if progress is None:
            return
        index = message.last_fsynced_index
        if index > core.log.last_index:
            core.note(NoteKind.STALE_DURABILITY_ACK, sender=message.sender, index=index)
            return
        progress.last_contact_ms = core.now_ms
        progress.io_writer_mode = message.io_writer_mode
        if message.repairing and index < progress.match_index:
            progress.fell_back(index)
            return
        progress.matched(index)
        progress.durable_index = max(progress.durable_index, index)
        core.progress_moved = True

    def on_snapshot_response(self, message: SnapshotResponse) -> None:
        progress = self._core.progress.get(message.sender)
        if progress is None or progress.state is not ProgressState.SNAPSHOT:
            return
        if message.ok and message.base_index == progress.snapshot_index:
            progress.become_probe(message.base_index + 1)

    def _retry_snapshot(
        self, replica_id: ReplicaId, progress: Progress, *, installing: bool
    ) -> None:
        """Offer the snapshot again when no word of it came back: the offer may be lost."""
        core = self._core
        if installing:
            progress.snapshot_offered_ms = core.now_ms
        retry_ms = core.profile.replication.snapshot_retry_ms
        if core.now_ms - progress.snapshot_offered_ms >= retry_ms:
            self.offer_snapshot(replica_id, progress)
