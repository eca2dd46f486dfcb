"""One exporter per fleet and round: a key with its expiry inside, won and stolen by comparison.

The lease saves work; it protects nothing. A clock that runs ahead steals early, and then two
nodes export the same thing, of which the pointer keeps the newer. So expiry by wall clock will
do, on any store that can compare and set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from slipstream.errors import AlreadyExists, Misuse, RevisionMismatch
from slipstream.ports import KvReader, KvWriter
from slipstream.types import VersionToken, WatchCursor

Clock = Callable[[], float]


class LeaseRecord(msgspec.Struct, frozen=True):
    """The value of the lease's key."""

    holder_id: str
    acquired_at_unix: int
    expires_at_unix: int
    completed_cursor_hex: str | None = None
    completed_at_unix: int | None = None

    def encode(self) -> bytes:
        """Give its JSON."""
        return msgspec.json.encode(self)


def read_lease(value: bytes) -> LeaseRecord | None:
    """Read a lease's value; None when it is not one."""
    try:
        return msgspec.json.decode(value, type=LeaseRecord)
    except msgspec.DecodeError:
        return None


def is_stealable(record: LeaseRecord | None, now_unix: float) -> bool:
    """Say whether a lease may be taken over: expired, or unreadable, which would wedge us all."""
    return record is None or now_unix >= record.expires_at_unix


class ExportLease:
    """A key that nodes compete for, once per round."""

    def __init__(
        self,
        reader: KvReader,
        writer: KvWriter,
        key: str,
        holder_id: str,
        *,
        clock: Clock = time.time,
    ) -> None:
        self._reader, self._writer, self._key = reader, writer, key
        self._holder_id, self._clock = holder_id, clock

    async def try_acquire(self, ttl_seconds: float) -> LeaseGuard | None:
        """Win the round, or give None when another node holds it."""
        if ttl_seconds < 1:
            raise Misuse("a lease lasts a second or more", ttl_seconds=ttl_seconds)
        now = self._clock()
        record = LeaseRecord(self._holder_id, int(now), int(now + ttl_seconds))
        try:
            version = await self._writer.create(self._key, record.encode())
        except AlreadyExists:
            return await self._try_steal(record, now, ttl_seconds)
        return self._guard(record, version, ttl_seconds)

    async def _try_steal(
        self, record: LeaseRecord, now: float, ttl_seconds: float
    ) -> LeaseGuard | None:
        held = await self._reader.entry(self._key)
        if held is None or not (held.deleted or is_stealable(read_lease(held.value), now)):
            return None
        try:
            version = await self._writer.update(self._key, record.encode(), held.version)
        except RevisionMismatch:
            return None
        return self._guard(record, version, ttl_seconds)

    def _guard(self, record: LeaseRecord, version: VersionToken, ttl: float) -> LeaseGuard:
        return LeaseGuard(
            self._writer,
            self._key,
            record=record,
            version=version,
            ttl_seconds=ttl,
            clock=self._clock,
        )

    async def read(self) -> LeaseRecord | None:
        """Give the record that stands, None when there is none or it cannot be read."""
        held = await self._reader.get(self._key)
        return None if held is None else read_lease(held.value)


class LeaseGuard:
    """A won round. Complete it, or abandon it; forgotten, it expires."""

    def __init__(
        self,
        writer: KvWriter,
        key: str,
        *,
        record: LeaseRecord,
        version: VersionToken,
        ttl_seconds: float,
        clock: Clock,
    ) -> None:
        self._writer, self._key, self._version, self._clock = writer, key, version, clock
        self._record: Final = record
        self.ttl_seconds: Final = ttl_seconds

    @property
    def record(self) -> LeaseRecord:
        """What was written when the round was won."""
        return self._record

    async def complete(self, cursor: WatchCursor) -> None:
        """Say to the fleet what was exported; `RevisionMismatch` if the lease was lost."""
        done = msgspec.structs.replace(
            self._record,
            completed_cursor_hex=cursor.encode().hex(),
            completed_at_unix=int(self._clock()),
        )
        self._version = await self._writer.update(self._key, done.encode(), self._version)

    async def abandon(self) -> None:
        """Free the round early; `RevisionMismatch` if the lease was lost."""
        await self._writer.delete_with_version(self._key, self._version)
