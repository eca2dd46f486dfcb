"""The traits: what a backend offers. A new backend is one class per role it can play."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from slipstream.types import (
    NO_CURSOR,
    ConnectionCapabilities,
    KvEntry,
    StoreConfig,
    VersionToken,
    WatchCursor,
    WatchEvent,
    WatchScope,
)

DEFAULT_STORE_CONFIG = StoreConfig()


class KvReader(Protocol):
    """Point-in-time reads."""

    async def get(self, key: str) -> KvEntry | None:
        """Give the live entry, or None when the key is absent or deleted."""

    async def entry(self, key: str) -> KvEntry | None:
        """Give what the store holds for the key, a deletion included, for a conditional write."""

    async def keys(self, prefix: str = "") -> list[str]:
        """List the live keys that start with `prefix`, in order, without their values."""

    async def scan(self, prefix: str = "") -> list[KvEntry]:
        """List the live entries whose keys start with `prefix`, in order of their keys."""

    async def versions(self, prefix: str = "") -> list[KvEntry]:
        """List what stands for every key under `prefix`, deletions included, without values."""


class KvWriter(Protocol):
    """Writes. An empty value is a deletion: reads and watches report the key as gone."""

    async def put(self, key: str, value: bytes) -> VersionToken:
        """Write, whatever stands there."""

    async def delete(self, key: str) -> bool:
        """Write a delete marker; True also when the key was not there."""

    async def create(self, key: str, value: bytes) -> VersionToken:
        """Write if the key is absent or deleted; `AlreadyExists` otherwise."""

    async def update(self, key: str, value: bytes, version: VersionToken) -> VersionToken:
        """Write if the key is still at `version`; `RevisionMismatch` otherwise."""

    async def delete_with_version(self, key: str, version: VersionToken) -> bool:
        """Delete if the key is still at `version`; `RevisionMismatch` otherwise."""


class KvTtl(Protocol):
    """Writes that the store forgets by itself."""

    async def create_with_ttl(self, key: str, value: bytes, ttl_seconds: float) -> VersionToken:
        """Create a key that expires; `AlreadyExists` when it is alive."""


class Watch(ABC):
    """A live stream of events, in the order of revisions; an async iterator and context manager."""

    def __init__(self) -> None:
        self._ahead: deque[WatchEvent] = deque()

    @property
    @abstractmethod
    def store_identity(self) -> bytes:
        """Eight bytes that name this life of the bucket."""

    @property
    def cursor_proven(self) -> bool:
        """False when the revision at the cursor is gone, so that nothing vouches for the rest.

        That is ordinary (the key was written again), and it is also how a bucket that was
        restored from an older copy and written on may look.
        """
        return True

    @abstractmethod
    async def take(self, limit: int) -> list[WatchEvent]:
        """Wait for events and give up to `limit` of them; an empty list is the end.

        Raises `WatchError` when going on would lose something. Cancelling loses nothing.
        """

    @abstractmethod
    async def close(self) -> None:
        """Stop; a waiting `take` returns the end."""

    def __aiter__(self) -> AsyncIterator[WatchEvent]:
        return self

    async def __anext__(self) -> WatchEvent:
        if not self._ahead:
            self._ahead.extend(await self.take(256))
        if not self._ahead:
            raise StopAsyncIteration
        return self._ahead.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.shield(self.close())


class KvWatcher(Protocol):
    """Live updates."""

    async def watch(
        self, scope: WatchScope, *, after: WatchCursor = NO_CURSOR, capacity: int = 256
    ) -> Watch:
        """Open a watch; at most `capacity` events wait inside it.

        Without a cursor it is a state-sync: the current value of every key in scope, then
        `CaughtUp`, then what changes. With a cursor only what came after it, and `CaughtUp` once
        that is delivered. Raises `CursorExpired` where the log cannot give all that came after,
        `StoreReplaced` where the cursor is of another life of the bucket.
        """


class KvStore(Protocol):
    """A named bucket; each role is None where the backend does not play it."""

    @property
    def name(self) -> str: ...

    def reader(self) -> KvReader | None: ...

    def watcher(self) -> KvWatcher | None: ...

    def writer(self) -> KvWriter | None: ...

    def ttl(self) -> KvTtl | None: ...


class Connection(Protocol):
    """The life of a link to a backend, and the factory of its buckets."""

    async def connect(self) -> None:
        """Open the link; a second call on an open one does nothing."""

    async def shutdown(self) -> None:
        """Close it; `connect` may be called again."""

    @property
    def is_healthy(self) -> bool: ...

    @property
    def capabilities(self) -> ConnectionCapabilities: ...

    async def store(self, name: str, config: StoreConfig = DEFAULT_STORE_CONFIG) -> KvStore:
        """Open a bucket, creating it with `config` if it is not there."""
