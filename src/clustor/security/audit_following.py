"""Following an audit log that grows: what is signed and durable, run by run, each line once.

A run ends at a seal and never goes beyond the anchor. The anchor is written after its seal is
durable, so what left by here is never taken back by a power cut: a copy elsewhere cannot fork
from the log that it was copied from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from clustor.log.steps import Storage
from clustor.security.audit_files import file_heads, file_name, file_numbers, read_anchor
from clustor.security.audit_lines import (
    NOTHING,
    Anchor,
    AnyLine,
    LineDigest,
    SealLine,
    decode_line,
    digest_of,
)
from clustor.security.errors import AuditTruncated, AuditUnreadable

RUN_BYTES: Final = 4 << 20
"""A run ends at the first seal behind so many bytes."""
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Whole batches, one after another."""

    first: int
    last: int
    data: bytes
    """The lines, each with its newline, as they stand in the log."""
    head: LineDigest
    """The last line's digest: it is a seal."""


class AuditFollower:
    """Takes runs from a log, behind a line that is somewhere else already."""

    def __init__(self, log_id: str, through: int = 0, digest: LineDigest = NOTHING) -> None:
        """Go on behind the line `through`, whose digest is `digest`."""
        self.log_id = log_id
        self.through = through
        self.digest = digest
        self.missed: tuple[int, int] | None = None
        """Lines that were removed from the disk before they were taken: the newest such gap."""
        self._file, self._offset = 0, 0
        """Where the line behind `through` begins; file 0: to be looked for."""
        self._behind = (0, 0, 0)
        """The last line of the run that was given, and the place behind it."""

    def take_run(self, storage: Storage, *, run_bytes: int = RUN_BYTES) -> BatchRun | None:
        """Return what follows, None where nothing more is sealed; `advance` makes it count.

        Raises AuditTruncated where the log ends before what was taken from it, AuditUnreadable
        where it goes on differently or cannot be read.
        """
        anchor = read_anchor(storage)
        if anchor.log_id != self.log_id:
            raise AuditUnreadable("another log stands here now", log_id=anchor.log_id)
        if anchor.sequence < self.through:
            raise AuditTruncated(
                "the audit log ends before what was taken from it",
                sealed=anchor.sequence,
                taken=self.through,
            )
        if anchor.sequence == self.through:
            self._require(anchor.digest, self.through)
            return None
        return self._run(storage, anchor, run_bytes)

    def advance(self, run: BatchRun) -> None:
        """Let the next run begin behind this one: the run that was given, or a part of it."""
        assert run.first == self.through + 1, "runs are taken in order"
        self.through, self.digest = run.last, run.head
        last, *place = self._behind
        self._file, self._offset = place if last == run.last else (0, 0)

    def _run(self, storage: Storage, anchor: Anchor, run_bytes: int) -> BatchRun:
        taken: list[bytes] = []
        whole = size = 0
        sequence, digest = self._begin(storage)
        first, last, head = sequence + 1, sequence, digest
        for number, behind, raw, line in self._lines(storage):
            if line.sequence > anchor.sequence:
                break
            if line.sequence != sequence + 1 or line.previous != digest:
                raise AuditUnreadable("the audit log goes on differently", sequence=sequence + 1)
            sequence, digest = line.sequence, digest_of(raw)
            taken.append(raw + b"\n")
            size += len(raw) + 1
            if isinstance(line, SealLine):
                whole, head, last = len(taken), digest, sequence
                self._behind = (last, number, behind)
                if size >= run_bytes:
                    break
        if not whole:
            raise AuditUnreadable("the lines before the anchor cannot be read", sequence=first)
        return BatchRun(first, last, b"".join(taken[:whole]), head)

    def _begin(self, storage: Storage) -> tuple[int, LineDigest]:
        """Find the file to read from, and return the line behind which it is read."""
        if self._file in file_numbers(storage):
            return self.through, self.digest
        heads = file_heads(storage)
        if not heads:
            raise AuditUnreadable("the audit log has no files")
        number, head = heads[0]
        if head.sequence > self.through + 1:
            if self.through:
                self.missed = (self.through + 1, head.sequence - 1)
            self.through, self.digest = head.sequence - 1, LineDigest(head.previous)
        number = max(each for each, head in heads if head.sequence <= self.through + 1)
        self._file, self._offset = number, self._offset_behind(storage, number)
        return self.through, self.digest

    def _offset_behind(self, storage: Storage, number: int) -> int:
        """Return where the lines of a file end that were taken already."""
        offset = 0
        for behind, raw in _raw_lines(storage, number, 0):
            line = decode_line(raw)
            if line is None or line.sequence > self.through:
                break
            if line.sequence == self.through:
                self._require(digest_of(raw), self.through)
            offset = behind
        return offset

    def _require(self, digest: str, sequence: int) -> None:
        if digest != self.digest:
            raise AuditUnreadable(
                "the audit log is not the one that was taken before", sequence=sequence
            )

    def _lines(self, storage: Storage) -> Iterator[tuple[int, int, bytes, AnyLine]]:
        """Yield lines with where they end; what a crash left at the end of a file is none."""
        for number in file_numbers(storage):
            if number < self._file:
                continue
            offset = self._offset if number == self._file else 0
            before: LineDigest | None = None
            for behind, raw in _raw_lines(storage, number, offset):
                line = decode_line(raw)
                if line is None or before not in (None, line.previous):
                    break
                yield number, behind, raw, line
                before = digest_of(raw)


def _raw_lines(storage: Storage, number: int, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of a file from an offset on, each with the offset behind it."""
    waiting, at = b"", offset
    while piece := storage.read(file_name(number), at + len(waiting), _READ_BYTES):
        waiting += piece
        *whole, waiting = waiting.split(b"\n")
        for raw in whole:
            at += len(raw) + 1
            yield at, raw
