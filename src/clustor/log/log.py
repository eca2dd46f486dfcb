"""One log on one disk: what to write, in which order, and what may then be said to be durable.

The `Log` plans; a disk carries out. Its state runs ahead of the disk by the plans that were
handed out and not yet finished, so plans must be executed whole and in the order they were
given. A plan that fails ends the log: `fence()` it, and let recovery find out what is true.

Nothing is ever written over. A truncated suffix stays where it is and is voided by a ledger
record; the next run goes behind it, under counters that were never used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from clustor.log.cipher import blocks_needed
from clustor.log.config import LogConfig
from clustor.log.errors import LogFenced, LogMisuse
from clustor.log.frame import FRAME_BODY_BYTES_MAX, MERKLE_TRAILER_BYTES, encode_frames
from clustor.log.keys import KeyRing
from clustor.log.ledger import (
    AbandonReason,
    DurabilityRecord,
    DurabilityTransition,
    LedgerBody,
    LedgerIdentity,
    LogBase,
    NonceReservationAbandon,
    NonceReservationRange,
    Truncation,
)
from clustor.log.ledger_writer import LedgerWriter
from clustor.log.logmap import LogMap
from clustor.log.metadata import METADATA_FILE, LogMetadata, plan_document
from clustor.log.segment import (
    RUN_PLAINTEXT_BYTES_MAX,
    WAL_DIRECTORY,
    SegmentHeader,
    index_file,
    segment_file,
)
from clustor.log.segment_writer import SegmentWriter
from clustor.log.steps import DeleteFile, MakeDirectory, Plan, Step, Sync, SyncDirectory
from clustor.log.types import (
    BlockCounter,
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    IoWriterMode,
    LogIndex,
    SegmentSeq,
    Term,
)

_ENTRY_OVERHEAD_BYTES = 12 + 16 + MERKLE_TRAILER_BYTES
_PAYLOAD_BYTES_MAX = FRAME_BODY_BYTES_MAX - 16


@dataclass(slots=True)
class AppendPlan:
    """The four steps of clustor §10.5 for one batch; only its receipt may let an ack out."""

    steps: Plan
    receipt: DurabilityRecord


@dataclass(slots=True)
class LogParts:
    """What a log is made of; creation and recovery put these together."""

    entries: LogMap
    ledger: LedgerWriter
    base_segment_seq: SegmentSeq
    highest_segment_seq: SegmentSeq  # every segment number up to here is used up
    durable: DurabilityRecord  # what the ledger proves
    open_segment: SegmentWriter | None
    closed: list[SegmentSeq]
    last_seal: NonceReservationAbandon | None  # proves the trailer of the last closed segment
    truncations: list[Truncation]  # those that void something in a live segment


class Log:
    """The planner of one partition's log. Pure: it holds no file and knows no time."""

    def __init__(
        self, identity: LedgerIdentity, keys: KeyRing, config: LogConfig, parts: LogParts
    ) -> None:
        self.identity = identity
        self.config = config
        self.fenced: LogFenced | None = None
        self._keys = keys
        self._parts = parts
        self._durable = parts.durable
        self._planned = parts.durable  # what the plans that are out will have made durable
        self._protected_index = parts.entries.base_index

    @property
    def entries(self) -> LogMap:
        """Where the live entries stand, and their terms."""
        return self._parts.entries

    @property
    def last_index(self) -> LogIndex:
        return self._parts.entries.last_index

    @property
    def last_term(self) -> Term:
        return self._parts.entries.last_term

    @property
    def durable(self) -> DurabilityRecord:
        """What this disk can prove: the tuple that a DurabilityAck attests."""
        return self._durable

    @property
    def durable_index(self) -> LogIndex:
        """This replica's `local_wal_durable_index`."""
        return self._durable.index

    @property
    def io_writer_mode(self) -> IoWriterMode:
        """How the disk below writes; it stands in every ledger record."""
        return self._parts.ledger.io_writer_mode

    @io_writer_mode.setter
    def io_writer_mode(self, mode: IoWriterMode) -> None:
        self._parts.ledger.io_writer_mode = mode

    @property
    def durability_mode_epoch(self) -> DurabilityModeEpoch:
        return self._parts.ledger.durability_mode_epoch

    def open_segment(self) -> SegmentWriter | None:
        """The segment that takes the next run, if one is open."""
        return self._parts.open_segment

    @property
    def ledger_bytes(self) -> int:
        """How many bytes of the ledger are written or planned."""
        return self._parts.ledger.write_offset

    def closed_segments(self) -> tuple[SegmentSeq, ...]:
        """The segments that will not change any more, oldest first."""
        return tuple(self._parts.closed)

    def stored(self, receipt: DurabilityRecord) -> None:
        """Take note that the plan of this receipt was carried out whole.

        A receipt of entries that were voided since its plan was made proves nothing.
        """
        if self._durable.index < receipt.index <= self.last_index and (
            self.entries.term_of(receipt.index) == receipt.term
        ):
            self._durable = receipt

    def fence(self, reason: str, **facts: object) -> None:
        """Refuse every further plan: a step failed, and what is on disk is not known.

        A failed sync in particular is never tried again; only recovery, which reads the disk,
        may open the log anew.
        """
        if self.fenced is None:
            self.fenced = LogFenced(reason, **facts)

    def protect(self, committed_index: LogIndex) -> None:
        """Refuse to truncate anything through `committed_index` from now on."""
        self._protected_index = max(self._protected_index, committed_index)

    def plan_append(self, entries: Sequence[Entry]) -> AppendPlan:
        """Plan a batch: one write, one sync, one ledger write, one sync (ruling C16).

        Entries at or before the last index replace the suffix that starts there: the ledger
        says so, durably, before they are written (C17).
        """
        plaintext_bytes = self._check_append(entries)
        steps: list[Step] = []
        last = entries[-1]
        if entries[0].index <= self.last_index:
            steps += self.plan_truncate(entries[0].index)
        if plaintext_bytes <= RUN_PLAINTEXT_BYTES_MAX:
            self._append_run(list(entries), steps)
        else:
            for batch in _batches(entries):
                self._append_run(batch, steps)
        segment = self._parts.open_segment
        assert segment is not None
        receipt = DurabilityRecord(last.term, last.index, segment.header.segment_seq)
        records: list[LedgerBody] = [receipt]
        if segment.runs_low():
            records.append(segment.reserve())
        steps.append(Sync(segment.file))
        steps += self._parts.ledger.plan_records(records)
        self._planned = receipt
        return AppendPlan(tuple(steps), receipt)

    def plan_truncate(self, from_index: LogIndex) -> Plan:
        """Plan to void every entry from `from_index` on (C17)."""
        self._check_truncate(from_index)
        segment = self._parts.open_segment
        if segment is not None:
            position = (segment.header.segment_seq, BlockCounter(segment.next_block_counter))
        else:
            position = (SegmentSeq(self._parts.highest_segment_seq + 1), BlockCounter(0))
        record = Truncation(from_index, *position)
        self._parts.entries.truncate(from_index)
        self._parts.truncations.append(record)
        self._durable = self._cut(self._durable, from_index)
        self._planned = self._cut(self._planned, from_index)
        return self._parts.ledger.plan_records([record, record])  # twice: see ledger.py

    def plan_transition(
        self,
        term: Term,
        index: LogIndex,
        from_mode: DurabilityMode,
        to_mode: DurabilityMode,
        epoch: DurabilityModeEpoch,
    ) -> Plan:
        """Plan the ledger record that fences a change of mode at a DurabilityTransition entry."""
        self._check_open()
        if epoch <= self.durability_mode_epoch:
            raise LogMisuse(
                "durability_mode_epoch must rise", epoch=epoch, current=self.durability_mode_epoch
            )
        self._parts.ledger.durability_mode_epoch = epoch
        record = DurabilityTransition(term, index, from_mode, to_mode)
        return self._parts.ledger.plan_records([record, record])  # twice: see ledger.py

    def plan_seal(self) -> Plan:
        """Plan to close the open segment, to archive it; the next append opens another."""
        self._check_open()
        steps: list[Step] = []
        segment = self._parts.open_segment
        if segment is not None and segment.entry_count:
            self._seal(segment, steps)
        return tuple(steps)

    def plan_restart(self, proof: DurabilityRecord) -> Plan:
        """Plan what every start does once the open segment's bytes are durable.

        What was found is proven in a ledger that is written anew, and the segment is closed: a
        start never goes on in an old segment, because a crash may have used any of its counters.
        """
        self._durable = self._planned = proof
        steps: list[Step] = [*self._plan_ledger_rewrite()]
        if self._parts.open_segment is not None:
            self._seal(self._parts.open_segment, steps, AbandonReason.RESTART)
        return tuple(steps)

    def plan_compact(self, floor: LogIndex) -> Plan:
        """Plan to delete the closed segments that hold nothing at or above `floor`.

        The caller holds the authorisation of clustor §9.6: an authorised snapshot covers every
        index below `floor`. The ledger knows the new start before the first file goes.
        """
        self._check_open()
        if floor > self._planned.index + 1:
            raise LogMisuse("only what is durable can be compacted", floor=floor)
        first_needed = self._first_segment_from(floor)
        if not any(seq < first_needed for seq in self._parts.closed):
            return ()
        kept = [e for e in self.entries.extents if e.segment_seq >= first_needed]
        base_index = LogIndex(kept[0].first_index - 1) if kept else self.last_index
        return self._plan_rebase(base_index, self.entries.term_of(base_index), first_needed)

    def plan_install(self, base_index: LogIndex, base_term: Term) -> Plan:
        """Plan to start anew behind an installed snapshot, and to discard what the log held.

        The caller has that snapshot durable and authorised.
        """
        self._check_open()
        if base_index < self._protected_index:
            raise LogMisuse("a snapshot older than what is committed", base_index=base_index)
        steps: list[Step] = []
        if self._parts.open_segment is not None:
            self._seal(self._parts.open_segment, steps)
        segment = self._open_segment(steps, base_index, base_term)
        self._parts.entries = LogMap(base_index, base_term)
        self._protected_index = base_index
        self._durable = DurabilityRecord(base_term, base_index, segment.header.segment_seq)
        self._planned = self._durable
        steps += self._plan_rebase(base_index, base_term, segment.header.segment_seq)
        return tuple(steps)

    def _check_open(self) -> None:
        if self.fenced is not None:
            raise self.fenced

    def _check_append(self, entries: Sequence[Entry]) -> int:
        """Refuse a batch that does not fit behind the log; return its size as plaintext."""
        self._check_open()
        if not entries:
            raise LogMisuse("an empty append")
        first = entries[0].index
        known = self._parts.entries
        last_index = known.last_index
        if not known.base_index < first <= last_index + 1:
            raise LogMisuse("an append leaves a gap", index=first, last_index=last_index)
        term: int = known.last_term if first == last_index + 1 else known.term_of(first - 1)
        expected: int = first
        plaintext_bytes = 0
        for entry in entries:
            if entry.index != expected or entry.term < term:
                raise LogMisuse("entries out of order", index=entry.index, term=entry.term)
            payload_bytes = len(entry.payload)
            if payload_bytes > _PAYLOAD_BYTES_MAX:
                raise LogMisuse("entry too large", index=entry.index, limit=_PAYLOAD_BYTES_MAX)
            term = entry.term
            expected += 1
            plaintext_bytes += payload_bytes + _ENTRY_OVERHEAD_BYTES
        return plaintext_bytes

    def _check_truncate(self, from_index: LogIndex) -> None:
        self._check_open()
        if from_index <= self._protected_index:
            raise LogMisuse(
                "a committed entry is never truncated",
                from_index=from_index,
                committed_index=self._protected_index,
            )
        if from_index > self.last_index:
            raise LogMisuse("nothing to truncate", from_index=from_index)

    def _cut(self, proof: DurabilityRecord, from_index: LogIndex) -> DurabilityRecord:
        if proof.index < from_index:
            return proof
        before = LogIndex(from_index - 1)
        return DurabilityRecord(self.entries.term_of(before), before, proof.segment_seq)

    def _append_run(self, entries: list[Entry], steps: list[Step]) -> None:
        frames = encode_frames(entries, self.config.merkle)
        segment = self._segment_for(len(frames.plaintext), steps)
        first_index = entries[0].index
        run = segment.plan_run(first_index, frames)
        steps.append(run.write)
        self.entries.append_run(
            segment.header.segment_seq, run.offset, run.end_offset, first_index, len(entries)
        )
        self.entries.append_terms(first_index, [entry.term for entry in entries])

    def _segment_for(self, plaintext_bytes: int, steps: list[Step]) -> SegmentWriter:
        """Return a segment under the newest keys, with room and with reserved counters."""
        segment = self._parts.open_segment
        if segment is not None and not (
            segment.fits(plaintext_bytes) and segment.uses_newest_keys()
        ):
            self._seal(segment, steps)
            segment = None
        if segment is None:
            segment = self._open_segment(steps, self.last_index, self.last_term)
        ranges: list[LedgerBody] = []
        needed = segment.next_block_counter + blocks_needed(plaintext_bytes)
        while segment.reserved_blocks < needed:
            ranges.append(segment.reserve())
        if ranges:
            steps += self._parts.ledger.plan_records(ranges)
        return segment

    def _open_segment(self, steps: list[Step], base_index: int, base_term: Term) -> SegmentWriter:
        """Plan a segment whose number was never used, and the first of its counters."""
        parts = self._parts
        parts.highest_segment_seq = SegmentSeq(parts.highest_segment_seq + 1)
        segment = SegmentWriter(
            self.config,
            self._keys,
            SegmentHeader(
                partition=self.identity.partition,
                log_id=self.identity.log_id,
                segment_seq=parts.highest_segment_seq,
                dek_epoch=self._keys.dek_epoch,
                mac_epoch=self._keys.mac_epoch,
                first_index=LogIndex(base_index + 1),
                previous_term=base_term,
            ),
        )
        parts.open_segment = segment
        steps += segment.plan_create()
        steps += parts.ledger.plan_records([segment.reserve()])
        if parts.ledger.write_offset > self.config.ledger_rewrite_bytes:
            steps += self._plan_ledger_rewrite()
        return segment

    def _seal(
        self,
        segment: SegmentWriter,
        steps: list[Step],
        reason: AbandonReason = AbandonReason.SEALED,
    ) -> None:
        self._parts.last_seal = segment.abandon(reason)
        steps += segment.plan_seal()
        steps += self._parts.ledger.plan_records([self._parts.last_seal])
        self._parts.closed.append(segment.header.segment_seq)
        self._parts.open_segment = None

    def _first_segment_from(self, floor: LogIndex) -> SegmentSeq:
        for extent in self.entries.extents:
            if extent.last_index >= floor:
                return extent.segment_seq
        segment = self._parts.open_segment
        following = SegmentSeq(self._parts.highest_segment_seq + 1)
        return segment.header.segment_seq if segment is not None else following

    def _plan_rebase(self, base_index: LogIndex, base_term: Term, start: SegmentSeq) -> Plan:
        """Plan the new start: a ledger that knows only what is left, then the deletions."""
        parts = self._parts
        gone = [seq for seq in parts.closed if seq < start]
        parts.entries.rebase(base_index, base_term, start)
        parts.base_segment_seq = start
        parts.closed = [seq for seq in parts.closed if seq >= start]
        parts.truncations = [cut for cut in parts.truncations if cut.position > (start, 0)]
        deletions: list[Step] = []
        for seq in gone:
            deletions += (DeleteFile(index_file(seq)), DeleteFile(segment_file(seq)))
        return (*self._plan_ledger_rewrite(), *deletions, SyncDirectory(WAL_DIRECTORY))

    def _plan_ledger_rewrite(self) -> Plan:
        """Plan the shortest ledger that proves the same."""
        parts = self._parts
        bodies: list[LedgerBody] = [
            LogBase(parts.entries.base_term, parts.entries.base_index, parts.base_segment_seq),
            *parts.truncations,
        ]
        if parts.open_segment is not None:
            segment = parts.open_segment
            bodies.append(
                NonceReservationRange(
                    segment.header.segment_seq, BlockCounter(0), segment.reserved_blocks
                )
            )
        elif parts.last_seal is not None:
            bodies.append(parts.last_seal)
        bodies.append(self._planned)
        return parts.ledger.plan_rewrite(self.identity, bodies)


def create_log(
    identity: LedgerIdentity, keys: KeyRing, config: LogConfig, io_writer_mode: IoWriterMode
) -> tuple[Log, Plan]:
    """Plan a new, empty log. `metadata.json` comes last: without it there is no log yet."""
    epoch = DurabilityModeEpoch(0)
    ledger = LedgerWriter(
        config,
        write_offset=0,
        next_record_seq=0,
        io_writer_mode=io_writer_mode,
        durability_mode_epoch=epoch,
    )
    start = SegmentSeq(1)
    base = LogBase(Term(0), LogIndex(0), start)
    parts = LogParts(
        entries=LogMap(base.base_index, base.base_term),
        ledger=ledger,
        base_segment_seq=start,
        highest_segment_seq=SegmentSeq(0),
        durable=DurabilityRecord(base.base_term, base.base_index, start),
        open_segment=None,
        closed=[],
        last_seal=None,
        truncations=[],
    )
    metadata = LogMetadata.of(identity.partition, identity.log_id)
    steps: Plan = (
        MakeDirectory(WAL_DIRECTORY),
        SyncDirectory(""),
        *ledger.plan_rewrite(identity, [base, parts.durable]),
        *plan_document(METADATA_FILE, metadata),
    )
    return Log(identity, keys, config, parts), steps


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Cut entries into runs that a reader can hold."""
    batch: list[Entry] = []
    batch_bytes = 0
    for entry in entries:
        entry_bytes = len(entry.payload) + _ENTRY_OVERHEAD_BYTES
        if batch and batch_bytes + entry_bytes > RUN_PLAINTEXT_BYTES_MAX:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(entry)
        batch_bytes += entry_bytes
    yield batch
