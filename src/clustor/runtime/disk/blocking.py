"""A disk whose plans are run with blocking calls by one writer thread."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from clustor.log.steps import Plan
from clustor.log.types import IoWriterMode
from clustor.runtime.disk.errors import DiskClosed, DiskError, PlanAbandoned
from clustor.runtime.disk.files import FileTable
from clustor.runtime.disk.pace import Pace, is_small
from clustor.runtime.disk.partition import Partition, SyncDurations
from clustor.runtime.disk.types import Completion, Downgrade, PlanToken

OPEN_FILES_MAX = 512


class BlockingDisk:
    """One writer thread for all partitions of a disk; an eventfd says when plans are over.

    The thread takes everything that waits at once and runs it in order. The lock is held for one
    plan at a time, so that `execute` in another thread falls between plans, never into one.
    """

    def __init__(
        self,
        *,
        open_files_max: int = OPEN_FILES_MAX,
        downgrades: tuple[Downgrade, ...] = (),
        table: FileTable | None = None,
    ) -> None:
        self.mode = IoWriterMode.BLOCKING
        self.downgrades = downgrades
        self._table = table or FileTable(open_files_max)
        self._partitions: dict[int, Partition] = {}
        self._numbers = 0
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._queue: SimpleQueue[tuple[Partition, Plan, PlanToken, int, int] | None] = SimpleQueue()
        self._began_ns = 0  # of the plan that the thread runs; 0: it has none
        self._done: deque[Completion] = deque()
        self._pace = Pace()
        self._untold = 0  # plans that the owner gave and has not heard of again
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="disk-writer", daemon=True)
        self._thread.start()

    @property
    def is_quick(self) -> bool:
        """Whether a small plan that is submitted `alone` would be run at once now."""
        return self._pace.is_quick and not self._untold

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
        """Queue a plan for the writer thread.

        Where the thread has nothing to do and the disk is quick, a small plan is run here.
        """
        self._require_open()
        if alone and self.is_quick and is_small(plan):
            now_ns = time.monotonic_ns()
            completion = self._run(partition, plan, token, partition.failures_seen, now_ns)
            self._tell(completion)
            return completion
        self._untold += 1
        self._queue.put((partition, plan, token, partition.failures_seen, time.monotonic_ns()))
        return None

    def _tell(self, completion: Completion) -> None:
        """Note that the owner knows of it from here on."""
        self._pace.sample(completion.sync_durations)
        if completion.error is not None:
            completion.partition.failures_seen += 1

    def completions(self) -> list[Completion]:
        """Take the plans that are over, and reset the eventfd."""
        if not self._closed:
            # Reset first: what is added from here on wakes the owner once more.
            with suppress(BlockingIOError):
                os.eventfd_read(self._event)
        taken: list[Completion] = []
        while self._done:
            completion = self._done.popleft()
            self._tell(completion)
            self._untold -= 1
            taken.append(completion)
        return taken

    def look(self) -> None:
        """Do nothing: the thread notes itself when something is over."""

    def age_ns(self) -> int:
        """Return for how long the device has had the oldest work that it has not done (C20)."""
        began_ns = self._began_ns
        return time.monotonic_ns() - began_ns if began_ns else 0

    def execute(self, partition: Partition, plan: Plan) -> SyncDurations:
        """Run a plan here and now, in the caller's thread; raise a DiskError when it fails."""
        self._require_open()
        with self._lock:
            return partition.execute(plan)

    def close_partition(self, partition: Partition) -> None:
        """Close the partition's files; none of its plans may be under way."""
        with self._lock:
            del self._partitions[partition.number]
            partition.close()

    def close(self) -> None:
        """Wait for what was submitted, and close every file."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._thread.join()
        for partition in list(self._partitions.values()):
            self.close_partition(partition)
        os.close(self._event)

    def _require_open(self) -> None:
        if self._closed:
            raise DiskClosed("the disk was closed")

    def _work(self) -> None:
        while True:
            batch = [self._queue.get()]
            with suppress(Empty):
                while True:
                    batch.append(self._queue.get_nowait())
            for submission in batch:
                if submission is None:
                    return
                self._done.append(self._run(*submission))
                os.eventfd_write(self._event, 1)

    def _run(
        self, partition: Partition, plan: Plan, token: PlanToken, seen: int, given_ns: int
    ) -> Completion:
        durations: SyncDurations = ()
        error: DiskError | None = None
        with self._lock:
            began_ns = self._began_ns = time.monotonic_ns()
            try:
                if partition.failures != seen:
                    raise PlanAbandoned("an earlier plan failed", failures=partition.failures)
                durations = partition.execute(plan)
            except DiskError as failure:
                partition.failures += 1
                error = failure
            except Exception as bug:  # noqa: BLE001  # a dead writer would leave its owner waiting
                partition.failures += 1
                error = DiskError(
                    "the writer failed on a plan it does not understand", cause=repr(bug)
                )
            finally:
                self._began_ns = 0
        return Completion(partition, token, durations, error, queued_ns=began_ns - given_ns)
