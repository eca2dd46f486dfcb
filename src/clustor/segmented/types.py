"""The words of the segmented log: identifiers, and what goes in and comes out of a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

TopicPartitionId = NewType("TopicPartitionId", int)  # u64; the specification's `partition_id`
PartitionLogIndex = NewType("PartitionLogIndex", int)  # u64, counts from 0 in every partition
ReplicaId = NewType("ReplicaId", int)  # u64
FileSeq = NewType("FileSeq", int)  # u64, names a partition file; never used twice in one store
WriterSeq = NewType("WriterSeq", int)  # u64, the first half of a nonce; never used twice
StoreId = NewType("StoreId", bytes)  # 16 random bytes, drawn when the store is created
TimestampMs = NewType("TimestampMs", int)  # i64, given by whoever appends

U64_MAX: Final = 2**64 - 1


@dataclass(slots=True)
class Batch:
    """What a producer appends: opaque bytes, the indices they take, and the newest time in them."""

    partition: TopicPartitionId
    payload: bytes
    count: int = 1
    timestamp: TimestampMs = TimestampMs(0)


@dataclass(slots=True)
class StoredBatch:
    """A batch as it is read back: the very bytes that were appended, at their place."""

    first_index: PartitionLogIndex
    count: int
    timestamp: TimestampMs
    payload: bytes

    @property
    def next_index(self) -> PartitionLogIndex:
        return PartitionLogIndex(self.first_index + self.count)
