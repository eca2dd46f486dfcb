"""What an archive need not keep any more: planned, written down, and only then deleted.

    plan (pure) → create a record that says what is dropped → delete the objects

Only whole segments go, from the oldest on; only below the base of the newest snapshot, so that the
state behind them is known; never the last one, at which the archive goes on. A crash between record
and deletion leaves objects that nothing lists: `sweep` finds them by their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from clustor.log.keys import KeyRing
from quantum.archive.chain import append_record, next_record
from quantum.archive.listing import Listing, Stretch
from quantum.archive.names import folder
from quantum.archive.objects import Objects
from quantum.archive.records import DroppedRow, SegmentRow, SnapshotRow
from quantum.archive.types import PrgId

_SEGMENT: Final = re.compile(r"segments/\d{20}-(\d{20})\.[0-9a-f]{64}")
_SNAPSHOT: Final = re.compile(r"snapshots/(\d{20})\.[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much is to be kept; None asks for nothing."""

    age_ms_max: int | None = None
    bytes_max: int | None = None
    keep_from: int | None = None
    """The first index that somebody still needs."""


@dataclass(frozen=True, slots=True)
class Retention:
    """What goes: everything through `through`."""

    prg: PrgId
    through: int
    segments: tuple[SegmentRow, ...]
    snapshots: tuple[SnapshotRow, ...]
    reason: str

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.segments) + sum(row.bytes for row in self.snapshots)


def plan_retention(listing: Listing, wanted: Wanted, now_ms: int) -> Retention | None:
    """Say what can go, None where nothing can. Pure."""
    may_go = droppable(listing, wanted.keep_from)
    by_age = _older(may_go, wanted, now_ms)
    by_bytes = _beyond(listing, may_go, wanted)
    count = max(by_age, by_bytes)
    if not count:
        return None
    through = may_go[count - 1].last
    why = f"older than {wanted.age_ms_max} ms" if by_age >= by_bytes else "beyond its size"
    return Retention(
        listing.prg,
        through,
        tuple(row for row in may_go[:count] if isinstance(row, SegmentRow)),
        tuple(row for row in listing.snapshots if row.base_index < through),
        why,
    )


def droppable(listing: Listing, keep_from: int | None) -> tuple[Stretch, ...]:
    """Return the oldest stretches that nobody needs to read on from the newest snapshot."""
    limit = max((row.base_index for row in listing.snapshots), default=0)
    if keep_from is not None:
        limit = min(limit, keep_from - 1)
    found = listing.stretches[:-1]
    return tuple(row for row in found if row.last <= limit)


def _older(may_go: tuple[Stretch, ...], wanted: Wanted, now_ms: int) -> int:
    """Count through the last one that is too old; what is before it is older."""
    if wanted.age_ms_max is None:
        return 0
    count = 0
    for nth, row in enumerate(may_go, 1):
        last_ms = row.last_time_ms if isinstance(row, SegmentRow) else None
        if last_ms is not None and last_ms < now_ms - wanted.age_ms_max:
            count = nth
    return count


def _beyond(listing: Listing, may_go: tuple[Stretch, ...], wanted: Wanted) -> int:
    """Count how many have to go until the rest is small enough, or nothing more may go."""
    if wanted.bytes_max is None:
        return 0
    for count in range(len(may_go) + 1):
        through = may_go[count - 1].last if count else 0
        left = sum(
            row.bytes
            for row in listing.rows
            if (isinstance(row, SegmentRow) and row.last > through)
            or (isinstance(row, SnapshotRow) and row.base_index >= through)
        )
        if left <= wanted.bytes_max:
            return count
    return len(may_go)


def drop(  # noqa: PLR0917
    objects: Objects, listing: Listing, going: Retention, keys: KeyRing, writer: str, now_ms: int
) -> Listing:
    """Write down that it goes, and delete it. Raises ArchiveConflict where the chain went on."""
    record = next_record(
        listing,
        [DroppedRow(going.through, going.reason)],
        cluster=listing.cluster,
        partition=listing.partition,
        writer=writer,
        now_ms=now_ms,
        mac_epoch=keys.mac_epoch,
        applied_with=listing.applied_with,
    )
    after = append_record(objects, listing, record, keys)
    sweep(objects, after)
    return after


def sweep(objects: Objects, listing: Listing) -> list[str]:
    """Delete the objects of what was dropped, by this run or one that was cut short."""
    gone = swept(objects.names(folder(listing.prg)), listing)
    for name in gone:
        objects.delete(name)
    return gone


def swept(names: list[str], listing: Listing) -> list[str]:
    """Name objects that only stood for what was dropped. Pure."""
    listed = {row.object for row in listing.rows if isinstance(row, SegmentRow | SnapshotRow)}
    found = []
    for name in names:
        inner = name.removeprefix(folder(listing.prg))
        segment, snapshot = _SEGMENT.fullmatch(inner), _SNAPSHOT.fullmatch(inner)
        is_past = (segment is not None and int(segment[1]) <= listing.dropped_through) or (
            snapshot is not None and int(snapshot[1]) < listing.dropped_through
        )
        if is_past and name not in listed:
            found.append(name)
    return found
