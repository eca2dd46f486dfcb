"""The words of the control plane: names, roles, scopes, purposes, and why a call was refused."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, TypeAlias

import msgspec

# Far below what JSON can carry exactly, so that canonical JSON holds for every number (RFC 8785).
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
STAMP_MAX: Final = 2**52
Stamp: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=STAMP_MAX)]
"""A moment of a call: whatever duration is added to it stays a Count."""
Ratio: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
"""A share in millionths: canonical JSON and floats do not go together."""

# `$` alone would let a newline pass at the end.
Name: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)", max_length=128)
]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
Identity: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Digest: TypeAlias = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]

MILLION: Final = 1_000_000
CLOCK_SKEW_MS: Final = 5_000  # clustor §12.3
BREAK_GLASS_TTL_MS_MAX: Final = 300_000  # clustor §12.3


class AccessRole(StrEnum):
    """Clustor §12.3's four, and the cluster's own nodes."""

    OPERATOR = "Operator"
    TENANT_ADMIN = "TenantAdmin"
    OBSERVER = "Observer"
    BREAK_GLASS = "BreakGlass"
    NODE = "Node"


class OverrideScope(StrEnum):
    """What a break-glass token may override (clustor §12.3; §8.2.1 of quantumqtt for capacity)."""

    DURABILITY = "Durability"
    SURVIVABILITY = "Survivability"
    CREDIT = "Credit"
    SNAPSHOT = "Snapshot"
    QUARANTINE = "Quarantine"
    CAPACITY = "Capacity"


class KeyPurpose(StrEnum):
    """The registry of clustor §12.4."""

    RELEASE_AUTOMATION = "ReleaseAutomationKey"
    CP_RELEASE = "CPReleaseKey"
    CONTROL_PLANE_PROOF = "ControlPlaneProofKey"
    SNAPSHOT_MANIFEST = "SnapshotManifestKey"
    AUDIT_LOG = "AuditLogKey"
    BREAK_GLASS_CA = "BreakGlassTokenCA"


class WriterMode(StrEnum):
    """`io_writer_mode` as JSON spells it; `IoWriterMode[mode.name]` is the wire's."""

    FIXED_URING = "FixedUring"
    REGISTERED_URING = "RegisteredUring"
    BLOCKING = "Blocking"


class ModeName(StrEnum):
    """`durability_mode` as JSON spells it; `DurabilityMode[mode.name]` is the wire's."""

    STRICT = "Strict"
    GROUP_FSYNC = "Group-Fsync"


class RefusalCode(StrEnum):
    """Why a call was refused. Spellings are on the wire: never reuse one."""

    MALFORMED = "Malformed"
    NOT_INITIALIZED = "NotInitialized"
    ALREADY_INITIALIZED = "AlreadyInitialized"
    UNAUTHORIZED = "Unauthorized"
    BREAK_GLASS_REFUSED = "BreakGlassRefused"
    REQUEST_ID_REUSED = "RequestIdReused"
    BUSY = "ControlPlaneBusy"
    NOT_FOUND = "NotFound"
    ALREADY_EXISTS = "AlreadyExists"
    CONFLICT = "Conflict"  # `expected` is not what stands
    INVALID = "Invalid"
    IN_USE = "InUse"
    CAPACITY_EXCEEDED = "CapacityExceeded"
    ROUTING_EPOCH_MISMATCH = "RoutingEpochMismatch"
    MODE_CONFLICT = "ModeConflict"
    UTILIZATION_EXCEEDED = "UtilizationExceeded"
    NOT_SURVIVABLE = "NotSurvivable"
    PLACEMENT_DIGEST_MISMATCH = "PlacementDigestMismatch"
    MEMBERSHIP_MISMATCH = "MembershipMismatch"
    OVERRIDE_REFUSED = "OverrideRefused"
    BAD_SIGNATURE = "BadSignature"
    KEY_EPOCH_REPLAY = "KeyEpochReplay"
    PREDICATE_MISMATCH = "PredicateMismatch"
    NOT_SUPPORTED = "NotSupported"  # by every node that would need it
    NOT_READY = "NotReady"
    ACTIVATION_BARRIER_EXPIRED = "ActivationBarrierExpired"
    FENCE_INCOMPLETE = "FenceIncomplete"
    PROOF_CONFLICT = "ControlPlaneProofConflict"
