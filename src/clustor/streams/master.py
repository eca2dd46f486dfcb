"""Which replica is the master of a partition.

Automatic mode is rendezvous hashing: every member draws XXH3-64 of `(partition_id, replica)`,
both u64 little-endian, and the highest draw wins. A member that leaves moves only the partitions
it had; one that joins takes only those it wins.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from xxhash import xxh3_64_intdigest

from clustor.raft.types import ReplicaId
from clustor.streams.types import StreamPartitionId

_DRAW: Final = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Automatic:
    """The members draw for it."""


@dataclass(frozen=True, slots=True)
class FixedMaster:
    """This replica, member or not."""

    replica: ReplicaId


@dataclass(frozen=True, slots=True)
class Disabled:
    """No master."""


MasterPolicy: TypeAlias = Automatic | FixedMaster | Disabled


def choose_master(
    policy: MasterPolicy, partition: StreamPartitionId, members: Iterable[ReplicaId]
) -> ReplicaId | None:
    """Return the partition's master, or None without one."""
    match policy:
        case Automatic():
            draws = [
                (xxh3_64_intdigest(_DRAW.pack(partition, replica)), replica) for replica in members
            ]
            return max(draws)[1] if draws else None
        case FixedMaster(replica):
            return replica
        case Disabled():
            return None
        case _:
            assert_never(policy)
