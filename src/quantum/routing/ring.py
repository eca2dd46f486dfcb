"""Which partition owns a session or a topic (C9).

Jump consistent hashing (Lamping and Veach) over a 64-bit hash: when the ring grows from n to
n + 1 partitions, 1/(n + 1) of the keys move, all of them to the new one. The algorithm and
its seed are written into the routing epoch; a change of either moves nearly every key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

import xxhash

from quantum.routing.errors import RoutingMisuse, UnknownRing
from quantum.types import ClientId, TenantId

PrgIndex = NewType("PrgIndex", int)  # 0 … tenant_prg_count - 1

XXH3_JUMP = 1
"""XXH3-64 with a seed, then jump consistent hashing. Numbers are never given anew."""

_U64 = (1 << 64) - 1
_STEP = 2862933555777941757  # the multiplier of the paper's generator


def jump(key: int, count: int) -> int:
    """Return the place of a 64-bit key among so many."""
    place, following = -1, 0
    while following < count:
        place = following
        key = (key * _STEP + 1) & _U64
        # Exact in IEEE 754 doubles and therefore equal everywhere.
        following = int((place + 1) * (2147483648.0 / ((key >> 33) + 1)))
    return place


@dataclass(frozen=True, slots=True)
class HashRing:
    """The function that every node of a routing epoch computes alike."""

    algorithm_version: int = XXH3_JUMP
    seed: int = 0

    def __post_init__(self) -> None:
        if self.algorithm_version != XXH3_JUMP:
            raise UnknownRing("unknown ring algorithm", version=self.algorithm_version)
        if not 0 <= self.seed <= _U64:
            raise RoutingMisuse("a seed has 64 bits", seed=self.seed)

    def session_partition(self, tenant_id: TenantId, client_id: ClientId, count: int) -> PrgIndex:
        """Return the partition that owns everything bound to a client's session."""
        return self.partition(count, tenant_id.encode(), client_id)

    def topic_partition(self, tenant_id: TenantId, topic: bytes, count: int) -> PrgIndex:
        """Return the partition that orders a topic. Its normal form is the name as it came:
        MQTT compares topics byte by byte.
        """
        return self.partition(count, tenant_id.encode(), topic)

    def partition(self, count: int, *parts: bytes) -> PrgIndex:
        """Return the partition of a key in several parts, each hashed with its length first.

        Without the lengths, `("ab", "c")` and `("a", "bc")` would be one key.
        """
        if count < 1:
            raise RoutingMisuse("a ring has at least one partition", count=count)
        key = b"".join([len(part).to_bytes(4, "little") + part for part in parts])
        return PrgIndex(jump(xxhash.xxh3_64_intdigest(key, self.seed), count))
