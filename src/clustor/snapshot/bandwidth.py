"""Bandwidth: how many bytes of snapshots may leave now, per peer and for the node (clustor §9.5).

Each budget is a bucket that refills at its rate and holds one second. Once 90 % of it are used
nothing is granted until use has fallen to 60 %: transfers go in bursts with pauses between them,
in which the log's own traffic has the wire to itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PEER_BYTES_PER_SECOND: Final = 128 * 2**20  # `snapshot.max_bytes_per_sec`
_NODE_BYTES_PER_SECOND_MAX: Final = 2**30
_HIGH_PERCENT: Final = 90
_LOW_PERCENT: Final = 60


def node_bytes_per_second(nic_bytes_per_second: int) -> int:
    """Return the node's cap: `min(0.7 × NIC capacity, 1 GiB/s)`."""
    return min(nic_bytes_per_second * 7 // 10, _NODE_BYTES_PER_SECOND_MAX)


def observer_bytes_per_second(peer_bytes_per_second: int = PEER_BYTES_PER_SECOND) -> int:
    """Return an observer's own quota: a tenth of a peer's (clustor §6.1)."""
    return peer_bytes_per_second // 10


@dataclass(slots=True)
class Budget:
    """One bucket. `used_bytes` falls with time and never exceeds one second of the rate."""

    bytes_per_second: int
    used_bytes: int = 0
    updated_ms: int = 0
    paused: bool = False
    _remainder: int = 0  # thousandths of a byte that the last refill could not give back

    def __post_init__(self) -> None:
        assert self.bytes_per_second > 0, self.bytes_per_second

    def available(self, now_ms: int) -> int:
        """Return how many bytes may leave now; a clock set back refills nothing."""
        self._refill(now_ms)
        percent = self.used_bytes * 100
        if percent >= self.bytes_per_second * _HIGH_PERCENT:
            self.paused = True
        elif percent <= self.bytes_per_second * _LOW_PERCENT:
            self.paused = False
        return 0 if self.paused else self.bytes_per_second - self.used_bytes

    def spend(self, sent_bytes: int) -> None:
        assert 0 <= sent_bytes <= self.bytes_per_second - self.used_bytes, sent_bytes
        self.used_bytes += sent_bytes

    def _refill(self, now_ms: int) -> None:
        elapsed_ms = max(0, now_ms - self.updated_ms)
        self.updated_ms = max(self.updated_ms, now_ms)
        given = elapsed_ms * self.bytes_per_second + self._remainder
        self.used_bytes = max(0, self.used_bytes - given // 1000)
        self._remainder = given % 1000 if self.used_bytes else 0


def grant(peer: Budget, node: Budget, now_ms: int, wanted_bytes: int) -> int:
    """Take up to `wanted_bytes` from both budgets; return how many may be sent now."""
    assert wanted_bytes >= 0, wanted_bytes
    granted = min(wanted_bytes, peer.available(now_ms), node.available(now_ms))
    peer.spend(granted)
    node.spend(granted)
    return granted
