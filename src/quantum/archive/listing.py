"""What a chain of records adds up to: which object stands for which entries. Pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import TypeAlias

from quantum.archive.errors import ArchiveDamaged
from quantum.archive.records import (
    CHECKPOINT_EVERY,
    NO_DIGEST,
    GapRow,
    Record,
    Row,
    SegmentRow,
    SnapshotRow,
)
from quantum.archive.types import PrgId

Stretch: TypeAlias = SegmentRow | GapRow


@dataclass(frozen=True, slots=True)
class Listing:
    """The rows of one partition, through the record `seq` (-1: there is none yet).

    Stretches touch: each begins behind the one before. So the archive holds the entries from
    the first stretch through the last one, except for gaps, which say so.
    """

    prg: PrgId
    seq: int = -1
    digest: str = NO_DIGEST
    cluster: str = ""
    partition: int = 0
    stretches: tuple[Stretch, ...] = ()
    snapshots: tuple[SnapshotRow, ...] = ()

    @property
    def first(self) -> int:
        """The first index that the archive stands for; 1 where it is empty."""
        return self.stretches[0].first if self.stretches else 1

    @property
    def last(self) -> int:
        """The last index; 0 where it is empty."""
        return self.stretches[-1].last if self.stretches else 0

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.stretches, *self.snapshots)

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows if not isinstance(row, GapRow))

    @property
    def segments(self) -> tuple[SegmentRow, ...]:
        return tuple(row for row in self.stretches if isinstance(row, SegmentRow))

    @property
    def gaps(self) -> tuple[GapRow, ...]:
        return tuple(row for row in self.stretches if isinstance(row, GapRow))

    @property
    def last_term(self) -> int:
        segments = self.segments
        return segments[-1].last_term if segments else 0

    def stretch_at(self, index: int) -> Stretch | None:
        """Return the stretch that stands for an index."""
        nth = bisect_left(self.stretches, index, key=lambda row: row.last)
        found = self.stretches[nth] if nth < len(self.stretches) else None
        return found if found is not None and found.first <= index else None


def follow(listing: Listing, record: Record, digest: str) -> Listing:
    """Return what is listed behind the next record; ArchiveDamaged where it does not follow."""
    _check_chain(listing, record)
    return _added(
        replace(
            listing,
            seq=record.seq,
            digest=digest,
            cluster=record.cluster,
            partition=record.partition,
        ),
        record.added,
    )


def begin_at(prg: PrgId, record: Record, digest: str) -> Listing:
    """Return what is listed behind a checkpoint, believing what it says of those before."""
    if record.listed is None:
        raise ArchiveDamaged("not a checkpoint", prg=prg, record_seq=record.seq)
    before = Listing(prg, record.seq - 1, record.previous, record.cluster, record.partition)
    return follow(_added(before, record.listed), record, digest)


def is_checkpoint(seq: int) -> bool:
    return seq > 0 and seq % CHECKPOINT_EVERY == 0


def _check_chain(listing: Listing, record: Record) -> None:
    cause = ""
    if record.prg != str(listing.prg):
        cause = "of another partition"
    elif record.seq != listing.seq + 1:
        cause = "not the next one"
    elif record.previous != listing.digest:
        cause = "does not follow the one before"
    elif listing.cluster and (record.cluster, record.partition) != (
        listing.cluster,
        listing.partition,
    ):
        cause = "of another cluster"
    elif (record.listed is not None) != is_checkpoint(record.seq):
        cause = "a checkpoint out of its turn, or none in its turn"
    elif record.listed is not None and record.listed != listing.rows:
        cause = "a checkpoint lists something else than its chain"
    if cause:
        raise ArchiveDamaged(f"a record is {cause}", prg=listing.prg, record_seq=record.seq)


def _added(listing: Listing, rows: tuple[Row, ...]) -> Listing:
    stretches, snapshots = list(listing.stretches), list(listing.snapshots)
    term = listing.last_term
    for row in rows:
        if isinstance(row, SnapshotRow):
            snapshots.append(row)
            continue
        if row.last < row.first or (stretches and row.first != stretches[-1].last + 1):
            raise ArchiveDamaged(
                "a record leaves a hole in the log",
                prg=listing.prg,
                record_seq=listing.seq,
                index=row.first,
            )
        if isinstance(row, SegmentRow):
            _check_segment(listing.prg, row, term)
            term = row.last_term
        stretches.append(row)
    return replace(listing, stretches=tuple(stretches), snapshots=tuple(snapshots))


def _check_segment(prg: PrgId, row: SegmentRow, term: int) -> None:
    """Check that the terms do not fall, and that the extents hold what the row stands for."""
    held = row.extents[0].first
    whole = row.first >= held
    for extent in row.extents:
        marks = [index for index, _ in extent.marks]
        whole = whole and extent.first == held <= extent.last
        whole = whole and marks[0] == extent.first and marks == sorted(set(marks))
        held = extent.last + 1
    if not whole or held != row.last + 1 or not term <= row.first_term <= row.last_term:
        raise ArchiveDamaged("a row contradicts itself", prg=prg, object=row.object)
