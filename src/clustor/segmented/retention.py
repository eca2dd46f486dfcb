"""Bounded retention: whole files go, oldest first, by age or by size.

It decides on the metadata alone, so ten thousand partitions cost no read. Only files that a
checkpoint has committed, and that a quorum has whole, ever go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clustor.segmented.errors import SegmentedMisuse
from clustor.segmented.files import PartitionFiles
from clustor.segmented.metadata import PartitionChange, SegmentMeta
from clustor.segmented.store import QuorumNext, Store, StorePlan
from clustor.segmented.types import TimestampMs, TopicPartitionId


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How much of a partition is kept. None is no bound."""

    age_ms: int | None = None
    size_bytes: int | None = None

    def __post_init__(self) -> None:
        if min(self.age_ms or 0, self.size_bytes or 0) < 0:
            raise SegmentedMisuse("a bound is not negative")


def plan_retention(
    store: Store,
    policies: Mapping[TopicPartitionId, RetentionPolicy],
    now: TimestampMs,
    quorum_next: QuorumNext,
) -> StorePlan | None:
    """Plan to remove what the policies no longer keep; None where that is nothing."""
    changes: list[PartitionChange] = []
    removals: list[tuple[TopicPartitionId, int]] = []
    for partition, policy in policies.items():
        files = store.files(partition)
        expired = _expired(store, files, policy, now, quorum_next(partition))
        if not expired:
            continue
        _drop(files, expired)
        gone = tuple(segment.file_seq for segment in expired)
        removals += [(partition, file_seq) for file_seq in gone]
        changes.append(
            store.change(
                partition,
                start_index=files.start_index,
                clean_next=files.clean_next,
                removed=gone,
            )
        )
    return store.plan_replacement([], changes, removals) if changes else None


def _expired(
    store: Store, files: PartitionFiles, policy: RetentionPolicy, now: int, quorum_next: int
) -> list[SegmentMeta]:
    committed = store.committed_segments(files.partition)
    idle = not files.in_flight and not files.tail
    left_bytes = files.size_bytes
    expired: list[SegmentMeta] = []
    for segment in files.segments:
        if committed.get(segment.file_seq) != segment or segment.next_index > quorum_next:
            break
        is_last = segment is files.segments[-1]
        too_old = policy.age_ms is not None and segment.max_timestamp < now - policy.age_ms
        too_big = policy.size_bytes is not None and left_bytes > policy.size_bytes
        if not (too_old and idle if is_last else too_old or too_big):
            break
        left_bytes -= segment.size_bytes
        expired.append(segment)
    return expired


def _drop(files: PartitionFiles, expired: list[SegmentMeta]) -> None:
    if len(expired) == len(files.segments):
        files.close_segment()
    del files.segments[: len(expired)]
    files.start_index = expired[-1].next_index
    files.clean_next = max(files.clean_next, files.start_index)
