"""What a node does because it was told to, or because its clock is wrong.

A node that is drained hands every group over that it leads, again and again until nobody gives it
one, and the broker sends its clients away (`Node.draining`). A clock that jumps or runs away ends
every leadership here, and no group campaigns until it is steady (quantum §6.2): what is stamped
into entries, and what expires by them, would be wrong for everybody. Overrides of the control
plane's ledger are obeyed while they are active, and not a second longer.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from clustor.runtime.control.overrides import LOOK_MS as OVERRIDES_LOOK_MS
from clustor.runtime.control.overrides import OverridesInForce
from clustor.telemetry.clock_guard import ClockGuard
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node

CLOCK_LOOK_MS: Final = 100
DRAIN_LOOK_MS: Final = 500
_HANDED_OVER_AT_ONCE: Final = 64

journal = logging.getLogger("clustor.node")


class NodeDuties:
    """The duties of one node; the node calls `on_tick`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.clock = ClockGuard()
        self.shift_ms = 0
        """A fault that tests and drills inject: the guard sees the time of day so much off."""
        self.on_drain: list[Callable[[bool], None]] = []
        """Who wants to hear that this node is drained, or wanted again."""
        self.overrides = OverridesInForce(node)
        self._overrides_due_ms = 0
        self._clock_due_ms = 0
        self._drain_due_ms = 0

    def on_tick(self, now_ms: int) -> None:
        if now_ms >= self._clock_due_ms:
            self._clock_due_ms = now_ms + CLOCK_LOOK_MS
            self._watch_clock()
        if now_ms >= self._overrides_due_ms:
            self._overrides_due_ms = now_ms + OVERRIDES_LOOK_MS
            self.overrides.look(wall_clock_ms())
        if now_ms >= self._drain_due_ms:
            self._drain_due_ms = now_ms + DRAIN_LOOK_MS
            self._drain()

    # The clock.

    def _watch_clock(self) -> None:
        """Compare both clocks as they are now: the loop's own stands still while it works, and a
        turn of a quarter of a second would look like a jump.
        """
        clock = self.clock
        if clock.look(time.monotonic_ns() // 1_000_000, wall_clock_ms() + self.shift_ms):
            if clock.alarm is None:
                journal.warning("the clock is steady again: groups may be led here")
            else:
                journal.error("%s by %d ms: nothing is led here", clock.alarm, clock.skew_ms)
        raised = clock.alarm is not None
        for group in self._node.groups.values():  # one that was opened meanwhile hears of it too
            if group.replica.ready and group.replica.group.core.clock_alarm != raised:
                group.replica.group.clock_alarm(raised=raised)
                self._node.touch(group)

    # Draining.

    def _drain(self) -> None:
        node = self._node
        control = node.control
        draining = control.draining() if control is not None else frozenset[int]()
        drained = int(node.node_id) in draining
        if drained != node.draining:
            node.draining = drained
            journal.warning("this node is %s", "drained" if drained else "wanted again")
            for tell in self.on_drain:
                tell(drained)
        if not drained:
            return
        led = [group for group in node.groups.values() if group.replica.leads]
        for group in led[:_HANDED_OVER_AT_ONCE]:
            node.hand_over(group, draining)
