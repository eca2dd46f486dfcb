"""What changed since a snapshot, by its key: what a delta is made of.

Whoever changes a session, a group, a filter that others were told of, another partition's interest
or a retained message says so here: a key into a set, nothing more, for it is done with every
publish that is kept. Everything else is small, or grows at one end (channels), and is no key's.

What changes goes to the newest mark (`marks`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

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
    pages: set[tuple[int, bytes]] = field(default_factory=set)
    """Pages of sections, by the section's family."""
    is_lost: bool = False
    """Whether there were too many: what changed since the mark is not known."""

    def __len__(self) -> int:
        """How many keys are held here, some of them twice."""
        places = len(self.session_places) + len(self.group_places) + len(self.told_places)
        kept = len(self.sessions) + len(self.retained) + len(self.interests) + len(self.streams)
        return places + kept + len(self.groups) + len(self.told) + len(self.pages)

    def lose(self) -> None:
        """Forget everything: there were too many."""
        for each in (self.sessions, self.groups, self.told, self.retained, self.interests):
            each.clear()
        self.streams.clear()
        self.pages.clear()
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
        self.pages |= later.pages
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
    _DeafSet(),
)
"""What changes where nobody has marked a moment: nothing is kept of it."""
