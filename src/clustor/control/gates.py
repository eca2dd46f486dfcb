"""What a node may do at which age of its cache: the specifications' tables, as data.

Each table stands here once, row by row as in the text; what decides by them looks them up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from clustor.control.commands import CacheFreshness
from clustor.control.draft import DraftReading, find
from clustor.control.features import Feature, FeatureGate, GateState
from clustor.raft.control_plane import CacheState
from clustor.raft.reads import FailedClause, ReadRefusal

RETRY_AFTER_MS_MIN: Final = 250  # clustor §11.1


# Clustor §14.2: the mode truth table, and the cache states' allowed operations.


class WriteRule(StrEnum):
    CONFIGURED = "ConfiguredMode"
    STRICT = "StrictOnly"  # and `commit_visibility` behaves as DurableOnly


class SnapshotReadRule(StrEnum):
    APPLIED_INDEX = "ClampedToAppliedIndex"
    BEFORE_EXPIRY = "ClampedToLastVerifiedBeforeExpiry"


@dataclass(frozen=True, slots=True)
class ModeRow:
    """One cache state. `read_index` is the refusal, or None where the read gate decides."""

    writes: WriteRule
    read_index: ReadRefusal | None
    snapshot_reads: SnapshotReadRule
    admin_calls: bool
    capability_grants: bool  # of follower reads and observers, anew
    capabilities_kept: bool  # that were granted before; observers also need a Fresh cache (§10.3)
    incremental_snapshots: bool
    forces_strict_fallback: bool
    cache_warning: bool


MODE_TRUTH_TABLE: Final[Mapping[CacheState, ModeRow]] = {
    CacheState.FRESH: ModeRow(
        writes=WriteRule.CONFIGURED,
        read_index=None,
        snapshot_reads=SnapshotReadRule.APPLIED_INDEX,
        admin_calls=True,
        capability_grants=True,
        capabilities_kept=True,
        incremental_snapshots=True,
        forces_strict_fallback=False,
        cache_warning=False,
    ),
    CacheState.CACHED: ModeRow(
        writes=WriteRule.CONFIGURED,
        read_index=None,
        snapshot_reads=SnapshotReadRule.APPLIED_INDEX,
        admin_calls=True,
        capability_grants=False,
        capabilities_kept=True,
        incremental_snapshots=True,
        forces_strict_fallback=False,
        cache_warning=True,
    ),
    CacheState.STALE: ModeRow(
        writes=WriteRule.STRICT,
        read_index=ReadRefusal.CACHE_NOT_FRESH,
        snapshot_reads=SnapshotReadRule.APPLIED_INDEX,
        admin_calls=True,
        capability_grants=False,
        capabilities_kept=False,
        incremental_snapshots=False,
        forces_strict_fallback=True,
        cache_warning=True,
    ),
    CacheState.EXPIRED: ModeRow(
        writes=WriteRule.STRICT,
        read_index=ReadRefusal.CACHE_EXPIRED,
        snapshot_reads=SnapshotReadRule.BEFORE_EXPIRY,
        admin_calls=False,
        capability_grants=False,
        capabilities_kept=False,
        incremental_snapshots=False,
        forces_strict_fallback=True,
        cache_warning=True,
    ),
}


# Clustor §5.1: ControlPlaneUnavailablePriorityOrder.

UNAVAILABLE_PRIORITY: Final = (
    ReadRefusal.CACHE_EXPIRED,
    ReadRefusal.CACHE_NOT_FRESH,
    ReadRefusal.NEEDED_FOR_READ_INDEX,
)

REASON_OF_CLAUSE: Final[Mapping[FailedClause, ReadRefusal]] = {
    FailedClause.CONTROL_PLANE_CACHE_EXPIRED: ReadRefusal.CACHE_EXPIRED,
    FailedClause.CONTROL_PLANE_CACHE_STALE: ReadRefusal.CACHE_NOT_FRESH,
    FailedClause.STRICT_FALLBACK: ReadRefusal.NEEDED_FOR_READ_INDEX,
    FailedClause.COMMIT_VISIBILITY: ReadRefusal.NEEDED_FOR_READ_INDEX,
    FailedClause.CONTROL_PLANE_PROOF_MISMATCH: ReadRefusal.NEEDED_FOR_READ_INDEX,
    FailedClause.INDEX_INEQUALITY: ReadRefusal.NEEDED_FOR_READ_INDEX,
    FailedClause.LEADERSHIP_UNCONFIRMED: ReadRefusal.NEEDED_FOR_READ_INDEX,
}


def unavailable_reason(failed: Collection[FailedClause]) -> ReadRefusal | None:
    """Name the reason of ControlPlaneUnavailable for clauses that failed; None if none did."""
    reasons = {REASON_OF_CLAUSE[clause] for clause in failed if clause is not FailedClause.NONE}
    return next((reason for reason in UNAVAILABLE_PRIORITY if reason in reasons), None)


# Clustor §10.3: read availability across modes.


class GateReader(StrEnum):
    LEADER_LINEARIZABLE = "LeaderReadIndexOrLease"
    LEADER_SNAPSHOT_ONLY = "LeaderSnapshotOnly"
    FOLLOWER_SNAPSHOT_ONLY = "FollowerSnapshotOnly"
    OBSERVER_STREAM = "ObserverStream"


class ReadRule(StrEnum):
    WHEN_GATE_PASSES = "WhenReadGatePasses"
    CLAMPED = "ClampedToAppliedIndex"
    WITH_CAPABILITY = "WithFollowerReadCapability"
    WHILE_FRESH = "WhileCacheFresh"
    NEEDED_FOR_READ_INDEX = "ControlPlaneUnavailable{NeededForReadIndex}"
    CAPABILITY_REVOKED = "FollowerCapabilityRevoked"
    OBSERVER_REVOKED = "ObserverRevoked"


READ_AVAILABILITY: Final[Mapping[tuple[GateReader, bool], ReadRule]] = {
    # (reader, strict fallback)
    (GateReader.LEADER_LINEARIZABLE, False): ReadRule.WHEN_GATE_PASSES,
    (GateReader.LEADER_LINEARIZABLE, True): ReadRule.NEEDED_FOR_READ_INDEX,
    (GateReader.LEADER_SNAPSHOT_ONLY, False): ReadRule.CLAMPED,
    (GateReader.LEADER_SNAPSHOT_ONLY, True): ReadRule.CLAMPED,
    (GateReader.FOLLOWER_SNAPSHOT_ONLY, False): ReadRule.WITH_CAPABILITY,
    (GateReader.FOLLOWER_SNAPSHOT_ONLY, True): ReadRule.CAPABILITY_REVOKED,
    (GateReader.OBSERVER_STREAM, False): ReadRule.WHILE_FRESH,
    (GateReader.OBSERVER_STREAM, True): ReadRule.OBSERVER_REVOKED,
}


# Calls to the control plane, by how fresh the node's cache is (clustor §14.2; qq §§8.7, 19.2).

_CALLS: Final[Mapping[CacheFreshness, Mapping[CacheState, ReadRefusal | None]]] = {
    CacheFreshness.FRESH: {
        CacheState.FRESH: None,
        CacheState.CACHED: ReadRefusal.CACHE_NOT_FRESH,
        CacheState.STALE: ReadRefusal.CACHE_NOT_FRESH,
        CacheState.EXPIRED: ReadRefusal.CACHE_EXPIRED,
    },
    CacheFreshness.NOT_EXPIRED: {
        CacheState.FRESH: None,
        CacheState.CACHED: None,
        CacheState.STALE: None,
        CacheState.EXPIRED: ReadRefusal.CACHE_EXPIRED,
    },
    CacheFreshness.ANY: dict.fromkeys(CacheState),
}


def call_refusal(freshness: CacheFreshness, cache: CacheState) -> ReadRefusal | None:
    """Say why a node whose cache is this old refuses a call; None: it passes it on."""
    return _CALLS[freshness][cache]


# Clustor §14.2: feature gates, as a node applies them.


def feature_is_on(
    store: DraftReading,
    name: Feature,
    predicate_digest: bytes,
    *,
    cache: CacheState,
    strict_fallback: bool,
) -> bool:
    """Say whether a feature may be on here; `predicate_digest` is that of this node's build."""
    gate = find(store, FeatureGate, name.value)
    if gate is None or strict_fallback or MODE_TRUTH_TABLE[cache].forces_strict_fallback:
        return False
    return gate.state is GateState.ENABLED and gate.predicate_digest == predicate_digest


# Clustor §12.3: RBAC manifests.

RBAC_REFRESH_MS: Final = 30_000
RBAC_GRACE_MS: Final = 60_000


class RbacRule(StrEnum):
    AVAILABLE = "Available"
    READS_ONLY = "ReadsOnly"  # RBACUnavailable for what mutates
    UNAVAILABLE = "RBACUnavailable"


def rbac_rule(age_ms: int) -> RbacRule:
    """Say what a manifest of this age still allows: two missed refreshes, then the grace."""
    if age_ms <= 2 * RBAC_REFRESH_MS:
        return RbacRule.AVAILABLE
    if age_ms <= 2 * RBAC_REFRESH_MS + RBAC_GRACE_MS:
        return RbacRule.READS_ONLY
    return RbacRule.UNAVAILABLE
