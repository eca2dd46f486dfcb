"""What one group has committed, and what transactions have in hand for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from quantum.broker.streams.group_commands import CommittedOffset
from quantum.broker.streams.types import StreamRefusal, TopicPartition

METADATA_BYTES_MAX: Final = 4_096
Offsets = Iterable[tuple[TopicPartition, CommittedOffset]]


@dataclass(slots=True)
class OffsetTransaction:
    """A transaction that may commit offsets here, and those it brought."""

    epoch: int
    offsets: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)


@dataclass(slots=True)
class GroupOffsets:
    """The offsets of one group, and the transactions that may still bring some, by producer."""

    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    transactions: dict[int, OffsetTransaction] = field(default_factory=dict)

    def get(
        self, partition: TopicPartition, *, stable: bool = False
    ) -> CommittedOffset | StreamRefusal | None:
        """Say where to go on; with `stable`, not while a transaction may still move it."""
        if stable and any(partition in each.offsets for each in self.transactions.values()):
            return StreamRefusal.UNSTABLE_OFFSETS
        return self.committed.get(partition)

    def commit(self, offsets: Offsets, now_ms: int) -> tuple[StreamRefusal | None, ...]:
        """Commit each offset whose metadata fits."""
        return _each_that_fits(offsets, self.committed, now_ms)

    def admit(self, producer_id: int, epoch: int) -> StreamRefusal | None:
        known = self.transactions.get(producer_id)
        if known is None:
            self.transactions[producer_id] = OffsetTransaction(epoch)
        elif known.epoch != epoch:
            return StreamRefusal.WRONG_TRANSACTION_STATE
        return None

    def commit_in(
        self, producer_id: int, epoch: int, offsets: Offsets, now_ms: int
    ) -> tuple[StreamRefusal | None, ...] | StreamRefusal:
        """Keep offsets for the end of their transaction; without an open one, refuse."""
        known = self.transactions.get(producer_id)
        if known is None or known.epoch != epoch:
            return StreamRefusal.TRANSACTION_NOT_OPEN
        return _each_that_fits(offsets, known.offsets, now_ms)

    def end(self, producer_id: int, epoch: int, *, commit: bool) -> StreamRefusal | None:
        """End a transaction. One that is not there was ended before."""
        known = self.transactions.get(producer_id)
        if known is None:
            return None
        if epoch < known.epoch:
            return StreamRefusal.STALE_EPOCH
        del self.transactions[producer_id]
        if commit:
            self.committed.update(known.offsets)
        return None

    def expire(self, before_ms: int, keep_topics: frozenset[str] = frozenset()) -> int:
        """Forget what was committed before `before_ms`; say how many."""
        gone = [
            each
            for each, row in self.committed.items()
            if row.committed_ms < before_ms and each[0] not in keep_topics
        ]
        for each in gone:
            del self.committed[each]
        return len(gone)

    @property
    def is_empty(self) -> bool:
        return not self.committed and not self.transactions


def _each_that_fits(
    offsets: Offsets, into: dict[TopicPartition, CommittedOffset], now_ms: int
) -> tuple[StreamRefusal | None, ...]:
    answers: list[StreamRefusal | None] = []
    for partition, row in offsets:
        if len(row.metadata.encode()) > METADATA_BYTES_MAX:
            answers.append(StreamRefusal.METADATA_TOO_LARGE)
            continue
        into[partition] = CommittedOffset(row.offset, row.leader_epoch, row.metadata, now_ms)
        answers.append(None)
    return tuple(answers)
