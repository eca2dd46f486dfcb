"""Archives: what a partition's log held, in an object store, listed, chained, never forked."""

from quantum.archive.archiver import PrgArchiver
from quantum.archive.audit_export import (
    ArchivedLog,
    AuditExporter,
    ExportMark,
    archived_lines,
    archived_logs,
    forget_export,
    object_names,
    read_mark,
)
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
    "ArchivedLog",
    "AuditExporter",
    "Bounds",
    "CloseSegment",
    "Compacted",
    "Diverged",
    "DroppedRow",
    "ExportMark",
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
    "archived_lines",
    "archived_logs",
    "archived_prgs",
    "decide_hold",
    "forget_export",
    "object_names",
    "open_objects",
    "plan_next",
    "read_listing",
    "read_mark",
    "refreshed",
    "verify_prg",
]
