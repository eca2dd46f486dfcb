"""What a chain of records adds up to: which object stands for which entries. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from quantum.archive.errors import ArchiveDamaged
from quantum.archive.records import (
    BOOK_RECORDS,
    NO_DIGEST,
    PAGE_RECORDS,
    AppliedWith,
    ChainRecord,
    DroppedRow,
    GapRow,
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
    applied_with: AppliedWith | None = None
    page: tuple[Row, ...] = ()
    """What was added since the last page: the next one lists it."""
    book: tuple[Row, ...] = ()
    """The same of the last book."""
    dropped_through: int = 0
    """Through which index nothing is kept any more."""

    @property
    def first(self) -> int:
        """The first index that the archive stands for; 1 where it is empty."""
        return self.stretches[0].first if self.stretches else 1

    @property
    def last(self) -> int:
        """The last index; 0 where it is empty."""
        return self.stretches[-1].last if self.stretches else 0

    @property
    def rows(self) -> tuple[SegmentRow | GapRow | SnapshotRow, ...]:
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


def follow(listing: Listing, record: ChainRecord, digest: str) -> Listing:
    """Return what is listed behind the next record; ArchiveDamaged where it does not follow."""
    _check_chain(listing, record)
    following = replace(
        listing,
        seq=record.seq,
        digest=digest,
        cluster=record.cluster,
        partition=record.partition,
        applied_with=record.applied_with,
        page=(() if is_page(record.seq) else listing.page) + record.added,
        book=(() if is_book(record.seq) else listing.book) + record.added,
    )
    return _added(following, record.added)


def begin_with(prg: PrgId, pages: Sequence[ChainRecord], digest: str) -> Listing:
    """Return what is listed behind the last of these pages, believing what they say of others.

    They are all books, then the pages since the last book; `digest` is of the last one.
    """
    listing = Listing(prg)
    book: tuple[Row, ...] = ()
    for record in pages:
        if record.listed is None or record.prg != str(prg):
            raise ArchiveDamaged("not a page of this chain", prg=prg, record_seq=record.seq)
        listing = _added(listing, record.listed)
        book = record.listed if is_book(record.seq) else book + record.listed
        if is_book(record.seq) and record is not pages[-1]:
            book = ()
    last = pages[-1]
    assert last.listed is not None
    before = replace(
        listing,
        seq=last.seq - 1,
        digest=last.previous,
        cluster=last.cluster,
        partition=last.partition,
        page=last.listed,
        book=book,
    )
    return follow(before, last, digest)


def is_page(seq: int) -> bool:
    return seq > 0 and seq % PAGE_RECORDS == 0


def is_book(seq: int) -> bool:
    return seq > 0 and seq % BOOK_RECORDS == 0


def pages_through(seq: int) -> list[int]:
    """Return the records that a reader begins with: every book, then the pages behind the last."""
    books = range(BOOK_RECORDS, seq + 1, BOOK_RECORDS)
    last = books[-1] if books else 0
    return [*books, *range(last + PAGE_RECORDS, seq + 1, PAGE_RECORDS)]


def to_list(listing: Listing) -> tuple[Row, ...] | None:
    """Return what the next record lists of those before it."""
    if is_book(listing.seq + 1):
        return listing.book
    return listing.page if is_page(listing.seq + 1) else None


def _check_chain(listing: Listing, record: ChainRecord) -> None:
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
    elif record.listed != to_list(listing):
        cause = "a page that lists something else than its chain"
    if cause:
        raise ArchiveDamaged(f"a record is {cause}", prg=listing.prg, record_seq=record.seq)


def _added(listing: Listing, rows: tuple[Row, ...]) -> Listing:
    stretches, snapshots = list(listing.stretches), list(listing.snapshots)
    term = listing.last_term
    dropped = listing.dropped_through
    for row in rows:
        if isinstance(row, SnapshotRow):
            snapshots.append(row)
            continue
        if isinstance(row, DroppedRow):
            _check_dropped(listing.prg, row, stretches, snapshots)
            stretches = [each for each in stretches if each.last > row.through]
            snapshots = [each for each in snapshots if each.base_index >= row.through]
            dropped = row.through
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
    return replace(
        listing,
        stretches=tuple(stretches),
        snapshots=tuple(snapshots),
        dropped_through=dropped,
    )


def _check_dropped(
    prg: PrgId, row: DroppedRow, stretches: Sequence[Stretch], snapshots: Sequence[SnapshotRow]
) -> None:
    """Check that whole stretches go, that one stays, and that a snapshot knows what went."""
    ends = [each.last for each in stretches]
    covered = any(each.base_index >= row.through for each in snapshots)
    if row.through not in ends[:-1] or not covered:
        raise ArchiveDamaged(
            "a record drops what it must not", prg=prg, through=row.through, covered=covered
        )


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
