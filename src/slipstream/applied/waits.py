"""What a run of `watch_applied` waits for, and how it calls what blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from slipstream.artifact.manifest import ExportRequest
from slipstream.ports import Watch
from slipstream.types import WatchEvent

Answer = TypeVar("Answer")


class Waits:
    """What a run waits for: events, a stop, an export. Each wait outlives a single turn."""

    def __init__(
        self, watch: Watch, stop: asyncio.Event, exports: asyncio.Queue[ExportRequest]
    ) -> None:
        self._watch, self._stop, self._exports = watch, stop, exports
        self._taking: asyncio.Task[list[WatchEvent]] | None = None
        self._stopping: asyncio.Task[bool] = asyncio.ensure_future(_wait_true(stop))
        self._request: asyncio.Task[ExportRequest] = asyncio.ensure_future(exports.get())

    @property
    def stopped(self) -> bool:
        """True once the caller wants the run to end."""
        return self._stop.is_set()

    async def until_something(self, room: int, timeout: float | None, *, taking: bool) -> None:
        """Wait for any of them, at most `timeout` seconds; `room` bounds the events taken."""
        if self._taking is None and taking:
            self._taking = asyncio.ensure_future(self._watch.take(room))
        waits: set[asyncio.Task[Any]] = {self._request}
        if taking:
            # A stop that is already known must not turn the wait for a retry into a busy loop.
            waits.add(self._stopping)
        if self._taking is not None:
            waits.add(self._taking)
        if timeout is None or timeout > 0:
            await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

    def take_events(self) -> list[WatchEvent] | None:
        """Give the events that arrived, None when none did; raises what the watch raised."""
        if self._taking is None or not self._taking.done():
            return None
        taken, self._taking = self._taking, None
        return taken.result()

    def take_request(self) -> ExportRequest | None:
        """Give an export that was asked for, None when none was."""
        if not self._request.done():
            return None
        request = self._request.result()
        self._request = asyncio.ensure_future(self._exports.get())
        return request

    async def close(self) -> None:
        """Give up every wait; what a watch had delivered by then is delivered again later."""
        tasks = [task for task in (self._taking, self._stopping, self._request) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_true(event: asyncio.Event) -> bool:
    return await event.wait()


async def in_thread(work: Callable[[], Answer]) -> Answer:
    """Run blocking work in a thread, and never leave it running behind a cancelled caller."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
