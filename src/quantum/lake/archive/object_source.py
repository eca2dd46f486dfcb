"""Logs in an archive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from clustor.log.types import Entry, LogIndex, PartitionId
from quantum.archive.chain import archived_prgs, read_listing
from quantum.archive.errors import ArchiveMissing
from quantum.archive.listing import Listing
from quantum.archive.objects import Objects, open_objects
from quantum.archive.records import GapRow, SegmentRow
from quantum.archive.segments import read_row
from quantum.archive.snapshots import read_snapshot
from quantum.archive.types import Bounds, IndexRange, LogPiece, PrgId, SnapshotRef
from quantum.lake.archive.keys import KeyProvider
from quantum.lake.archive.translating import in_readers_words, naming_the_entry
from quantum.lake.errors import BadAddress, LogGone
from quantum.tenants.broker_file import TenantEntry, TenantRing

_ROWS_SENT_MAX: Final = 1_000


@dataclass
class ArchiveSource:
    """`LogSource` over an archive. `bounds` reads the newest listing; archives only grow."""

    url: str
    keys: KeyProvider
    _listings: dict[PrgId, Listing] = field(default_factory=dict, repr=False)
    _store: Objects | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        with in_readers_words():
            self._store = open_objects(self.url)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the store behind, and listings that are cheaper to read again than to send."""
        listings = {
            prg: listing
            for prg, listing in self._listings.items()
            if len(listing.rows) <= _ROWS_SENT_MAX
        }
        return self.__dict__ | {"_store": None, "_listings": listings}

    @property
    def _objects(self) -> Objects:
        if self._store is None:
            with in_readers_words():
                self._store = open_objects(self.url)
        return self._store

    def prgs(self) -> list[PrgId]:
        with in_readers_words():
            return archived_prgs(self._objects)

    def bounds(self, prg: PrgId) -> Bounds:
        listing = self._read(prg)
        pieces = tuple(piece for row in listing.segments for piece in _pieces(row))
        return Bounds(prg, listing.first, listing.last, pieces)

    def entries(self, span: IndexRange) -> Iterator[Entry]:
        prg, index = span.prg, span.first
        listing = self._listings.get(prg) or self._read(prg)
        while index <= span.last:
            stretch = listing.stretch_at(index)
            if not isinstance(stretch, SegmentRow):
                raise _gone(listing, stretch, index, span.last)
            last = min(span.last, stretch.last)
            with in_readers_words(prg, index):
                found = read_row(self._objects, stretch, self.keys.keyring(prg), index, last)
            for entry in naming_the_entry(
                _all_of(found, listing, stretch, index, last), prg, index
            ):
                yield entry
                index = entry.index + 1

    def snapshots(self, prg: PrgId) -> list[SnapshotRef]:
        listing = self._read(prg)
        return [
            SnapshotRef(
                prg,
                LogIndex(row.base_index),
                row.base_term,
                row.content_bytes,
                row.object,
                PartitionId(listing.partition),
            )
            for row in listing.snapshots
        ]

    def open_snapshot(self, ref: SnapshotRef) -> Iterator[bytes]:
        with in_readers_words(ref.prg, ref.base_index):
            ring = self.keys.keyring(ref.prg)
            yield from read_snapshot(self._objects, ref.name, ring, ref.partition)

    def tenant_entry(self, tenant: str) -> TenantEntry | None:
        """Say under which numbers a tenant's logs are applied; None where nobody wrote it down."""
        known = [listing for prg, listing in self._listings.items() if prg.tenant == tenant]
        try:
            numbers = (known or [self._read(PrgId(tenant, 0))])[0].applied_with
        except BadAddress:
            return None
        if numbers is None:
            return None
        return TenantEntry(
            tenant,
            numbers.prgs,
            numbers.queue_messages_max,
            numbers.queue_bytes_max,
            tuple(TenantRing(count) for count in numbers.rings),
            numbers.dedupe_horizon_seconds,
        )

    def _read(self, prg: PrgId) -> Listing:
        with in_readers_words(prg):
            listing = read_listing(self._objects, prg, self.keys.keyring(prg))
        if listing.seq < 0:
            raise BadAddress("this partition has no archive here", prg=prg, url=self.url)
        self._listings[prg] = listing
        return listing


def _pieces(row: SegmentRow) -> Iterator[LogPiece]:
    """Cut a segment at its marks: each piece can be read without what is before it."""
    marks = [mark for extent in row.extents for mark in extent.marks]
    ends = [*marks[1:], (row.last + 1, row.extents[-1].end_offset)]
    for (first, start), (following, end) in zip(marks, ends, strict=True):
        if following > row.first:
            yield LogPiece(
                max(first, row.first),
                following - 1,
                max(1, end - start),
                row.first_time_ms,
                row.last_time_ms,
            )


def _all_of(
    found: Iterator[Entry], listing: Listing, row: SegmentRow, index: int, last: int
) -> Iterator[Entry]:
    """Pass entries on; where the object is not there, say what is missing with it."""
    try:
        for entry in found:
            yield entry
            index = entry.index + 1
    except ArchiveMissing as error:
        raise LogGone(
            "a segment's object is missing",
            prg=listing.prg,
            first=index,
            last=last,
            readable_from=row.last + 1 if row.last < listing.last else None,
            object=row.object,
        ) from error


def _gone(listing: Listing, gap: GapRow | None, index: int, wanted: int) -> LogGone:
    if gap is not None:
        following = gap.last + 1 if gap.last < listing.last else None
        last, reason = min(gap.last, wanted), gap.reason
    elif index < listing.first and listing.stretches:
        following, last = listing.first, min(listing.first - 1, wanted)
        reason = "older than the archive"
    else:
        following, last, reason = None, wanted, "not archived yet"
    return LogGone(reason, prg=listing.prg, first=index, last=last, readable_from=following)
