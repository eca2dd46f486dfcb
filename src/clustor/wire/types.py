"""The words of the wire: identifiers, enumerations, and the dialect two peers agreed on.

An enumeration is one `u8` on the wire and its `spelling` in JSON. Numbers are never given
anew; new variants take the next number (clustor §8.1). 0 is left free, so that a zeroed byte
is never a meaning, and 0xF0–0xFF are the experimental range that production refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType, TypeAlias

Buffer: TypeAlias = bytes | memoryview
"""Bytes to decode. What is cut out of them is of the same type: a memoryview copies nothing."""

PartitionId = NewType("PartitionId", int)  # u64
ReplicaId = NewType("ReplicaId", int)  # u64
Term = NewType("Term", int)  # u64
LogIndex = NewType("LogIndex", int)  # u64
SegmentSeq = NewType("SegmentSeq", int)  # u64
RoutingEpoch = NewType("RoutingEpoch", int)  # u64
LeaseEpoch = NewType("LeaseEpoch", int)  # u64
DurabilityModeEpoch = NewType("DurabilityModeEpoch", int)  # u32
ManifestId = NewType("ManifestId", str)
TraceId = NewType("TraceId", str)
UnixMs = NewType("UnixMs", int)  # u64, milliseconds since 1970

KIB = 1 << 10
MIB = 1 << 20
RPC_BODY_BYTES_MAX = 4 * MIB
EXPLAIN_BODY_BYTES_MAX = 32 * KIB  # in force even with WideFrame (§8.1)
WIDE_BODY_BYTES_MAX = 32 * MIB
WINDOW_BYTES = 64 * KIB  # bodies beyond this are streamed through a window of this size
EXPERIMENTAL = range(0xF0, 0x100)
RETRY_AFTER_MS_MIN = 250  # §11.1


@dataclass(frozen=True, slots=True)
class Dialect:
    """What both peers may use on one connection; the default is a peer with no extension."""

    minor: int = 1
    wide_frame: bool = False
    wide_count: bool = False
    forward_compat: bool = False
    body_bytes_max: int = RPC_BODY_BYTES_MAX


BASELINE = Dialect()


class WireEnum(IntEnum):
    """One `u8` with a stable number."""

    @property
    def spelling(self) -> str:
        """What JSON mirrors emit: the specification's own casing of the name."""
        irregular = _IRREGULAR_SPELLINGS.get((type(self).__name__, self.name))
        return irregular or "".join(word.capitalize() for word in self.name.split("_"))


_IRREGULAR_SPELLINGS = {
    ("DurabilityMode", "GROUP_FSYNC"): "Group-Fsync",
    ("ModeConflictReason", "DURABILITY_MODE_EPOCH"): "durability_mode_epoch",
    ("ModeConflictReason", "STRICT_FALLBACK"): "strict_fallback",
    ("ThrottleReasonCode", "WAL_DEVICE"): "WALDevice",
}


class IoWriterMode(WireEnum):
    """How bytes reach the disk (clustor §9.3): a ring with registered files and buffers, one
    with registered files, or pwrite and fdatasync in a writer thread.
    """

    FIXED_URING = 1
    REGISTERED_URING = 2
    BLOCKING = 3


class DurabilityMode(WireEnum):
    STRICT = 1
    GROUP_FSYNC = 2


class VoteAnnotationCode(WireEnum):
    STRICT_FALLBACK_BARRED = 1


class RollbackReason(WireEnum):
    CATCH_UP_FAILED = 1
    STRUCTURAL_LAG = 2
    SURVIVABILITY_PRECHECK = 3


class SnapshotKindCode(WireEnum):
    FULL = 1
    DELTA = 2


class InstallState(WireEnum):
    RECEIVING = 1
    INSTALLED = 2
    REFUSED = 3


class CacheStateCode(WireEnum):
    FRESH = 1
    CACHED = 2
    STALE = 3
    EXPIRED = 4


class UnavailableReason(WireEnum):
    """The order is ControlPlaneUnavailablePriorityOrder (§5.1)."""

    CACHE_EXPIRED = 1
    CACHE_NOT_FRESH = 2
    NEEDED_FOR_READ_INDEX = 3


class ModeConflictReason(WireEnum):
    DURABILITY_MODE_EPOCH = 1
    STRICT_FALLBACK = 2


class SnapshotInvalidReason(WireEnum):
    TRUST_CACHE = 1
    SCHEMA_BUMP = 2
    EMIT_VERSION = 3
    DEK_EPOCH_ROLLOVER = 4
    DELTA_CHAIN = 5


class ThrottleReasonCode(WireEnum):
    APPLY_BUDGET = 1
    WAL_DEVICE = 2
    FOLLOWER_LAG = 3
    DISK_SOFT = 4
    DISK_HARD = 5
    TENANT_QUOTA = 6
    FRAME_ALIGNMENT = 7
    SNAPSHOT_IMPORT = 8


class CreditHintCode(WireEnum):
    RECOVER = 1
    HOLD = 2
    SHED = 3


class IngestStatusCode(WireEnum):
    ACCEPTING = 1
    THROTTLED = 2
    BLOCKED = 3


class DurabilityStatusCode(WireEnum):
    HEALTHY = 1
    STRICT_FALLBACK = 2
    BLOCKED = 3


class Capability(WireEnum):
    FOLLOWER_READ_SNAPSHOT = 1
    OBSERVER = 2


class RevocationReason(WireEnum):
    STRICT_FALLBACK = 1
    CACHE_NOT_FRESH = 2
    PROOF_MISMATCH = 3
    GUARDRAIL = 4


class QuarantineReasonCode(WireEnum):
    INTEGRITY = 1
    ADMINISTRATIVE = 2
    APPLY_FAULT = 3


class NotLeaderReason(WireEnum):
    FOLLOWER = 1
    CANDIDATE = 2
    STRICT_FALLBACK_BARRED = 3
    QUARANTINED = 4


class SnapshotBlockedReason(WireEnum):
    STRICT_FALLBACK = 1
    CACHE_NOT_FRESH = 2
    QUARANTINED = 3
    BANDWIDTH = 4
    DELTA_CHAIN_ORPHANED = 5
    IMPORT_BUFFER = 6


class NegotiationOutcome(WireEnum):
    AGREED = 1
    REFUSED = 2
