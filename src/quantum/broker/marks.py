"""Moments that a delta can begin at, and what a state had of everything then.

A delta from an older mark (an emission between them failed) is of all marks since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from quantum.broker.changes import UNHEARD, Changes
from quantum.broker.state import BrokerState

KEYS_MAX: Final = 1 << 18
"""Of more keys than this nobody wants to hear: a full snapshot costs no more than their delta, and
clients that come and go under ever new names must not fill the memory until the next one."""

MARKS_MAX: Final = 4
"""More emissions in a row do not fail without a full one that succeeds."""


def bound_changes(state: BrokerState) -> None:
    """Give up what changed since the last mark once that is too much; asked now and then."""
    changes = state.changes
    if len(changes) > KEYS_MAX:
        changes.lose()
        state.changes = UNHEARD


Totals: TypeAlias = tuple[int, ...]


def totals(state: BrokerState) -> Totals:
    """Return what a state has of everything, in O(1): a delta that lost something shows here."""
    return (
        state.now_ms,
        state.epoch,
        state.attachments,
        state.dropped,
        state.routing_epoch,
        len(state.sessions),
        state.subscription_count,
        state.queued.amount,
        len(state.groups),
        len(state.told),
        len(state.routes.trie),
        len(state.retained),
        state.retained_bytes,
        len(state.streams),
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, and what changed from it to the next one."""

    base_index: int  # what the caller calls it
    applied_index: int
    totals: Totals
    channels: dict[int, int]
    """The last place of the channel to each partition."""
    is_calm: bool
    changes: Changes


class Marks:
    """The latest moments that were marked."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def mark(self, state: BrokerState, base_index: int) -> None:
        """Remember this moment; the oldest of a few is forgotten."""
        state.changes = Changes()
        channels = {prg: int(outbox.last) for prg, outbox in state.channels.outboxes().items()}
        made = Mark(
            base_index,
            state.applied_index,
            totals(state),
            channels,
            is_calm(state),
            state.changes,
        )
        self._marks = [*self._marks[1 - MARKS_MAX :], made]

    def since(self, base_index: int) -> tuple[Mark, Changes] | None:
        """Return a moment and all that changed since; None where it is not known (any more).

        What is older is forgotten: a snapshot of that moment counts, deltas go on from there.
        """
        bases = [each.base_index for each in self._marks]
        if base_index not in bases:
            return None
        newest_at = len(bases) - 1 - bases[::-1].index(base_index)
        self._marks = self._marks[newest_at:]
        if any(changes.is_lost for changes in _changes(self._marks)):
            return None
        found = Changes()
        for changes in _changes(self._marks):
            found.add(changes)
        return self._marks[0], found


def _changes(marks: Iterable[Mark]) -> Iterable[Changes]:
    return (each.changes for each in marks)


def is_calm(state: BrokerState) -> bool:
    """Say whether no change of the ring is under way: its steps change everything at once."""
    return state.move is None and state.is_open
