"""A partition as it stood at an entry, or at a moment: an archive's log applied again.

Reads only. The newest archived snapshot at or before the place is restored, and the entries behind
it are applied: equal entries give equal digests, on every machine and at every time (quantumqtt
§21), so what comes out is what every replica knew then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from clustor.log.keys import KeyRing
from clustor.log.types import Entry, EntryKind, LogIndex, PartitionId, Term
from clustor.replica import decode_batch
from clustor.replica.chain import restore_contents
from quantum.archive import (
    ArchiveMissing,
    Listing,
    Objects,
    PrgId,
    SegmentRow,
    SnapshotRow,
    read_listing,
)
from quantum.archive.segments import read_row, stamps
from quantum.archive.snapshots import read_snapshot
from quantum.broker import Broker
from quantum.tenants.broker_file import TenantEntry, TenantRing
from quantum.tenants.partition_settings import broker_settings

_ALL: Final = 1 << 62

Pace = Callable[[int], None]
"""Told how many bytes were taken in; may wait, or raise to end it."""


@dataclass(frozen=True, slots=True)
class PointInTime:
    """Where to stop: behind this entry, and before anything later than this; None: at the end."""

    index: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ArchivedState:
    """What a partition knew behind one entry."""

    prg: PrgId
    partition_id: PartitionId
    tenant: TenantEntry
    broker: Broker
    snapshot_index: int
    index: LogIndex
    term: Term
    commands: int

    @property
    def digest(self) -> str:
        return self.broker.digest().hex()


def replay_archive(
    objects: Objects,
    prg: PrgId,
    keys: KeyRing,
    point: PointInTime,
    pace: Pace = lambda _: None,
) -> ArchivedState:
    """Bring a partition back as it stood; raises ArchiveError, LogError and SnapshotFailure.

    ArchiveMissing where the archive begins after the place, or lacks entries before it.
    """
    listing = read_listing(objects, prg, keys)
    tenant = tenant_of(listing)
    broker = Broker(broker_settings(tenant, prg.number))
    row = _snapshot_before(listing, point)
    base, term = (0, 0) if row is None else (row.base_index, row.base_term)
    if row is not None:
        content = read_snapshot(objects, row.object, keys, PartitionId(listing.partition))
        restore_contents(broker, [_paced(content, pace)])
    index, commands = base, 0
    for entry in _entries(objects, listing, keys, base + 1, point):
        pace(len(entry.payload))
        if _is_later(entry, point):
            break
        index, term = entry.index, entry.term
        if entry.kind is EntryKind.DATA:
            batch = decode_batch(entry.payload)
            broker.apply_batch(entry.index, batch)
            commands += len(batch)
    if point.index is not None and index < point.index:
        raise ArchiveMissing("the archive ends before that entry", prg=str(prg), last=index)
    partition = PartitionId(listing.partition)
    found = LogIndex(index)
    return ArchivedState(prg, partition, tenant, broker, base, found, Term(term), commands)


def tenant_of(listing: Listing) -> TenantEntry:
    """Return the numbers under which a tenant's logs are applied; raises ArchiveMissing."""
    numbers = listing.applied_with
    if listing.seq < 0 or numbers is None:
        raise ArchiveMissing("the archive does not say how this log is applied", prg=listing.prg)
    return TenantEntry(
        listing.prg.tenant,
        numbers.prgs,
        numbers.queue_messages_max,
        numbers.queue_bytes_max,
        tuple(TenantRing(count) for count in numbers.rings),
        numbers.dedupe_horizon_seconds,
    )


def _snapshot_before(listing: Listing, point: PointInTime) -> SnapshotRow | None:
    """Return the newest snapshot that is not behind the place; None where the log begins at 1."""
    most = _ALL if point.index is None else point.index
    for row in sorted(listing.snapshots, key=lambda each: each.base_index, reverse=True):
        if row.base_index <= most and _was_before(listing, row.base_index, point):
            return row
    if listing.first > 1:
        raise ArchiveMissing(
            "the archive begins after that place", prg=str(listing.prg), first=listing.first
        )
    return None


def _paced(content: Iterable[bytes], pace: Pace) -> Iterator[bytes]:
    for piece in content:
        pace(len(piece))
        yield piece


def _was_before(listing: Listing, index: int, point: PointInTime) -> bool:
    """Say whether everything through an entry is certainly not later than the moment."""
    if point.time_ms is None:
        return True
    times = [
        row.last_time_ms
        for row in listing.segments
        if row.first <= index and row.last_time_ms is not None
    ]
    return not times or max(times) <= point.time_ms


def _entries(
    objects: Objects, listing: Listing, keys: KeyRing, first: int, point: PointInTime
) -> Iterator[Entry]:
    last = min(listing.last, _ALL if point.index is None else point.index)
    while first <= last:
        stretch = listing.stretch_at(first)
        if not isinstance(stretch, SegmentRow):
            raise ArchiveMissing("the archive has a gap", prg=str(listing.prg), index=first)
        through = min(last, stretch.last)
        yield from read_row(objects, stretch, keys, first, through)
        first = through + 1


def _is_later(entry: Entry, point: PointInTime) -> bool:
    return point.time_ms is not None and any(stamp > point.time_ms for stamp in stamps([entry]))
