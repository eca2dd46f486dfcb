"""What a machine decides about its streams when it applies an entry, and what it says there is.

The machine gives indices, never the store: `first` of an append is the `next` of its partition
before it. Ids of partitions are u64, the machine's own, and never used again after a removal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from clustor.streams.master import Disabled, MasterPolicy
from clustor.streams.quorum import Majority, QuorumPolicy


@dataclass(slots=True)
class StreamDefine:
    """A new partition, empty, from index 0; or other policies for an old one."""

    partition: int
    quorum: QuorumPolicy = Majority()
    master: MasterPolicy = Disabled()


@dataclass(slots=True)
class StreamAppend:
    """A batch of `count` records at `first`; the store looks at no byte of it.

    `timestamp` is the newest time in it, in milliseconds.
    """

    partition: int
    first: int
    count: int
    timestamp: int
    payload: bytes


@dataclass(slots=True)
class StreamTrim:
    """What stands below `start` may go: whole files do. It is at most the partition's `next`."""

    partition: int
    start: int


@dataclass(slots=True)
class StreamRemove:
    """The partition ends, with all of its files."""

    partition: int


StreamChange: TypeAlias = StreamDefine | StreamAppend | StreamTrim | StreamRemove


@dataclass(frozen=True, slots=True)
class StreamExtent:
    """What a machine's state says there is of a partition: the indices `start … next - 1`."""

    partition: int
    start: int
    next: int
