"""Snapshots leave no faster than clustor §9.5 allows: per peer, and for the whole node.

A group's offer of a snapshot names the rate for its receiver (`SnapshotSend`); an observer has a
share of its own in each group. What must wait is bounded, because a receiver asks for a few
chunks at a time, and a chunk that it asks for again while it waits is not queued twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from clustor.log.types import PartitionId
from clustor.raft.types import ReplicaId
from clustor.replica import ChunkSent, StreamsSent
from clustor.snapshot.bandwidth import Budget, node_bytes_per_second

NIC_BYTES_PER_SECOND: Final = 1_250_000_000
"""10 Gbit/s: what a node takes its network card for, since nothing tells it better."""


class PacedChunk(NamedTuple):
    """A chunk of a snapshot, or pieces of its streams, that may leave now."""

    partition_id: PartitionId
    target: ReplicaId
    chunk: ChunkSent | StreamsSent


@dataclass(slots=True)
class _Way:
    """What waits for one receiver, and what it may have."""

    budget: Budget
    waiting: deque[PacedChunk] = field(default_factory=deque)


class SnapshotPace:
    """The chunks of all groups of one node."""

    def __init__(self, peer_bytes_per_second: int) -> None:
        self._peer_rate = peer_bytes_per_second
        self._node = Budget(node_bytes_per_second(NIC_BYTES_PER_SECOND))
        self._peers: dict[ReplicaId, _Way] = {}
        self._observers: dict[tuple[PartitionId, ReplicaId], _Way] = {}
        self.waiting = 0
        """How many chunks wait."""

    def allow(self, partition: PartitionId, target: ReplicaId, bytes_per_second: int) -> None:
        """Take the rate of an offer: less than a peer's is a quota of its own."""
        key = (partition, target)
        if bytes_per_second >= self._peer_rate:
            gone = self._observers.pop(key, None)
            if gone is not None:
                self._peer(target).waiting.extend(gone.waiting)
        elif key not in self._observers:
            self._observers[key] = _Way(Budget(max(1, bytes_per_second)))

    def add(
        self, partition: PartitionId, target: ReplicaId, chunk: ChunkSent | StreamsSent
    ) -> None:
        """Let a chunk wait its turn, unless the very same one already does."""
        way = self._observers.get((partition, target)) or self._peer(target)
        paced = PacedChunk(partition, target, chunk)
        if all(_name(each) != _name(paced) for each in way.waiting):
            way.waiting.append(paced)
            self.waiting += 1

    def take(self, now_ms: int) -> list[PacedChunk]:
        """Take what may leave by now, in the order of each receiver's requests."""
        taken: list[PacedChunk] = []
        for way in (*self._peers.values(), *self._observers.values()):
            while way.waiting and self._grant(way, now_ms):
                taken.append(way.waiting.popleft())
        self.waiting -= len(taken)
        return taken

    def _peer(self, target: ReplicaId) -> _Way:
        if target not in self._peers:
            self._peers[target] = _Way(Budget(self._peer_rate))
        return self._peers[target]

    def _grant(self, way: _Way, now_ms: int) -> bool:
        """Spend a whole chunk from both budgets, or nothing.

        A chunk that is larger than a whole second's worth takes all of an untouched one.
        """
        size = _size(way.waiting[0].chunk)
        budgets = (way.budget, self._node)
        if any(b.available(now_ms) < min(size, b.bytes_per_second) for b in budgets):
            return False
        for budget in budgets:
            budget.spend(min(size, budget.bytes_per_second))
        return True


def _size(chunk: ChunkSent | StreamsSent) -> int:
    return len(chunk.sealed) if isinstance(chunk, ChunkSent) else chunk.size_bytes


def _name(paced: PacedChunk) -> tuple[PartitionId, str, str]:
    """Name what is queued once; of its streams a receiver has one question open at a time."""
    chunk = paced.chunk
    if isinstance(chunk, StreamsSent):
        return paced.partition_id, "streams", str(chunk.base_index)
    return paced.partition_id, chunk.manifest_id, chunk.chunk_id
