"""Writes: plain, conditional, and with a time to live. Each happens once, or not at all."""

from __future__ import annotations

from typing import Final

from clustor.kv import KvLimits, RevisionIs, Txn, TxnConflict, TxnDone, TxnPut
from slipstream.clustor.link import ClustorBucketLink
from slipstream.clustor.reader import ClustorKvReader
from slipstream.errors import AlreadyExists, Misuse, RevisionMismatch, StoreFailure
from slipstream.types import StoreConfig, VersionToken

_ATTEMPTS: Final = 8
_TOMBSTONE_MS: Final = 60 * 60 * 1000
# Checked here as well as by the store: what no frame can carry would cost us the connection.
_VALUE_BYTES_MAX: Final = KvLimits().value_bytes_max


class ClustorKvWriter:
    """Writes to one bucket; each returns when it is fsynced on a quorum.

    Every write is a transaction that holds only while the bucket's record is the one we know, so
    that nothing is written into a bucket that was removed meanwhile.
    """

    def __init__(self, link: ClustorBucketLink, config: StoreConfig) -> None:
        self._link = link
        self._reader = ClustorKvReader(link)
        self._age_ms = round((config.age_seconds_max or 0) * 1000)

    async def put(self, key: str, value: bytes) -> VersionToken:
        """Write, whatever stands there."""
        return await self._write("put", key, value)

    async def delete(self, key: str) -> bool:
        """Write a delete marker; True also when the key was not there."""
        await self._write("delete", key, b"")
        return True

    async def create(self, key: str, value: bytes) -> VersionToken:
        """Write if the key is absent or deleted; `AlreadyExists` otherwise."""
        return await self._create(key, value, 0)

    async def create_with_ttl(self, key: str, value: bytes, ttl_seconds: float) -> VersionToken:
        """Create a key that the store deletes after a while, by its leader's clock."""
        ttl_ms = round(ttl_seconds * 1000)
        if ttl_ms < 1:
            raise Misuse("a time to live is a millisecond or more", ttl_seconds=ttl_seconds)
        return await self._create(key, value, ttl_ms)

    async def update(self, key: str, value: bytes, version: VersionToken) -> VersionToken:
        """Write if the key is still at `version`; `RevisionMismatch` otherwise."""
        revision = version.as_u64()
        if revision is None:
            raise Misuse("a conditional write needs the version of an entry", key=key)
        return await self._write("update", key, value, expected=revision)

    async def delete_with_version(self, key: str, version: VersionToken) -> bool:
        """Write an empty value if the key is still at `version`: a tombstone that rivals see."""
        await self.update(key, b"", version)
        return True

    async def _create(self, key: str, value: bytes, ttl_ms: int) -> VersionToken:
        revision = 0
        for _ in range(_ATTEMPTS):
            try:
                return await self._write("create", key, value, expected=revision, ttl_ms=ttl_ms)
            except RevisionMismatch:
                # Something stands there: a live key, or a deletion that may be written over.
                entry = await self._reader.entry(key)
                if entry is not None and not entry.deleted:
                    raise AlreadyExists("the key is alive", key=key) from None
                revision = 0 if entry is None else entry.version.as_u64() or 0
        raise RevisionMismatch("the key is being deleted and created all the time", key=key)

    async def _write(
        self,
        operation: str,
        key: str,
        value: bytes,
        *,
        expected: int | None = None,
        ttl_ms: int = 0,
    ) -> VersionToken:
        place = self._link.layout.key(key)
        if len(value) > _VALUE_BYTES_MAX:
            raise StoreFailure("the value is too large", size=len(value), limit=_VALUE_BYTES_MAX)
        conditions = [] if expected is None else [RevisionIs(place, expected)]
        put = TxnPut(place, value, self._ttl_ms(value, ttl_ms))
        for _ in range(_ATTEMPTS):
            is_ours = RevisionIs(self._link.layout.record, self._link.born)
            reply = await self._link.execute(operation, Txn([is_ours, *conditions], [put]))
            if isinstance(reply, TxnDone):
                return VersionToken.from_u64(reply.revision)
            assert isinstance(reply, TxnConflict)
            if reply.position > 0:
                raise RevisionMismatch(
                    "the key has moved on", key=key, expected=expected, actual=reply.mod_revision
                )
            await self._link.facts()  # Another life of the bucket, or none.
        raise StoreFailure("the bucket is being removed and created all the time")

    def _ttl_ms(self, value: bytes, ttl_ms: int) -> int:
        """Give the shortest of the times that apply; 0 is for ever."""
        tombstone_ms = 0 if value else _TOMBSTONE_MS
        return min((each for each in (ttl_ms, self._age_ms, tombstone_ms) if each), default=0)
