"""Watches: the bucket's state at one revision, then all that came after it, by long polls.

A poll names the revision that everything was delivered up to, so there is nothing on the server
that could be lost with a connection, a leader or a node: whichever node answers next goes on from
there. A node answers within a second or so, with events or to say how far it is, and is left for
another where it does not; so a watch is never silently dead. Nothing waits inside a watch but the
answer to its last poll.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from clustor.kv import KvRecord
from clustor.runtime.kv.client import WatchCompacted
from clustor.runtime.kv.stream import NEVER_REACHED
from slipstream.clustor.layout import BucketFacts, witness
from slipstream.clustor.link import ClustorBucketLink
from slipstream.errors import (
    BucketUnavailable,
    CursorExpired,
    KvError,
    NotConnected,
    StoreReplaced,
    WatchError,
)
from slipstream.ports import Watch
from slipstream.types import NO_CURSOR, CaughtUp, WatchCursor, WatchEvent, WatchScope

logger = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 0.5


class ClustorKvWatcher:
    """Opens watches on one bucket."""

    def __init__(self, link: ClustorBucketLink) -> None:
        self._link = link

    async def watch(
        self, scope: WatchScope, *, after: WatchCursor = NO_CURSOR, capacity: int = 256
    ) -> ClustorWatch:
        """Open a watch; see `KvWatcher.watch`."""
        watch = ClustorWatch(self._link, self._link.layout.prefixes(scope), capacity)
        if after.is_none:
            await watch.sync()
        else:
            await watch.resume(after)
        return watch


def _revision_of(cursor: WatchCursor, facts: BucketFacts) -> int:
    """Give the revision of a cursor, if this life of the bucket can have given it."""
    revision = cursor.as_u64()
    if revision is None:
        raise StoreReplaced("the cursor is not of this kind of store")
    if cursor.store not in {b"", facts.identity}:
        raise StoreReplaced("the bucket was recreated", revision=revision)
    if not facts.born <= revision <= facts.revision:
        raise StoreReplaced(
            "the bucket never gave this cursor",
            revision=revision,
            born=facts.born,
            last=facts.revision,
        )
    return revision


class ClustorWatch(Watch):
    """One watch over a succession of polls."""

    def __init__(self, link: ClustorBucketLink, prefixes: Sequence[bytes], capacity: int) -> None:
        super().__init__()
        self._link, self._scope, self._capacity = link, prefixes, capacity
        self._identity = b""
        # The bucket's record is watched, too: it changes only when the bucket is no longer ours.
        self._prefixes = [link.layout.record, *prefixes]
        self._links_opened = link.client.links_opened  # when we last looked at the bucket
        self._frontier = 0  # everything up to this revision is delivered, or waits in `_ready`
        self._target = 0  # the revision at which the watch has caught up
        self._told_caught_up = False
        self._ready: deque[WatchEvent] = deque()
        self._proven = True
        self._polling: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def store_identity(self) -> bytes:
        return self._identity

    @property
    def cursor_proven(self) -> bool:
        return self._proven

    # Opening

    async def sync(self) -> None:
        """Begin with the state as it stands, in order of revisions."""
        state = await self._link.state(self._prefixes)
        record = state.records.pop(self._link.layout.record, None)
        self._identity = self._link.facts_of(record, state.revision).identity
        self._target = state.revision
        records = sorted(state.records.values(), key=attrgetter("mod_revision"))
        self._take_in(records, state.revision)

    async def resume(self, cursor: WatchCursor) -> None:
        """Begin behind a cursor; raises `CursorExpired` and `StoreReplaced`."""
        facts = await self._link.facts()
        revision = _revision_of(cursor, facts)
        self._identity, self._target = facts.identity, facts.revision
        try:
            await self._check_witness(revision, cursor.witness)
            found = await self._link.poll(
                self._prefixes, revision, events_max=self._capacity, reached=revision
            )
        except WatchCompacted as error:
            raise CursorExpired(
                "the history has moved past the cursor", revision=revision, first=error.oldest
            ) from error
        self._take_in(found.events, found.through)

    async def _check_witness(self, revision: int, mark: int) -> None:
        """Compare what the revision did with what was seen of it, while the history has it."""
        try:
            before = await self._link.poll(
                self._scope, revision - 1, events_max=1, reached=revision
            )
        except WatchCompacted:
            self._proven = False
            return
        seen = [event for event in before.events if event.mod_revision == revision]
        self._proven = bool(seen and mark)
        if self._proven and witness(seen[-1]) != mark:
            raise StoreReplaced("the revision is not the one that was seen", revision=revision)

    # Delivering

    async def take(self, limit: int) -> list[WatchEvent]:
        while not self._closed:
            if self._ready:
                return [self._ready.popleft() for _ in range(min(limit, len(self._ready)))]
            await self._next_poll()
        return []

    async def close(self) -> None:
        self._closed = True
        if self._polling is not None:
            self._polling.cancel()

    async def _next_poll(self) -> None:
        """Poll in a task of its own, so that `close` can end the wait of a `take`."""
        self._polling = asyncio.ensure_future(self._poll())
        try:
            await self._polling
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
        finally:
            self._polling = None

    async def _poll(self) -> None:
        try:
            await self._check_still_ours()
            found = await self._link.poll(
                self._prefixes,
                self._frontier,
                events_max=self._capacity,
                reached=NEVER_REACHED if self._told_caught_up else self._target,
            )
        except WatchCompacted as error:
            raise WatchError(
                "compaction overran the watch", frontier=self._frontier, first=error.oldest
            ) from error
        except BucketUnavailable as error:
            raise WatchError("the bucket is gone") from error
        except WatchError:
            raise
        except (KvError, NotConnected) as error:
            if self._link.client.is_closed:
                raise WatchError("the connection was closed under the watch") from error
            logger.info("the watch of %s waits for a leader: %s", self._link.layout.name, error)
            await asyncio.sleep(_PAUSE_SECONDS)
            return
        # Over a new connection this may be another store's: then it is asked for again.
        if self._link.client.links_opened == self._links_opened:
            self._take_in(found.events, found.through)

    async def _check_still_ours(self) -> None:
        """Look at the bucket again after a new connection: the store may be another by now.

        Such a store may never reach the revision that we wait for, so this comes before the poll.
        """
        links_opened = self._link.client.links_opened
        if links_opened == self._links_opened:
            return
        facts = await self._link.facts()
        if facts.identity != self._identity or facts.revision < self._frontier:
            raise WatchError("the bucket was replaced under the watch", frontier=self._frontier)
        self._links_opened = links_opened

    def _take_in(self, records: Sequence[KvRecord], through: int) -> None:
        if any(record.key == self._link.layout.record for record in records):
            raise WatchError("the bucket was removed under the watch", frontier=self._frontier)
        self._ready.extend(self._link.layout.updates(records))
        self._frontier = through
        if not self._told_caught_up and through >= self._target:
            self._told_caught_up = True
            self._ready.append(CaughtUp())
