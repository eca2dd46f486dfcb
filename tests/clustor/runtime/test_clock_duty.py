"""The guard of a node's clock while its loop is slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from clustor.runtime.control.duties import NodeDuties


def test_a_loop_that_stood_still_is_no_clock_that_jumped() -> None:
    """The loop's own clock is read once a turn: after a long one it is behind both of them."""
    node = SimpleNamespace(groups={}, control=None, node_id=1, draining=False)
    duties = NodeDuties(cast("Any", node))
    for loop_ms in (0, 10_000, 3_600_000):
        duties.on_tick(loop_ms)
    assert duties.clock.alarm is None


def test_a_clock_that_jumps_is_seen() -> None:
    node = SimpleNamespace(groups={}, control=None, node_id=1, draining=False)
    duties = NodeDuties(cast("Any", node))
    duties.on_tick(0)
    duties.shift_ms = 60_000
    duties.on_tick(10_000)
    assert duties.clock.alarm is not None
