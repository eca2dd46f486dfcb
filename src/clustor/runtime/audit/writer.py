"""The audit log of a running process: events in the loop, bytes in a thread of their own.

`note` never waits: with a full queue it refuses, counts, and says so in the log when there is
room again. `record` waits until the event is durable. All that waits when the disk becomes free is
one write and one sync. A batch is sealed when it is full, some time after its first event, and at
the end.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.log.steps import Plan
from clustor.runtime.disk import BlockingDisk, DirectoryStorage, DiskError, PlanToken
from clustor.runtime.errors import AuditFailed
from clustor.security import (
    FILE_BYTES_MAX,
    AuditEvent,
    AuditJournal,
    key_id_of,
    plan_open,
)
from clustor.wall_clock import wall_clock_ms

SECURITY_DIRECTORY: Final = "security"
AUDIT_DIRECTORY: Final = f"{SECURITY_DIRECTORY}/audit"
_LOCK_FILE: Final = "audit.lock"
_EVENTS_PER_PLAN_MAX: Final = 128  # about a millisecond of encoding in the loop

journal = logging.getLogger("clustor.audit")


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """How much may wait, and how long lines may stay unsigned."""

    queue_events_max: int = 8_192
    seal_seconds: float = 1.0
    file_bytes_max: int = FILE_BYTES_MAX


LIMITS: Final = WriterLimits()


class AuditLock:
    """One writer at a time: two would make two chains of one log."""

    def __init__(self, directory: Path, *, wait: bool = False) -> None:
        """Raises AuditFailed where another process writes; `wait` waits for it instead."""
        self._descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(self._descriptor)
            raise AuditFailed(
                "another process writes this audit log", directory=str(directory)
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exit: object) -> None:
        self.release()

    def release(self) -> None:
        os.close(self._descriptor)


class AuditWriter:
    """One open audit log. Made and used in the loop's thread."""

    def __init__(
        self,
        directory: Path,
        signer: Ed25519PrivateKey,
        *,
        limits: WriterLimits = LIMITS,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Recover the log and begin its next file: this blocks, and belongs before serving.

        Raises AuditUnreadable (and AuditTruncated) for a log that must not be continued, and
        AuditFailed where the disk refuses.
        """
        directory.mkdir(parents=True, mode=0o700, exist_ok=True)
        self._lock = AuditLock(directory)
        self._limits = limits
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[AuditEvent, asyncio.Future[None] | None]] = deque()
        self._writing: list[asyncio.Future[None]] | None = None
        """Who waits for the plan under way; None: there is none."""
        self._room: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None
        self._seal_timer: asyncio.TimerHandle | None = None
        self._seal_due = False
        self._closing = False
        self.lost = 0
        """Events that found no room, since the start."""
        self._lost_said = 0
        self.failed: DiskError | None = None
        self._disk = BlockingDisk()
        try:
            self._partition = self._disk.open_partition(directory)
            self._journal = self._open(directory, signer)
        except BaseException:
            self._disk.close()
            self._lock.release()
            raise
        self._loop.add_reader(self._disk.fileno(), self._on_disk)

    def _open(self, directory: Path, signer: Ed25519PrivateKey) -> AuditJournal:
        storage = DirectoryStorage(directory)
        try:
            opened, plan = plan_open(
                storage,
                signer.sign,
                key_id_of(signer.public_key().public_bytes_raw()),
                new_log_id=os.urandom(16).hex(),
                at_ms=self._now_ms(),
                file_bytes_max=self._limits.file_bytes_max,
            )
            self._disk.execute(self._partition, plan)
        except DiskError as error:
            raise AuditFailed("the audit log cannot be written", cause=error) from error
        finally:
            storage.close()
        return opened

    @property
    def waiting(self) -> int:
        """Events that no plan carries yet."""
        return len(self._queue)

    @property
    def head(self) -> tuple[int, str]:
        """The newest seal's place and digest, for a witness elsewhere."""
        return self._journal.chain.sealed, self._journal.chain.sealed_digest

    def note(self, event: AuditEvent) -> bool:
        """Take an event; False: the queue is full or the log has failed, and it is lost."""
        if not self._is_open or len(self._queue) >= self._limits.queue_events_max:
            self.lost += 1
            return False
        self._queue.append((event, None))
        self._pump()
        return True

    async def record(self, event: AuditEvent) -> None:
        """Return when the event is durable; raises AuditFailed when it will never be."""
        while self._is_open and len(self._queue) >= self._limits.queue_events_max:
            room = self._loop.create_future()
            self._room.append(room)
            await room
        if not self._is_open:
            raise AuditFailed("the audit log takes no more events", cause=self.failed)
        durable: asyncio.Future[None] = self._loop.create_future()
        self._queue.append((event, durable))
        self._pump()
        await durable

    async def close(self) -> None:
        """Write what waits, seal it, and close the files."""
        if self._closing:
            return
        self._closing = True
        self._seal_due = True
        self._stop_timer()
        self._pump()
        if self._writing is not None:
            self._idle = self._loop.create_future()
            await self._idle
        self._loop.remove_reader(self._disk.fileno())
        self._disk.close()
        self._lock.release()

    @property
    def _is_open(self) -> bool:
        return self.failed is None and not self._closing

    def _pump(self) -> None:
        """Give the disk what waits, unless it is busy."""
        if self._writing is not None or self.failed is not None:
            return
        events, waiters = self._take()
        plan = self._plan(events)
        if plan:
            self._writing = waiters
            self._disk.submit(self._partition, plan, PlanToken(0))
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _take(self) -> tuple[list[AuditEvent], list[asyncio.Future[None]]]:
        events: list[AuditEvent] = []
        waiters: list[asyncio.Future[None]] = []
        if self.lost > self._lost_said:
            events.append(self._overflow())
        while self._queue and len(events) < _EVENTS_PER_PLAN_MAX:
            event, durable = self._queue.popleft()
            events.append(event)
            if durable is not None:
                waiters.append(durable)
        self._wake(self._limits.queue_events_max - len(self._queue))
        return events, waiters

    def _wake(self, count: int) -> None:
        """Let so many go on that wait for room; each looks again whether there is any."""
        while self._room and count > 0:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                count -= 1

    def _overflow(self) -> AuditEvent:
        lost, self._lost_said = self.lost - self._lost_said, self.lost
        return AuditEvent(
            who="(audit writer)",
            what="AuditOverflow",
            outcome="Lost",
            at_ms=self._now_ms(),
            facts={"events": str(lost)},
        )

    def _plan(self, events: list[AuditEvent]) -> Plan:
        seal = self._seal_due and not self._queue
        if seal:
            self._seal_due = False
        plan = self._journal.plan_append(events, self._now_ms(), seal=seal)
        if self._journal.chain.open_events and self._seal_timer is None and not self._closing:
            self._seal_timer = self._loop.call_later(self._limits.seal_seconds, self._seal)
        return plan

    def _seal(self) -> None:
        self._seal_timer = None
        self._seal_due = True
        self._pump()

    def _on_disk(self) -> None:
        for completion in self._disk.completions():
            waiters, self._writing = self._writing or [], None
            if completion.error is not None:
                self._fail(completion.error, waiters)
                return
            for durable in waiters:
                if not durable.done():
                    durable.set_result(None)
        if self._queue or self._seal_due or self._idle is not None:
            self._pump()

    def _fail(self, error: DiskError, waiters: list[asyncio.Future[None]]) -> None:
        """Take no more: after a failed write nobody knows what the disk holds until a restart."""
        self.failed = error
        journal.critical("the audit log has failed: %s", error)
        self._stop_timer()
        queued = [durable for _, durable in self._queue if durable is not None]
        self.lost += len(self._queue)
        self._queue.clear()
        for durable in (*waiters, *queued):
            if not durable.done():
                durable.set_exception(AuditFailed("the audit log has failed", cause=error))
        self._wake(len(self._room))
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _stop_timer(self) -> None:
        if self._seal_timer is not None:
            self._seal_timer.cancel()
            self._seal_timer = None
