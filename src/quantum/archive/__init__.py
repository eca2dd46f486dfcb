"""Archives: what a partition's log held, in an object store, listed, chained, never forked."""

from quantum.archive.archiver import PrgArchiver
from quantum.archive.chain import archived_prgs, read_listing, refreshed
from quantum.archive.errors import (
    ArchiveConflict,
    ArchiveDamaged,
    ArchiveError,
    ArchiveForeign,
    ArchiveFormatUnknown,
    ArchiveMissing,
    ArchiveMisuse,
    ArchiveUnreachable,
)
from quantum.archive.listing import Listing
from quantum.archive.objects import Objects, open_objects
from quantum.archive.planning import (
    ArchiveSegment,
    ArchiveSnapshot,
    CloseSegment,
    Compacted,
    Diverged,
    Hold,
    LogView,
    Next,
    UpToDate,
    decide_hold,
    plan_next,
)
from quantum.archive.records import AppliedWith, DroppedRow, GapRow, Record, SegmentRow, SnapshotRow
from quantum.archive.types import Bounds, IndexRange, Piece, PrgId, SnapshotRef
from quantum.archive.verifying import Finding, FindingKind, Verified, verify_prg

__all__ = [
    "AppliedWith",
    "ArchiveConflict",
    "ArchiveDamaged",
    "ArchiveError",
    "ArchiveForeign",
    "ArchiveFormatUnknown",
    "ArchiveMissing",
    "ArchiveMisuse",
    "ArchiveSegment",
    "ArchiveSnapshot",
    "ArchiveUnreachable",
    "Bounds",
    "CloseSegment",
    "Compacted",
    "Diverged",
    "DroppedRow",
    "Finding",
    "FindingKind",
    "GapRow",
    "Hold",
    "IndexRange",
    "Listing",
    "LogView",
    "Next",
    "Objects",
    "Piece",
    "PrgArchiver",
    "PrgId",
    "Record",
    "SegmentRow",
    "SnapshotRef",
    "SnapshotRow",
    "UpToDate",
    "Verified",
    "archived_prgs",
    "decide_hold",
    "open_objects",
    "plan_next",
    "read_listing",
    "refreshed",
    "verify_prg",
]
