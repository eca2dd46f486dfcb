"""One partition's archiver: each step brings one object into the store and lists it.

    examine the object → put it under its digest → create the next record → it is archived

A crash between any two leaves an object that nothing lists, or a record that lists what is
there. The next archiver, here or on another node, reads the chain and goes on behind it; an
object that it would put again is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from blake3 import blake3

from clustor.log.errors import CorruptLog
from clustor.log.keys import KeyRing
from clustor.log.steps import Storage
from clustor.log.types import PartitionId
from quantum.archive.chain import append_record, check_owner, next_record, read_listing, refreshed
from quantum.archive.errors import ArchiveConflict
from quantum.archive.listing import Listing
from quantum.archive.objects import Objects
from quantum.archive.planning import (
    ArchiveSegment,
    ArchiveSnapshot,
    Next,
    ReplicaLog,
    plan_next,
)
from quantum.archive.records import AppliedWith, GapRow, Row
from quantum.archive.segments import Pace, examine_segment, row_of, segment_pieces
from quantum.archive.snapshots import examine_snapshot, snapshot_pieces
from quantum.archive.types import PrgId

Passing: TypeAlias = Callable[[str], None]
"""Told the name of each step that is over; tests die here."""


@dataclass
class PrgArchiver:
    """The archiver of one partition on one node. Not for several threads at once."""

    objects: Objects
    keys: KeyRing
    prg: PrgId
    partition: PartitionId
    cluster: str
    pace: Pace = lambda _: None
    passing: Passing = lambda _: None
    applied_with: Callable[[], AppliedWith | None] = lambda: None
    listing: Listing | None = field(default=None)
    """The archive as it was last read or written; None before."""

    def refresh(self) -> Listing:
        """Read what was added to the chain since; all of it the first time.

        Raises ArchiveForeign where it is not ours, and what reading it raises.
        """
        if self.listing is None:
            found = read_listing(self.objects, self.prg, self.keys)
        else:
            found = refreshed(self.objects, self.listing, self.keys)
        check_owner(found, self.cluster, self.partition)
        self.listing = found
        return found

    def step(self, view: ReplicaLog, storage: Storage, now_ms: int) -> Next:
        """Archive the next object, if there is one; return what was next.

        Raises ArchiveError, and what reading the log raises. An ArchiveConflict is no failure:
        another archiver was quicker, and the next step goes on behind it.
        """
        listing = self.refresh()
        following = plan_next(listing, view)
        match following:
            case ArchiveSegment():
                self._archive(self._segment(following, view, storage), view, now_ms)
            case ArchiveSnapshot():
                self._archive(self._snapshot(following, storage), view, now_ms)
            case _:
                pass
        return following

    def record_gap(self, view: ReplicaLog, first: int, last: int, reason: str, now_ms: int) -> None:
        """Write down that entries are in no replica's log any more: the archive goes on behind."""
        self.refresh()
        self._archive(GapRow(first, last, reason), view, now_ms)

    def _segment(self, wanted: ArchiveSegment, view: ReplicaLog, storage: Storage) -> Row:
        examined = examine_segment(storage, wanted.segment_seq, self.keys, self.pace)
        self.passing("segment examined")
        row = row_of(self.prg, examined, wanted.extents, wanted.first, view.entries)
        pieces = segment_pieces(storage, wanted.segment_seq, self.pace)
        self._put(row.object, row.bytes, row.blake3, pieces)
        self.passing("segment put")
        return row

    def _snapshot(self, wanted: ArchiveSnapshot, storage: Storage) -> Row:
        row = examine_snapshot(self.prg, storage, wanted.snapshot, self.pace)
        self.passing("snapshot examined")
        pieces = snapshot_pieces(storage, wanted.snapshot.manifest, self.pace)
        self._put(row.object, row.bytes, row.blake3, pieces)
        self.passing("snapshot put")
        return row

    def _put(self, name: str, size: int, digest: str, pieces: Iterable[bytes]) -> None:
        if self.objects.size(name) != size:
            self.objects.put(name, _unchanged(name, digest, pieces))

    def _archive(self, row: Row, view: ReplicaLog, now_ms: int) -> None:
        assert self.listing is not None
        record = next_record(
            self.listing,
            [row],
            cluster=self.cluster,
            partition=self.partition,
            writer=view.writer,
            now_ms=now_ms,
            mac_epoch=self.keys.mac_epoch,
            applied_with=self.applied_with(),
        )
        try:
            self.listing = append_record(self.objects, self.listing, record, self.keys)
        except ArchiveConflict:
            self.refresh()
            raise
        self.passing("record created")


def _unchanged(name: str, digest: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Pass pieces on; raise before the end unless they are what was examined."""
    found = blake3()
    for piece in pieces:
        found.update(piece)
        yield piece
    if found.hexdigest() != digest:
        raise CorruptLog("a file changed while it was archived", object=name)
