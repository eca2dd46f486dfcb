"""The words of a group: identifiers, roles, receipts and what a durable tuple is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, TypeAlias

from clustor.log.types import (
    DurabilityModeEpoch,
    IoWriterMode,
    LogId,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)

ReplicaId = NewType("ReplicaId", int)  # u64, 0 is nobody
ReadId = NewType("ReadId", int)  # chosen by the caller, unique among open reads
ReadSeq = NewType("ReadSeq", int)  # counts the rounds in which a leader proves that it leads
WriteSeq = NewType("WriteSeq", int)  # counts the batches handed to the log
HardStateSeq = NewType("HardStateSeq", int)  # counts the hard states handed to the disk
RoutingEpoch = NewType("RoutingEpoch", int)
LeaseEpoch = NewType("LeaseEpoch", int)

NO_INDEX = LogIndex(0)  # before every log
NO_TERM = Term(0)  # before every election
NO_ROUND = ReadSeq(0)
NO_EPOCH = DurabilityModeEpoch(0)
NO_ROUTING = RoutingEpoch(0)

Draw: TypeAlias = Callable[[int, int], int]
"""Chance, given at construction: `draw(low, high)` is uniform and includes both ends."""


class Role(StrEnum):
    FOLLOWER = "Follower"
    PRE_CANDIDATE = "PreCandidate"
    CANDIDATE = "Candidate"
    LEADER = "Leader"


class VoteAnnotation(StrEnum):
    """Why a replica that answers votes does not seek them (clustor §9.1)."""

    NONE = "None"
    STRICT_FALLBACK_BARRED = "StrictFallbackBarred"


class CommitVisibility(StrEnum):
    DURABLE_ONLY = "DurableOnly"
    COMMIT_ALLOWS_PRE_DURABLE = "CommitAllowsPreDurable"


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """Who this replica is, from a file that outlives its log.

    `holds_data` becomes True, durably, after the first hard state is durable and before its
    receipt is handed to the group: whatever others heard from this replica, they heard later,
    and from then on an empty disk means a lost one, never a new replica.
    """

    replica_id: ReplicaId
    partition_id: PartitionId
    log_id: LogId
    holds_data: bool


@dataclass(slots=True)
class DurabilityTuple:
    """A ledger record as proofs compare it: clustor §9.8's equality subset."""

    term: Term
    index: LogIndex
    segment_seq: SegmentSeq
    io_writer_mode: IoWriterMode
    durability_mode_epoch: DurabilityModeEpoch

    def rank(self) -> tuple[int, int, int, int]:
        """Return the key on which proofs of one partition are strictly monotone."""
        return (self.term, self.index, self.segment_seq, self.durability_mode_epoch)


@dataclass(slots=True)
class LogStored:
    """The log's receipt: everything through `write_seq` is durable, ledger record included.

    `term` and `index` name the last entry that the receipt covers.
    """

    write_seq: WriteSeq
    term: Term
    index: LogIndex
    segment_seq: SegmentSeq
    io_writer_mode: IoWriterMode


@dataclass(slots=True)
class HardStateStored:
    """The hard state numbered `seq`, and every one before it, is durable."""

    seq: HardStateSeq


Receipt: TypeAlias = LogStored | HardStateStored
