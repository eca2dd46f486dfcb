"""The read gate: who may read what, decided exactly as clustor §10.3 words it.

A linearizable read captures the commit index, then waits for three things: a quorum that still
follows this leader, that index durable on a quorum, and a published proof at or above it that
equals a tuple on the leader's own ledger (C7).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from clustor.log.types import LogIndex
from clustor.raft.control_plane import CacheState
from clustor.raft.types import CommitVisibility, DurabilityTuple, ReadId, ReadSeq


class ReadKind(StrEnum):
    READ_INDEX = "ReadIndex"
    LEASE = "Lease"
    SNAPSHOT_ONLY = "SnapshotOnly"
    QUORUM = "Quorum"
    """Newest by a quorum's word, without a proof: the control plane has nobody else to ask."""


class FailedClause(StrEnum):
    NONE = "None"
    CONTROL_PLANE_CACHE_EXPIRED = "ControlPlaneCacheExpired"
    CONTROL_PLANE_CACHE_STALE = "ControlPlaneCacheStale"
    STRICT_FALLBACK = "StrictFallback"
    COMMIT_VISIBILITY = "CommitVisibility"
    CONTROL_PLANE_PROOF_MISMATCH = "ControlPlaneProofMismatch"
    INDEX_INEQUALITY = "IndexInequality"
    LEADERSHIP_UNCONFIRMED = "LeadershipUnconfirmed"  # no quorum answered before the deadline


class ReadRefusal(StrEnum):
    """What the caller is told; the first three are ControlPlaneUnavailable's reasons."""

    CACHE_EXPIRED = "CacheExpired"
    CACHE_NOT_FRESH = "CacheNotFresh"
    NEEDED_FOR_READ_INDEX = "NeededForReadIndex"
    NOT_LEADER = "NotLeader"
    LEASES_DISABLED = "LeasesDisabled"
    FOLLOWER_CAPABILITY_REVOKED = "FollowerCapabilityRevoked"
    MEMBERSHIP_UNACKNOWLEDGED = "MembershipUnacknowledged"
    OVERLOADED = "Overloaded"


@dataclass(slots=True)
class ReadRequest:
    read_id: ReadId
    kind: ReadKind
    deadline_ms: int


@dataclass(slots=True)
class ReadGranted:
    """Serve the read from a state machine that has applied at least `index`."""

    read_id: ReadId
    kind: ReadKind
    index: LogIndex


@dataclass(slots=True)
class ReadRefused:
    read_id: ReadId
    refusal: ReadRefusal
    failed_clause: FailedClause = FailedClause.NONE


@dataclass(slots=True)
class ReadGateState:
    """What the predicate looks at; field names are the specification's."""

    cache_state: CacheState
    strict_fallback: bool
    commit_visibility: CommitVisibility
    controlplane_proof_tuple: DurabilityTuple | None
    last_quorum_fsynced_tuple: DurabilityTuple | None
    wal_committed_index: LogIndex
    raft_commit_index: LogIndex


def read_gate_predicate(state: ReadGateState) -> FailedClause:
    """Name the first clause that fails, or NONE when a linearizable read may be served."""
    if state.cache_state is CacheState.EXPIRED:
        return FailedClause.CONTROL_PLANE_CACHE_EXPIRED
    if state.cache_state is CacheState.STALE:
        return FailedClause.CONTROL_PLANE_CACHE_STALE
    if state.strict_fallback:
        return FailedClause.STRICT_FALLBACK
    if state.commit_visibility is not CommitVisibility.DURABLE_ONLY:
        return FailedClause.COMMIT_VISIBILITY
    proof = state.controlplane_proof_tuple
    if proof is None or proof != state.last_quorum_fsynced_tuple:
        return FailedClause.CONTROL_PLANE_PROOF_MISMATCH
    if state.wal_committed_index != state.raft_commit_index:
        return FailedClause.INDEX_INEQUALITY
    return FailedClause.NONE


def standing_clause(
    cache_state: CacheState, *, strict_fallback: bool, visibility: CommitVisibility
) -> FailedClause:
    """Name a failed clause that no waiting mends before the control plane speaks again."""
    if cache_state is CacheState.EXPIRED:
        return FailedClause.CONTROL_PLANE_CACHE_EXPIRED
    if cache_state is CacheState.STALE:
        return FailedClause.CONTROL_PLANE_CACHE_STALE
    if strict_fallback:
        return FailedClause.STRICT_FALLBACK
    if visibility is not CommitVisibility.DURABLE_ONLY:
        return FailedClause.COMMIT_VISIBILITY
    return FailedClause.NONE


def refusal_for(clause: FailedClause) -> ReadRefusal:
    """Map a clause to ControlPlaneUnavailable's reason, in its order of priority (§5.1)."""
    if clause is FailedClause.CONTROL_PLANE_CACHE_EXPIRED:
        return ReadRefusal.CACHE_EXPIRED
    if clause is FailedClause.CONTROL_PLANE_CACHE_STALE:
        return ReadRefusal.CACHE_NOT_FRESH
    return ReadRefusal.NEEDED_FOR_READ_INDEX


def follower_clause(
    *,
    capability: bool,
    cache_state: CacheState,
    strict_fallback: bool,
    local_wal_durable_index: LogIndex,
    applied_index_floor: LogIndex,
) -> FailedClause | None:
    """Name what keeps a follower from snapshot-only reads; None says that it may serve them."""
    if cache_state is CacheState.EXPIRED:
        return FailedClause.CONTROL_PLANE_CACHE_EXPIRED
    if cache_state is CacheState.STALE:
        return FailedClause.CONTROL_PLANE_CACHE_STALE
    if strict_fallback or not capability:
        return FailedClause.STRICT_FALLBACK
    if local_wal_durable_index < applied_index_floor:
        return FailedClause.INDEX_INEQUALITY
    return None


@dataclass(slots=True)
class _Waiting:
    request: ReadRequest
    index: LogIndex | None  # None until this term has committed something
    read_seq: ReadSeq


@dataclass(slots=True)
class LeaderView:
    """What a waiting read is checked against, once per settled input."""

    now_ms: int
    commit_index: LogIndex
    commit_is_ours: bool  # something of this term is committed
    wal_committed_index: LogIndex
    confirmed_seq: ReadSeq
    proof_on_ledger: DurabilityTuple | None


WAITING_MAX = 65_536


class ReadQueue:
    """Linearizable reads that wait, in the order they came; bounded."""

    def __init__(self, *, needs_proof: bool = True) -> None:
        self.waiting: list[_Waiting] = []
        self._needs_proof = needs_proof
        self.seq = ReadSeq(0)

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= WAITING_MAX

    def add(self, request: ReadRequest, seq: ReadSeq) -> None:
        self.waiting.append(_Waiting(request, None, seq))

    def wanted_proof(self) -> LogIndex | None:
        """Return the lowest index that a waiting read needs a proof for."""
        indexes = [waiting.index for waiting in self.waiting if waiting.index is not None]
        return min(indexes) if indexes else None

    def advance(self, view: LeaderView) -> list[ReadGranted | ReadRefused]:
        """Grant what has become true, refuse what is past its deadline, keep the rest."""
        answers: list[ReadGranted | ReadRefused] = []
        still: list[_Waiting] = []
        for waiting in self.waiting:
            if waiting.index is None and view.commit_is_ours:
                waiting.index = view.commit_index
            clause = _open_clause(waiting, view, needs_proof=self._needs_proof)
            if clause is FailedClause.NONE and waiting.index is not None:
                request = waiting.request
                answers.append(ReadGranted(request.read_id, request.kind, waiting.index))
            elif view.now_ms >= waiting.request.deadline_ms:
                read_id = waiting.request.read_id
                answers.append(ReadRefused(read_id, ReadRefusal.NEEDED_FOR_READ_INDEX, clause))
            else:
                still.append(waiting)
        self.waiting = still
        return answers

    def refuse_all(
        self, refusal: ReadRefusal, clause: FailedClause = FailedClause.NONE
    ) -> list[ReadRefused]:
        gone, self.waiting = self.waiting, []
        return [ReadRefused(waiting.request.read_id, refusal, clause) for waiting in gone]


def _open_clause(waiting: _Waiting, view: LeaderView, *, needs_proof: bool) -> FailedClause:
    """Name what a waiting read still lacks. Its index was captured before its quorum round."""
    if waiting.index is None or view.wal_committed_index < waiting.index:
        return FailedClause.INDEX_INEQUALITY
    if view.confirmed_seq < waiting.read_seq:
        return FailedClause.LEADERSHIP_UNCONFIRMED
    proof = view.proof_on_ledger
    if needs_proof and (proof is None or proof.index < waiting.index):
        return FailedClause.CONTROL_PLANE_PROOF_MISMATCH
    return FailedClause.NONE
