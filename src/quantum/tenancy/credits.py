"""How many QoS 1 and 2 exchanges a session may have under way (C13, §13.3).

It starts at ten, and moves with how much room the queues and the followers have, towards
`ceiling * (0.5 + 0.5 * headroom) * follower_factor`. The ceiling is the lowest of the client's
Receive Maximum, the tenant's policy and 1,024. Shares are in thousandths: no rounding differs
from one machine to another.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantum.tenancy.errors import TenancyMisuse

START_SLOTS = 10
SLOTS_MAX = 1024
RECALCULATE_EVERY_MS = 200
WHOLE = 1000


@dataclass(frozen=True, slots=True)
class LeaderLoad:
    """What the leader sees when it recalculates."""

    queue_utilization: int
    """Of the fullest queue on the way, in thousandths; more than 1,000 counts as full."""
    follower_factor: int = WHOLE
    """What lagging followers leave of the credits, in thousandths; 0 stops new exchanges."""


def credit_hint(base_window: int, load: LeaderLoad) -> int:
    """Return §13.3's formula, rounded down, and at least one slot while followers allow any."""
    if load.queue_utilization < 0 or not 0 <= load.follower_factor <= WHOLE:
        raise TenancyMisuse("a share outside its range", load=load)
    headroom = max(0, WHOLE - load.queue_utilization)
    hint = base_window * (WHOLE + headroom) * load.follower_factor // (2 * WHOLE * WHOLE)
    return max(hint, 1) if load.follower_factor > 0 else 0


class InFlightSlots:
    """The slots of one session in one direction.

    `window` never exceeds the ceiling. It shrinks at once and at most doubles in one step, so
    that a whole fleet that finds room does not fill it within a moment. Shrinking takes nothing
    back that is under way: there is just nothing new until enough has settled.
    """

    __slots__ = ("ceiling", "under_way", "window")

    def __init__(self, receive_maximum: int, policy_max: int = SLOTS_MAX) -> None:
        if receive_maximum < 1 or policy_max < 1:
            raise TenancyMisuse("no slots at all", client=receive_maximum, policy=policy_max)
        self.ceiling = min(receive_maximum, policy_max, SLOTS_MAX)
        self.window = min(START_SLOTS, self.ceiling)
        self.under_way = 0

    def recalculate(self, load: LeaderLoad) -> int:
        """Move the window by the formula and return it; due every 200 ms while a session works."""
        self.window = min(credit_hint(self.ceiling, load), max(1, self.window * 2))
        return self.window

    @property
    def free(self) -> int:
        """How many exchanges may begin now."""
        return max(0, self.window - self.under_way)

    def take(self) -> bool:
        """Begin an exchange if a slot is free."""
        if self.under_way >= self.window:
            return False
        self.under_way += 1
        return True

    def settle(self) -> None:
        """End an exchange."""
        if self.under_way == 0:
            raise TenancyMisuse("more exchanges ended than began")
        self.under_way -= 1
