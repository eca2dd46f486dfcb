"""Broker states that a worker process still has from its last tasks: they save replaying, no more.

A stream reads a partition a little at a time, and Spark gives its tasks to the same few Python
processes. Whoever finds the state after an entry here goes on from there, instead of from an anchor
that may be far back. A task gives the same rows with and without: the entry is read once more, and
must be the one that the state was made with.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_128_digest

from clustor.log.types import Entry
from quantum.lake.judging import ReplayJudge

STATES_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class KnownState:
    """A broker after one entry."""

    index: int
    mark: bytes
    judge: ReplayJudge

    def is_after(self, entry: Entry) -> bool:
        return entry.index == self.index and mark_of(entry) == self.mark


def mark_of(entry: Entry) -> bytes:
    """Tell an entry from every other one that could stand at its index."""
    return int(entry.term).to_bytes(8, "little") + xxh3_128_digest(entry.payload)


class KnownStates:
    """The states of the partitions that were read last."""

    def __init__(self) -> None:
        self._states: OrderedDict[str, KnownState] = OrderedDict()

    def take(self, name: str, anchor: int, first: int) -> KnownState | None:
        """Take out a state between `anchor` and `first`: whoever has it changes it."""
        known = self._states.pop(name, None)
        return known if known is not None and anchor < known.index < first else None

    def put(self, name: str, entry: Entry, judge: ReplayJudge) -> None:
        self._states[name] = KnownState(entry.index, mark_of(entry), judge)
        self._states.move_to_end(name)
        while len(self._states) > STATES_MAX:
            self._states.popitem(last=False)
