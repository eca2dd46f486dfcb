"""What changed since a snapshot, by its key: what a delta is made of.

Whoever changes a session, a group, a filter that others were told of, another partition's interest
or a retained message says so here: a key into a set, nothing more, for it is done with every
publish that is kept. Everything else is small, or grows at one end (channels), and is no key's.

A mark is a moment that a delta can begin at. What changes goes to the newest mark; a delta from an
older one (an emission between them failed) is of all marks since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from quantum.broker.state import State

KEYS_MAX: Final = 1 << 18
"""Of more keys than this nobody wants to hear: a full snapshot costs no more than their delta, and
clients that come and go under ever new names must not fill the memory until the next one."""

MARKS_MAX: Final = 4
"""More emissions in a row do not fail without a full one that succeeds."""

_T = TypeVar("_T")
GroupKey: TypeAlias = tuple[bytes, bytes]
Interest: TypeAlias = tuple[bytes, int]


@dataclass(slots=True)
class Changes:
    """The keys that changed since one mark.

    Replicas walk sessions and filters in the order in which they came, so a key that came or went
    is in `…_places` too: by when it came last.
    """

    sessions: set[bytes] = field(default_factory=set)
    session_places: dict[bytes, None] = field(default_factory=dict)
    groups: set[GroupKey] = field(default_factory=set)
    group_places: dict[GroupKey, None] = field(default_factory=dict)
    told: set[bytes] = field(default_factory=set)
    told_places: dict[bytes, None] = field(default_factory=dict)
    retained: set[bytes] = field(default_factory=set)
    interests: set[Interest] = field(default_factory=set)
    streams: set[int] = field(default_factory=set)
    is_lost: bool = False
    """Whether there were too many: what changed since the mark is not known."""

    def __len__(self) -> int:
        """How many keys are held here, some of them twice."""
        places = len(self.session_places) + len(self.group_places) + len(self.told_places)
        kept = len(self.sessions) + len(self.retained) + len(self.interests) + len(self.streams)
        return places + kept + len(self.groups) + len(self.told)

    def lose(self) -> None:
        """Forget everything: there were too many."""
        for each in (self.sessions, self.groups, self.told, self.retained, self.interests):
            each.clear()
        self.streams.clear()
        for places in (self.session_places, self.group_places, self.told_places):
            places.clear()
        self.is_lost = True

    def session_came(self, client_id: bytes) -> None:
        self.session_places.pop(client_id, None)
        self.session_places[client_id] = None

    def session_went(self, client_id: bytes) -> None:
        self.session_places[client_id] = None

    def group_came(self, key: GroupKey) -> None:
        self.group_places.pop(key, None)
        self.group_places[key] = None

    def group_went(self, key: GroupKey) -> None:
        self.group_places[key] = None

    def told_first(self, topic_filter: bytes) -> None:
        self.told_places.pop(topic_filter, None)
        self.told_places[topic_filter] = None

    def told_no_more(self, topic_filter: bytes) -> None:
        self.told_places[topic_filter] = None

    def add(self, later: Changes) -> None:
        """Take in what changed after this."""
        self.sessions |= later.sessions
        self.groups |= later.groups
        self.told |= later.told
        self.retained |= later.retained
        self.interests |= later.interests
        self.streams |= later.streams
        for client_id in later.session_places:
            self.session_came(client_id)
        for key in later.group_places:
            self.group_came(key)
        for topic_filter in later.told_places:
            self.told_first(topic_filter)


class _DeafSet(set[_T]):
    """A set that nothing gets into."""

    def add(self, element: _T) -> None:
        """Hear nothing."""


class _DeafDict(dict[_T, None]):
    """A dict that nothing gets into."""

    def __setitem__(self, key: _T, value: None) -> None:
        """Hear nothing."""


UNHEARD: Final = Changes(
    _DeafSet(),
    _DeafDict(),
    _DeafSet(),
    _DeafDict(),
    _DeafSet(),
    _DeafDict(),
    _DeafSet(),
    _DeafSet(),
    _DeafSet(),
)
"""What changes where nobody has marked a moment: nothing is kept of it."""


def bound_changes(state: State) -> None:
    """Give up what changed since the last mark once that is too much; asked now and then."""
    changes = state.changes
    if len(changes) > KEYS_MAX:
        changes.lose()
        state.changes = UNHEARD


Totals: TypeAlias = tuple[int, ...]


def totals(state: State) -> Totals:
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

    def mark(self, state: State, base_index: int) -> None:
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


def is_calm(state: State) -> bool:
    """Say whether no change of the ring is under way: its steps change everything at once."""
    return state.move is None and state.is_open
