"""Watches: a hand-built ordered consumer that is never silently dead.

The client library's own watch takes no start revision and one filter only, and an ephemeral
consumer dies with its server while the subscription to it lives on. So the consumer is built
here, told from its successor by its inbox, and replaced from the last delivered revision when
its numbering has a hole, when its heartbeat stops, or when the connection was re-made.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Final

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api

from slipstream.errors import (
    BucketUnavailable,
    CursorExpired,
    KvError,
    StoreReplaced,
    WatchError,
)
from slipstream.nats.ack import AckFields, parse_ack
from slipstream.nats.filters import FilterPlan, plan_filters
from slipstream.nats.link import NatsBucketLink, StreamFacts, header
from slipstream.nats.messages import kind_of
from slipstream.ports import Watch
from slipstream.protocol import first_lost_gap, resume_window_ok
from slipstream.types import (
    NO_CURSOR,
    UNKNOWN_VERSION,
    CaughtUp,
    KvUpdate,
    VersionToken,
    WatchCursor,
    WatchEvent,
    WatchScope,
)

logger = logging.getLogger(__name__)

_HEARTBEATS_MISSED_MAX: Final = 3
_ORPHAN_SECONDS: Final = 300.0
_CONTROL: Final = "100"


class NatsKvWatcher:
    """Opens watches on one bucket."""

    def __init__(self, link: NatsBucketLink) -> None:
        self._link = link

    async def watch(
        self, scope: WatchScope, *, after: WatchCursor = NO_CURSOR, capacity: int = 256
    ) -> NatsWatch:
        """Open a watch; see `KvWatcher.watch`."""
        plan = plan_filters(scope, self._link.subject_prefix)
        facts = await self._link.facts()
        proven = after.is_none or await self._check_cursor(after, facts)
        watch = NatsWatch(
            self._link, plan, facts.identity, capacity=capacity, guarded=scope.is_all, proven=proven
        )
        await watch.open(after.as_u64())
        return watch

    async def _check_cursor(self, cursor: WatchCursor, facts: StreamFacts) -> bool:
        """Refuse a cursor that this life of the stream did not give, or cannot honour.

        True when the revision at the cursor is still there, and is the one that was seen.
        The server would not: from below its head it starts at its first message, from beyond its
        end it waits, and it does not know that it was restored from an older copy.
        """
        revision = cursor.as_u64()
        if revision is None:
            raise StoreReplaced("the cursor is not of this kind of store")
        if cursor.store not in {b"", facts.identity}:
            raise StoreReplaced("the bucket was recreated", revision=revision)
        if revision > facts.last_sequence:
            raise StoreReplaced(
                "the bucket's revisions went backwards", revision=revision, last=facts.last_sequence
            )
        if not resume_window_ok(revision, facts.first_sequence):
            raise CursorExpired(
                "the log has moved past the cursor", revision=revision, first=facts.first_sequence
            )
        if not cursor.witness or revision < facts.first_sequence:
            return False
        witness = await self._link.witness_at(revision)
        if witness not in {None, cursor.witness}:
            raise StoreReplaced("the revision is not the one that was seen", revision=revision)
        return witness is not None


class NatsWatch(Watch):
    """One watch over a succession of consumers."""

    def __init__(
        self,
        link: NatsBucketLink,
        plan: FilterPlan,
        identity: bytes,
        *,
        capacity: int,
        guarded: bool,
        proven: bool,
    ) -> None:
        super().__init__()
        self._link, self._plan, self._identity, self._capacity = link, plan, identity, capacity
        self._guardable = guarded
        self._guarding = False
        self._frontier = 0  # the last stream sequence delivered, or the cursor resumed from
        self._consumer_sequence = 0  # of the current consumer
        self._consumer: str | None = None
        self._subscription: Subscription | None = None
        self._queue: asyncio.Queue[Msg | None] = asyncio.Queue(capacity)
        self._raw: deque[Msg] = deque()
        self._told_caught_up = False
        self._owes_caught_up = False
        self._stale = False  # the current consumer must be replaced
        self._closed = False
        self._proven = proven
        self._probe_at = 0.0
        self._forget_reconnects = link.on_reconnect(self._on_reconnect)

    @property
    def store_identity(self) -> bytes:
        return self._identity

    @property
    def cursor_proven(self) -> bool:
        return self._proven

    async def open(self, revision: int | None) -> None:
        """Create the first consumer: from `revision + 1`, or with the state as it stands."""
        try:
            if revision is not None:
                self._frontier, self._guarding = revision, self._guardable
            await self._create_consumer(state_sync=revision is None)
        except BaseException:
            await self.close()
            raise

    async def take(self, limit: int) -> list[WatchEvent]:
        while not self._closed:
            if self._stale:
                await self._replace_consumer()
            if self._owes_caught_up:
                self._owes_caught_up = False
                return [self._caught_up()]
            await self._receive(limit)
            if not self._stale:
                await self._guard_floor()
            events = self._digest(limit)
            if events:
                return events
        return []

    async def close(self) -> None:
        self._closed = True
        self._forget_reconnects()
        self._nudge()
        await self._drop_consumer()

    # Receiving

    async def _receive(self, limit: int) -> None:
        """Move what has arrived into `_raw`; wait if nothing has, but not for ever."""
        if self._raw:
            return
        silence = self._link.heartbeat_seconds * _HEARTBEATS_MISSED_MAX
        try:
            async with asyncio.timeout(silence):
                first = await self._queue.get()
        except TimeoutError:
            logger.info("no heartbeat from the consumer of %s", self._link.stream)
            self._stale = True
            return
        if first is not None:
            self._raw.append(first)
        while len(self._raw) < limit and not self._queue.empty():
            message = self._queue.get_nowait()
            if message is not None:
                self._raw.append(message)

    async def _on_message(self, queue: asyncio.Queue[Msg | None], message: Msg) -> None:
        """Queue a message; waiting here is what slows the server down."""
        await queue.put(message)
        # The server asks, after what it sent so far: have you taken all that?
        if header(message, "Status") == _CONTROL:
            asked = message.reply or header(message, "Nats-Consumer-Stalled")
            if asked:
                await self._link.client.publish(asked)

    def _on_reconnect(self) -> None:
        self._stale = True
        self._nudge()

    def _nudge(self) -> None:
        """Wake a waiting `take`; a full queue has no one waiting."""
        if not self._queue.full():
            self._queue.put_nowait(None)

    # Understanding

    async def _guard_floor(self) -> None:
        """Raise before anything is processed whose delivery skipped evicted messages."""
        if not self._guarding:
            return
        acks = [parse_ack(message.reply) for message in self._raw if message.reply]
        revisions = [ack.stream_sequence for ack in acks if ack is not None]
        gapped = bool(revisions) and revisions[-1] - self._frontier != len(revisions)
        quiet = not revisions and time.monotonic() >= self._probe_at
        if revisions:
            self._probe_at = time.monotonic() + self._link.floor_probe_seconds
        if not gapped and not quiet:
            return
        self._probe_at = time.monotonic() + self._link.floor_probe_seconds
        try:
            facts = await self._link.facts()
        except BucketUnavailable as error:
            raise WatchError("the bucket is gone") from error
        except KvError as error:
            # Not knowing is no reason to go on: these are delivered again once it is known.
            logger.info("cannot ask for the floor of %s: %s", self._link.stream, error)
            self._stale = True
            return
        lost = first_lost_gap(self._frontier, revisions, facts.first_sequence)
        if quiet and not resume_window_ok(self._frontier, facts.first_sequence):
            lost = self._frontier
        if lost is not None:
            raise WatchError(
                "retention overran the watch", frontier=lost, first=facts.first_sequence
            )

    def _digest(self, limit: int) -> list[WatchEvent]:
        """Turn raw messages into events, up to the first sign that one was lost."""
        events: list[WatchEvent] = []
        while self._raw and len(events) < limit and not self._stale:
            message = self._raw.popleft()
            if header(message, "Status") is not None:
                self._on_control(message)
                continue
            ack = parse_ack(message.reply)
            expected = self._consumer_sequence + 1
            if ack is not None and ack.consumer_sequence != expected:
                self._stale = True
                break
            self._consumer_sequence = expected
            self._on_data(message, ack, events)
        if self._stale:
            self._raw.clear()
        return events

    def _on_control(self, message: Msg) -> None:
        if header(message, "Status") != _CONTROL:
            self._stale = True  # such as: the consumer was deleted
            return
        last = header(message, "Nats-Last-Consumer")
        if last is not None and int(last) != self._consumer_sequence:
            self._stale = True

    def _on_data(self, message: Msg, ack: AckFields | None, events: list[WatchEvent]) -> None:
        version, witness = UNKNOWN_VERSION, 0
        if ack is not None:
            self._frontier = ack.stream_sequence
            version, witness = VersionToken.from_u64(ack.stream_sequence), ack.stamp_ns // 1000
        key = message.subject[len(self._link.subject_prefix) :]
        if self._plan.accepts(key):
            kind = kind_of(message.headers, len(message.data))
            events.append(KvUpdate(kind, key, message.data, version, witness))
        if not self._told_caught_up and ack is not None and ack.pending == 0:
            events.append(self._caught_up())

    def _caught_up(self) -> CaughtUp:
        self._told_caught_up = True
        self._guarding = self._guardable
        self._probe_at = time.monotonic() + self._link.floor_probe_seconds
        return CaughtUp()

    # Consumers

    async def _create_consumer(self, *, state_sync: bool) -> None:
        """Subscribe a fresh inbox, then let the server deliver into it."""
        queue: asyncio.Queue[Msg | None] = asyncio.Queue(self._capacity)

        async def on_message(message: Msg) -> None:
            await self._on_message(queue, message)

        inbox = self._link.client.new_inbox()
        self._subscription = await self._link.client.subscribe(inbox, cb=on_message)
        self._queue, self._consumer_sequence, self._stale = queue, 0, False
        self._raw.clear()
        config = self._consumer_config(inbox, state_sync=state_sync)
        creation = self._link.jetstream.add_consumer(self._link.stream, config)
        info = await self._link.timed("create a watch", creation)
        self._consumer = info.name
        delivered = info.delivered.consumer_seq if info.delivered is not None else 0
        nothing_to_come = (info.num_pending or 0) + delivered == 0
        self._owes_caught_up = nothing_to_come and not self._told_caught_up

    def _consumer_config(self, inbox: str, *, state_sync: bool) -> api.ConsumerConfig:
        policy = api.DeliverPolicy
        return api.ConsumerConfig(
            deliver_policy=policy.LAST_PER_SUBJECT if state_sync else policy.BY_START_SEQUENCE,
            opt_start_seq=None if state_sync else self._frontier + 1,
            deliver_subject=inbox,
            filter_subjects=list(self._plan.subjects),
            ack_policy=api.AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            flow_control=True,
            idle_heartbeat=self._link.heartbeat_seconds,
            inactive_threshold=_ORPHAN_SECONDS,
        )

    async def _replace_consumer(self) -> None:
        """Go on with a new consumer behind the last delivery; wait while the server is away."""
        await self._drop_consumer()
        while not self._closed:
            if self._link.client.is_closed:
                raise WatchError("the connection was closed under the watch")
            try:
                await self._check_still_ours()
                await self._create_consumer(state_sync=self._frontier == 0)
                return
            except WatchError:
                raise
            except BucketUnavailable as error:
                raise WatchError("the bucket is gone") from error
            except KvError as error:
                logger.info("cannot re-create the consumer yet: %s", error)
                await self._drop_consumer()
                await self._wait_for_server()

    async def _check_still_ours(self) -> None:
        facts = await self._link.facts()
        if facts.identity != self._identity or facts.last_sequence < self._frontier:
            raise WatchError("the bucket was replaced under the watch", frontier=self._frontier)
        if self._frontier and not resume_window_ok(self._frontier, facts.first_sequence):
            raise WatchError(
                "retention overran the watch", frontier=self._frontier, first=facts.first_sequence
            )

    async def _wait_for_server(self) -> None:
        """Wait for the reconnect to be announced, at most one heartbeat."""
        try:
            async with asyncio.timeout(self._link.heartbeat_seconds):
                await self._queue.get()
        except TimeoutError:
            return

    async def _drop_consumer(self) -> None:
        """Leave the old inbox, and tell the server if it hears us; it forgets by itself anyway."""
        subscription, self._subscription = self._subscription, None
        consumer, self._consumer = self._consumer, None
        client = self._link.client
        if client.is_closed:
            return
        if subscription is not None:
            await subscription.unsubscribe()
        if consumer is not None and client.is_connected and not self._stale:
            try:
                removal = self._link.jetstream.delete_consumer(self._link.stream, consumer)
                await self._link.timed("remove a watch", removal)
            except KvError as error:
                logger.debug("the watch's consumer was not removed: %s", error)
