"""Keys in order, in memory: a tree of two floors, which is enough for tens of millions."""

from __future__ import annotations

from bisect import bisect_left, insort

LEAF_KEYS_MAX = 1024


class SortedKeys:
    """A sorted set of bytes: adding, discarding and seeking each touch one leaf."""

    __slots__ = ("_last", "_leaves", "_size")

    def __init__(self) -> None:
        self._leaves: list[list[bytes]] = []
        """Each holds at least one key, and all of them in order."""
        self._last: list[bytes] = []
        """The last key of each leaf."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, key: bytes) -> None:
        """Put a key in its place; the caller knows that it is not there."""
        self._size += 1
        if not self._leaves:
            self._leaves.append([key])
            self._last.append(key)
            return
        at = min(bisect_left(self._last, key), len(self._leaves) - 1)
        leaf = self._leaves[at]
        insort(leaf, key)
        self._last[at] = leaf[-1]
        if len(leaf) > LEAF_KEYS_MAX:
            self._split(at)

    def _split(self, at: int) -> None:
        leaf = self._leaves[at]
        # Keys that come in order fill the leaf they leave behind; others leave two halves.
        middle = len(leaf) * 7 // 8 if at == len(self._leaves) - 1 else len(leaf) // 2
        self._leaves.insert(at + 1, leaf[middle:])
        del leaf[middle:]
        self._last.insert(at, leaf[-1])

    def discard(self, key: bytes) -> None:
        """Take a key out; the caller knows that it is there."""
        at = bisect_left(self._last, key)
        leaf = self._leaves[at]
        del leaf[bisect_left(leaf, key)]
        self._size -= 1
        if leaf:
            self._last[at] = leaf[-1]
            self._merge(at)
        else:
            del self._leaves[at], self._last[at]

    def _merge(self, at: int) -> None:
        """Join a leaf that has run low with the next one: few keys never hold many leaves."""
        if at + 1 == len(self._leaves):
            return
        together = len(self._leaves[at]) + len(self._leaves[at + 1])
        if together <= LEAF_KEYS_MAX // 2:
            self._leaves[at] += self._leaves[at + 1]
            del self._leaves[at + 1], self._last[at]


class KeyCursor:
    """A place among the keys, from which seeking forward is cheap.

    It is good until the keys change.
    """

    __slots__ = ("_at", "_keys", "_place")

    def __init__(self, keys: SortedKeys) -> None:
        self._keys = keys
        self._at = 0
        self._place = 0

    def key(self) -> bytes | None:
        """Return the key at this place, or None at the end."""
        leaves = self._keys._leaves
        return leaves[self._at][self._place] if self._at < len(leaves) else None

    def take_before(self, bound: bytes, limit: int) -> list[bytes]:
        """Return some of the keys from this place to a bound, at least one, and go behind them.

        The caller knows that the key at this place is before the bound.
        """
        leaf = self._keys._leaves[self._at]
        end = bisect_left(leaf, bound, self._place, min(len(leaf), self._place + limit))
        taken = leaf[self._place : end]
        self._place = end
        if end == len(leaf):
            self._at += 1
            self._place = 0
        return taken

    def step(self) -> bytes | None:
        """Go to the next key and return it."""
        self._place += 1
        if self._place == len(self._keys._leaves[self._at]):
            self._at += 1
            self._place = 0
        return self.key()

    def seek(self, key: bytes) -> bytes | None:
        """Go forward to the first key that is not before this one, and return it."""
        last = self._keys._last
        if self._at < len(last) and last[self._at] < key:
            self._at = bisect_left(last, key, self._at)
            self._place = 0
        if self._at < len(last):
            self._place = bisect_left(self._keys._leaves[self._at], key, self._place)
        return self.key()
