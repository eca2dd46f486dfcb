"""Read a log directory as it is, changing nothing: what it holds, what it proves, what is wrong.

Recovery decides on this picture what to mend; tools print it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

from clustor.log.errors import (
    AuthenticationFailed,
    ChecksumMismatch,
    CorruptLog,
    LogError,
    MissingFile,
)
from clustor.log.keys import KeyRing
from clustor.log.ledger import (
    LEDGER_FILE,
    DurabilityRecord,
    DurabilityTransition,
    LedgerBody,
    LedgerHead,
    LedgerIdentity,
    LedgerScan,
    LogBase,
    NonceReservationAbandon,
    NonceReservationRange,
    Truncation,
    scan_ledger,
)
from clustor.log.logmap import LogMap
from clustor.log.metadata import METADATA_FILE, LogMetadata, read_document
from clustor.log.scan import ScannedRun, SegmentScanner
from clustor.log.segment import WAL_DIRECTORY, segment_file, segment_seq_of
from clustor.log.steps import Storage
from clustor.log.types import DurabilityModeEpoch, LogIndex, LogState, SegmentSeq, Term


@dataclass(slots=True)
class LedgerFacts:
    """What the records of a ledger add up to."""

    base: LogBase = field(default_factory=lambda: LogBase(Term(0), LogIndex(0), SegmentSeq(1)))
    proven_index: LogIndex = LogIndex(0)
    proven_term: Term | None = Term(0)  # None where a truncation left an older entry as the last
    truncations: list[Truncation] = field(default_factory=list)
    reserved: dict[SegmentSeq, int] = field(default_factory=dict)  # counters below this
    # By segment: these records prove that its trailer is durable.
    given_up: dict[SegmentSeq, NonceReservationAbandon] = field(default_factory=dict)
    highest_segment_seq: int = 0
    durability_mode_epoch: DurabilityModeEpoch = DurabilityModeEpoch(0)

    def was_sealed(self, segment_seq: SegmentSeq) -> bool:
        """Say whether the ledger proves that this segment's trailer is durable."""
        return segment_seq in self.given_up


@dataclass(slots=True)
class SegmentImage:
    """One live segment, as far as it could be read."""

    segment_seq: SegmentSeq
    size_bytes: int
    scanner: SegmentScanner | None  # None where not even its header was written
    sealed: bool  # the ledger proves that its trailer is durable
    unproven_offset: int | None = None  # where the first run starts that the ledger does not prove

    @property
    def closed(self) -> bool:
        """Say whether it is complete: a trailer that was seen but not proven does not count."""
        return self.sealed and self.scanner is not None and self.scanner.trailer is not None


@dataclass(slots=True)
class LogImage:
    """A whole log directory. `problem` is None when everything proven is there and authentic."""

    identity: LedgerIdentity
    ledger: LedgerScan
    facts: LedgerFacts
    entries: LogMap
    segments: list[SegmentImage] = field(default_factory=list)
    void: list[SegmentSeq] = field(default_factory=list)  # older than the log's start
    problem: LogError | None = None

    @property
    def state(self) -> LogState:
        """How clustor §9.4 classifies what was found."""
        if self.problem is None:
            return LogState.HEALTHY
        if isinstance(self.problem, ChecksumMismatch):
            return LogState.NEEDS_REPAIR
        return LogState.QUARANTINED


def read_identity(storage: Storage) -> LedgerIdentity | None:
    """Say which log a directory holds; None for none, or for a creation that did not finish."""
    try:
        metadata = read_document(storage, METADATA_FILE, LogMetadata)
    except FileNotFoundError:
        if _anything_was_written(storage):
            raise MissingFile("metadata.json is gone, and the log is not") from None
        return None
    return LedgerIdentity(metadata.partition, metadata.identity)


def _anything_was_written(storage: Storage) -> bool:
    """Say whether there is more than an unfinished creation: a segment, or a proof of entries."""
    if any(segment_seq_of(name) is not None for name in storage.names(WAL_DIRECTORY)):
        return True
    try:
        ledger = scan_ledger(storage.read(LEDGER_FILE, 0, storage.size(LEDGER_FILE)))
    except FileNotFoundError:
        return False
    proofs = [r.body for r in ledger.records if isinstance(r.body, DurabilityRecord)]
    return any(proof.index > 0 for proof in proofs)


def read_image(
    storage: Storage,
    keys: KeyRing,
    identity: LedgerIdentity,
    progress: Callable[[int], None] = lambda _: None,
) -> LogImage:
    """Read and authenticate a whole log. `progress` is told the bytes of each run.

    Raises KeyUnavailable without the right keys, UnsupportedFormat for a later release's files,
    and CorruptLog or MissingFile where even the ledger's first record cannot be believed.
    """
    try:
        ledger = scan_ledger(storage.read(LEDGER_FILE, 0, storage.size(LEDGER_FILE)))
    except FileNotFoundError:
        raise MissingFile("the durability ledger is gone", file=LEDGER_FILE) from None
    head = ledger.records[0].body if ledger.records else None
    if not isinstance(head, LedgerHead) or head.identity != identity:
        raise ChecksumMismatch("the ledger does not say whose it is", file=LEDGER_FILE)
    facts = gather_facts(ledger)
    image = LogImage(identity, ledger, facts, LogMap(facts.base.base_index, facts.base.base_term))
    if ledger.damaged_at is not None:
        image.problem = ChecksumMismatch(
            "a ledger record is damaged", file=LEDGER_FILE, offset=ledger.damaged_at
        )
    _Reading(storage, keys, image, progress).run()
    return image


def gather_facts(scan: LedgerScan) -> LedgerFacts:
    """Fold the records of a ledger, checking the order in which they may stand (§10.5)."""
    facts = LedgerFacts()
    for record in scan.records:
        if record.durability_mode_epoch < facts.durability_mode_epoch:
            raise ChecksumMismatch("durability_mode_epoch went back", record=record.record_seq)
        facts.durability_mode_epoch = record.durability_mode_epoch
        _fold(facts, record.body)
    return facts


def _fold(facts: LedgerFacts, body: LedgerBody) -> None:
    match body:
        case LogBase():
            facts.base = body
            facts.proven_term, facts.proven_index = body.base_term, body.base_index
            facts.highest_segment_seq = max(facts.highest_segment_seq, body.segment_seq - 1)
        case DurabilityRecord(term, index, _):
            if index < facts.proven_index:
                raise ChecksumMismatch("the ledger's proof went back", index=index)
            facts.proven_term, facts.proven_index = term, index
        case Truncation():
            if body not in facts.truncations[-1:]:  # each is written twice
                facts.truncations.append(body)
            # Whatever comes next must stand behind its position, in a segment of a higher number.
            facts.highest_segment_seq = max(facts.highest_segment_seq, body.segment_seq)
            if facts.proven_index >= body.from_index:
                facts.proven_term = None
                facts.proven_index = LogIndex(body.from_index - 1)
        case NonceReservationRange(segment_seq, start, blocks):
            if start != facts.reserved.get(segment_seq, 0):
                raise ChecksumMismatch("a reservation leaves a gap", segment_seq=segment_seq)
            facts.reserved[segment_seq] = start + blocks
            facts.highest_segment_seq = max(facts.highest_segment_seq, segment_seq)
        case NonceReservationAbandon(segment_seq, _, _):
            facts.given_up[segment_seq] = body
        case DurabilityTransition() | LedgerHead():
            pass  # the epoch stands in every record's head; the identity was compared


class _Reading:
    """One pass over the segments of a log."""

    def __init__(
        self, storage: Storage, keys: KeyRing, image: LogImage, progress: Callable[[int], None]
    ) -> None:
        self._storage = storage
        self._keys = keys
        self._image = image
        self._progress = progress
        self._cuts = deque(image.facts.truncations)
        # The lowest index that this truncation or a later one reaches, for each of them.
        reach = accumulate((cut.from_index for cut in reversed(self._cuts)), min)
        self._reach = deque(reversed(list(reach)))

    def run(self) -> None:
        image = self._image
        seqs = [segment_seq_of(name) for name in self._storage.names(WAL_DIRECTORY)]
        present = sorted(seq for seq in seqs if seq is not None)
        image.void = [seq for seq in present if seq < image.facts.base.segment_seq]
        live = present[len(image.void) :]
        last_problem: CorruptLog | None = None
        for seq in live:
            last_problem = self._read_segment(seq, is_last=seq == live[-1])
        for cut in self._cuts:
            self._apply(cut)
        self._check_proof(last_problem)

    def _blame(self, problem: LogError) -> None:
        if self._image.problem is None:
            self._image.problem = problem

    def _read_segment(self, seq: SegmentSeq, *, is_last: bool) -> CorruptLog | None:
        """Read one segment; return why its end could not be read: it may be a torn write."""
        size = self._storage.size(segment_file(seq))
        try:
            scanner = SegmentScanner(self._storage, seq, self._keys)
        except CorruptLog as problem:
            self._image.segments.append(SegmentImage(seq, size, None, sealed=False))
            problem.facts.setdefault("file", segment_file(seq))
            # A new segment's header is durable before its counters are reserved.
            if not is_last or seq in self._image.facts.reserved:
                self._blame(problem)
            return problem
        sealed = not is_last or self._image.facts.was_sealed(seq)
        self._image.segments.append(SegmentImage(seq, size, scanner, sealed))
        if (scanner.header.partition, scanner.header.log_id) != (
            self._image.identity.partition,
            self._image.identity.log_id,
        ):
            self._blame(AuthenticationFailed("a segment of another log", file=segment_file(seq)))
            return None
        for run in scanner.runs():
            if not self._take(scanner, run):
                return None
        if scanner.trailer is None and sealed:
            self._blame(
                scanner.problem
                or AuthenticationFailed("a closed segment has no trailer", file=segment_file(seq))
            )
        return scanner.problem

    def _take(self, scanner: SegmentScanner, run: ScannedRun) -> bool:
        entries, header = self._image.entries, run.header
        seq = scanner.header.segment_seq
        while self._cuts and self._cuts[0].position <= (seq, header.first_block_counter):
            self._apply(self._cuts.popleft())
            self._reach.popleft()
        self._progress(run.end_offset - run.offset)
        if self._reach and self._reach[0] <= header.first_index:
            return True  # void: a truncation that was written later reaches back before it
        problem: LogError | None = None
        if header.first_index > entries.last_index + 1:
            problem = MissingFile("entries are missing", first=entries.last_index + 1)
        elif header.first_index <= entries.last_index:
            problem = ChecksumMismatch("entries appear twice", index=header.first_index)
        elif scanner.next_block_counter > self._reserved(seq):
            problem = AuthenticationFailed("a counter was used without being reserved")
        if problem is not None:
            problem.facts.update(file=segment_file(seq), offset=run.offset)
            self._blame(problem)
            return False
        last_index = header.first_index + header.entry_count - 1
        segment = self._image.segments[-1]
        if last_index > self._image.facts.proven_index and segment.unproven_offset is None:
            segment.unproven_offset = run.offset
        entries.append_run(seq, run.offset, run.end_offset, header.first_index, header.entry_count)
        entries.append_terms(header.first_index, [entry.term for entry in run.frames.entries])
        return True

    def _reserved(self, seq: SegmentSeq) -> float:
        """Counters below this were reserved; a closed segment's reservations may be forgotten."""
        facts, ledger = self._image.facts, self._image.ledger
        doubt = ledger.torn or ledger.damaged_at is not None
        return facts.reserved.get(seq, float("inf")) if not doubt else float("inf")

    def _apply(self, cut: Truncation) -> None:
        if cut.from_index <= self._image.entries.last_index:
            self._image.entries.truncate(cut.from_index)

    def _check_proof(self, last_problem: CorruptLog | None) -> None:
        """See that everything proven is there; what is not readable behind that was torn."""
        facts, entries = self._image.facts, self._image.entries
        if facts.proven_index > entries.last_index:
            self._blame(
                last_problem
                or MissingFile(
                    "proven entries are missing",
                    last_index=entries.last_index,
                    proven_index=facts.proven_index,
                )
            )
        elif facts.proven_term is not None and facts.proven_term != entries.term_of(
            facts.proven_index
        ):
            self._blame(
                ChecksumMismatch("the ledger proves another term", index=facts.proven_index)
            )
