"""What blocks, beside the thread that owns the disk: bulk syncs, directories, deletes, closes.

The loop of a node must not wait for any of them: eight deleted segments of 64 MiB take a quarter of
a second to close, which is an election's time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from clustor.log.steps import Plan, Step
from clustor.runtime.disk.errors import DiskError
from clustor.runtime.disk.partition import PATH_STEPS, Halves, SyncRefused

T = TypeVar("T")
L = TypeVar("L")


class BlockingCalls:
    """Calls that block, each in a thread of its own: they are rare, and io_uring knows few of them.

    Their owner is woken by its eventfd, and hears in its own thread what came of each.
    """

    def __init__(self, event: int) -> None:
        self._event = event
        self._running: set[threading.Thread] = set()
        self._over: SimpleQueue[tuple[threading.Thread, Callable[[Any], None], Any]] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, call: Callable[[], T | L], on_over: Callable[[T | L], None], lost: L) -> None:
        """Run `call` beside the owner; `take` then gives its result to `on_over`.

        `lost` is told where the call broke: an owner that hears nothing would wait for ever.
        """

        def work() -> None:
            result: T | L = lost
            try:
                result = call()
            finally:
                self._over.put((thread, on_over, result))
                os.eventfd_write(self._event, 1)

        thread = threading.Thread(target=work, name="disk-beside", daemon=True)
        self._running.add(thread)
        thread.start()

    def take(self) -> None:
        """Hand out the results of those that are over."""
        while not self._over.empty():
            thread, on_over, result = self._over.get()
            thread.join()
            self._running.discard(thread)
            on_over(result)

    def wait(self) -> None:
        """Block until all that run are over; their results wait for `take`."""
        for thread in self._running:
            thread.join()


class Closer:
    """Closes descriptors in a thread: to close a deleted file frees its blocks, 15 to 33 ms each.

    Nothing depends on when it happens, and an error of close tells nothing that no sync has told.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def close_descriptor(self, descriptor: int) -> None:
        """Close it soon. Nobody may use it any more."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="disk-closer", daemon=True)
            self._thread.start()
        self._queue.put(descriptor)

    def close(self) -> None:
        """Wait until all of them are closed."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (descriptor := self._queue.get()) is not None:
            with suppress(OSError):
                os.close(descriptor)


@dataclass(slots=True)
class Ran:
    """What came of steps that a thread ran: results up to the first error, how long each took."""

    results: list[Any]
    error: OSError | SyncRefused | DiskError | None
    durations_ns: list[int]


def leading(plan: Plan, position: int) -> list[Step]:
    """Return the step at `position`, and with one that needs only names all such behind it."""
    end = position + 1
    if isinstance(plan[position], PATH_STEPS):
        while end < len(plan) and isinstance(plan[end], PATH_STEPS):
            end += 1
    return list(plan[position:end])


def run_all(halves: list[Halves]) -> Ran:
    """Run the blocking halves one behind the other, up to the first that fails."""
    ran = Ran([], None, [])
    for half in halves:
        began = time.monotonic_ns()
        try:
            ran.results.append(half.work())
        except (OSError, SyncRefused, DiskError) as error:
            ran.error = error
            return ran
        ran.durations_ns.append(time.monotonic_ns() - began)
    return ran
