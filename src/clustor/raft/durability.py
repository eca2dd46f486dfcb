"""Durability as a dimension of its own: what is on this disk, on a quorum's, and proven.

The group appends to its view of the log first and to the disk by batches; each batch has a
number, and a receipt names the last batch that is durable. A cut of the log makes earlier
receipts worth less: a late one for a batch that was cut since counts only below the cut.
"""

from __future__ import annotations

from collections import deque

from clustor.log.types import DurabilityMode, Entry, EntryKind, LogIndex
from clustor.raft.core import Core
from clustor.raft.errors import GroupMisuse
from clustor.raft.output import LogAppend, NoteKind
from clustor.raft.types import DurabilityTuple, LogStored, ReplicaId, WriteSeq

EVERYTHING = 1 << 62
RECORDS_MAX = 4096
OFFERED_MAX = 64


class Durability:
    """The disk's side of one replica. `core.local_wal_durable_index` is set here alone."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._unwritten_from: LogIndex | None = None
        self._cut_from: LogIndex | None = None
        self._write_seq = WriteSeq(0)
        self._stored_seq = WriteSeq(0)
        self._cuts: deque[tuple[WriteSeq, LogIndex]] = deque()  # (batch that cuts, last kept)
        self._started_ms: deque[tuple[WriteSeq, int]] = deque()
        self.device_age_ms: int | None = None
        """For how long the device has had its oldest write; None: nobody measures it (C20)."""
        self._records: deque[DurabilityTuple] = deque(maxlen=RECORDS_MAX)
        self._offered: deque[DurabilityTuple] = deque(maxlen=OFFERED_MAX)
        self.quorum_tuple: DurabilityTuple | None = None  # last own record at or below the quorum's
        self.receipt: LogStored | None = None

    # What is appended and cut, and the batches made of it.

    def appended(self, first_index: LogIndex) -> None:
        if self._unwritten_from is None or first_index < self._unwritten_from:
            self._unwritten_from = first_index

    def cut(self, from_index: LogIndex) -> None:
        """Note that the view was cut; what was durable at or above it is so no more."""
        core = self._core
        kept = LogIndex(from_index - 1)
        core.local_wal_durable_index = min(core.local_wal_durable_index, kept)
        core.durable_beyond_damage = min(core.durable_beyond_damage, kept)
        while self._records and self._records[-1].index > kept:
            self._records.pop()
        if self._unwritten_from is not None and self._unwritten_from > kept:
            self._unwritten_from = None
        self._cut_from = from_index if self._cut_from is None else min(self._cut_from, from_index)

    @property
    def waits(self) -> bool:
        """Say whether anything waits for the disk."""
        return self._unwritten_from is not None or self._cut_from is not None

    def take_appends(self, *, strict: bool) -> list[LogAppend]:
        """Make batches of all that waits for the disk; a fence is a batch of its own."""
        assert self.waits
        core = self._core
        first = self._unwritten_from or LogIndex(core.log.last_index + 1)
        entries = core.log.slice(first, core.log.last_index, EVERYTHING)
        mode = DurabilityMode.STRICT if strict else core.durability_mode()
        batches = [
            self._batch(part, mode) for part in _between_fences(entries, core.log.system)
        ] or [self._batch([], mode)]
        batches[0].truncate_from = self._cut_from
        if self._cut_from is not None:
            self._cuts.append((batches[0].write_seq, LogIndex(self._cut_from - 1)))
        self._unwritten_from = self._cut_from = None
        return batches

    def _batch(self, entries: list[Entry], mode: DurabilityMode) -> LogAppend:
        self._write_seq = WriteSeq(self._write_seq + 1)
        self._started_ms.append((self._write_seq, self._core.now_ms))
        return LogAppend(self._write_seq, None, entries, mode)

    # Receipts.

    def stored(self, receipt: LogStored) -> bool:
        """Take the log's receipt; return whether more is durable now."""
        core = self._core
        if receipt.write_seq > self._write_seq:
            raise GroupMisuse("a receipt for a batch that was never made", seq=receipt.write_seq)
        core.io_writer_mode = receipt.io_writer_mode
        self.receipt = receipt
        self._stored_seq = max(self._stored_seq, receipt.write_seq)
        while self._started_ms and self._started_ms[0][0] <= receipt.write_seq:
            self._started_ms.popleft()
        while self._cuts and self._cuts[0][0] <= receipt.write_seq:
            self._cuts.popleft()
        index = self._believed(receipt)
        if core.damaged is not None:
            core.durable_beyond_damage = max(core.durable_beyond_damage, index)
            index = min(index, LogIndex(core.damaged[0] - 1))
        if index <= core.local_wal_durable_index:
            return False
        core.local_wal_durable_index = index
        self._record(receipt, index)
        core.progress_moved = True
        return True

    def _believed(self, receipt: LogStored) -> LogIndex:
        """Return how far the receipt still counts after cuts that followed its batch."""
        core = self._core
        index = receipt.index
        for _, kept in self._cuts:
            index = min(index, kept)
        if self._cut_from is not None:
            index = min(index, LogIndex(self._cut_from - 1))
        if index == receipt.index and not core.log.holds(receipt.term, receipt.index):
            return LogIndex(0)
        return index

    def _record(self, receipt: LogStored, index: LogIndex) -> None:
        if index == receipt.index:
            self._records.append(
                DurabilityTuple(
                    receipt.term,
                    receipt.index,
                    receipt.segment_seq,
                    receipt.io_writer_mode,
                    self._core.hard.durability_mode_epoch,
                )
            )

    def oldest_write_age_ms(self) -> int:
        """Return for how long the oldest batch has waited for its receipt."""
        return self._core.now_ms - self._started_ms[0][1] if self._started_ms else 0

    def stuck_ms(self) -> int:
        """Return for how long the device has had its oldest write, as far as that is measured."""
        return self.oldest_write_age_ms() if self.device_age_ms is None else self.device_age_ms

    def restart_at(self, index: LogIndex) -> None:
        """Start behind an installed snapshot, which is durable through `index`."""
        self._unwritten_from = self._cut_from = None
        self._cuts.clear()
        self._records.clear()
        self._core.local_wal_durable_index = max(
            index, min(self._core.local_wal_durable_index, self._core.log.last_index)
        )

    # The leader's watermarks.

    def lead(self) -> None:
        """Begin a term: nothing of it is proven, whatever earlier ones were."""
        self._core.wal_committed_index = LogIndex(0)
        self._offered.clear()
        self.quorum_tuple = None

    def advance(self) -> bool:
        """Recompute both commit indexes from what replicas reported; say whether one moved."""
        core = self._core
        if core.wal_committed_index == core.log.last_index:
            return False  # a late ack: there is nothing that could move
        before = (core.commit_index, core.wal_committed_index)
        matched, attested = self.reports()
        committed = core.config.reached(matched.__getitem__)
        if committed > core.commit_index and committed >= core.term_start:
            core.commit_index = LogIndex(committed)
        durable = core.config.reached(attested.__getitem__)
        durable = min(durable, core.local_wal_durable_index, core.commit_index)
        if durable > core.wal_committed_index and durable >= core.term_start:
            core.wal_committed_index = LogIndex(durable)
            self._find_quorum_tuple()
        return before != (core.commit_index, core.wal_committed_index)

    def reports(self) -> tuple[dict[ReplicaId, int], dict[ReplicaId, int]]:
        """Return how far each member's log equals ours, and how far it is durable there."""
        core = self._core
        matched: dict[ReplicaId, int] = {}
        attested: dict[ReplicaId, int] = {}
        for member, progress in core.progress.items():
            matched[member] = progress.match_index
            attested[member] = progress.durable_index
        matched[core.id] = attested[core.id] = core.local_wal_durable_index
        return matched, attested

    def _find_quorum_tuple(self) -> None:
        core = self._core
        while self._records and self._records[0].index <= core.wal_committed_index:
            record = self._records.popleft()
            if record.term == core.hard.term:
                self.quorum_tuple = record

    # Proofs.

    def offer(self) -> DurabilityTuple | None:
        """Return the newest tuple for publication, and remember that it was offered."""
        newest = self.quorum_tuple
        if newest is not None and newest != self.newest_offered:
            self._offered.append(newest)
        return newest

    @property
    def newest_offered(self) -> DurabilityTuple | None:
        return self._offered[-1] if self._offered else None

    def proven(self, proof: DurabilityTuple | None) -> DurabilityTuple | None:
        """Return the proof if it equals a tuple of this term on the leader's own ledger (C7)."""
        if proof is None or proof.term != self._core.hard.term:
            return None
        return proof if proof == self.quorum_tuple or proof in self._offered else None

    def claim_is_usable(self, index: LogIndex) -> bool:
        """Say whether a leader's durability claim is of its own term (clustor §10.4.1)."""
        if self._core.log.term_at(index) == self._core.hard.term:
            return True
        self._core.note(NoteKind.CONTROL_PLANE_PROOF_MISMATCH, claimed_index=index)
        return False


def _between_fences(entries: list[Entry], system: list[Entry]) -> list[list[Entry]]:
    """Split entries so that a durability transition stands in a batch of its own."""
    if not entries:
        return []
    first, parts, start = entries[0].index, [], 0
    for fence in system:
        if fence.kind is EntryKind.DURABILITY_TRANSITION and fence.index >= first:
            at = fence.index - first
            parts += [entries[start:at], entries[at : at + 1]]
            start = at + 1
    parts.append(entries[start:])
    return [part for part in parts if part]
