"""Which keys expire, earliest first.

A heap of (time, key, revision) in which an entry whose key has changed since is stale and
skipped. It is rebuilt when the stale outnumber the valid, so memory follows the number of
keys that do expire. The order of what it gives depends on the valid entries alone, so a
machine restored from a snapshot expires exactly as the one that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from clustor.kv.types import Key, KvRecord, Revision


class Expiry:
    """The keys of `records` that carry a time, in order of that time and then of key."""

    def __init__(self, records: Mapping[Key, KvRecord]) -> None:
        self._records = records
        self._heap: list[tuple[int, Key, Revision]] = []
        self._valid = 0

    def on_change(self, before: KvRecord | None, after: KvRecord | None) -> None:
        """Note that a key's record was replaced; None stands for an absent one."""
        if before is not None and before.expires_ms:
            self._valid -= 1
        if after is not None and after.expires_ms:
            self._valid += 1
            heappush(self._heap, (after.expires_ms, after.key, after.mod_revision))
        if len(self._heap) > 2 * self._valid + 64:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapify(self._heap)

    def take_due(self, now_ms: int) -> Key | None:
        """Remove and return the first key whose time has come; the caller then deletes it."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            entry = heappop(heap)
            if self._is_valid(entry):
                return entry[1]
        return None

    def has_due(self, now_ms: int) -> bool:
        heap = self._heap
        while heap and not self._is_valid(heap[0]):
            heappop(heap)
        return bool(heap) and heap[0][0] <= now_ms

    def next_ms(self) -> int | None:
        """Return when the next key expires, or None."""
        return self._heap[0][0] if self.has_due(2**63) else None

    def _is_valid(self, entry: tuple[int, Key, Revision]) -> bool:
        record = self._records.get(entry[1])
        return record is not None and record.mod_revision == entry[2]
