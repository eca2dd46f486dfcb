"""Read closed and open segments again, in slices, before damage is needed (clustor §9.4).

Every six hours each segment is read a little further, at least 1 % of it and far enough that
the whole is covered once in seven days. A start reads everything, so it counts as coverage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from clustor.log.errors import ChecksumMismatch, CorruptLog, LogError, MissingFile
from clustor.log.keys import KeyRing
from clustor.log.ledger import LEDGER_FILE, scan_ledger
from clustor.log.metadata import METADATA_FILE, LogMetadata, read_document
from clustor.log.scan import SegmentScanner
from clustor.log.segment import SEGMENT_HEADER_BYTES
from clustor.log.steps import Storage
from clustor.log.types import SegmentSeq

ROUND_MS: Final = 21_600_000
COVERAGE_MS: Final = 604_800_000
DAY_MS: Final = 86_400_000
# One round fewer than fit into seven days, so that a late round does not break the promise.
_ROUNDS_PER_COVERAGE: Final = COVERAGE_MS // ROUND_MS - 1


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """A part of a segment to read now, from the start of a run."""

    segment_seq: SegmentSeq
    from_offset: int
    bytes_min: int
    until_offset: int | None = None
    """Where the durable runs of a segment end that is still written; None: it is whole."""


@dataclass(frozen=True, slots=True)
class SliceResult:
    """What reading a slice gave."""

    end_offset: int
    reached_end: bool
    problem: LogError | None


@dataclass(slots=True)
class _Progress:
    """How far this pass over a segment has come, and when the last one read what."""

    next_offset: int
    last_pass: list[tuple[int, int]]  # (end_offset, read_ms), in order
    this_pass: list[tuple[int, int]] = field(default_factory=list)

    def oldest_ms(self) -> int:
        """When the byte was read that is longest ago: the next one that this pass will read."""
        return next(
            (read_ms for end, read_ms in self.last_pass if end > self.next_offset),
            self.last_pass[-1][1],
        )


class Scrub:
    """Decides what to read when. The caller reads, off the hot path, and reports back."""

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._next_round_ms = started_ms + ROUND_MS
        self._segments: dict[SegmentSeq, _Progress] = {}

    def next_deadline_ms(self) -> int:
        return self._next_round_ms

    def take_round(
        self, now_ms: int, segments: Iterable[tuple[SegmentSeq, int]]
    ) -> list[SegmentSlice]:
        """Return what this round reads, given every segment's length; nothing before its time."""
        if now_ms < self._next_round_ms:
            return []
        self._next_round_ms = now_ms + ROUND_MS
        known = self._know(segments)
        return [
            SegmentSlice(seq, progress.next_offset, -(-known[seq] // _ROUNDS_PER_COVERAGE))
            for seq, progress in self._segments.items()
        ]

    def take_all(self, segments: Iterable[tuple[SegmentSeq, int]]) -> list[SegmentSlice]:
        """Return everything, to be read now: somebody asks. Every segment's pass begins anew."""
        known = self._know(segments)
        for progress in self._segments.values():
            progress.next_offset, progress.this_pass = SEGMENT_HEADER_BYTES, []
        return [SegmentSlice(seq, SEGMENT_HEADER_BYTES, known[seq]) for seq in self._segments]

    def _know(self, segments: Iterable[tuple[SegmentSeq, int]]) -> dict[SegmentSeq, int]:
        known = dict(segments)
        self._segments = {
            seq: self._segments.get(seq)
            or _Progress(SEGMENT_HEADER_BYTES, [(size, self._started_ms)])
            for seq, size in known.items()
        }
        return known

    def on_read(self, done: SegmentSlice, result: SliceResult, now_ms: int) -> None:
        """Take note of a slice; a problem is the caller's to escalate."""
        progress = self._segments.get(done.segment_seq)
        if progress is None or result.problem is not None:
            return
        progress.next_offset = result.end_offset
        progress.this_pass.append((result.end_offset, now_ms))
        if result.reached_end:
            progress.last_pass, progress.this_pass = progress.this_pass, []
            progress.next_offset = SEGMENT_HEADER_BYTES

    def coverage_age_days(self, now_ms: int) -> float:
        """The age of the oldest reading that any byte relies on (`scrub.coverage_age_days`)."""
        oldest = [progress.oldest_ms() for progress in self._segments.values()]
        return (now_ms - min(oldest, default=self._started_ms)) / DAY_MS


def read_slice(storage: Storage, keys: KeyRing, wanted: SegmentSlice) -> SliceResult:
    """Authenticate the runs of a slice, to the end of the one that completes it."""
    try:
        scanner = SegmentScanner(storage, wanted.segment_seq, keys)
    except CorruptLog as problem:
        return SliceResult(wanted.from_offset, reached_end=False, problem=problem)
    until = wanted.until_offset
    if until is not None and wanted.from_offset >= until:
        return SliceResult(wanted.from_offset, reached_end=True, problem=None)
    for run in scanner.runs(wanted.from_offset):
        if until is not None and run.end_offset >= until:  # what follows may be half written
            return SliceResult(run.end_offset, reached_end=True, problem=None)
        if run.end_offset - wanted.from_offset >= wanted.bytes_min:
            return SliceResult(run.end_offset, reached_end=False, problem=None)
    return SliceResult(scanner.end_offset, reached_end=True, problem=scanner.problem)


def read_small_files(storage: Storage, ledger_bytes: int | None) -> LogError | None:
    """Check the ledger and `metadata.json` of a log that is in use.

    `ledger_bytes` is what of the ledger is known to be durable; None: it is being written, and
    only damage before its last write can be told.
    """
    try:
        read_document(storage, METADATA_FILE, LogMetadata)
        ledger = scan_ledger(storage.read(LEDGER_FILE, 0, storage.size(LEDGER_FILE)))
    except FileNotFoundError as error:
        return MissingFile("a file of the log is gone", file=str(error.filename or error))
    except CorruptLog as problem:
        return problem
    if ledger.damaged_at is not None:
        return ChecksumMismatch(
            "a ledger record is damaged", file=LEDGER_FILE, offset=ledger.damaged_at
        )
    if ledger_bytes is not None and ledger.good_bytes < ledger_bytes:
        return ChecksumMismatch(
            "the ledger ends early", file=LEDGER_FILE, good_bytes=ledger.good_bytes
        )
    return None
