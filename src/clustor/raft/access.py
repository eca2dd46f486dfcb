"""Reads, and the latch that guards them: what the control plane's word allows, now."""

from __future__ import annotations

from typing import assert_never

from clustor.log.types import LogIndex
from clustor.raft.control_plane import CacheState, ControlPlaneUpdate, ControlPlaneView
from clustor.raft.core import Core
from clustor.raft.durability import Durability
from clustor.raft.fallback import HEARD, FallbackFacts, GatedOperation, StrictFallback
from clustor.raft.output import NoteKind, ReadAnswer
from clustor.raft.reads import (
    FailedClause,
    LeaderView,
    ReadGateState,
    ReadGranted,
    ReadKind,
    ReadQueue,
    ReadRefusal,
    ReadRefused,
    ReadRequest,
    follower_clause,
    refusal_for,
    standing_clause,
)
from clustor.raft.replication import Replication
from clustor.raft.types import (
    NO_INDEX,
    CommitVisibility,
    DurabilityTuple,
    ReadId,
    ReadSeq,
    ReplicaId,
)

OPEN_READS_MAX = 65_536


class AccessGate:
    """The gate of one replica. Answers gather in `answers` until the driver takes them."""

    def __init__(
        self, core: Core, durability: Durability, replication: Replication, fallback: StrictFallback
    ) -> None:
        self._core = core
        self._durability = durability
        self._replication = replication
        self.fallback = fallback
        self.control = ControlPlaneView(core.profile.control_plane)
        self.queue = ReadQueue()
        self.quorum_queue = ReadQueue(needs_proof=False)
        self.answers: list[ReadAnswer] = []
        self.configured_visibility = CommitVisibility.DURABLE_ONLY
        self.clock_guard_alarm = False
        self._follower_reads: dict[ReadId, None] = {}  # granted and not finished
        self._could_follow = False
        self.expired_applied: LogIndex | None = None
        """What snapshot reads clamp to while the copy is Expired: what was applied before."""
        self._publish_due_ms = 0
        self._owed_index = NO_INDEX  # what a proof must cover before the latch clears
        self.cache = CacheState.EXPIRED

    @property
    def visibility(self) -> CommitVisibility:
        """The visibility in force; `decide` has cleared what the gate does not allow."""
        return self.configured_visibility

    def on_control_plane(self, update: ControlPlaneUpdate) -> None:
        core = self._core
        if self.control.update(update, core.now_ms):
            core.note(NoteKind.CONTROL_PLANE_PROOF_CONFLICT)
        if self.fallback.try_unbar(self.control.proof, self._cache_now(), core.now_ms):
            core.note(NoteKind.STRICT_FALLBACK_BAR_LIFTED)

    def _cache_now(self) -> CacheState:
        return self.control.cache_state(self._core.now_ms)

    # The latch.

    def proof(self) -> DurabilityTuple | None:
        """Return the published proof if it is of this term and on our own ledger."""
        return self._durability.proven(self.control.proof) if self._core.leads else None

    def decide(self) -> None:
        """Decide the latch anew, and everything that hangs on it."""
        core = self._core
        before, self.cache = self.cache, self._cache_now()
        if before not in HEARD and self.cache in HEARD:
            # §9.1: after an outage a proof must cover what was committed during it. That is
            # `raft_commit_index` as it is now; under writes the newest would run ahead for ever.
            self._owed_index = core.commit_index
        proof = self.proof()
        changed = self.fallback.decide(
            FallbackFacts(
                self.cache,
                core.leads,
                proof is not None and proof.index >= self._owed_index,
                self.control.proof_expired(core.now_ms),
                self.control.conflict,
                self.control.key_epoch_replay,
            ),
            core.now_ms,
        )
        if self.fallback.asserted:
            # §10.3.1: cleared at once, and not set again by itself.
            self.configured_visibility = CommitVisibility.DURABLE_ONLY
        if changed:
            self._decided()
        self._clamp_expired()
        self._watch_observers()
        self._watch_follower_reads()

    def _decided(self) -> None:
        core, fallback = self._core, self.fallback
        fallback.last_local_proof = self._durability.quorum_tuple
        core.note(
            NoteKind.STRICT_FALLBACK,
            state=fallback.state,
            reason=fallback.blocking,
            decision_epoch=fallback.decision_epoch,
        )

    def _clamp_expired(self) -> None:
        if self.cache is not CacheState.EXPIRED:
            self.expired_applied = None
        elif self.expired_applied is None:
            self.expired_applied = self._core.applied_index

    def _watch_observers(self) -> None:
        allowed = self.cache is CacheState.FRESH and not self.fallback.asserted
        if self._replication.observers_allowed and not allowed and self._core.config.observers:
            self.fallback.gate_blocked[GatedOperation.OBSERVER] += 1
            self._core.note(NoteKind.OBSERVERS_REVOKED)
        self._replication.observers_allowed = allowed

    # Asking.

    def read(self, request: ReadRequest) -> None:
        """Grant or refuse at once, or let the read wait until its deadline."""
        match request.kind:
            case ReadKind.SNAPSHOT_ONLY:
                self._read_snapshot(request)
            case ReadKind.LEASE:
                # Not built: an election is held off by ticks, and a lease would need better clocks.
                self._refuse(request, ReadRefusal.LEASES_DISABLED)
            case ReadKind.READ_INDEX:
                self._read_index(request)
            case ReadKind.QUORUM:
                self._read_quorum(request)
            case _:
                assert_never(request.kind)

    def _refuse(self, request: ReadRequest, refusal: ReadRefusal) -> None:
        self.answers.append(ReadRefused(request.read_id, refusal))

    def _refuse_clause(self, request: ReadRequest, clause: FailedClause) -> None:
        if clause is FailedClause.STRICT_FALLBACK:
            self.fallback.gate_blocked[GatedOperation.READ_INDEX] += 1
        self.answers.append(ReadRefused(request.read_id, refusal_for(clause), clause))

    def standing(self) -> FailedClause:
        return standing_clause(
            self.cache,
            strict_fallback=self.fallback.asserted,
            visibility=self.configured_visibility,
        )

    def _read_index(self, request: ReadRequest) -> None:
        core = self._core
        if not core.leads:
            self._refuse(request, ReadRefusal.NOT_LEADER)
        elif (clause := self.standing()) is not FailedClause.NONE:
            self._refuse_clause(request, clause)
        elif self.queue.is_full:
            self._refuse(request, ReadRefusal.OVERLOADED)
        else:
            self.queue.add(request, self._replication.next_read_round())

    def _read_quorum(self, request: ReadRequest) -> None:
        """Let a quorum confirm the leadership; what the control plane's copy says is not asked."""
        if not self._core.leads:
            self._refuse(request, ReadRefusal.NOT_LEADER)
        elif self.quorum_queue.is_full:
            self._refuse(request, ReadRefusal.OVERLOADED)
        else:
            self.quorum_queue.add(request, self._replication.next_read_round())

    def _read_snapshot(self, request: ReadRequest) -> None:
        core = self._core
        index = core.applied_index if self.expired_applied is None else self.expired_applied
        if core.leads:
            self.answers.append(ReadGranted(request.read_id, request.kind, index))
        elif self.follower_clause() is not None:
            self.fallback.refuse(GatedOperation.FOLLOWER_READ)
            self._refuse(request, ReadRefusal.FOLLOWER_CAPABILITY_REVOKED)
        elif len(self._follower_reads) >= OPEN_READS_MAX:
            self._refuse(request, ReadRefusal.OVERLOADED)
        else:
            self._follower_reads[request.read_id] = None
            self.answers.append(ReadGranted(request.read_id, request.kind, index))

    def finished(self, read_id: ReadId) -> None:
        """Forget a follower read that was served."""
        self._follower_reads.pop(read_id, None)

    def follower_clause(self) -> FailedClause | None:
        core = self._core
        return follower_clause(
            capability=self.control.follower_read_snapshot_capability,
            cache_state=self.cache,
            strict_fallback=self.fallback.asserted,
            local_wal_durable_index=core.local_wal_durable_index,
            applied_index_floor=min(core.applied_index, core.log.base_index),
        )

    def _watch_follower_reads(self) -> None:
        """Fail the open follower reads with the very input that fails the guard."""
        may = self.follower_clause() is None
        if self._could_follow and not may:
            self._core.note(NoteKind.FOLLOWER_CAPABILITY_REVOKED, reads=len(self._follower_reads))
        if not may and self._follower_reads:
            revoked = ReadRefusal.FOLLOWER_CAPABILITY_REVOKED
            self.answers += [ReadRefused(read_id, revoked) for read_id in self._follower_reads]
            self._follower_reads.clear()
        self._could_follow = may

    # Waiting.

    @property
    def has_waiting(self) -> bool:
        """Whether linearizable reads wait."""
        return bool(self.queue.waiting or self.quorum_queue.waiting)

    def advance(self) -> None:
        """Answer the waiting reads that can be answered now."""
        core = self._core
        if self.quorum_queue.waiting:
            self._advance_quorum_reads()
        if not self.queue.waiting:
            return
        if not core.leads:
            self.answers += self.queue.refuse_all(ReadRefusal.NOT_LEADER)
        elif (clause := self.standing()) is not FailedClause.NONE:
            self.answers += self.queue.refuse_all(refusal_for(clause), clause)
        else:
            self.answers += self.queue.advance(self._leader_view())

    def _advance_quorum_reads(self) -> None:
        if self._core.leads:
            self.answers += self.quorum_queue.advance(self._leader_view())
        else:
            self.answers += self.quorum_queue.refuse_all(ReadRefusal.NOT_LEADER)

    def _leader_view(self) -> LeaderView:
        core = self._core
        return LeaderView(
            core.now_ms,
            core.commit_index,
            core.commit_index >= core.term_start,
            core.wal_committed_index,
            ReadSeq(core.config.reached(self._answered_seq)),
            self.proof(),
        )

    def _answered_seq(self, member: ReplicaId) -> int:
        core = self._core
        return self._replication.read_seq if member == core.id else core.progress[member].read_seq

    def gate_state(self) -> ReadGateState:
        """Return what the reference predicate of §10.3 looks at, for telemetry."""
        core = self._core
        return ReadGateState(
            self.cache,
            self.fallback.asserted,
            self.configured_visibility,
            self.control.proof,
            self._durability.quorum_tuple,
            core.wal_committed_index,
            core.commit_index,
        )

    def proof_to_publish(self) -> DurabilityTuple | None:
        """Offer a tuple when a read waits for one, or when one is due while the mark moves.

        One offer is open at a time: the next waits until it is published, or a period passed.
        """
        core, durability = self._core, self._durability
        due = core.now_ms >= self._publish_due_ms
        if not due and not self.queue.waiting and durability.newest_offered is not None:
            return None  # nobody waits for one: the common case, once a turn
        if durability.quorum_tuple is None or durability.quorum_tuple == self.control.proof:
            return None
        if not due and not self._read_lacks_proof():
            return None
        self._publish_due_ms = core.now_ms + core.profile.control_plane.proof_publish_period_ms
        return durability.offer()

    def _read_lacks_proof(self) -> bool:
        newest = self._durability.newest_offered
        if newest is None:
            return True  # the term's first proof clears the latch: nobody should wait for it
        wanted = self.queue.wanted_proof()
        return newest == self.control.proof and wanted is not None and newest.index < wanted
