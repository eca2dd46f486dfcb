"""Carry thousands of partitions in one Raft group's log, with one fsync, and lose none of them.

See README.md for what this room promises and where its dangers lie.
"""

from clustor.segmented.compaction import Compaction, KeysOf, RecordKey
from clustor.segmented.config import SegmentedConfig
from clustor.segmented.envelope import ENVELOPE_BYTES_MAX, is_envelope
from clustor.segmented.errors import (
    EntryOutOfOrder,
    IndexOutOfRange,
    MalformedEnvelope,
    MetadataBehindLog,
    SegmentedError,
    SegmentedFenced,
    SegmentedMisuse,
    UnknownPartition,
    UnknownPolicy,
    ViewExpired,
)
from clustor.segmented.export import Export
from clustor.segmented.group import SegmentedGroup
from clustor.segmented.importing import Import
from clustor.segmented.master import Automatic, Disabled, Fixed, MasterPolicy, choose_master
from clustor.segmented.quorum import (
    Custom,
    CustomRule,
    FixedSet,
    Majority,
    PolicyRegistry,
    QuorumPolicy,
    Threshold,
)
from clustor.segmented.reader import PartitionReader
from clustor.segmented.recovery import (
    Finding,
    FindingKind,
    GroupRecovery,
    create_group,
    open_for_import,
    recover_group,
)
from clustor.segmented.repair import plan_repair
from clustor.segmented.retention import RetentionPolicy
from clustor.segmented.store import Receipt, StorePlan
from clustor.segmented.tracker import AckOutcome, Hold, HoldReason
from clustor.segmented.types import (
    Batch,
    PartitionLogIndex,
    ReplicaId,
    StoredBatch,
    StoreId,
    TimestampMs,
    TopicPartitionId,
)
from clustor.segmented.verify import Damage, verify_partition
from clustor.segmented.view import Chunk, PartitionView

__all__ = [
    "ENVELOPE_BYTES_MAX",
    "AckOutcome",
    "Automatic",
    "Batch",
    "Chunk",
    "Compaction",
    "Custom",
    "CustomRule",
    "Damage",
    "Disabled",
    "EntryOutOfOrder",
    "Export",
    "Finding",
    "FindingKind",
    "Fixed",
    "FixedSet",
    "GroupRecovery",
    "Hold",
    "HoldReason",
    "Import",
    "IndexOutOfRange",
    "KeysOf",
    "Majority",
    "MalformedEnvelope",
    "MasterPolicy",
    "MetadataBehindLog",
    "PartitionLogIndex",
    "PartitionReader",
    "PartitionView",
    "PolicyRegistry",
    "QuorumPolicy",
    "Receipt",
    "RecordKey",
    "ReplicaId",
    "RetentionPolicy",
    "SegmentedConfig",
    "SegmentedError",
    "SegmentedFenced",
    "SegmentedGroup",
    "SegmentedMisuse",
    "StoreId",
    "StorePlan",
    "StoredBatch",
    "Threshold",
    "TimestampMs",
    "TopicPartitionId",
    "UnknownPartition",
    "UnknownPolicy",
    "ViewExpired",
    "choose_master",
    "create_group",
    "is_envelope",
    "open_for_import",
    "plan_repair",
    "recover_group",
    "verify_partition",
]
