"""What replicas of a group say to each other, and the system entries of their log.

Each class is its own wire declaration (see `fields`). The stream header carries the sender's
term and durability mode epoch for every message (§7.1), so bodies do not repeat them; the
`term` in the four vote messages is the term that the vote is about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from .fields import (
    BYTES,
    CRC32C,
    DIGEST,
    FLAG,
    TEXT,
    U32,
    U64,
    Nested,
    Optional,
    RepeatedField,
    Tail,
    enum,
)
from .types import (
    Buffer,
    DurabilityMode,
    DurabilityModeEpoch,
    InstallState,
    IoWriterMode,
    LeaseEpoch,
    LogIndex,
    ManifestId,
    PartitionId,
    ReplicaId,
    RollbackReason,
    RoutingEpoch,
    SegmentSeq,
    SnapshotKindCode,
    Term,
    VoteAnnotationCode,
)

_REPLICAS = RepeatedField(U64, wide_count=True)
_MEMBERS = RepeatedField(U64, ascending=True)


# System log entries: the payload of an entry whose kind is the message id.


@dataclass(slots=True)
class MembershipChange:
    """Enter the joint configuration of both lists (§9.9)."""

    old_members: Annotated[list[ReplicaId], _REPLICAS]
    new_members: Annotated[list[ReplicaId], _REPLICAS]
    routing_epoch: Annotated[RoutingEpoch, U64]
    placement_digest: Annotated[bytes, DIGEST]


@dataclass(slots=True)
class MembershipRollback:
    """Leave the joint configuration for the old one (§9.9)."""

    reason: Annotated[RollbackReason, enum(RollbackReason)]
    failing_nodes: Annotated[list[ReplicaId], _REPLICAS]
    override_ref: Annotated[str | None, Optional(TEXT)] = None


@dataclass(slots=True)
class DurabilityTransitionBody:
    """Fence the change of durability mode: no batch spans `effective_index` (§7.1, §7.2)."""

    from_mode: Annotated[DurabilityMode, enum(DurabilityMode)]
    to_mode: Annotated[DurabilityMode, enum(DurabilityMode)]
    durability_mode_epoch: Annotated[DurabilityModeEpoch, U32]
    effective_index: Annotated[LogIndex, U64]


@dataclass(slots=True)
class FenceCommit:
    """Fence a region before disaster recovery promotes its standby (§9.9).

    Nothing above `fenced_index` was acknowledged under the fenced epochs.
    """

    fence_id: Annotated[str, TEXT]
    fenced_term: Annotated[Term, U64]
    fenced_index: Annotated[LogIndex, U64]
    routing_epoch: Annotated[RoutingEpoch, U64]
    durability_mode_epoch: Annotated[DurabilityModeEpoch, U32]
    membership_digest: Annotated[bytes, DIGEST]


@dataclass(slots=True)
class DefineActivateBody:
    """Activate a definition bundle behind its barrier (§9.7, §14.2)."""

    bundle_id: Annotated[str, TEXT]
    barrier_id: Annotated[str, TEXT]
    bundle_version: Annotated[int, U64]
    bundle_sha256: Annotated[bytes, DIGEST]
    readiness_digest: Annotated[bytes, DIGEST]


# Raft messages.


@dataclass(slots=True)
class HeartbeatMetadata:
    """What a replica says of itself with every heartbeat and its answer (§9.3, §5.1)."""

    io_writer_mode: Annotated[IoWriterMode, enum(IoWriterMode)]
    applied_index: Annotated[LogIndex, U64]
    local_wal_durable_index: Annotated[LogIndex, U64]
    sm_durable_index: Annotated[LogIndex, U64]


@dataclass(slots=True)
class PreVoteRequestBody:
    """Ask whether an election in `term`, one above the sender's, could be won."""

    term: Annotated[Term, U64]
    last_log_index: Annotated[LogIndex, U64]
    last_log_term: Annotated[Term, U64]


@dataclass(slots=True)
class PreVoteResponseBody:
    """`high_rtt` asks the candidate for a wider election window (§9.2); None says nothing."""

    term: Annotated[Term, U64]
    vote_granted: Annotated[bool, FLAG]
    high_rtt: Annotated[bool | None, Tail(FLAG, since_minor=1)] = None


@dataclass(slots=True)
class RequestVoteRequest:
    """Ask for the vote in `term`; a leadership transfer overrides leader stickiness."""

    term: Annotated[Term, U64]
    last_log_index: Annotated[LogIndex, U64]
    last_log_term: Annotated[Term, U64]
    leadership_transfer: Annotated[bool, FLAG]


@dataclass(slots=True)
class RequestVoteResponse:
    """`vote_annotation` says why the voter itself does not campaign (§9.1)."""

    term: Annotated[Term, U64]
    vote_granted: Annotated[bool, FLAG]
    vote_annotation: Annotated[
        VoteAnnotationCode | None, Tail(enum(VoteAnnotationCode), since_minor=1)
    ] = None


@dataclass(slots=True)
class AppendEntriesRequest:
    """Entries after `prev_log_index`, each an opaque slice; none of them is a heartbeat too.

    `round_number` names the round that a ReadIndex waits for. `sent_ms` is the leader's own
    clock and comes back in the answer; `rtt_ms` tells the follower what it measured with it.
    """

    prev_log_index: Annotated[LogIndex, U64]
    prev_log_term: Annotated[Term, U64]
    raft_commit_index: Annotated[LogIndex, U64]
    wal_committed_index: Annotated[LogIndex, U64]
    lease_epoch: Annotated[LeaseEpoch, U64]
    round_number: Annotated[int, U64]
    sent_ms: Annotated[int, U64]
    rtt_ms: Annotated[int, U64]
    quorum_applied_index: Annotated[LogIndex, U64]
    quorum_sm_durable_index: Annotated[LogIndex, U64]
    entries: Annotated[list[Buffer], RepeatedField(BYTES, wide_count=True)] = field(
        default_factory=list
    )


@dataclass(slots=True)
class AppendEntriesResponse:
    """`last_log_index` matches the leader when `success`; else the conflict says where to go on.

    It says nothing of durability: that is `DurabilityAckBody`'s alone. `prev_log_index`,
    `round_number` and `sent_ms` repeat those of the request. `installing` says
    that a snapshot is on its way in, `rejoining` that the disk was lost and what this replica
    said before holds no more.
    """

    success: Annotated[bool, FLAG]
    last_log_index: Annotated[LogIndex, U64]
    prev_log_index: Annotated[LogIndex, U64]
    round_number: Annotated[int, U64]
    sent_ms: Annotated[int, U64]
    applied_index: Annotated[LogIndex, U64]
    sm_durable_index: Annotated[LogIndex, U64]
    io_writer_mode: Annotated[IoWriterMode, enum(IoWriterMode)]
    installing: Annotated[bool, FLAG]
    rejoining: Annotated[bool, FLAG]
    conflict_index: Annotated[LogIndex | None, Optional(U64)] = None
    conflict_term: Annotated[Term | None, Optional(U64)] = None


@dataclass(slots=True)
class Heartbeat:
    """Keep leadership alive; `round_number` names the round that a ReadIndex waits for."""

    round_number: Annotated[int, U64]
    raft_commit_index: Annotated[LogIndex, U64]
    wal_committed_index: Annotated[LogIndex, U64]
    lease_epoch: Annotated[LeaseEpoch, U64]
    metadata: Annotated[HeartbeatMetadata, Nested(HeartbeatMetadata)]


@dataclass(slots=True)
class HeartbeatResponse:
    """Answer the heartbeat of `round_number`."""

    round_number: Annotated[int, U64]
    lease_epoch: Annotated[LeaseEpoch, U64]
    metadata: Annotated[HeartbeatMetadata, Nested(HeartbeatMetadata)]


@dataclass(slots=True)
class DurabilityAckBody:
    """Attest that everything up to `last_fsynced_index` is on this replica's disk (§7.1).

    Sent only after both syncs of §10.5. The leader binds it to the term in the stream header.
    """

    partition_id: Annotated[PartitionId, U64]
    replica_id: Annotated[ReplicaId, U64]
    last_fsynced_index: Annotated[LogIndex, U64]
    segment_seq: Annotated[SegmentSeq, U64]
    io_writer_mode: Annotated[IoWriterMode, enum(IoWriterMode)]


@dataclass(slots=True)
class RepairingAck(DurabilityAckBody):
    """Attest less than before: the sender found damage, and its index may have gone back."""


@dataclass(slots=True)
class InstallSnapshotBegin:
    """Offer a snapshot; `manifest` is its signed canonical JSON (§7.1, §9.5)."""

    manifest_id: Annotated[ManifestId, TEXT]
    base_term: Annotated[Term, U64]
    base_index: Annotated[LogIndex, U64]
    snapshot_kind: Annotated[SnapshotKindCode, enum(SnapshotKindCode)]
    total_bytes: Annotated[int, U64]
    manifest: Annotated[Buffer, BYTES]


@dataclass(slots=True)
class InstallSnapshotChunk:
    """Bytes of the chunk `chunk_ordinal` of the manifest, from `offset` within that chunk.

    `data_crc32c` lets the receiver refuse a damaged part at once: the chunk authenticates only
    when it is whole.
    """

    manifest_id: Annotated[ManifestId, TEXT]
    chunk_ordinal: Annotated[int, U32]
    offset: Annotated[int, U64]
    is_last: Annotated[bool, FLAG]
    data_crc32c: Annotated[int, CRC32C]
    data: Annotated[Buffer, BYTES]


@dataclass(slots=True)
class InstallSnapshotResponse:
    """Say what is still wanted: the chunk and the offset within it."""

    manifest_id: Annotated[ManifestId, TEXT]
    state: Annotated[InstallState, enum(InstallState)]
    next_chunk_ordinal: Annotated[int, U32]
    next_offset: Annotated[int, U64]


@dataclass(slots=True)
class TimeoutNowBody:
    """Let the receiver campaign at once: the leader hands over to it."""


@dataclass(slots=True)
class TransferLeader:
    """Ask the leader to hand over to `target_replica_id` within `deadline_ms` (§9.2, §14.3)."""

    target_replica_id: Annotated[ReplicaId, U64]
    deadline_ms: Annotated[int, U64]


@dataclass(slots=True)
class MembersBody:
    """A configuration: who votes, learns and watches; joint while `outgoing` is not empty."""

    voters: Annotated[list[ReplicaId], _MEMBERS]
    outgoing: Annotated[list[ReplicaId], _MEMBERS]
    learners: Annotated[list[ReplicaId], _MEMBERS]
    learners_next: Annotated[list[ReplicaId], _MEMBERS]
    observers: Annotated[list[ReplicaId], _MEMBERS]
    auto_leave: Annotated[bool, FLAG]


@dataclass(slots=True)
class OfferSnapshot:
    """Say which snapshot is to be installed, and what was committed at its base (§9.5)."""

    base_term: Annotated[Term, U64]
    base_index: Annotated[LogIndex, U64]
    members: Annotated[MembersBody, Nested(MembersBody)]
    members_index: Annotated[LogIndex, U64]
    routing_epoch: Annotated[RoutingEpoch, U64]
    durability_mode: Annotated[DurabilityMode, enum(DurabilityMode)]
    committed_epoch: Annotated[DurabilityModeEpoch, U32]


@dataclass(slots=True)
class OfferSnapshotResponse:
    """The snapshot at `base_index` is installed and durable, or could not be."""

    base_index: Annotated[LogIndex, U64]
    installed: Annotated[bool, FLAG]


@dataclass(slots=True)
class EpochConflict:
    """The receiver spoke under an older durability mode epoch than the route says is committed."""


@dataclass(slots=True)
class RepairRequestBody:
    """Ask for these entries again: the sender's own are damaged (§9.4)."""

    first_index: Annotated[LogIndex, U64]
    last_index: Annotated[LogIndex, U64]


@dataclass(slots=True)
class RepairEntriesBody:
    """Entries from an undamaged log, each an opaque slice."""

    entries: Annotated[list[Buffer], RepeatedField(BYTES, wide_count=True)]


@dataclass(slots=True)
class SnapshotTransfer:
    """One step of a snapshot's way to a replica that asked for it; the replicas know its form."""

    data: Annotated[Buffer, BYTES]


@dataclass(slots=True)
class ServiceMessage:
    """What a service on one node says to the same service on another; only they know its form."""

    data: Annotated[Buffer, BYTES]


SystemEntry: TypeAlias = (
    MembershipChange
    | MembershipRollback
    | DurabilityTransitionBody
    | FenceCommit
    | DefineActivateBody
)
RaftMessage: TypeAlias = (
    PreVoteRequestBody
    | PreVoteResponseBody
    | RequestVoteRequest
    | RequestVoteResponse
    | AppendEntriesRequest
    | AppendEntriesResponse
    | Heartbeat
    | HeartbeatResponse
    | DurabilityAckBody
    | InstallSnapshotBegin
    | InstallSnapshotChunk
    | InstallSnapshotResponse
    | TimeoutNowBody
    | TransferLeader
    | OfferSnapshot
    | OfferSnapshotResponse
    | EpochConflict
    | RepairRequestBody
    | RepairEntriesBody
    | RepairingAck
    | SnapshotTransfer
    | ServiceMessage
)
