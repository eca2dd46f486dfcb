"""The entries of one partition that the log must still hold, at 16 bytes each.

An entry is outstanding until a quorum has it *and* the partition's own file has it durably. Both
are prefixes: `quorum_next` and `durable_next` are the first indices for which that is not so.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from clustor.segmented.acks import AckRuns, AckVector
from clustor.segmented.quorum import Predicate

_TRIM_ENTRIES: Final = 1024


class Outstanding:
    """What one partition keeps of the log. Indices below `next_index` are in the log or were."""

    __slots__ = (
        "_head",
        "acks",
        "durable_next",
        "firsts",
        "next_index",
        "policy_slot",
        "queued",
        "quorum_next",
        "rafts",
    )

    def __init__(self, policy_slot: int, next_index: int, quorum_next: int) -> None:
        # Parallel and in order: the first index of each entry, and its raft index. The first
        # `_head` of them are retired, and wait to be trimmed.
        self.firsts = array("Q")
        self.rafts = array("Q")
        self._head = 0
        self.next_index = next_index
        self.quorum_next = quorum_next
        self.durable_next = next_index
        self.policy_slot = policy_slot
        self.acks: AckRuns | None = None  # only where single entries were acknowledged
        self.queued = False  # whether the heap of the tracker knows this partition

    def __len__(self) -> int:
        return len(self.firsts) - self._head

    def resume(self, first: int, quorum_next: int) -> None:
        """Start at `first`, which the log still holds; everything before it needs nothing."""
        self.next_index = first
        self.quorum_next = max(quorum_next, first)

    def min_required(self) -> int | None:
        """Return the lowest raft index that is still needed, None for none."""
        needed = min(self.quorum_next, self.durable_next)
        if needed >= self.next_index:
            return None
        return self.rafts[self._position(needed)]

    def satisfy(self, predicate: Predicate, vector: AckVector, class_index: int) -> bool:
        """Advance `quorum_next`; say whether it moved. `class_index` is the vector's quorum."""
        before = self.quorum_next
        while self.quorum_next < self.next_index:
            at = self._position(self.quorum_next)
            if self.rafts[at] <= class_index:
                end = bisect_right(self.rafts, class_index, at)
            elif self.acks is None:
                break
            else:
                end = self._satisfied_end(self.acks, at, predicate, vector)
                if end == at:
                    break
            self.quorum_next = self._index_at(end)
        self._retire()
        return self.quorum_next > before

    def _satisfied_end(
        self, acks: AckRuns, at: int, predicate: Predicate, vector: AckVector
    ) -> int:
        """Return the position behind the entries that share a set with `at`, if it is a quorum."""
        mask, run_last = acks.at(self.firsts[at])
        if not predicate(mask | vector.mask_at(self.rafts[at])):
            return at
        end = len(self.firsts)
        if run_last is not None:
            end = min(end, bisect_right(self.firsts, run_last, at))
        change = vector.next_change(self.rafts[at])
        if change is not None:
            end = min(end, bisect_right(self.rafts, change, at))
        return max(end, at + 1)

    def durable(self, next_index: int) -> None:
        """Note that the partition's files hold everything below `next_index` durably."""
        self.durable_next = max(self.durable_next, next_index)
        self._retire()

    def cut(self, from_raft_index: int) -> None:
        """Void every entry at or behind a raft index."""
        keep = bisect_left(self.rafts, from_raft_index, self._head)
        if keep == len(self.rafts):
            return
        self.next_index = self.firsts[keep]
        del self.firsts[keep:], self.rafts[keep:]
        # A policy weaker than a majority may have been satisfied by what is void now.
        self.quorum_next = min(self.quorum_next, self.next_index)
        if self.acks is not None:
            self.acks.drop_from(self.next_index)

    def _position(self, index: int) -> int:
        return max(bisect_right(self.firsts, index, self._head) - 1, self._head)

    def _index_at(self, position: int) -> int:
        return self.firsts[position] if position < len(self.firsts) else self.next_index

    def _retire(self) -> None:
        needed = min(self.quorum_next, self.durable_next)
        if needed >= self.next_index:
            self._head = len(self.firsts)
        else:
            self._head = self._position(needed)
        if self._head == len(self.firsts) or (
            self._head >= _TRIM_ENTRIES and self._head * 2 >= len(self.firsts)
        ):
            del self.firsts[: self._head], self.rafts[: self._head]
            self._head = 0
        if self.acks is not None:
            self.acks.drop_before(needed)
