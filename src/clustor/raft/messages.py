"""What replicas of one group say to each other.

Every message says the sender's term. `durability_mode_epoch` is the newest epoch in the
sender's log: a receiver that has committed a newer one answers `ModeConflict` (clustor §7.1).
A signature or a checksum is not here: the transport proves who speaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    IoWriterMode,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.raft.membership import Membership
from clustor.raft.types import LeaseEpoch, ReadSeq, ReplicaId, RoutingEpoch, VoteAnnotation


@dataclass(slots=True)
class PreVoteRequest:
    """Would you vote for me in `term`? Nobody's term changes by asking."""

    term: Term
    sender: ReplicaId
    last_log_term: Term
    last_log_index: LogIndex
    durability_mode_epoch: DurabilityModeEpoch


@dataclass(slots=True)
class PreVoteResponse:
    """A grant repeats the term that was asked for; a refusal says the refuser's own.

    `high_rtt` is None from a peer that does not send the extension (clustor §8.2).
    """

    term: Term
    sender: ReplicaId
    vote_granted: bool
    high_rtt: bool | None = None
    vote_annotation: VoteAnnotation = VoteAnnotation.NONE


@dataclass(slots=True)
class VoteRequest:
    """`transfer` is set by a candidate that the leader itself sent (TimeoutNow)."""

    term: Term
    sender: ReplicaId
    last_log_term: Term
    last_log_index: LogIndex
    durability_mode_epoch: DurabilityModeEpoch
    transfer: bool = False


@dataclass(slots=True)
class VoteResponse:
    term: Term
    sender: ReplicaId
    vote_granted: bool
    vote_annotation: VoteAnnotation = VoteAnnotation.NONE


@dataclass(slots=True)
class AppendEntries:
    """Entries after `(prev_log_term, prev_log_index)`, or none as a heartbeat.

    `read_seq` and `sent_ms` come back in the response: they prove that the leader led when it
    sent this, and measure the way there and back. `rtt_ms` tells the follower that measure.
    """

    term: Term
    sender: ReplicaId
    prev_log_term: Term
    prev_log_index: LogIndex
    entries: list[Entry]
    commit_index: LogIndex
    wal_committed_index: LogIndex
    durability_mode_epoch: DurabilityModeEpoch
    read_seq: ReadSeq
    sent_ms: int
    rtt_ms: int
    lease_epoch: LeaseEpoch
    quorum_applied_index: LogIndex  # what compaction may rest on (clustor §9.6)
    quorum_sm_durable_index: LogIndex


@dataclass(slots=True)
class AppendResponse:
    """How far the follower's log equals the leader's, durably.

    A refusal repeats `prev_log_index` and says where to go back to: the first index that the
    follower holds of `conflict_term`, or the index after its last one (`conflict_term` 0).
    """

    term: Term
    sender: ReplicaId
    ok: bool
    match_index: LogIndex
    prev_log_index: LogIndex
    conflict_term: Term
    conflict_index: LogIndex
    read_seq: ReadSeq
    sent_ms: int
    applied_index: LogIndex
    sm_durable_index: LogIndex
    io_writer_mode: IoWriterMode
    installing: bool = False  # a snapshot is on its way in
    rejoining: bool = False  # the disk was lost: what this replica said before holds no more


@dataclass(slots=True)
class DurabilityAck:
    """Everything through `last_fsynced_index` matches the leader's log and is on disk here.

    `repairing` is set by a replica that found damage below what it acknowledged before: its
    index may go back, and the leader must believe it.
    """

    term: Term
    partition_id: PartitionId
    sender: ReplicaId
    last_fsynced_index: LogIndex
    segment_seq: SegmentSeq
    io_writer_mode: IoWriterMode
    repairing: bool = False


@dataclass(slots=True)
class InstallSnapshot:
    """Take the snapshot at `(base_term, base_index)`; its bytes travel beside the group."""

    term: Term
    sender: ReplicaId
    base_term: Term
    base_index: LogIndex
    configuration: Membership
    configuration_index: LogIndex
    routing_epoch: RoutingEpoch
    durability_mode: DurabilityMode  # committed, as is the next
    committed_epoch: DurabilityModeEpoch
    durability_mode_epoch: DurabilityModeEpoch


@dataclass(slots=True)
class SnapshotResponse:
    """The snapshot at `base_index` is installed and durable, or could not be."""

    term: Term
    sender: ReplicaId
    base_index: LogIndex
    ok: bool


@dataclass(slots=True)
class TimeoutNow:
    """Campaign at once: the leader hands over."""

    term: Term
    sender: ReplicaId


@dataclass(slots=True)
class ModeConflict:
    """Your message carried an older durability mode epoch than I have committed."""

    term: Term
    sender: ReplicaId
    durability_mode_epoch: DurabilityModeEpoch


@dataclass(slots=True)
class RepairRequest:
    """Send me these entries again: mine are damaged."""

    term: Term
    sender: ReplicaId
    first_index: LogIndex
    last_index: LogIndex


@dataclass(slots=True)
class RepairEntries:
    """Entries from an undamaged log, to be believed where index and term are known."""

    term: Term
    sender: ReplicaId
    entries: list[Entry] = field(default_factory=list)


Message: TypeAlias = (
    PreVoteRequest
    | PreVoteResponse
    | VoteRequest
    | VoteResponse
    | AppendEntries
    | AppendResponse
    | DurabilityAck
    | InstallSnapshot
    | SnapshotResponse
    | TimeoutNow
    | ModeConflict
    | RepairRequest
    | RepairEntries
)
Outbound: TypeAlias = tuple[ReplicaId, Message]
"""A message and whom it is for."""
