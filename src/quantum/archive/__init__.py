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
from quantum.archive.names import groups_url
from quantum.archive.objects import Objects, open_objects
from quantum.archive.planning import (
    ArchiveSegment,
    ArchiveSnapshot,
    CloseSegment,
    CompactionHold,
    Diverged,
    EntriesCompacted,
    Next,
    ReplicaLog,
    UpToDate,
    decide_hold,
    plan_next,
)
from quantum.archive.records import (
    AppliedWith,
    ChainRecord,
    DroppedRow,
    GapRow,
    SegmentRow,
    SnapshotRow,
)
from quantum.archive.types import Bounds, IndexRange, LogPiece, PrgId, SnapshotRef
from quantum.archive.verifying import ArchiveFinding, ArchiveFindingKind, Verified, verify_prg

__all__ = [
    "AppliedWith",
    "ArchiveConflict",
    "ArchiveDamaged",
    "ArchiveError",
    "ArchiveFinding",
    "ArchiveFindingKind",
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
    "ChainRecord",
    "CloseSegment",
    "CompactionHold",
    "Diverged",
    "DroppedRow",
    "EntriesCompacted",
    "ExportMark",
    "GapRow",
    "IndexRange",
    "Listing",
    "LogPiece",
    "Next",
    "Objects",
    "PrgArchiver",
    "PrgId",
    "ReplicaLog",
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
    "groups_url",
    "object_names",
    "open_objects",
    "plan_next",
    "read_listing",
    "read_mark",
    "refreshed",
    "verify_prg",
]
