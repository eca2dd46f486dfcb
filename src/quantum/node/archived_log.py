"""A group's log in an archive, read up to a place: its snapshots before it, its entries behind one.

Reads only. Equal entries give equal digests, on every machine and at every time (quantumqtt §21),
so what an archived log makes of a machine is what every replica knew then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from clustor.log.keys import KeyRing
from clustor.log.types import Entry, PartitionId
from clustor.replica import StateMachine
from clustor.replica.activation import apply_entry
from clustor.replica.chain import restore_contents
from quantum.archive import ArchiveMissing, Listing, Objects, SegmentRow, SnapshotRow
from quantum.archive.segments import read_row, stamps
from quantum.archive.snapshots import read_snapshot

_ALL: Final = 1 << 62

Pace = Callable[[int], None]
"""Told how many bytes were taken in; may wait, or raise to end it."""
Stamps = Callable[[Entry], Iterable[int]]
"""Says when the commands of an entry were stamped."""


def broker_stamps(entry: Entry) -> Iterable[int]:
    """Say when a tenant's commands were stamped."""
    return stamps([entry])


@dataclass(frozen=True, slots=True)
class PointInTime:
    """Where to stop: behind this entry, and before anything later than this; None: at the end."""

    index: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LogPlace:
    """An entry, and its term; nothing at all before the first."""

    index: int = 0
    term: int = 0
    commands: int = 0
    """How many were applied to get here."""


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """One group's archived log, up to a place. Raises ArchiveError, LogError, SnapshotFailure."""

    objects: Objects
    listing: Listing
    keys: KeyRing
    point: PointInTime
    pace: Pace = lambda _: None
    stamps: Stamps = broker_stamps
    believes_times: bool = True
    """Whether the listing's times are of this log's commands: only tenants' are."""

    def snapshots(self) -> Iterator[SnapshotRow | None]:
        """Give those before the place, the newest first; None: the log from its first entry."""
        most = _ALL if self.point.index is None else self.point.index
        rows = sorted(self.listing.snapshots, key=lambda each: each.base_index, reverse=True)
        for row in rows:
            if row.base_index <= most and self._was_before(row.base_index):
                yield row
        if self.listing.first <= 1:
            yield None

    def newest(self) -> SnapshotRow | None:
        """Return where to begin; ArchiveMissing where the archive begins after the place."""
        for row in self.snapshots():
            return row
        raise ArchiveMissing(
            "the archive begins after that place",
            prg=str(self.listing.prg),
            first=self.listing.first,
        )

    def restore(self, machine: StateMachine, row: SnapshotRow | None) -> LogPlace:
        """Let an empty machine become what a snapshot says."""
        if row is None:
            return LogPlace()
        partition = PartitionId(self.listing.partition)
        content = read_snapshot(self.objects, row.object, self.keys, partition)
        restore_contents(machine, [self._paced(content)])
        return LogPlace(row.base_index, row.base_term)

    def apply(
        self,
        machine: StateMachine,
        place: LogPlace,
        applied: Callable[[Entry], None] = lambda _: None,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> LogPlace:
        """Apply what follows a place, through the point, or until it is enough.

        `applied` hears of every entry. ArchiveMissing where entries before the point are not there.
        """
        index, term, commands = place.index, place.term, place.commands
        for entry in self._entries(index + 1):
            if is_enough() or self._is_later(entry):
                break
            self.pace(len(entry.payload))
            index, term = entry.index, entry.term
            commands += len(apply_entry(machine, entry))
            applied(entry)
        if self.point.index is not None and index < self.point.index:
            raise ArchiveMissing(
                "the archive ends before that entry", prg=str(self.listing.prg), last=index
            )
        return LogPlace(index, term, commands)

    def _paced(self, content: Iterable[bytes]) -> Iterator[bytes]:
        for piece in content:
            self.pace(len(piece))
            yield piece

    def _was_before(self, index: int) -> bool:
        """Say whether everything through an entry is certainly not later than the moment."""
        if self.point.time_ms is None or not self.believes_times:
            return True
        times = [
            row.last_time_ms
            for row in self.listing.segments
            if row.first <= index and row.last_time_ms is not None
        ]
        return not times or max(times) <= self.point.time_ms

    def _entries(self, first: int) -> Iterator[Entry]:
        listing, index = self.listing, self.point.index
        last = min(listing.last, _ALL if index is None else index)
        while first <= last:
            stretch = listing.stretch_at(first)
            if not isinstance(stretch, SegmentRow):
                raise ArchiveMissing("the archive has a gap", prg=str(listing.prg), index=first)
            through = min(last, stretch.last)
            yield from read_row(self.objects, stretch, self.keys, first, through)
            first = through + 1

    def _is_later(self, entry: Entry) -> bool:
        time_ms = self.point.time_ms
        return time_ms is not None and any(stamp > time_ms for stamp in self.stamps(entry))
