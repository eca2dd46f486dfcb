"""A receiver of a queue without a connection: what a request takes, settles or moves on.

It finds the queue's leader as any link does, and finds the next one when that changes, with what it
holds and has said. Whatever ends it gives back what it holds.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from quantum.broker.queues import QueueEntry, Settlement
from quantum.protocols.amqp.session.dispatch_words import AttachmentEnd, ReceiverWish
from quantum.protocols.amqp.session.tenant_queues import TenantQueues
from quantum.protocols.amqp.session.ways import Attachment

SETTLE_SECONDS_MAX: Final = 10.0
_LOOK_SECONDS: Final = 0.05
"""How often a leader is looked for, and how long a first message waits for others."""


class QueueGone(Exception):
    """The queue is not there, or not any more."""


class SettlingLost(Exception):
    """No answer came in time: what was said may or may not count."""


class QueueTaker:
    """One receiver (`ReceiverPort`); `async with` it."""

    def __init__(self, home: TenantQueues, wish: ReceiverWish) -> None:
        self._home = home
        self._wish = wish
        self._prg = home.place(wish.queue)
        self._attachment: Attachment | None = None
        self._news = asyncio.Event()
        self._held: dict[int, tuple[QueueEntry, bytes]] = {}
        self._said: dict[int, Settlement] = {}
        self._count = 0
        """Of this attachment: deliveries that came."""
        self._wanted = 0
        self._drain = self._drained = 0
        self._ended = AttachmentEnd.NONE

    async def __aenter__(self) -> QueueTaker:
        self._seek()
        return self

    async def __aexit__(self, *_error: object) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.detach(failed=False)

    # What the leader says.

    def deliver(self, deliveries: list[tuple[QueueEntry, bytes]]) -> None:
        for entry, payload in deliveries:
            self._held[entry.number] = (entry, payload)
        self._count += len(deliveries)
        self._tell()
        self._news.set()

    def settled(self, numbers: list[int]) -> None:
        for number in numbers:
            self._said.pop(number, None)
        self._news.set()

    def drained(self, drain: int) -> None:
        self._drained = drain
        self._news.set()

    def ended(self, why: int) -> None:
        self._attachment = None
        self._ended = AttachmentEnd(why)
        self._news.set()

    # What it does.

    def _seek(self) -> None:
        if self._attachment is not None:
            return
        if self._ended in (AttachmentEnd.NO_QUEUE, AttachmentEnd.DELETED):
            raise QueueGone
        held, said = [*self._held, *self._said], list(self._said.values())
        self._count = 0
        ways = self._home.ways
        self._attachment = ways.attach(self, self._prg, self._wish, held, said)
        self._tell()

    def _tell(self) -> None:
        """Ask for as many as are wanted beside those that are here."""
        if self._attachment is not None:
            limit = self._count + max(0, self._wanted - len(self._held))
            self._attachment.credit(limit, self._count, self._drain)

    async def gather(self, count: int, bytes_max: int, seconds: float | None) -> list[QueueEntry]:
        """Hold so many, or what came in so many seconds; None: or all there is now.

        Raises QueueGone.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (SETTLE_SECONDS_MAX if seconds is None else seconds)
        self._wanted = count
        self._drain += seconds is None
        self._tell()
        while not self._has(count, bytes_max) and loop.time() < deadline:
            if seconds is None and self._drained == self._drain:
                break
            until = min(deadline, loop.time() + _LOOK_SECONDS)
            is_news = await self._wait(until)
            self._seek()
            if not is_news and self._held and seconds is not None:
                break
        self._wanted = 0
        return [entry for entry, _ in self._held.values()]

    def _has(self, count: int, bytes_max: int) -> bool:
        size = sum(len(payload) for _, payload in self._held.values())
        return len(self._held) >= count or size >= bytes_max

    def payload(self, number: int) -> bytes:
        """Return the body of a message that is held."""
        return self._held[number][1]

    def let_go(self, numbers: list[int]) -> None:
        """Hold messages no more that somebody else settled."""
        for number in numbers:
            self._held.pop(number, None)

    async def settle(self, said: list[Settlement]) -> None:
        """Say what becomes of messages; returns when the log has it. Raises SettlingLost."""
        self._said |= {each.number: each for each in said}
        self.let_go([each.number for each in said])
        if self._attachment is not None:
            self._attachment.settle(said)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_SECONDS_MAX
        while self._said:
            if loop.time() > deadline:
                raise SettlingLost
            await self._wait(loop.time() + _LOOK_SECONDS)
            with suppress(QueueGone):
                self._seek()
            if self._ended in (AttachmentEnd.NO_QUEUE, AttachmentEnd.DELETED):
                return  # with all that it held

    async def _wait(self, until: float) -> bool:
        """Wait for news; say whether there are some."""
        self._news.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news.wait()
        return self._news.is_set()
