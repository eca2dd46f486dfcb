"""Streams under crashes, power cuts, lost disks, changes of members, snapshots and installations.

The seed is the whole test: `run_stream_seed(seed)` replays it.
"""

from __future__ import annotations

from collections import Counter

import pytest

from clustor.sim.stream_world import run_stream_seed

SEEDS = range(16)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_no_offset_is_given_twice_and_every_replica_holds_the_same(
    seed: int,
) -> None:
    report = run_stream_seed(seed)
    assert report.violation is None, f"seed {seed}: {report.violation}\n{report.detail}"


def test_equal_seeds_have_equal_courses_and_the_seeds_reach_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in (1, 1):
        report = run_stream_seed(seed)
        seen.update(report.events)
        seen[report.trace_hash] += 1
    assert max(seen[key] for key in seen if len(key) == 32) == 2
    for event in ("stream plan", "stream read", "stream read from memory", "streams sent"):
        assert seen[event], f"seed 1 reaches no {event}"
