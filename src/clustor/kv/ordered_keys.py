"""Keys in order, for a store that writes far more often than it lists.

A new key is only noted: O(1). The first listing after that brings the order up to date:
few new keys are inserted one by one (a binary search and a move of n pointers each), many
are sorted in with one merge, O(n + k log k). A deleted key stays in the list as dead
until the dead outnumber the living, so that a delete is O(1) too, amortised.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from clustor.kv.types import Key

_INSERT_ONE_BY_ONE_MAX = 16


class OrderedKeys:
    """A set of keys that can be walked in order. Each key is added and removed in turn."""

    def __init__(self) -> None:
        self._sorted: list[Key] = []
        # Keys not yet in `_sorted`; in no particular order.
        self._fresh: list[Key] = []
        # Keys in `_sorted` or `_fresh` that were removed.
        self._dead: set[Key] = set()

    def add(self, key: Key) -> None:
        """Add a key that is not in the set."""
        if key in self._dead:
            self._dead.remove(key)
        else:
            self._fresh.append(key)

    def remove(self, key: Key) -> None:
        """Remove a key that is in the set."""
        self._dead.add(key)
        if len(self._dead) > 64 and 2 * len(self._dead) > len(self._sorted) + len(self._fresh):
            self._bury()

    def between(self, start: bytes, end: bytes | None) -> Iterator[Key]:
        """Walk the keys from `start` up to, not with, `end`. Do not change the set meanwhile."""
        self._settle()
        keys, dead = self._sorted, self._dead
        for position in range(bisect_left(keys, start), len(keys)):
            key = keys[position]
            if end is not None and key >= end:
                return
            if key not in dead:
                yield key

    def _settle(self) -> None:
        if len(self._fresh) <= _INSERT_ONE_BY_ONE_MAX:
            for key in self._fresh:
                insort(self._sorted, key)
        else:
            # Sorting finds the long run that is sorted already, and merges.
            self._sorted += self._fresh
            self._sorted.sort()
        self._fresh.clear()

    def _bury(self) -> None:
        dead = self._dead
        self._sorted = [key for key in self._sorted if key not in dead]
        self._fresh = [key for key in self._fresh if key not in dead]
        dead.clear()
