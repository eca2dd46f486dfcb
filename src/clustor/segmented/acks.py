"""Which replicas have which entries, in two forms that stay small.

- `AckVector`: one number per replica. A replica that says "durable through raft index n" has
  every entry of every partition up to there, which is how nearly all acknowledgements come.
- `AckRuns`: the acknowledgements of single entries of one partition, in any order. Entries with
  the same set stand together as one run.
"""

from __future__ import annotations

from bisect import bisect_right

from clustor.segmented.quorum import Predicate, Replicas
from clustor.segmented.types import ReplicaId


class AckVector:
    """Through which raft index each member has the log."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas
        self._through: dict[ReplicaId, int] = {}

    def through(self, replica: ReplicaId) -> int:
        return self._through.get(replica, 0)

    def advance(self, replica: ReplicaId, raft_index: int) -> bool:
        """Note a member's acknowledgement; False where it says nothing new."""
        if raft_index <= self._through.get(replica, 0):
            return False
        self._through[replica] = raft_index
        return True

    def cut(self, from_index: int) -> None:
        """Take back what was said of entries that are void now (ruling C17)."""
        for replica, through in self._through.items():
            self._through[replica] = min(through, from_index - 1)

    def forget_strangers(self) -> None:
        """Forget who is no member any more: back again, a replica speaks for itself anew."""
        self._through = {
            replica: through
            for replica, through in self._through.items()
            if replica in self._replicas.members
        }

    def mask_at(self, raft_index: int) -> int:
        """Return who has the entry at `raft_index`."""
        return self._replicas.mask_of(
            replica for replica, through in self._through.items() if through >= raft_index
        )

    def next_change(self, raft_index: int) -> int | None:
        """Return the last raft index with the same mask as `raft_index`; None for no end."""
        return min((t for t in self._through.values() if t >= raft_index), default=None)

    def quorum_index(self, predicate: Predicate) -> int:
        """Return the highest raft index that a quorum has, 0 for none."""
        mask = 0
        for through, replica in sorted(
            ((through, replica) for replica, through in self._through.items()), reverse=True
        ):
            mask |= self._replicas.bit(replica)
            if predicate(mask):
                return through
        return 0


class AckRuns:
    """Sets of acknowledgements over the indices of one partition: disjoint runs, in order."""

    __slots__ = ("_lasts", "_masks", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._lasts: list[int] = []
        self._masks: list[int] = []

    def __len__(self) -> int:
        return len(self._starts)

    def add(self, bit: int, first: int, last: int) -> None:
        """Add a replica to the sets of all indices from `first` through `last`."""
        low, high = self._touched(first, last)
        runs: list[tuple[int, int, int]] = []
        at = first
        for nth in range(low, high):
            start, end, mask = self._starts[nth], self._lasts[nth], self._masks[nth]
            if end < first or start > last:  # it only adjoins
                if start > last and at <= last:
                    runs.append((at, last, bit))
                    at = last + 1
                runs.append((start, end, mask))
                continue
            if start < first:
                runs.append((start, first - 1, mask))
                start = first
            if at < start:
                runs.append((at, start - 1, bit))
            runs.append((start, min(end, last), mask | bit))
            if end > last:
                runs.append((last + 1, end, mask))
            at = min(end, last) + 1
        if at <= last:
            runs.append((at, last, bit))
        self._replace(low, high, runs)

    def at(self, index: int) -> tuple[int, int | None]:
        """Return the set of `index`, and the last index of its run; None for no end."""
        nth = bisect_right(self._starts, index) - 1
        if nth >= 0 and index <= self._lasts[nth]:
            return self._masks[nth], self._lasts[nth]
        return 0, self._starts[nth + 1] - 1 if nth + 1 < len(self._starts) else None

    def drop_before(self, index: int) -> None:
        """Forget the indices below `index`."""
        gone = bisect_right(self._lasts, index - 1)
        self._replace(0, gone, [])
        if self._starts and self._starts[0] < index:
            self._starts[0] = index

    def drop_from(self, index: int) -> None:
        """Forget `index` and all behind it."""
        keep = bisect_right(self._starts, index - 1)
        self._replace(keep, len(self._starts), [])
        if self._lasts and self._lasts[-1] >= index:
            self._lasts[-1] = index - 1

    def _touched(self, first: int, last: int) -> tuple[int, int]:
        """Return the runs that overlap or adjoin `first … last`, so that equals can merge."""
        low = bisect_right(self._lasts, first - 2)
        high = bisect_right(self._starts, last + 1)
        return low, high

    def _replace(self, low: int, high: int, runs: list[tuple[int, int, int]]) -> None:
        merged: list[tuple[int, int, int]] = []
        for start, last, mask in runs:
            if merged and merged[-1][2] == mask and merged[-1][1] + 1 == start:
                merged[-1] = (merged[-1][0], last, mask)
            else:
                merged.append((start, last, mask))
        self._starts[low:high] = [run[0] for run in merged]
        self._lasts[low:high] = [run[1] for run in merged]
        self._masks[low:high] = [run[2] for run in merged]
