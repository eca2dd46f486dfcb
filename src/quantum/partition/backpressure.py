"""Backpressure: who brings too much is not read until less is waiting (quantumqtt §13).

Nothing that was read is thrown away for it. A client that is not read sees its own writes wait,
and no acknowledgement before its time: that is all that MQTT 3.1.1 can be told, and enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

BACKLOG_BYTES_MAX: Final = 8 << 20
"""What may wait for one partition's log before its publishers are not read."""
QUEUED_BYTES_MAX: Final = 256 << 20
"""What the connections of one tenant may hold for slow subscribers before the same happens."""
TURN_BYTES_MAX: Final = 256 << 10
"""What one tenant may bring in one turn of the loop: others, heartbeats and acks wait for it."""
PART_BYTES_MIN: Final = 16 << 10
"""What one connection may bring of that, however many wait: less would be many small batches."""

Soon: TypeAlias = Callable[[Callable[[], None]], None]


class Pausable(Protocol):
    """A connection that can be left unread."""

    def hold(self) -> None:
        """Stop reading; each call needs its `let_go`."""

    def let_go(self) -> None:
        """Read again, once nothing else holds it."""


class WatermarkLevel:
    """An amount with a high and a low mark, and those who wait until it is below the low one."""

    __slots__ = ("_held", "_high", "_low", "_soon", "amount", "is_high")

    def __init__(self, high: int, soon: Soon) -> None:
        self._high = high
        self._low = high // 2
        self._soon = soon
        self._held: dict[Pausable, None] = {}
        self.amount = 0
        self.is_high = False
        """Above the high mark, and not yet below the low one again."""

    def add(self, amount: int) -> None:
        """Change the amount by so much, up or down."""
        self.amount += amount
        assert self.amount >= 0, "more was taken away than was there"
        if self.amount > self._high:
            self.is_high = True
        elif self.is_high and self.amount <= self._low:
            self.is_high = False
            self.let_all_go()

    def clear(self) -> None:
        """Begin at nothing."""
        self.amount, self.is_high = 0, False
        self.let_all_go()

    def hold(self, held: Pausable) -> None:
        """Leave a connection unread until the amount is low."""
        if held not in self._held:
            self._held[held] = None
            held.hold()

    def holds(self, held: Pausable) -> bool:
        """Say whether a connection is left unread because of this."""
        return held in self._held

    def let_all_go(self) -> None:
        """Let everybody go on, in the order in which they were held, when this call is over."""
        held, self._held = self._held, {}
        for each in held:
            self._soon(each.let_go)

    def __len__(self) -> int:
        """How many are held."""
        return len(self._held)


class TurnShare:
    """How much of one turn of the loop a tenant may take, and each of its connections of that.

    Reading goes on after the turn, so a tenant that is alone loses nothing but a pause, and one
    that floods delays the others, and the node's own heartbeats and acks, by one share at most.
    Connections take turns: who had nothing of a turn comes first in the next one, then those who
    had their part and want more.
    """

    __slots__ = ("_brought", "_had", "_held", "_soon", "part")

    def __init__(self, soon: Soon) -> None:
        self._held: dict[Pausable, None] = {}
        """Who had nothing of this turn, in the order in which they came."""
        self._had: dict[Pausable, None] = {}
        """Who had a part of this turn, and has more."""
        self._soon = soon
        self._brought = 0
        self.part = TURN_BYTES_MAX
        """What one connection may take at a time: less where many wait."""

    def bring(self, cost: int) -> None:
        """Count what a connection brought into this turn, in bytes or what costs as much."""
        if self._brought == 0:
            self._soon(self._begin)  # behind the turn that this belongs to
        self._brought += cost

    @property
    def is_used(self) -> bool:
        """Whether nothing more of this tenant belongs into this turn."""
        return self._brought > TURN_BYTES_MAX

    def hold(self, held: Pausable) -> None:
        """Leave a connection unread for the rest of the turn."""
        if not self.holds(held):
            self._held[held] = None
            held.hold()

    def hold_behind(self, held: Pausable) -> None:
        """Leave one unread that had its part: the others come before it in the next turn."""
        if not self.holds(held):
            self._had[held] = None
            held.hold()

    def holds(self, held: Pausable) -> bool:
        """Say whether a connection is left unread for the rest of this turn."""
        return held in self._held or held in self._had

    def _begin(self) -> None:
        """Begin a turn with those who waited; who is read only now comes behind them."""
        self._brought = 0
        waited = {**self._held, **self._had}
        self._held, self._had = {}, {}
        self.part = max(PART_BYTES_MIN, TURN_BYTES_MAX // max(1, len(waited)))
        for each in waited:
            each.let_go()
