"""A disk whose plans are run by io_uring, chain by chain."""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from clustor.log.steps import Plan, Step, Sync, SyncFiles, WriteFile
from clustor.log.types import IoWriterMode
from clustor.runtime.disk.beside import BlockingCalls, Closer, Ran, leading, run_all
from clustor.runtime.disk.blocking import OPEN_FILES_MAX
from clustor.runtime.disk.bulk import SyncFailure
from clustor.runtime.disk.chain import CHAINABLE, RingJob, choose_links
from clustor.runtime.disk.errors import DiskClosed, DiskError, PlanAbandoned, RingBroken
from clustor.runtime.disk.files import NO_SLOT, UNKNOWN, FileTable, OpenFile
from clustor.runtime.disk.pace import Pace, is_small
from clustor.runtime.disk.partition import Halves, Partition, SyncDurations, SyncRefused
from clustor.runtime.disk.ring import IoRing
from clustor.runtime.disk.types import Completion, Downgrade, PlanToken

CHAINS_MAX = 256
_MARK_BITS = 8
LOOK_NS_MAX = 5_000_000
"""An owner that works for longer than this before it looks at the ring has looked late."""


class UringDisk:
    """Plans as chains of linked entries; one thread, the owner's, and no other.

    Plans of different partitions are under way together; those of one partition follow each
    other. Writes and syncs go through the ring; every other step is run between two chains by
    a thread, because each of them may wait for the filesystem's journal. A ring that breaks is
    replaced by blocking calls in threads: plans that were under way fail and their files are
    fenced, as nobody knows whether the kernel still writes to them.
    """

    def __init__(
        self,
        mode: IoWriterMode = IoWriterMode.FIXED_URING,
        *,
        open_files_max: int = OPEN_FILES_MAX,
        downgrades: tuple[Downgrade, ...] = (),
    ) -> None:
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            self._ring: IoRing | None = IoRing(self._event, mode)
        except RingBroken:
            os.close(self._event)
            raise
        self.mode = mode
        self.downgrades = downgrades
        if self._ring.buffers_refused:
            self.downgrades += (Downgrade(mode, self._ring.buffers_refused),)
            if not self._ring.buffer_count:
                self.mode = IoWriterMode.REGISTERED_URING
        self._table = FileTable(open_files_max)
        self._table.before_close = self._unregister
        self._closer = Closer()
        self._table.close_descriptor = self._closer.close_descriptor
        self._partitions: dict[int, Partition] = {}
        self._numbers = 0
        self._chains: dict[int, RingJob] = {}
        self._chain_number = 0
        self._ready: deque[RingJob] = deque()
        """Jobs whose partition is free for them, in order."""
        self._beside = BlockingCalls(self._event)
        self._lost: list[tuple[IoRing, list[RingJob]]] = []
        """Broken rings and what they had under way: the kernel may still read these bytes."""
        self._done: list[Completion] = []
        self._pace = Pace()
        self._looked_busy_ns = 0
        """What the owner's thread had worked in all when it last looked at the ring."""
        self._closed = False

    @property
    def is_quick(self) -> bool:
        """Whether a small plan that is submitted `alone` would be run at once now.

        Nothing is under way then, and nothing over that the owner was not told of.
        """
        if self._chains or self._ready or self._done or not self._pace.is_quick:
            return False
        return not self._beside

    def fileno(self) -> int:
        """Return an eventfd that is readable while completions wait."""
        return self._event

    def open_partition(self, root: Path) -> Partition:
        """Take charge of the files below `root`, an existing directory."""
        self._require_open()
        self._numbers += 1
        partition = Partition(root, self._numbers, self._table)
        self._partitions[partition.number] = partition
        return partition

    def submit(
        self, partition: Partition, plan: Plan, token: PlanToken, *, alone: bool = False
    ) -> Completion | None:
        """Start the plan, or queue it behind the one that its partition has under way.

        Where nothing at all is under way and the disk is quick, a small plan is run here.
        """
        self._require_open()
        if alone and self.is_quick and is_small(plan):
            return self._run_here(partition, plan, token)
        job = RingJob(partition, plan, token, partition.failures_seen)
        job.given_ns = time.monotonic_ns()
        if partition.busy:
            partition.waiting.append(job)
            return None
        partition.busy = True
        self._ready.append(job)
        self._settle()
        return None

    def _run_here(self, partition: Partition, plan: Plan, token: PlanToken) -> Completion:
        """Run a plan with blocking calls; the disk is idle."""
        assert not partition.busy, "a partition is busy with chains only"
        durations: SyncDurations = ()
        error: DiskError | None = None
        try:
            durations = partition.execute(plan)
        except DiskError as failure:
            partition.failures += 1
            partition.failures_seen += 1
            error = failure
        self._pace.sample(durations)
        return Completion(partition, token, durations, error)

    def completions(self) -> list[Completion]:
        """Take the plans that are over, and reset the eventfd."""
        if not self._closed:
            with suppress(BlockingIOError):
                os.eventfd_read(self._event)
            self._take_results()
        taken, self._done = self._done, []
        for completion in taken:
            if completion.error is not None:
                completion.partition.failures_seen += 1
        return taken

    def look(self) -> None:
        """See what the kernel has done, so that later lateness is not the device's (C20)."""
        if self._chains and not self._closed:
            self._take_results()
            if self._done:
                os.eventfd_write(self._event, 1)

    def age_ns(self) -> int:
        """Return for how long the device has had the oldest work that it has not done (C20)."""
        self.look()
        began = [job.began_ns for job in self._chains.values()]
        return time.monotonic_ns() - min(began) if began else 0

    def execute(self, partition: Partition, plan: Plan) -> SyncDurations:
        """Run a plan here and now with blocking calls; the partition must have none under way."""
        self._require_open()
        assert not partition.busy, "a plan is under way"
        try:
            return partition.execute(plan)
        finally:
            self._settle()

    def close_partition(self, partition: Partition) -> None:
        """Close the partition's files; none of its plans may be under way."""
        assert not partition.busy, "a plan is under way"
        del self._partitions[partition.number]
        partition.close()
        self._settle()

    def close(self) -> None:
        """Wait for what was submitted, and close every file."""
        if self._closed:
            return
        while self._beside or (self._chains and self._ring is not None):
            if self._beside:
                self._beside.wait()
            elif self._ring is not None:
                self._ring.wait()
            self._take_results()
        self._closed = True
        for partition in list(self._partitions.values()):
            self.close_partition(partition)
        self._closer.close()
        if self._ring is not None:
            self._ring.close()
        os.close(self._event)

    def _require_open(self) -> None:
        if self._closed:
            raise DiskClosed("the disk was closed")

    def _unregister(self, file: OpenFile) -> None:
        if self._ring is not None:
            try:
                self._ring.unregister(file)
            except RingBroken as broken:
                self._give_up_ring(broken)

    def _settle(self) -> None:
        """Start what can start; wake the owner for completions that no result announces."""
        self._pump()
        if self._done and not self._closed:
            os.eventfd_write(self._event, 1)

    # One job: start, advance from chain to chain, finish

    def _pump(self) -> None:
        """Start what is ready, as long as the ring has room for chains."""
        while self._ready and len(self._chains) < CHAINS_MAX:
            self._start(self._ready.popleft())

    def _start(self, job: RingJob) -> None:
        job.queued_ns = time.monotonic_ns() - job.given_ns
        try:
            if job.partition.failures != job.failures_seen:
                raise PlanAbandoned("an earlier plan failed", failures=job.partition.failures)
            job.partition.refuse_fenced(job.plan)
        except DiskError as error:
            self._finish(job, error)
        else:
            self._advance(job)

    def _advance(self, job: RingJob) -> None:
        """Start the job's next steps, in a chain or beside this thread, or end the job."""
        try:
            if job.position == len(job.plan):
                self._finish(job, None)
                return
            step = job.plan[job.position]
            chainable = type(step) is WriteFile or type(step) is Sync
            if chainable and self._begin_chain(job):
                return
            if type(step) is SyncFiles and self._begin_bulk_sync(job, step):
                return
            self._begin_blocking(job)
        except DiskError as error:
            self._finish(job, error)

    # Steps that block

    def _begin_blocking(self, job: RingJob) -> None:
        """Run the next step in a thread, and those behind it that need nothing but names."""
        steps = leading(job.plan, job.position)
        try:
            halves = [job.partition.halves(step) for step in steps]
        except OSError as error:
            job.partition.refuse(job.position, steps[0], error)
        self._beside.start(
            lambda: run_all(halves),
            lambda ran: self._on_blocking_over(job, steps, halves, ran),
            Ran([], OSError(errno.EIO, "the call broke"), []),
        )

    def _on_blocking_over(
        self, job: RingJob, steps: list[Step], halves: list[Halves], ran: Ran
    ) -> None:
        try:
            for step, half, result, took in zip(
                steps, halves, ran.results, ran.durations_ns, strict=False
            ):
                self._settle_step(job, step, half, result)
                if type(step) is Sync:
                    job.durations.append(took)
                job.position += 1
            if isinstance(ran.error, DiskError):
                raise ran.error
            if ran.error is not None:
                job.partition.refuse(job.position, job.plan[job.position], ran.error)
        except DiskError as error:
            self._finish(job, error)
        else:
            self._advance(job)

    def _settle_step(self, job: RingJob, step: Step, half: Halves, result: Any) -> None:
        try:
            half.settle(result)
        except (OSError, SyncRefused) as error:
            job.partition.refuse(job.position, step, error)

    def _finish(self, job: RingJob, error: DiskError | None) -> None:
        partition = job.partition
        if error is not None:
            partition.failures += 1
        self._pace.sample(job.durations)
        self._done.append(
            Completion(
                partition,
                job.token,
                tuple(job.durations),
                error,
                queued_ns=job.queued_ns,
                seen_late_ns=job.seen_late_ns,
            )
        )
        if partition.waiting:
            self._ready.append(partition.waiting.popleft())
        else:
            partition.busy = False

    # Many files at once

    def _begin_bulk_sync(self, job: RingJob, step: SyncFiles) -> bool:
        """Start it in a thread; False: there is nothing to do, or a blocking call shall say why."""
        try:
            files = job.partition.dirty_files(step)
        except (OSError, DiskError):
            return False
        if files:
            call, lost = job.partition.sync_call(files), (0, errno.EIO)
            self._beside.start(
                call, lambda failure: self._on_bulk_synced(job, files, failure), lost
            )
        return bool(files)

    def _on_bulk_synced(
        self, job: RingJob, files: list[tuple[str, OpenFile]], failure: SyncFailure
    ) -> None:
        try:
            if failure is not None:
                nth, code = failure
                step = job.plan[job.position]
                job.partition.fail(job.position, step, code, sync=True, file=files[nth][0])
        except DiskError as error:
            self._finish(job, error)
        else:
            for _, file in files:
                file.on_synced()
            job.position += 1
            self._advance(job)

    # One chain

    def _begin_chain(self, job: RingJob) -> bool:
        """Submit the longest chain that may start at the job's position; False: none may."""
        job.links = choose_links(job, self._file) if self._ring is not None else []
        if not job.links or self._ring is None:
            return False
        self._chain_number += 1
        mark = self._chain_number << _MARK_BITS
        try:
            self._add_entries(self._ring, job, mark)
            job.began_ns = time.monotonic_ns()
            job.busy_ns = time.thread_time_ns()
            self._ring.submit()
        except RingBroken as broken:
            # Part of this chain may be with the kernel: its files are as doubtful as the others'.
            self._chains[self._chain_number] = job
            self._give_up_ring(broken)
            return True
        self._chains[self._chain_number] = job
        return True

    def _file(self, partition: Partition, name: str) -> OpenFile | None:
        """Return the file, registered where there is room; None: a blocking call shall say why."""
        try:
            file = partition.file(name)
        except (OSError, DiskError):
            return None
        if file.slot == NO_SLOT and self._ring is not None:
            try:
                self._ring.register(file)
            except RingBroken as broken:
                self._give_up_ring(broken)
                return None
        return file

    def _add_entries(self, ring: IoRing, job: RingJob, mark: int) -> None:
        last = len(job.links) - 1
        for link, (at, folds, file) in enumerate(job.links):
            step = job.plan[at]
            if isinstance(step, WriteFile):
                file.dirty = True
                file.reach = UNKNOWN
                buffer = ring.add_write(
                    file, step.offset, step.data, mark | link, sync=folds, last=link == last
                )
                if buffer >= 0:
                    job.buffers.append(buffer)
            else:
                ring.add_sync(file, mark | link)

    def _take_results(self) -> None:
        if self._ring is not None:
            for mark, result in self._ring.take_results():
                self._on_result(mark, result)
            if self._chains:
                self._looked_busy_ns = time.thread_time_ns()
        self._beside.take()
        self._pump()

    def _on_result(self, mark: int, result: int) -> None:
        """Judge a chain by its one completion, and go on with its job."""
        job = self._chains.pop(mark >> _MARK_BITS, None)
        if job is None:  # the ring was given up since, and the job with it
            return
        for buffer in job.buffers:
            if self._ring is not None:
                self._ring.release(buffer)
        job.buffers.clear()
        failed_link = mark & ((1 << _MARK_BITS) - 1)
        try:
            if job.judge(failed_link, result):
                self._count_syncs(job)
        except DiskError as error:
            self._finish(job, error)
        else:
            self._advance(job)

    def _count_syncs(self, job: RingJob) -> None:
        """Divide the chain's time evenly: the kernel does not say when its parts ended."""
        syncs = sum(1 for at, folds, _ in job.links if folds or isinstance(job.plan[at], Sync))
        if syncs:
            elapsed = time.monotonic_ns() - job.began_ns - self._looked_late_ns(job)
            job.durations.extend([max(0, elapsed) // syncs] * syncs)

    def _looked_late_ns(self, job: RingJob) -> int:
        """Return how long this thread worked on something else before it looked at the ring.

        The kernel does not say when a chain ended. That it was not over at the last look is known,
        and what this thread worked since then is no time that the device took (C20). A little of
        it is always there, and left alone: the device worked meanwhile, too.
        """
        since = max(job.busy_ns, self._looked_busy_ns)
        late = time.thread_time_ns() - since
        job.seen_late_ns = max(job.seen_late_ns, late)
        return late if late > LOOK_NS_MAX else 0

    # A broken ring

    def _give_up_ring(self, broken: RingBroken) -> None:
        """Go on with blocking calls; what was under way has failed, and its files are fenced."""
        if self._ring is None:
            return
        jobs = list(self._chains.values())
        self._lost.append((self._ring, jobs))
        self._ring = None
        self._chains = {}
        self.downgrades += (Downgrade(self.mode, str(broken)),)
        self.mode = IoWriterMode.BLOCKING
        for job in jobs:
            for at, _, _ in job.links:
                step = job.plan[at]
                assert isinstance(step, CHAINABLE)
                job.partition.fence(step.file, str(broken))
            self._finish(job, broken)
