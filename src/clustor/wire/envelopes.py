"""What a node answers when it refuses, throttles or explains (§8.2, §11.1, §13.2).

Every envelope begins with the fields of `EnvelopeHeader`. Lists of ids are pages: sorted,
at most 32, with a token where more would follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from .fields import BYTES, COUNTER32, TEXT, U16, U32, U64, Nested, Optional, RepeatedField, enum
from .pages import IDS_MAX, IdPageBody
from .types import (
    CacheStateCode,
    Capability,
    CreditHintCode,
    DurabilityModeEpoch,
    DurabilityStatusCode,
    IngestStatusCode,
    IoWriterMode,
    LeaseEpoch,
    LogIndex,
    ManifestId,
    ModeConflictReason,
    NotLeaderReason,
    PartitionId,
    QuarantineReasonCode,
    ReplicaId,
    RevocationReason,
    RoutingEpoch,
    SegmentSeq,
    SnapshotBlockedReason,
    SnapshotInvalidReason,
    ThrottleReasonCode,
    TraceId,
    UnavailableReason,
    UnixMs,
)


@dataclass(slots=True)
class EnvelopeHeader:
    """What every envelope says first (§8.2)."""

    schema_version: Annotated[int, U16]
    generated_at: Annotated[UnixMs, U64]
    partition_id: Annotated[PartitionId, U64]
    routing_epoch: Annotated[RoutingEpoch, U64]
    durability_mode_epoch: Annotated[DurabilityModeEpoch, U32]


@dataclass(slots=True)
class RoutingEpochMismatch(EnvelopeHeader):
    """A write or admin call with a stale routing epoch, or (None) without one."""

    expected_routing_epoch: Annotated[RoutingEpoch, U64]
    lease_epoch: Annotated[LeaseEpoch, U64]
    observed_routing_epoch: Annotated[RoutingEpoch | None, Optional(U64)] = None


@dataclass(slots=True)
class ModeConflictEnvelope(EnvelopeHeader):
    """A durability mode epoch that is behind, or a mode that strict fallback forbids (§9.3)."""

    reason: Annotated[ModeConflictReason, enum(ModeConflictReason)]
    observed_durability_mode_epoch: Annotated[DurabilityModeEpoch, U32]
    expected_durability_mode_epoch: Annotated[DurabilityModeEpoch, U32]


@dataclass(slots=True)
class ControlPlaneUnavailable(EnvelopeHeader):
    """A read gate is shut (§10.3). Clients wait at least `retry_after_ms`, never under 250."""

    reason: Annotated[UnavailableReason, enum(UnavailableReason)]
    retry_after_ms: Annotated[int, COUNTER32]
    cache_state: Annotated[CacheStateCode, enum(CacheStateCode)]
    cache_age_ms: Annotated[int, U64]
    decision_trace_id: Annotated[TraceId, TEXT]


@dataclass(slots=True)
class SnapshotFullInvalidated(EnvelopeHeader):
    """A full snapshot may no longer be used."""

    reason: Annotated[SnapshotInvalidReason, enum(SnapshotInvalidReason)]
    manifest_id: Annotated[ManifestId, TEXT]
    base_index: Annotated[LogIndex, U64]


@dataclass(slots=True)
class SnapshotDeltaInvalidated(EnvelopeHeader):
    """An incremental snapshot may no longer be used."""

    reason: Annotated[SnapshotInvalidReason, enum(SnapshotInvalidReason)]
    manifest_id: Annotated[ManifestId, TEXT]
    delta_parent_manifest_id: Annotated[ManifestId, TEXT]
    delta_chain_length: Annotated[int, COUNTER32]


@dataclass(slots=True)
class ThrottleEnvelopeBody(EnvelopeHeader):
    """Ingest is slowed down or stopped: why, for how long, and what is waiting (§11.1)."""

    reason: Annotated[ThrottleReasonCode, enum(ThrottleReasonCode)]
    retry_after_ms: Annotated[int, COUNTER32]
    throttled_ms: Annotated[int, U64]
    backlog_entries: Annotated[int, U64]
    backlog_bytes: Annotated[int, U64]
    entry_credits: Annotated[int, U64]
    byte_credits: Annotated[int, U64]
    credit_hint: Annotated[CreditHintCode, enum(CreditHintCode)]
    ingest_status_code: Annotated[IngestStatusCode, enum(IngestStatusCode)]
    durability_status_code: Annotated[DurabilityStatusCode, enum(DurabilityStatusCode)]
    io_writer_mode: Annotated[IoWriterMode, enum(IoWriterMode)]
    decision_trace_id: Annotated[TraceId, TEXT]
    throttled: Annotated[IdPageBody, Nested(IdPageBody)]


@dataclass(slots=True)
class FollowerCapabilityRevoked(EnvelopeHeader):
    """A capability ended, and with it the RPCs that stood on it (§9.2, §10.3)."""

    capability: Annotated[Capability, enum(Capability)]
    reason: Annotated[RevocationReason, enum(RevocationReason)]


@dataclass(slots=True)
class SnapshotChunkAuthFailureEnvelope(EnvelopeHeader):
    """A snapshot chunk's tag did not authenticate."""

    manifest_id: Annotated[ManifestId, TEXT]
    chunk_id: Annotated[str, TEXT]
    attempt_count: Annotated[int, COUNTER32]


@dataclass(slots=True)
class SnapshotDeltaRetiredEnvelope(EnvelopeHeader):
    """A delta chain ended at its bound; the next snapshot is a full one."""

    manifest_id: Annotated[ManifestId, TEXT]
    delta_chain_length: Annotated[int, COUNTER32]
    since_full_ms: Annotated[int, U64]


@dataclass(slots=True)
class NonceReservationGapWarning(EnvelopeHeader):
    """Reserved block counters that were never used add up (§12.2)."""

    segment_seq: Annotated[SegmentSeq, U64]
    gap_bytes: Annotated[int, U64]
    threshold_bytes: Annotated[int, U64]


@dataclass(slots=True)
class OverrideStrictOnlyBackpressure(EnvelopeHeader):
    """Credits were halved after too long in Strict only, or an override lifted that (§6.3)."""

    strict_only_runtime_ms: Annotated[int, U64]
    bound_ms: Annotated[int, U64]
    override_ref: Annotated[str | None, Optional(TEXT)] = None


@dataclass(slots=True)
class OverrideLedgerEntry(EnvelopeHeader):
    """An operator's signed exception to a guardrail (§9.9, §12.3)."""

    override_id: Annotated[str, TEXT]
    scope: Annotated[str, TEXT]
    actor_id: Annotated[str, TEXT]
    ticket_url: Annotated[str, TEXT]
    justification: Annotated[str, TEXT]
    issued_at: Annotated[UnixMs, U64]
    expires_at: Annotated[UnixMs, U64]
    signature: Annotated[bytes, BYTES]


# Explain: why a partition is not doing what it should.


@dataclass(slots=True)
class GuardrailDelta:
    """A guardrail that took part in a decision: what was seen, and what was allowed."""

    name: Annotated[str, TEXT]
    observed: Annotated[int, U64]
    bound: Annotated[int, U64]


@dataclass(slots=True)
class ExplanationEnvelope(EnvelopeHeader):
    """What all six explanations share (§13.2); `guardrail_deltas` ascend by name."""

    decision_trace_id: Annotated[TraceId, TEXT]
    guardrail_deltas: Annotated[
        list[GuardrailDelta],
        RepeatedField(Nested(GuardrailDelta), items_max=IDS_MAX, ascending=True),
    ]
    involved: Annotated[IdPageBody, Nested(IdPageBody)]


@dataclass(slots=True)
class WhyNotLeader(ExplanationEnvelope):
    reason: Annotated[NotLeaderReason, enum(NotLeaderReason)]
    leader_replica_id: Annotated[ReplicaId | None, Optional(U64)] = None


@dataclass(slots=True)
class WhyCreditZero(ExplanationEnvelope):
    reason: Annotated[ThrottleReasonCode, enum(ThrottleReasonCode)]
    entry_credits: Annotated[int, U64]
    byte_credits: Annotated[int, U64]
    lag_bytes: Annotated[int, U64]


@dataclass(slots=True)
class WhySnapshotBlocked(ExplanationEnvelope):
    reason: Annotated[SnapshotBlockedReason, enum(SnapshotBlockedReason)]
    since_ms: Annotated[UnixMs, U64]


@dataclass(slots=True)
class WhyDiskBlocked(ExplanationEnvelope):
    reason: Annotated[ThrottleReasonCode, enum(ThrottleReasonCode)]
    free_bytes: Annotated[int, U64]
    required_bytes: Annotated[int, U64]


@dataclass(slots=True)
class WhyQuarantinedEnvelope(ExplanationEnvelope):
    reason: Annotated[QuarantineReasonCode, enum(QuarantineReasonCode)]
    since_ms: Annotated[UnixMs, U64]


@dataclass(slots=True)
class WhyCreditHint(ExplanationEnvelope):
    credit_hint: Annotated[CreditHintCode, enum(CreditHintCode)]
    throttle_reason: Annotated[ThrottleReasonCode | None, Optional(enum(ThrottleReasonCode))] = None


Envelope: TypeAlias = (
    RoutingEpochMismatch
    | ModeConflictEnvelope
    | ControlPlaneUnavailable
    | SnapshotFullInvalidated
    | SnapshotDeltaInvalidated
    | ThrottleEnvelopeBody
    | FollowerCapabilityRevoked
    | SnapshotChunkAuthFailureEnvelope
    | SnapshotDeltaRetiredEnvelope
    | NonceReservationGapWarning
    | OverrideStrictOnlyBackpressure
    | OverrideLedgerEntry
    | WhyNotLeader
    | WhyCreditZero
    | WhySnapshotBlocked
    | WhyDiskBlocked
    | WhyQuarantinedEnvelope
    | WhyCreditHint
)
