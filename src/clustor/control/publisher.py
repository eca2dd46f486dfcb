"""The publication of proofs (ruling C7): on demand, all groups of a node in one proposal.

A group says when it wants its tuple published: at once where a read waits or a term began, and
every second while its watermark moves. The publisher gathers these wishes while a batch is under
way, so that the next batch carries all of them. A wish that came to nothing is not kept: the
group, which hears of success by the watch, wishes again within a second. What nobody wishes is a
refresh: a group that rests keeps its tuple, and its proof must not reach its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.control.proofs import (
    PROOFS_MAX,
    ProofVerdict,
    PublishProofs,
    proof_of,
    sign_proofs,
)
from clustor.log.types import PartitionId
from clustor.raft.profiles import ControlPlaneNumbers
from clustor.raft.types import DurabilityTuple

ANSWER_MS_MAX: Final = 1_000  # then a batch is given up; wishes come again
REFRESH_RETRY_MS: Final = 10_000  # between two attempts to refresh one proof


@dataclass(frozen=True, slots=True)
class ProofBatch:
    """What a node asks for in one call; the control plane's leader stamps and signs it."""

    request_id: str
    node_id: int
    wishes: tuple[tuple[PartitionId, DurabilityTuple], ...]


@dataclass(slots=True)
class _Standing:
    """The last tuple of ours that was published, and when to see to it again."""

    proven: DurabilityTuple
    refresh_due_ms: int


class ProofPublisher:
    """One node's wishes. `incarnation` keeps its request ids apart from those of earlier lives."""

    def __init__(self, node_id: int, incarnation: str, numbers: ControlPlaneNumbers) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        # Half of its life is left when a proof is refreshed: an outage that long costs no reads.
        self._refresh_ms = numbers.durability_proof_ttl_ms // 2
        self._wishes: dict[PartitionId, DurabilityTuple] = {}
        self._standing: dict[PartitionId, _Standing] = {}
        self._in_flight: tuple[ProofBatch, int] | None = None  # with the time to give it up
        self._batches = 0

    def wish(self, partition_id: PartitionId, proven: DurabilityTuple) -> None:
        """Take a group's `publish_proof`; a newer wish of the group replaces an older one."""
        self._wishes[partition_id] = proven

    def forget(self, partition_id: PartitionId) -> None:
        """Note that the group is led elsewhere now: its proof is no longer ours to refresh."""
        self._wishes.pop(partition_id, None)
        self._standing.pop(partition_id, None)

    def take(self, now_ms: int) -> ProofBatch | None:
        """Return the next batch to propose; None while one is under way or nothing is wished."""
        if self._in_flight is not None:
            if now_ms < self._in_flight[1]:
                return None
            self._in_flight = None
        self._wish_refreshes(now_ms)
        if not self._wishes:
            return None
        chosen = list(self._wishes.items())[:PROOFS_MAX]
        for partition_id, _ in chosen:
            del self._wishes[partition_id]
        self._batches += 1
        request_id = f"{self._incarnation}-{self._batches}"
        batch = ProofBatch(request_id, self._node_id, tuple(chosen))
        self._in_flight = (batch, now_ms + ANSWER_MS_MAX)
        return batch

    def _wish_refreshes(self, now_ms: int) -> None:
        for partition_id, standing in self._standing.items():
            if now_ms >= standing.refresh_due_ms:
                standing.refresh_due_ms = now_ms + REFRESH_RETRY_MS
                self._wishes.setdefault(partition_id, standing.proven)

    def answered(
        self, request_id: str, verdicts: Mapping[PartitionId, ProofVerdict], now_ms: int
    ) -> None:
        """Take the answer to a batch; to one that was given up meanwhile it comes too late."""
        if self._in_flight is None or self._in_flight[0].request_id != request_id:
            return
        batch, _ = self._in_flight
        self._in_flight = None
        for partition_id, proven in batch.wishes:
            verdict = verdicts.get(partition_id)
            if verdict in (ProofVerdict.PUBLISHED, ProofVerdict.REFRESHED):
                due_ms = now_ms + self._refresh_ms
                self._standing[partition_id] = _Standing(proven, due_ms)
            elif verdict is ProofVerdict.SUPERSEDED:
                self._standing.pop(partition_id, None)

    def failed(self, request_id: str) -> None:
        """Note that a batch came to nothing, or that nobody knows."""
        if self._in_flight is not None and self._in_flight[0].request_id == request_id:
            self._in_flight = None

    def next_deadline_ms(self) -> int | None:
        """Return when `take` may have something that no wish announces."""
        if self._in_flight is not None:
            return self._in_flight[1]
        return min((each.refresh_due_ms for each in self._standing.values()), default=None)


def signed_command(
    batch: ProofBatch, private_key: Ed25519PrivateKey, key_id: str, now_ms: int
) -> PublishProofs:
    """Stamp and sign a batch, as the control plane's leader does before it proposes it."""
    proofs = [proof_of(partition_id, proven, now_ms) for partition_id, proven in batch.wishes]
    return PublishProofs(node_id=batch.node_id, proofs=sign_proofs(private_key, key_id, proofs))
