"""What an archiver does next, and how long the log waits for it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from clustor.log.logmap import Extent, LogMap
from clustor.log.types import SegmentSeq
from clustor.snapshot.catalog import AuthorizedSnapshot
from clustor.snapshot.types import SnapshotKind
from quantum.archive.listing import Listing
from quantum.archive.records import SegmentRow


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """One replica's log at a moment: the map is a copy, the rest are values."""

    entries: LogMap
    closed: frozenset[SegmentSeq]
    committed: int
    """Committed, and durable on a quorum; nothing above it may leave."""
    leads: bool
    writer: str
    log_bytes: int
    snapshots: tuple[AuthorizedSnapshot, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchiveSegment:
    """Archive a closed segment: it stands for its live entries from `first` on."""

    segment_seq: SegmentSeq
    first: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class ArchiveSnapshot:
    """Archive a snapshot."""

    snapshot: AuthorizedSnapshot


@dataclass(frozen=True, slots=True)
class EntriesCompacted:
    """The next entries are not in this replica's log any more."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class CloseSegment:
    """The next entries are committed, and in the segment that is still open."""

    first: int


@dataclass(frozen=True, slots=True)
class Diverged:
    """The archive's last entry is not ours: a cluster began anew, or lost what it had."""

    index: int
    archived_term: int
    our_term: int


@dataclass(frozen=True, slots=True)
class UpToDate:
    """Everything committed is archived, or not yet to be."""


Next: TypeAlias = (
    ArchiveSegment | ArchiveSnapshot | EntriesCompacted | CloseSegment | Diverged | UpToDate
)


def plan_next(listing: Listing, view: ReplicaLog) -> Next:
    """Decide what to archive next: the log in order, then the newest snapshot."""
    entries = view.entries
    first = listing.last + 1 if listing.stretches else entries.base_index + 1
    ends = listing.stretches[-1] if listing.stretches else None
    if isinstance(ends, SegmentRow) and entries.base_index <= ends.last <= view.committed:
        ours = entries.term_of(ends.last)
        if ours != ends.last_term:
            return Diverged(ends.last, ends.last_term, ours)
    if first <= entries.base_index:
        return EntriesCompacted(first, entries.base_index)
    if first <= min(view.committed, entries.last_index):
        seq = entries.locate(first)[0].segment_seq
        if seq not in view.closed:
            return _snapshot(listing, view) or CloseSegment(first)
        extents = tuple(each for each in entries.extents if each.segment_seq == seq)
        if extents[-1].last_index <= view.committed:
            return ArchiveSegment(seq, first, extents)
    return _snapshot(listing, view) or UpToDate()


def _snapshot(listing: Listing, view: ReplicaLog) -> ArchiveSnapshot | None:
    """Return the newest full snapshot, if it is newer than what is archived."""
    newest = max((row.base_index for row in listing.snapshots), default=-1)
    for snapshot in reversed(view.snapshots):
        manifest = snapshot.manifest
        if manifest.snapshot_kind is SnapshotKind.FULL and snapshot.acknowledged:
            behind = manifest.base_index <= max(newest, 0)
            return (
                None if behind or manifest.base_index > listing.last else ArchiveSnapshot(snapshot)
            )
    return None


@dataclass(frozen=True, slots=True)
class CompactionHold:
    """How far the log may be compacted: through `through`, or as it likes where that is None."""

    through: int | None
    reason: str


def decide_hold(archived_last: int | None, view: ReplicaLog, bytes_max: int) -> CompactionHold:
    """Let the log wait for the archive, but not grow beyond a bound.

    `archived_last` is None while the archive could not be read yet: then nothing may go.
    """
    if view.log_bytes > bytes_max:
        reason = f"the log has {view.log_bytes} bytes, more than the {bytes_max} it may wait with"
        return CompactionHold(None, f"compaction no longer waits for the archive: {reason}")
    if archived_last is None:
        return CompactionHold(
            view.entries.base_index, "compaction waits: the archive was not read yet"
        )
    if archived_last >= view.entries.last_index:
        return CompactionHold(archived_last, "")
    return CompactionHold(
        archived_last, f"compaction waits for the archive beyond index {archived_last}"
    )
