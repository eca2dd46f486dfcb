"""Strict fallback: what a leader that cannot prove its durable watermark may not do (§9.1).

The latch is set while the cache is Stale or Expired, or while no published proof equals a tuple
of this term on the leader's own ledger. Writes go on, in Strict mode; reads that need the proof
do not. A leader that stays in it too long steps down and is barred from campaigning.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from clustor.raft.control_plane import CacheState
from clustor.raft.profiles import FallbackNumbers
from clustor.raft.types import Draw, DurabilityTuple


class FallbackState(StrEnum):
    HEALTHY = "Healthy"
    LOCAL_ONLY = "LocalOnly"
    PROOF_PUBLISHED = "ProofPublished"


class BlockingReason(StrEnum):
    NONE = "None"
    CACHE_EXPIRED = "CacheExpired"
    CACHE_STALE = "CacheStale"
    PROOF_CONFLICT = "ControlPlaneProofConflict"
    KEY_EPOCH_REPLAY = "KeyEpochReplay"
    PROOF_MISSING = "ProofMissing"
    PROOF_EXPIRED = "ProofExpired"


class GatedOperation(StrEnum):
    """What the latch refuses (`strict_fallback_gate_blocked{operation}`)."""

    GROUP_FSYNC = "GroupFsync"
    LEASE = "Lease"
    FOLLOWER_READ = "FollowerRead"
    READ_INDEX = "ReadIndex"
    OBSERVER = "Observer"
    SNAPSHOT_DELTA = "SnapshotDelta"
    PRE_DURABLE = "CommitAllowsPreDurable"


# An outage makes every leader LocalOnly, whatever was published before it: §9.1 demotes the leader
# of an outage that lasts, and a proof of its term from before would keep it for ever.
HEARD = (CacheState.FRESH, CacheState.CACHED)


@dataclass(slots=True)
class FallbackFacts:
    """What the latch is decided from, on this replica, now."""

    cache_state: CacheState
    leads: bool
    proof_matches: bool  # a published proof equals a tuple of this term on our ledger
    proof_expired: bool
    proof_conflict: bool
    key_epoch_replay: bool


def blocking_reason(facts: FallbackFacts) -> BlockingReason:
    """Name the first clause that sets the latch. Only a leader owes a proof."""
    if facts.cache_state is CacheState.EXPIRED:
        return BlockingReason.CACHE_EXPIRED
    if facts.cache_state is CacheState.STALE:
        return BlockingReason.CACHE_STALE
    if facts.proof_conflict:
        return BlockingReason.PROOF_CONFLICT
    if facts.key_epoch_replay:
        return BlockingReason.KEY_EPOCH_REPLAY
    if facts.leads and not facts.proof_matches:
        return BlockingReason.PROOF_MISSING
    if facts.leads and facts.proof_expired:
        return BlockingReason.PROOF_EXPIRED
    return BlockingReason.NONE


class StrictFallback:
    """The latch, its history, and the bar that follows a demotion."""

    def __init__(self, numbers: FallbackNumbers, draw: Draw) -> None:
        self._numbers = numbers
        self._draw = draw
        self.state = FallbackState.LOCAL_ONLY
        self.blocking = BlockingReason.CACHE_EXPIRED  # nothing was heard yet: fail closed
        self.decision_epoch = 0
        self.pending_entries = 0
        self.last_local_proof: DurabilityTuple | None = None
        self.gate_blocked: Counter[GatedOperation] = Counter()
        self.local_only_since_ms: int | None = None
        self.barred_until_ms: int | None = None
        self._barred_proof: DurabilityTuple | None = None
        self._barred_ms = 0
        self._bar_lifted = False

    @property
    def asserted(self) -> bool:
        return self.blocking is not BlockingReason.NONE

    def decide(self, facts: FallbackFacts, now_ms: int) -> bool:
        """Set or clear the latch; return whether the decision changed."""
        blocking = blocking_reason(facts)
        if blocking is BlockingReason.NONE:
            state = FallbackState.HEALTHY
        elif facts.leads and facts.proof_matches and facts.cache_state in HEARD:
            state = FallbackState.PROOF_PUBLISHED
        else:
            state = FallbackState.LOCAL_ONLY
        if state is not FallbackState.LOCAL_ONLY or not facts.leads:
            self.local_only_since_ms = None
        elif self.local_only_since_ms is None:
            self.local_only_since_ms = now_ms
        changed = (state, blocking) != (self.state, self.blocking)
        if changed:
            self.state, self.blocking = state, blocking
            self.decision_epoch += 1
        if blocking is BlockingReason.NONE:
            self.pending_entries = 0
        return changed

    def refuse(self, operation: GatedOperation) -> bool:
        """Say whether the latch refuses the operation, and count the refusal."""
        if self.asserted:
            self.gate_blocked[operation] += 1
        return self.asserted

    def must_demote(self, now_ms: int) -> bool:
        since_ms = self.local_only_since_ms
        return since_ms is not None and now_ms - since_ms > self._numbers.local_only_demote_ms

    def renew(self, now_ms: int) -> None:
        """Start the demotion timer anew: a Break-Glass override was verified."""
        if self.local_only_since_ms is not None:
            self.local_only_since_ms = now_ms

    def bar(self, proof: DurabilityTuple | None, now_ms: int) -> None:
        """Bar this replica from campaigning, as of a demotion now."""
        jitter_ms = self._draw(0, self._numbers.recampaign_jitter_ms)
        self.barred_until_ms = now_ms + self._numbers.recampaign_backoff_ms + jitter_ms
        self._barred_proof = proof
        self._barred_ms = now_ms
        self._bar_lifted = False
        self.local_only_since_ms = None

    @property
    def barred(self) -> bool:
        return self.barred_until_ms is not None

    def may_campaign(self, now_ms: int, last_leader_ms: int) -> bool:
        """Say whether the bar allows an election: none, or nobody led for too long.

        The escape hatch only restores writes; the latch itself stays set.
        """
        if self.barred_until_ms is None:
            return True
        self._bar_lifted = self.lets_campaign(now_ms, last_leader_ms)
        return self._bar_lifted

    def lets_campaign(self, now_ms: int, last_leader_ms: int) -> bool:
        """Answer the same, and change nothing."""
        if self.barred_until_ms is None or self._bar_lifted:
            return True
        leaderless_ms = now_ms - max(last_leader_ms, self._barred_ms)  # it led until the bar
        return leaderless_ms >= self._numbers.no_leader_grace_ms

    def leader_seen(self) -> None:
        """Put a lifted bar back: there is a leader again."""
        self._bar_lifted = False

    def try_unbar(self, proof: DurabilityTuple | None, cache: CacheState, now_ms: int) -> bool:
        """End the bar when the control plane is back, with a newer proof, after the backoff."""
        if self.barred_until_ms is None:
            return False
        returned = cache in HEARD
        if returned:
            self._bar_lifted = False
        before = self._barred_proof.rank() if self._barred_proof else (-1, -1, -1, -1)
        if returned and proof and proof.rank() > before and now_ms >= self.barred_until_ms:
            self.barred_until_ms = None
            return True
        return False
