"""From the group's batches to plans of the log, at once or after Group-Fsync's delay."""

from __future__ import annotations

from collections.abc import Callable

from clustor.log.log import Log
from clustor.log.types import DurabilityMode
from clustor.raft.group import Group
from clustor.raft.output import LogAppend
from clustor.replica.appending import plan_batch
from clustor.replica.delaying import Delaying, Gathered
from clustor.replica.disk_queue import DiskQueue
from clustor.replica.settings import ReplicaSettings
from clustor.replica.types import Delay


class Writing:
    """The writes of one replica's log. The group hears of each when all of it is durable."""

    def __init__(self, settings: ReplicaSettings, group: Group, log: Log, disk: DiskQueue) -> None:
        self._group = group
        self._log = log
        self._disk = disk
        self._batches_out = 0
        self._batches_out_max = settings.batches_in_flight_max
        numbers = settings.profile.group_fsync
        # A millisecond early: no loop is ever quite on time.
        self._delay_ms = max(1, numbers.batch_ms_max - 1)
        self._delaying = Delaying(numbers, settings.node_inflight)
        self._delay_told = -1

    @property
    def is_busy(self) -> bool:
        """Whether the disk has enough to do, so that the next batch had better fill."""
        return self._batches_out >= self._batches_out_max

    @property
    def waits(self) -> bool:
        """Whether batches wait for others to be written with them."""
        return bool(self._delaying.waiting)

    @property
    def may_delay(self) -> bool:
        """Whether batches may be made to wait: Group-Fsync is in force, or some wait still."""
        mode = self._group.core.hard.durability_mode
        return bool(self._delaying.waiting) or mode is DurabilityMode.GROUP_FSYNC

    def append(self, batch: LogAppend) -> None:
        """Write a batch, or let it wait for others where Group-Fsync says so."""
        delaying = self._delaying
        waits = delaying.may_wait(batch)
        if delaying.waiting and (not waits or delaying.would_overflow(batch)):
            self.write_waiting()
        if waits:
            delaying.add(batch, self._group.core.now_ms)
        else:
            self._write(batch, _nothing)

    def write_waiting(self) -> None:
        """Write all that waits, in order, before what follows."""
        if self._delaying.waiting:
            self._write_gathered()

    def write_due(self) -> Delay | None:
        """Write what has waited enough; return for how long the rest may wait, once."""
        delaying = self._delaying
        if not delaying.waiting:
            return None
        if delaying.must_write(self._group.core.now_ms):
            self._write_gathered()
        if not delaying.waiting or self._delay_told == delaying.number:
            return None
        self._delay_told = delaying.number
        return Delay(delaying.number, self._delay_ms)

    def write_delayed(self, number: int, waited_ms: float) -> None:
        """Take the end of a delay; it means nothing if its batch was written before."""
        delaying = self._delaying
        if delaying.waiting and number == delaying.number and delaying.has_room:
            gathered = self._write_gathered()
            self._group.group_fsync_batch(gathered.batch.batch_bytes, int(waited_ms))

    def abandon(self) -> None:
        """The disk failed: nothing that is under way will be heard of."""
        self._delaying.abandon()

    def _write_gathered(self) -> Gathered:
        gathered = self._delaying.take(self._group.core.now_ms)
        self._write(gathered.append, lambda: self._delaying.written(gathered.batch))
        return gathered

    def _write(self, batch: LogAppend, also: Callable[[], None]) -> None:
        core, log = self._group.core, self._log
        log.protect(min(core.commit_index, core.local_wal_durable_index))
        planned = plan_batch(log, batch, core.hard.durability_mode)
        self._batches_out += 1

        def stored() -> None:
            self._batches_out -= 1
            also()
            if planned.record is not None:
                log.stored(planned.record)
            self._group.stored(planned.stored)

        self._disk.submit(planned.plan, stored)


def _nothing() -> None:
    """Nothing else follows a batch that did not wait."""
