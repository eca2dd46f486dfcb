"""Idempotency keys: a proposal that comes twice gets the index of its first time.

The key is part of the entry's payload, so every replica builds the same table from the log, in
the order of the log, and a new leader answers a repeated request as the old one would have. The
table holds the newest keys; the caller's `key_of` reads the key from a payload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from clustor.log.types import Entry, EntryKind, LogIndex

KeyOf: TypeAlias = Callable[[bytes], bytes]
"""Read the idempotency key from a payload; empty means that it has none."""

KEY_BYTES_MAX = 255


def frame_with_key(key: bytes, payload: bytes) -> bytes:
    """Put a key before a payload: one byte of length, the key, the payload."""
    if len(key) > KEY_BYTES_MAX:
        raise ValueError(f"an idempotency key has at most {KEY_BYTES_MAX} bytes, not {len(key)}")
    return bytes((len(key),)) + key + payload


def key_of_frame(framed: bytes) -> bytes:
    """Read the key that `frame_with_key` put before a payload."""
    return framed[1 : 1 + framed[0]] if framed else b""


class IdempotencyTable:
    """Applied keys with their indexes, oldest out first; and the keys still under way."""

    def __init__(self, key_of: KeyOf | None, keys_max: int) -> None:
        self._key_of = key_of
        self._keys_max = keys_max
        self._applied: dict[bytes, LogIndex] = {}
        self._pending: dict[bytes, LogIndex] = {}

    @property
    def in_use(self) -> bool:
        return self._key_of is not None

    def __len__(self) -> int:
        return len(self._applied)

    def lookup(self, payload: bytes) -> tuple[bytes, LogIndex | None]:
        """Return the payload's key and the index it already has, if any."""
        assert self._key_of is not None
        key = self._key_of(payload)
        if not key:
            return key, None
        return key, self._pending.get(key) or self._applied.get(key)

    def proposed(self, key: bytes, index: LogIndex) -> None:
        self._pending[key] = index

    def lead(self, tail: Iterable[Entry]) -> None:
        """Learn the keys of entries that this new leader holds and has not applied."""
        self._pending.clear()
        if self._key_of is None:
            return
        for entry in tail:
            if entry.kind is EntryKind.DATA and (key := self._key_of(entry.payload)):
                self._pending.setdefault(key, entry.index)

    def applied(self, entries: Sequence[Entry]) -> None:
        """Record the keys of entries that are applied now; the first index of a key stays."""
        if self._key_of is None:
            return
        for entry in entries:
            if entry.kind is EntryKind.DATA and (key := self._key_of(entry.payload)):
                self._pending.pop(key, None)
                self._applied.setdefault(key, entry.index)
        while len(self._applied) > self._keys_max:
            del self._applied[next(iter(self._applied))]

    def encode(self, through: LogIndex) -> bytes:
        """Write the table for a snapshot at `through`."""
        rows = [(key, index) for key, index in self._applied.items() if index <= through]
        return msgspec.msgpack.encode(rows)

    def restore(self, encoded: bytes) -> None:
        """Start over from a snapshot's table."""
        rows = msgspec.msgpack.decode(encoded, type=list[tuple[bytes, int]]) if encoded else []
        self._applied = {key: LogIndex(index) for key, index in rows}
        self._pending.clear()
