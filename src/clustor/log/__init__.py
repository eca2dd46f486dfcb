"""The durable log: what it acknowledged is on disk, encrypted, and comes back as it was."""

from clustor.log.compaction import CompactionState, compaction_floor
from clustor.log.config import LogConfig
from clustor.log.errors import (
    AuthenticationFailed,
    ChecksumMismatch,
    CorruptLog,
    KeyEpochReplay,
    KeyUnavailable,
    LogError,
    LogFenced,
    LogMisuse,
    MissingFile,
    UnsupportedFormat,
)
from clustor.log.group_fsync import (
    Batch,
    Batcher,
    GroupFsyncClause,
    GroupFsyncConditions,
    GroupFsyncLimits,
    group_fsync_clause,
)
from clustor.log.health import PartitionHealth, PartitionState, QuarantineReason, WhyQuarantined
from clustor.log.image import LogImage, read_identity, read_image
from clustor.log.keys import KeyRing
from clustor.log.ledger import LEDGER_FILE, DurabilityRecord, LedgerIdentity
from clustor.log.log import AppendPlan, Log, create_log
from clustor.log.logmap import LogMap
from clustor.log.metadata import BOOT_RECORD_FILE, METADATA_FILE, BootRecord, LogMetadata
from clustor.log.reader import LogReader, read_archived_segment, read_entries
from clustor.log.recovery import Finding, FindingKind, Recovery, recover
from clustor.log.scrub import Scrub, Slice, SliceResult, read_slice
from clustor.log.segment import WAL_DIRECTORY, segment_file, segment_seq_of
from clustor.log.types import (
    BlockCounter,
    DekEpoch,
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    EntryKind,
    IoWriterMode,
    LogId,
    LogIndex,
    LogState,
    MacEpoch,
    PartitionId,
    SegmentSeq,
    Term,
)

__all__ = [
    "BOOT_RECORD_FILE",
    "LEDGER_FILE",
    "METADATA_FILE",
    "WAL_DIRECTORY",
    "AppendPlan",
    "AuthenticationFailed",
    "Batch",
    "Batcher",
    "BlockCounter",
    "BootRecord",
    "ChecksumMismatch",
    "CompactionState",
    "CorruptLog",
    "DekEpoch",
    "DurabilityMode",
    "DurabilityModeEpoch",
    "DurabilityRecord",
    "Entry",
    "EntryKind",
    "Finding",
    "FindingKind",
    "GroupFsyncClause",
    "GroupFsyncConditions",
    "GroupFsyncLimits",
    "IoWriterMode",
    "KeyEpochReplay",
    "KeyRing",
    "KeyUnavailable",
    "LedgerIdentity",
    "Log",
    "LogConfig",
    "LogError",
    "LogFenced",
    "LogId",
    "LogImage",
    "LogIndex",
    "LogMap",
    "LogMetadata",
    "LogMisuse",
    "LogReader",
    "LogState",
    "MacEpoch",
    "MissingFile",
    "PartitionHealth",
    "PartitionId",
    "PartitionState",
    "QuarantineReason",
    "Recovery",
    "Scrub",
    "SegmentSeq",
    "Slice",
    "SliceResult",
    "Term",
    "UnsupportedFormat",
    "WhyQuarantined",
    "compaction_floor",
    "create_log",
    "group_fsync_clause",
    "read_archived_segment",
    "read_entries",
    "read_identity",
    "read_image",
    "read_slice",
    "recover",
    "segment_file",
    "segment_seq_of",
]
