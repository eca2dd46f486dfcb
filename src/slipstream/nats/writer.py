"""Writes: plain, conditional, and with a time to live."""

from __future__ import annotations

from typing import Final

from nats.js import api

from slipstream.errors import AlreadyExists, Misuse, RevisionMismatch
from slipstream.keys import checked_key
from slipstream.nats.link import NatsBucketLink
from slipstream.nats.reader import NatsKvReader
from slipstream.types import VersionToken

_EXPECTED: Final = api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value
_CREATE_ATTEMPTS: Final = 8


class NatsKvWriter:
    """Writes to one bucket; each returns when the server has acknowledged it."""

    def __init__(self, link: NatsBucketLink) -> None:
        self._link = link
        self._reader = NatsKvReader(link)

    async def put(self, key: str, value: bytes) -> VersionToken:
        """Write, whatever stands there."""
        return await self._publish("put", key, value, {})

    async def delete(self, key: str) -> bool:
        """Write a delete marker; True also when the key was not there."""
        await self._publish("delete", key, b"", {"KV-Operation": "DEL"})
        return True

    async def create(self, key: str, value: bytes) -> VersionToken:
        """Write if the key is absent or deleted; `AlreadyExists` otherwise."""
        return await self._create(key, value, None)

    async def create_with_ttl(self, key: str, value: bytes, ttl_seconds: float) -> VersionToken:
        """Create a key that the server forgets after `ttl_seconds` (one second or more)."""
        if ttl_seconds < 1:
            raise Misuse("the server counts a time to live in seconds", ttl_seconds=ttl_seconds)
        return await self._create(key, value, ttl_seconds)

    async def update(self, key: str, value: bytes, version: VersionToken) -> VersionToken:
        """Write if the key is still at `version`; `RevisionMismatch` otherwise."""
        revision = version.as_u64()
        if revision is None:
            raise Misuse("a conditional write needs the version of an entry", key=key)
        return await self._publish("update", key, value, {_EXPECTED: str(revision)})

    async def delete_with_version(self, key: str, version: VersionToken) -> bool:
        """Write an empty value if the key is still at `version`: a tombstone that rivals see."""
        await self.update(key, b"", version)
        return True

    async def _create(self, key: str, value: bytes, ttl_seconds: float | None) -> VersionToken:
        revision = 0
        for _ in range(_CREATE_ATTEMPTS):
            try:
                expected = {_EXPECTED: str(revision)}
                return await self._publish("create", key, value, expected, ttl_seconds)
            except RevisionMismatch:
                # Something stands there: a live key, or a deletion that may be written over.
                entry = await self._reader.entry(key)
                if entry is not None and not entry.deleted:
                    raise AlreadyExists("the key is alive", key=key) from None
                revision = 0 if entry is None else entry.version.as_u64() or 0
        raise RevisionMismatch("the key is being deleted and created all the time", key=key)

    async def _publish(
        self,
        operation: str,
        key: str,
        value: bytes,
        headers: dict[str, str],
        ttl_seconds: float | None = None,
    ) -> VersionToken:
        subject = self._link.subject_prefix + checked_key(key)
        publish = self._link.jetstream.publish(
            subject, value, headers=dict(headers) or None, msg_ttl=ttl_seconds
        )
        acknowledged = await self._link.timed(operation, publish)
        return VersionToken.from_u64(acknowledged.seq)
