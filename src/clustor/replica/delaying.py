"""Group-Fsync's deliberate delay: appends wait a moment, so that one sync serves more of them.

Only batches that the group marked so wait (clustor §9.3, ruling C16): never a truncation, never a
durability fence, never in Strict. What an acknowledgement means does not change: the group hears
of a batch when all of it is durable, as ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from clustor.log.group_fsync import Batcher, FsyncBatch, GroupFsyncLimits
from clustor.log.types import DurabilityMode, EntryKind
from clustor.raft.memory_log import ENTRY_OVERHEAD_BYTES
from clustor.raft.output import LogAppend
from clustor.raft.profiles import GroupFsyncNumbers


@dataclass(slots=True)
class NodeInflight:
    """What Group-Fsync has under way on a whole node; all its replicas share one."""

    inflight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Gathered:
    """Appends that became one: the receipt of the last stands for all."""

    append: LogAppend
    batch: FsyncBatch


class Delaying:
    """The appends of one replica that wait on purpose."""

    def __init__(self, numbers: GroupFsyncNumbers, node: NodeInflight) -> None:
        self._numbers = numbers
        self._node = node
        self._batcher = Batcher(
            GroupFsyncLimits(
                numbers.batch_bytes_max, numbers.batch_ms_max, numbers.inflight_bytes_max
            )
        )
        self._batcher.mode = DurabilityMode.GROUP_FSYNC
        self.waiting: list[LogAppend] = []
        self._waiting_bytes = 0
        self._inflight_bytes = 0
        self.number = 0
        """Counts the batches: a timer that was set for an earlier one means nothing."""

    def may_wait(self, append: LogAppend) -> bool:
        """Say whether the append is one of those that may be delayed at all."""
        return (
            append.mode is DurabilityMode.GROUP_FSYNC
            and append.truncate_from is None
            and bool(append.entries)
            and append.entries[0].kind is not EntryKind.DURABILITY_TRANSITION
        )

    def would_overflow(self, append: LogAppend) -> bool:
        """Say whether what waits must be written first, for the batch to keep its limit."""
        return bool(self.waiting) and (
            self._waiting_bytes + _size(append) > self._numbers.batch_bytes_max
        )

    def add(self, append: LogAppend, now_ms: int) -> None:
        size = _size(append)
        self.waiting.append(append)
        self._waiting_bytes += size
        self._batcher.add(size, now_ms)

    def must_write(self, now_ms: int) -> bool:
        """Say whether the batch is full or old, and the disk has not enough to do already."""
        return self.has_room and self._batcher.must_write(now_ms)

    @property
    def has_room(self) -> bool:
        """Whether the node and this replica have not too much under way."""
        numbers = self._numbers
        return (
            self._node.inflight_bytes < numbers.node_inflight_bytes_max
            and self._inflight_bytes < numbers.inflight_bytes_max
        )

    def take(self, now_ms: int) -> Gathered:
        """Take all that waits as one append, and count it as under way."""
        appends, self.waiting, self._waiting_bytes = self.waiting, [], 0
        self.number += 1
        batch = self._batcher.take(now_ms)
        self._node.inflight_bytes += batch.batch_bytes
        self._inflight_bytes += batch.batch_bytes
        entries = list(chain.from_iterable(append.entries for append in appends))
        last = appends[-1]
        return Gathered(LogAppend(last.write_seq, None, entries, last.mode), batch)

    def written(self, batch: FsyncBatch) -> None:
        """Count a batch as durable."""
        self._batcher.written(batch)
        self._node.inflight_bytes -= batch.batch_bytes
        self._inflight_bytes -= batch.batch_bytes

    def abandon(self) -> None:
        """Give back what this replica has under way: it will never hear of it again."""
        self._node.inflight_bytes -= self._inflight_bytes
        self._inflight_bytes = 0


def _size(append: LogAppend) -> int:
    return sum(len(entry.payload) + ENTRY_OVERHEAD_BYTES for entry in append.entries)
