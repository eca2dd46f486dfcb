"""A backend that lives in this process: for users' tests, and as the plainest reading of the ports.

It keeps a log with NATS's habits (history per key, head eviction, delete markers), so that what
passes on it means something elsewhere. One event loop only.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_right
from dataclasses import dataclass, field

from slipstream.errors import (
    AlreadyExists,
    CursorExpired,
    NotConnected,
    RevisionMismatch,
    StoreReplaced,
    WatchError,
)
from slipstream.keys import checked_key, checked_prefix
from slipstream.ports import DEFAULT_STORE_CONFIG, Watch
from slipstream.protocol import first_lost_gap, resume_window_ok
from slipstream.types import (
    NO_CURSOR,
    CaughtUp,
    ConnectionCapabilities,
    KvEntry,
    KvUpdate,
    StoreConfig,
    UpdateKind,
    VersionToken,
    WatchCursor,
    WatchEvent,
    WatchScope,
)


@dataclass(slots=True)
class _Log:
    """One life of a bucket: messages by revision, oldest first."""

    history_max: int
    identity: bytes = field(default_factory=lambda: os.urandom(8))
    messages: dict[int, KvUpdate] = field(default_factory=dict)
    of_key: dict[str, list[int]] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    last_sequence: int = 0

    @property
    def first_sequence(self) -> int:
        return next(iter(self.messages), self.last_sequence + 1)

    def append(self, kind: UpdateKind, key: str, value: bytes) -> int:
        self.last_sequence += 1
        revision = self.last_sequence
        kind = kind if value or kind is not UpdateKind.PUT else UpdateKind.DELETE
        witness = int.from_bytes(os.urandom(7), "big")
        token = VersionToken.from_u64(revision)
        self.messages[revision] = KvUpdate(kind, key, value, token, witness)
        self.order.append(revision)
        revisions = self.of_key.setdefault(key, [])
        revisions.append(revision)
        while len(revisions) > self.history_max:
            self.messages.pop(revisions.pop(0), None)
        if len(self.order) > 2 * len(self.messages) + 1_000:
            self.order = list(self.messages)
        return revision

    def evict_through(self, revision: int) -> None:
        for gone in [held for held in self.messages if held <= revision]:
            message = self.messages.pop(gone)
            self.of_key[message.key].remove(gone)
            if not self.of_key[message.key]:
                del self.of_key[message.key]

    def last_of(self, key: str) -> KvUpdate | None:
        revisions = self.of_key.get(key)
        return self.messages[revisions[-1]] if revisions else None

    def after(self, revision: int, limit: int) -> list[tuple[int, KvUpdate]]:
        start = bisect_right(self.order, revision)
        found: list[tuple[int, KvUpdate]] = []
        for held in self.order[start:]:
            message = self.messages.get(held)
            if message is not None:
                found.append((held, message))
            if len(found) == limit:
                break
        return found


class MemoryBucket:
    """A bucket that plays every role, with levers for tests: `evict_through` and `recreate`."""

    def __init__(self, name: str, config: StoreConfig = DEFAULT_STORE_CONFIG) -> None:
        self._name = name
        self._config = config
        self._log = _Log(config.history_max)
        self._watches: set[_MemoryWatch] = set()

    @property
    def name(self) -> str:
        """The bucket's name."""
        return self._name

    def reader(self) -> MemoryBucket:
        """Give the reading role."""
        return self

    def writer(self) -> MemoryBucket:
        """Give the writing role."""
        return self

    def watcher(self) -> MemoryBucket:
        """Give the watching role."""
        return self

    def ttl(self) -> MemoryBucket:
        """Give the role of keys that expire."""
        return self

    def evict_through(self, revision: int) -> None:
        """Forget the head of the log, as a retention limit would: without a word."""
        self._log.evict_through(revision)

    def recreate(self) -> None:
        """Start another life of the bucket, with revisions from 1."""
        self._log = _Log(self._config.history_max)
        self._wake()

    @property
    def first_sequence(self) -> int:
        """The oldest revision that the log still holds."""
        return self._log.first_sequence

    async def get(self, key: str) -> KvEntry | None:
        """Give the live entry, or None."""
        entry = await self.entry(key)
        return None if entry is None or entry.deleted else entry

    async def entry(self, key: str) -> KvEntry | None:
        """Give what the log holds for the key, a deletion included."""
        last = self._log.last_of(checked_key(key))
        if last is None:
            return None
        return KvEntry(key, last.value, last.version, last.kind is not UpdateKind.PUT)

    async def keys(self, prefix: str = "") -> list[str]:
        """List the live keys in order."""
        return [entry.key for entry in await self.scan(prefix)]

    async def scan(self, prefix: str = "") -> list[KvEntry]:
        """List the live entries in order of their keys."""
        prefix = checked_prefix(prefix)
        in_scope = sorted(key for key in self._log.of_key if key.startswith(prefix))
        found = [await self.get(key) for key in in_scope]
        return [entry for entry in found if entry is not None]

    async def versions(self, prefix: str = "") -> list[KvEntry]:
        """List what stands for every key, deletions included, without values."""
        prefix = checked_prefix(prefix)
        last = [self._log.messages[revisions[-1]] for revisions in self._log.of_key.values()]
        return [
            KvEntry(update.key, b"", update.version, update.kind is not UpdateKind.PUT)
            for update in last
            if update.key.startswith(prefix)
        ]

    async def put(self, key: str, value: bytes) -> VersionToken:
        """Write, whatever stands there."""
        return self._append(UpdateKind.PUT, key, value)

    async def delete(self, key: str) -> bool:
        """Write a delete marker."""
        self._append(UpdateKind.DELETE, key, b"")
        return True

    async def create(self, key: str, value: bytes) -> VersionToken:
        """Write if the key is absent or deleted."""
        last = self._log.last_of(checked_key(key))
        if last is not None and last.kind is UpdateKind.PUT:
            raise AlreadyExists("the key is alive", key=key)
        return self._append(UpdateKind.PUT, key, value)

    async def update(self, key: str, value: bytes, version: VersionToken) -> VersionToken:
        """Write if the key is still at `version`."""
        last = self._log.last_of(checked_key(key))
        if (last.version if last is not None else VersionToken.from_u64(0)) != version:
            raise RevisionMismatch("the key has moved on", key=key, expected=version.as_u64())
        return self._append(UpdateKind.PUT, key, value)

    async def delete_with_version(self, key: str, version: VersionToken) -> bool:
        """Delete if the key is still at `version`."""
        await self.update(key, b"", version)
        return True

    async def create_with_ttl(self, key: str, value: bytes, ttl_seconds: float) -> VersionToken:
        """Create a key that is deleted after a while, unless it was written again."""
        version = await self.create(key, value)

        def expire() -> None:
            last = self._log.last_of(key)
            if last is not None and last.version == version:
                self._append(UpdateKind.DELETE, key, b"")

        asyncio.get_running_loop().call_later(ttl_seconds, expire)
        return version

    async def watch(
        self, scope: WatchScope, *, after: WatchCursor = NO_CURSOR, capacity: int = 256
    ) -> _MemoryWatch:
        """Open a watch; it reads the log as it goes, so nothing waits inside it."""
        del capacity
        for prefix in scope.prefixes:
            checked_prefix(prefix)
        if not after.is_none:
            self._check_cursor(after)
        watch = _MemoryWatch(self, scope, after.as_u64())
        self._watches.add(watch)
        return watch

    def _check_cursor(self, cursor: WatchCursor) -> None:
        revision, log = cursor.as_u64(), self._log
        if revision is None:
            raise StoreReplaced("the cursor is not of this kind of store")
        held = log.messages.get(revision)
        foreign = cursor.store not in {b"", log.identity} or revision > log.last_sequence
        if foreign or (held is not None and cursor.witness not in {0, held.witness}):
            raise StoreReplaced("the bucket was recreated", bucket=self._name, revision=revision)
        if not resume_window_ok(revision, log.first_sequence):
            raise CursorExpired(
                "the log has moved past the cursor", revision=revision, first=log.first_sequence
            )

    def _append(self, kind: UpdateKind, key: str, value: bytes) -> VersionToken:
        revision = self._log.append(kind, checked_key(key), value)
        self._wake()
        return VersionToken.from_u64(revision)

    def _wake(self) -> None:
        for watch in self._watches:
            watch.news.set()

    @property
    def log(self) -> _Log:
        """The current life; for the watches of this module."""
        return self._log

    def forget(self, watch: _MemoryWatch) -> None:
        """Stop waking a closed watch."""
        self._watches.discard(watch)


class _MemoryWatch(Watch):
    """Reads the log from a frontier on."""

    def __init__(self, bucket: MemoryBucket, scope: WatchScope, revision: int | None) -> None:
        super().__init__()
        self.news = asyncio.Event()
        self._bucket, self._scope, self._log = bucket, scope, bucket.log
        self._resumed = revision is not None
        self._proven = revision is None or revision in self._log.messages
        self._target = self._log.last_sequence
        # A state-sync first walks the keys as they stood at the start, in order of revision.
        self._frontier = revision if revision is not None else 0
        self._guarded = self._resumed and scope.is_all
        self._told_caught_up = False
        self._closed = False

    @property
    def store_identity(self) -> bytes:
        return self._log.identity

    @property
    def cursor_proven(self) -> bool:
        return self._proven

    async def take(self, limit: int) -> list[WatchEvent]:
        while not self._closed:
            self.news.clear()
            if self._bucket.log is not self._log:
                raise WatchError("the bucket was recreated under the watch")
            before = self._frontier
            events = self._collect(limit)
            if events:
                return events
            if self._frontier == before:
                await self.news.wait()
        return []

    def _collect(self, limit: int) -> list[WatchEvent]:
        messages = self._log.after(self._frontier, limit)
        revisions = [revision for revision, _ in messages]
        first = self._log.first_sequence
        lost = first_lost_gap(self._frontier, revisions, first) if self._guarded else None
        if lost is not None:
            raise WatchError("retention overran the watch", frontier=lost, first=first)
        events: list[WatchEvent] = []
        for revision, message in messages:
            self._frontier = revision
            if self._scope.covers(message.key) and not self._is_outdated(revision, message.key):
                events.append(message)
        if not self._told_caught_up and len(messages) < limit:
            self._told_caught_up, self._guarded = True, self._scope.is_all
            events.append(CaughtUp())
        return events

    def _is_outdated(self, revision: int, key: str) -> bool:
        """True for what a state-sync leaves out: a key's older revisions."""
        if self._resumed or revision > self._target:
            return False
        return self._log.of_key[key][-1] != revision

    async def close(self) -> None:
        self._closed = True
        self.news.set()
        self._bucket.forget(self)


class MemoryConnection:
    """A connection to buckets in this process; two connections share nothing."""

    def __init__(self) -> None:
        self._buckets: dict[str, MemoryBucket] = {}
        self._healthy = False

    async def connect(self) -> None:
        """Open it."""
        self._healthy = True

    async def shutdown(self) -> None:
        """Close it; the buckets stay for the next `connect`."""
        self._healthy = False

    @property
    def is_healthy(self) -> bool:
        """True between `connect` and `shutdown`."""
        return self._healthy

    @property
    def capabilities(self) -> ConnectionCapabilities:
        """Everything."""
        return ConnectionCapabilities(
            compare_and_set=True,
            streaming_watch=True,
            resumable_watch=True,
            multi_prefix_watch=True,
            per_key_ttl=True,
        )

    async def store(self, name: str, config: StoreConfig = DEFAULT_STORE_CONFIG) -> MemoryBucket:
        """Open a bucket, creating it if it is not there."""
        if not self._healthy:
            raise NotConnected("connect first")
        return self._buckets.setdefault(name, MemoryBucket(name, config))
