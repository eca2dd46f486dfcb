"""Reads: linearizable, so that each sees every write acknowledged before it began."""

from __future__ import annotations

from dataclasses import replace

from clustor.kv import Found, Get
from slipstream.clustor.link import ClustorBucketLink
from slipstream.types import KvEntry


class ClustorKvReader:
    """Reads of one bucket. A listing, however long, shows one moment."""

    def __init__(self, link: ClustorBucketLink) -> None:
        self._link = link

    async def get(self, key: str) -> KvEntry | None:
        """Give the live entry, or None when the key is absent or deleted."""
        entry = await self.entry(key)
        return None if entry is None or entry.deleted else entry

    async def entry(self, key: str) -> KvEntry | None:
        """Give what the bucket holds for the key, a deletion included while it stands."""
        layout = self._link.layout
        reply = await self._link.execute("read a key", Get(layout.key(key)))
        assert isinstance(reply, Found)
        return None if reply.record is None else layout.entry(reply.record)

    async def keys(self, prefix: str = "") -> list[str]:
        """List the live keys in order."""
        return [entry.key for entry in await self.scan(prefix)]

    async def scan(self, prefix: str = "") -> list[KvEntry]:
        """List the live entries in order of their keys."""
        return [entry for entry in await self._standing(prefix) if not entry.deleted]

    async def versions(self, prefix: str = "") -> list[KvEntry]:
        """List what stands for every key, deletions included, without values."""
        return [replace(entry, value=b"") for entry in await self._standing(prefix)]

    async def _standing(self, prefix: str) -> list[KvEntry]:
        layout = self._link.layout
        state = await self._link.state([layout.prefix(prefix)])
        return [layout.entry(record) for _, record in sorted(state.records.items())]
