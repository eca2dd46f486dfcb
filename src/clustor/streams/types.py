"""The words of the streams: identifiers, and a batch as it is read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

StreamPartitionId = NewType("StreamPartitionId", int)  # u64; the specification's `partition_id`
StreamIndex = NewType("StreamIndex", int)  # u64; its `partition_log_index`, from 0 in each stream
FileSeq = NewType("FileSeq", int)  # u64, names a partition file; never used twice in one store
WriterSeq = NewType("WriterSeq", int)  # u64, the first half of a nonce; never used twice
StoreId = NewType("StoreId", bytes)  # 16 random bytes, drawn when the store is created
TimestampMs = NewType("TimestampMs", int)  # i64, given by whoever appends

U64_MAX: Final = 2**64 - 1


@dataclass(slots=True)
class StoredBatch:
    """A batch as it is read back: the very bytes that were appended, at their place."""

    first_index: StreamIndex
    count: int
    timestamp: TimestampMs
    payload: bytes

    @property
    def next_index(self) -> StreamIndex:
        return StreamIndex(self.first_index + self.count)
