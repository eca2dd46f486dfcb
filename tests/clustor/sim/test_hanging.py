"""C19 in the simulator: processes that do not run for a while, and clusters that stay led."""

from __future__ import annotations

import pytest

from clustor.replica import Replica
from clustor.sim.cluster import SimCluster
from clustor.sim.scenario import MS, Scenario
from clustor.sim.timeline import Microseconds

SECOND = 1_000 * MS


def leaders_under_hangs(seed: int) -> tuple[int, int]:
    """Hang one follower after the other; return the terms before and after."""
    cluster = SimCluster(Scenario.drawn(seed).smaller(faults=()))
    cluster.run_until(Microseconds(5 * SECOND))
    before = cluster.leader(0)
    assert before is not None, f"seed {seed}"
    term = before.running.group.core.hard.term
    for second in range(6, 16):
        followers = [node for node in cluster.nodes.values() if node.id != before.node.id]
        followers[second % len(followers)].hang(350 * MS + second * 20 * MS)
        cluster.run_until(Microseconds(second * SECOND))
    after = cluster.leader(0)
    assert after is not None, f"seed {seed}"
    cores = [node.seats[0].running.group.core for node in cluster.nodes.values()]
    return term, max(core.hard.term for core in cores)


@pytest.mark.parametrize("seed", range(5))
def test_a_process_that_did_not_run_asks_for_no_votes(seed: int) -> None:
    before, after = leaders_under_hangs(seed)
    assert before == after, f"seed {seed}: an election without a fault"


def test_a_late_tick_that_is_judged_as_if_it_had_run_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bug that the rule mends, planted: some pre-vote is asked for, of a leader that lives."""
    asked = 0
    tick = Replica.tick

    def hasty(
        self: Replica, now_ms: int, *, missed_ms: int = 0, device_age_ms: int | None = None
    ) -> None:
        nonlocal asked
        was = self.group.core.role
        tick(self, now_ms, missed_ms=0, device_age_ms=device_age_ms)
        asked += missed_ms > 0 and self.group.core.role is not was

    monkeypatch.setattr(Replica, "tick", hasty)
    leaders_under_hangs(0)
    assert asked
