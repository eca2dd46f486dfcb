"""Open a log after a clean stop, a crash or damage (clustor §9.4, §10.5).

- What the ledger proves must be readable and authentic. Where it is not, nothing is changed:
  the log opens read-only, as NeedsRepair if only a CRC failed, as Quarantine otherwise.
- What stands behind the proof and is authentic is kept, synced, and proven anew. It was never
  acknowledged from here, but the rest of the group may have counted on its bytes.
- What stands behind the proof and is not authentic is the end of a write that a crash tore.
  Only this is ever cut off.
- Every start closes the segment that was open and goes on in a new one: a crash may have used
  any counter of the old one, and the ledger that would say which may itself be damaged.

The mending is a plan like any other: it may be interrupted anywhere, and be found again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from clustor.log.cipher import CRYPTO_BLOCK_BYTES
from clustor.log.config import LogConfig
from clustor.log.errors import ChecksumMismatch, LogError
from clustor.log.image import LogImage, read_identity, read_image
from clustor.log.keys import KeyRing
from clustor.log.ledger import LEDGER_FILE, DurabilityRecord
from clustor.log.ledger_writer import LedgerWriter
from clustor.log.log import Log, LogParts
from clustor.log.metadata import METADATA_FILE
from clustor.log.scan import SegmentScanner
from clustor.log.segment import (
    WAL_DIRECTORY,
    decode_index,
    encode_index,
    encode_segment_header,
    index_file,
    segment_file,
)
from clustor.log.segment_writer import SegmentWriter
from clustor.log.steps import (
    Create,
    DeleteFile,
    FileName,
    Plan,
    Step,
    Storage,
    Sync,
    SyncDirectory,
    Truncate,
    WriteFile,
)
from clustor.log.types import IoWriterMode, LogState, SegmentSeq


class RecoveryFindingKind(StrEnum):
    """What a start may come across."""

    TORN_TAIL = "TornTail"  # the end of a write that did not finish; cut off
    TORN_LEDGER = "TornLedger"  # likewise in the ledger
    UNPROVEN_KEPT = "UnprovenKept"  # authentic entries behind the proof; proven anew
    INDEX_REBUILT = "IndexRebuilt"
    LEFTOVER_REMOVED = "LeftoverRemoved"  # a file that the ledger proves to be void
    NONCE_GAP = "NonceReservationGapWarning"  # more counters given up than a crash explains
    DAMAGE = "Damage"  # proven bytes that do not read; nothing was changed


@dataclass(frozen=True, slots=True)
class RecoveryFinding:
    """One thing that was found, in words for an operator."""

    kind: RecoveryFindingKind
    detail: str


@dataclass(slots=True)
class Recovery:
    """What was found. Carry out `plan` before anything is appended to `log`.

    A log that is not Healthy is fenced and its plan is empty; what it could read can be read.
    """

    state: LogState
    log: Log
    image: LogImage
    plan: Plan = ()
    findings: list[RecoveryFinding] = field(default_factory=list)
    truncated_bytes: int = 0
    nonce_gap_bytes: int = 0  # `wal.nonce_reservation_gap_bytes`

    @property
    def problem(self) -> LogError | None:
        return self.image.problem


def recover(
    storage: Storage,
    keys: KeyRing,
    config: LogConfig,
    io_writer_mode: IoWriterMode,
    progress: Callable[[int], None] = lambda _: None,
) -> Recovery | None:
    """Open the log that `storage` holds, or return None where none was ever finished.

    Raises what `read_identity` and `read_image` raise; nothing has been changed then.
    """
    identity = read_identity(storage)
    if identity is None:
        return None
    image = read_image(storage, keys, identity, progress)
    if image.problem is not None:
        return _fenced(image, keys, config, io_writer_mode)
    return _Mending(storage, keys, config, io_writer_mode, image).run()


def _parts(image: LogImage, config: LogConfig, io_writer_mode: IoWriterMode) -> LogParts:
    facts, entries = image.facts, image.entries
    used = [facts.highest_segment_seq, *(segment.segment_seq for segment in image.segments)]
    index = min(facts.proven_index, entries.last_index)
    segment_seq = entries.locate(index)[0].segment_seq if index > entries.base_index else None
    closed = [segment.segment_seq for segment in image.segments if segment.closed]
    return LogParts(
        entries=entries,
        ledger=LedgerWriter(
            config,
            write_offset=image.ledger.good_bytes,
            next_record_seq=len(image.ledger.records),
            io_writer_mode=io_writer_mode,
            durability_mode_epoch=facts.durability_mode_epoch,
        ),
        base_segment_seq=facts.base.segment_seq,
        highest_segment_seq=SegmentSeq(max(used)),
        durable=DurabilityRecord(
            entries.term_of(index), index, segment_seq or facts.base.segment_seq
        ),
        open_segment=None,
        closed=closed,
        last_seal=facts.given_up.get(closed[-1]) if closed else None,
        truncations=facts.truncations,
    )


def _fenced(
    image: LogImage, keys: KeyRing, config: LogConfig, io_writer_mode: IoWriterMode
) -> Recovery:
    log = Log(image.identity, keys, config, _parts(image, config, io_writer_mode))
    assert image.problem is not None
    log.fence(image.problem.reason, **image.problem.facts)
    damage = RecoveryFinding(RecoveryFindingKind.DAMAGE, str(image.problem))
    return Recovery(image.state, log, image, findings=[damage])


class _Mending:
    """Turns the picture of a log that lost nothing into one that can be appended to."""

    def __init__(
        self,
        storage: Storage,
        keys: KeyRing,
        config: LogConfig,
        io_writer_mode: IoWriterMode,
        image: LogImage,
    ) -> None:
        self._storage = storage
        self._image = image
        self._parts = _parts(image, config, io_writer_mode)
        self._steps: list[Step] = []
        log = Log(image.identity, keys, config, self._parts)
        self._recovery = Recovery(LogState.HEALTHY, log, image)
        self._keys = keys
        self._config = config

    def run(self) -> Recovery:
        self._remove_leftovers()
        self._take_up_segment()
        self._settle_ledger()
        for segment in self._image.segments:
            if segment.closed and segment.scanner is not None:
                self._rebuild_index(segment.segment_seq, segment.scanner)
        self._recovery.plan = tuple(self._steps)
        return self._recovery

    def _find(self, kind: RecoveryFindingKind, detail: str) -> None:
        self._recovery.findings.append(RecoveryFinding(kind, detail))

    def _remove_leftovers(self) -> None:
        """Remove what the ledger proves to be void, and what was never given its name."""
        files: list[FileName] = []
        for seq in self._image.void:
            files += (index_file(seq), segment_file(seq))
        files += [segment_file(s.segment_seq) for s in self._image.segments if s.scanner is None]
        names = set(self._storage.names(WAL_DIRECTORY)) | set(self._storage.names(""))
        files += [
            FileName(file + ".tmp")
            for file in (LEDGER_FILE, METADATA_FILE)
            if file.rpartition("/")[2] + ".tmp" in names
        ]
        for file in files:
            self._steps.append(DeleteFile(file))
            self._find(RecoveryFindingKind.LEFTOVER_REMOVED, file)
        # Also without leftovers: whoever made the names that are here may have died before
        # they were durable.
        self._steps += (SyncDirectory(WAL_DIRECTORY), SyncDirectory(""))

    def _take_up_segment(self) -> None:
        """Cut a torn write off the segment that was open, and make durable what is kept of it.

        To sync is not enough: where an earlier sync failed, the kernel may hold bytes that it
        calls clean and will never write. What no ledger record proves is written again first.
        """
        segment = self._image.segments[-1] if self._image.segments else None
        if segment is None or segment.scanner is None or segment.closed:
            return
        scanner = segment.scanner
        file = segment_file(segment.segment_seq)
        if scanner.problem is not None:
            self._recovery.truncated_bytes += segment.size_bytes - scanner.end_offset
            self._find(RecoveryFindingKind.TORN_TAIL, str(scanner.problem))
            self._steps.append(Truncate(file, scanner.end_offset))
        self._steps.append(WriteFile(file, 0, encode_segment_header(scanner.header)))
        if segment.unproven_offset is not None:
            length = scanner.end_offset - segment.unproven_offset
            kept = self._storage.read(file, segment.unproven_offset, length)
            self._steps.append(WriteFile(file, segment.unproven_offset, kept))
        self._steps.append(Sync(file))
        reserved = self._image.facts.reserved.get(segment.segment_seq, 0)
        self._note_gap((reserved - scanner.next_block_counter) * CRYPTO_BLOCK_BYTES)
        self._parts.open_segment = SegmentWriter(
            self._config,
            self._keys,
            scanner.header,
            tally=scanner.tally,
            write_offset=scanner.end_offset,
            next_block_counter=scanner.next_block_counter,
            reserved_blocks=max(reserved, scanner.next_block_counter),
        )

    def _note_gap(self, gap_bytes: int) -> None:
        self._recovery.nonce_gap_bytes = max(gap_bytes, 0)
        window = 2 * self._config.reservation_blocks * CRYPTO_BLOCK_BYTES
        if gap_bytes > max(window, self._config.gap_quarantine_bytes):
            self._find(RecoveryFindingKind.NONCE_GAP, f"{gap_bytes} bytes of counters given up")

    def _settle_ledger(self) -> None:
        """Prove what was kept, in a ledger that is written anew."""
        ledger, facts, entries = self._image.ledger, self._image.facts, self._image.entries
        proof = self._parts.durable
        if entries.last_index > facts.proven_index:
            seq = entries.locate(entries.last_index)[0].segment_seq
            proof = DurabilityRecord(entries.last_term, entries.last_index, seq)
            kept = f"entries {facts.proven_index + 1} to {entries.last_index}"
            self._find(RecoveryFindingKind.UNPROVEN_KEPT, kept)
        if ledger.torn:
            self._recovery.truncated_bytes += self._storage.size(LEDGER_FILE) - ledger.good_bytes
            self._find(
                RecoveryFindingKind.TORN_LEDGER, f"{LEDGER_FILE} from byte {ledger.good_bytes}"
            )
        self._steps += self._recovery.log.plan_restart(proof)

    def _rebuild_index(self, seq: SegmentSeq, scanner: SegmentScanner) -> None:
        offsets = bytes(scanner.tally.offsets)
        file = index_file(seq)
        try:
            if decode_index(self._storage.read(file, 0, len(offsets) + 4096), seq) == offsets:
                return
        except (FileNotFoundError, ChecksumMismatch):
            pass
        self._find(RecoveryFindingKind.INDEX_REBUILT, file)
        self._steps += (
            DeleteFile(file),
            Create(file),
            WriteFile(file, 0, encode_index(seq, offsets)),
        )
