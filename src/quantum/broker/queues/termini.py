"""Durable ends of links: which tags a sender's messages came under, and since when it was heard of.

A sender that comes back says which deliveries it does not know to be settled; those whose tag is
here were taken, and the others never will be: `epoch` fences what an earlier connection of the same
link still has on its way. What a receiver holds stands in the queue's entries.
"""

from __future__ import annotations

from typing import Final

import msgspec

TERMINI_MAX: Final = 4_096
"""Durable ends in one partition; the one not heard of for longest goes."""
TAGS_MAX: Final = 4_096
"""Tags that are remembered: more than any sender has credit for before it was answered."""
UNHEARD_MS_MAX: Final = 7 * 86_400_000
"""An end that is not heard of for so long is forgotten."""
SENDER, RECEIVER = b"s", b"r"


class TerminusState(msgspec.Struct, array_like=True):
    """One end; its tags in the order in which they came."""

    queue: bytes
    epoch: bytes
    seen_ms: int
    tags: list[bytes] = []


class TerminusTable:
    """All durable ends of a partition. Part of the state."""

    __slots__ = ("_index", "termini")

    def __init__(self) -> None:
        self.termini: dict[bytes, TerminusState] = {}
        self._index: dict[bytes, set[bytes]] = {}
        """The tags of each, to be found; it follows from the state."""

    def taken(self, link: bytes, tags: list[bytes]) -> list[bytes]:
        """Return which of these tags were taken."""
        index = self._index.get(link, ())
        return [each for each in tags if each in index]

    def is_fenced(self, link: bytes, epoch: bytes) -> bool:
        found = self.termini.get(link)
        return found is None or found.epoch != epoch

    def is_taken(self, link: bytes, tag: bytes) -> bool:
        return tag in self._index[link]

    def take(self, link: bytes, tag: bytes, now_ms: int) -> None:
        """Remember a tag; the oldest goes where they are many."""
        found, index = self.termini[link], self._index[link]
        found.seen_ms = now_ms
        found.tags.append(tag)
        index.add(tag)
        if len(found.tags) > TAGS_MAX:
            index.discard(found.tags.pop(0))

    def forget(self, link: bytes) -> TerminusState | None:
        self._index.pop(link, None)
        return self.termini.pop(link, None)

    def put(self, link: bytes, state: TerminusState) -> None:
        """Take an end, as it came back or as a snapshot has it."""
        self.termini[link] = state
        self._index[link] = set(state.tags)

    def oldest(self) -> tuple[int, bytes] | None:
        """Return which end was not heard of for longest, and since when."""
        found = self.termini
        return min(((found[each].seen_ms, each) for each in found), default=None)
