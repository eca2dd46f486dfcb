"""What a replica knows of the control plane: how old it is, and the newest proof.

The control plane is a port: the runtime hands in what its watch saw, after it verified the
signature. Between two such inputs the cache ages by the group's own ticks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from clustor.raft.profiles import ControlPlaneNumbers
from clustor.raft.types import DurabilityTuple


class CacheState(StrEnum):
    FRESH = "Fresh"
    CACHED = "Cached"
    STALE = "Stale"
    EXPIRED = "Expired"


@dataclass(frozen=True, slots=True)
class VerifiedProof:
    """A published DurabilityProofTupleV1 whose signature the caller has verified."""

    proven: DurabilityTuple
    age_ms: int  # since `updated_at`, when it was handed in


@dataclass(frozen=True, slots=True)
class ControlPlaneUpdate:
    """The control plane was heard: everything it says to this replica, at once."""

    cache_age_ms: int = 0
    proof: VerifiedProof | None = None
    follower_read_snapshot_capability: bool = False
    key_epoch_replay: bool = False  # a key epoch went backwards (clustor §12.2)


class ControlPlaneView:
    """The cache's state by age, and the highest proof seen.

    Two proofs of one (term, index) that differ are a conflict; it stays until an operator
    reconciled the control plane (clustor §9.8).
    """

    def __init__(self, numbers: ControlPlaneNumbers) -> None:
        self._numbers = numbers
        self._fresh_at_ms: int | None = None  # when the cache had age 0
        self._proof_at_ms = 0
        self.proof: DurabilityTuple | None = None
        self.conflict = False
        self.key_epoch_replay = False
        self.follower_read_snapshot_capability = False

    def update(self, update: ControlPlaneUpdate, now_ms: int) -> bool:
        """Take in what was heard; return whether a proof conflict appeared with it."""
        self._fresh_at_ms = now_ms - update.cache_age_ms
        self.follower_read_snapshot_capability = update.follower_read_snapshot_capability
        self.key_epoch_replay = update.key_epoch_replay
        return update.proof is not None and self._observe(update.proof, now_ms)

    def _observe(self, proof: VerifiedProof, now_ms: int) -> bool:
        new, old = proof.proven, self.proof
        if old is not None and new != old and (new.term, new.index) == (old.term, old.index):
            self.conflict = True
            return True
        if old is None or new.rank() > old.rank():
            self.proof = new
            self._proof_at_ms = now_ms - proof.age_ms
        elif new == old:
            self._proof_at_ms = max(self._proof_at_ms, now_ms - proof.age_ms)
        return False

    def reconcile(self) -> None:
        """Forget a conflict and both its proofs: an operator has mended the control plane."""
        self.conflict = False
        self.proof = None

    def cache_age_ms(self, now_ms: int) -> int | None:
        return None if self._fresh_at_ms is None else now_ms - self._fresh_at_ms

    def cache_state(self, now_ms: int) -> CacheState:
        """Name the state by age (clustor §14.2); what was never heard is Expired."""
        age_ms = self.cache_age_ms(now_ms)
        if age_ms is None or age_ms >= self._numbers.cache_grace_ms:
            return CacheState.EXPIRED
        if age_ms <= self._numbers.cache_fresh_ms:
            return CacheState.FRESH
        if 2 * age_ms <= self._numbers.cache_grace_ms:
            return CacheState.CACHED
        return CacheState.STALE

    def proof_expired(self, now_ms: int) -> bool:
        return now_ms - self._proof_at_ms > self._numbers.durability_proof_ttl_ms
