"""Lanes: what each node brings is numbered, so that nothing counts twice and nothing is missing."""

from __future__ import annotations

from typing import Final

import msgspec

LANES_MAX: Final = 1_024
"""A node has one from each of its starts; the ones not heard from for longest go."""
REPLIES_MAX: Final = 32
"""So many commands may be on their way at once: their answers are kept for who asks again."""


class LaneState(msgspec.Struct, array_like=True):
    """How far one node's commands were taken, and what came of the last of them."""

    last: int
    seen_ms: int
    replies: list[bytes]


class LaneTable:
    """All lanes of a partition. Part of the state."""

    __slots__ = ("lanes",)

    def __init__(self) -> None:
        self.lanes: dict[bytes, LaneState] = {}

    def repeated(self, lane: bytes, sequence: int) -> bytes | None:
        """Return the answer to a command that was taken before; None: it was not.

        What is too old to be asked again is answered with nothing.
        """
        found = self.lanes.get(lane)
        if found is None or sequence > found.last:
            return None
        behind = found.last - sequence
        return found.replies[-1 - behind] if behind < len(found.replies) else b""

    def is_next(self, lane: bytes, sequence: int) -> bool:
        found = self.lanes.get(lane)
        return sequence == (1 if found is None else found.last + 1)

    def take(self, lane: bytes, sequence: int, now_ms: int, reply: bytes) -> list[bytes]:
        """Note that a command was taken; return the lanes that had to go."""
        found = self.lanes.get(lane)
        if found is None:
            found = self.lanes[lane] = LaneState(0, now_ms, [])
        found.last, found.seen_ms = sequence, now_ms
        found.replies = [*found.replies[1 - REPLIES_MAX :], reply]
        gone = []
        while len(self.lanes) > LANES_MAX:
            oldest = min(self.lanes, key=lambda each: (self.lanes[each].seen_ms, each))
            del self.lanes[oldest]
            gone.append(oldest)
        return gone
