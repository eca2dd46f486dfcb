"""Safety under drawn faults, then liveness once they stop. The seed is the whole test.

Replay one: `pytest tests/clustor/raft/test_simulation.py -k 'seed17'`.
"""

from __future__ import annotations

import random

import pytest

from tests.clustor.raft.faults import run_under_faults
from tests.clustor.raft.world import Faults, World

SEEDS = 220


@pytest.mark.parametrize("seed", range(SEEDS), ids=lambda seed: f"seed{seed}")
def test_no_fault_breaks_a_promise_and_calm_brings_progress(seed: int) -> None:
    rng = random.Random(seed)
    world = World(
        rng, size=rng.choice((3, 3, 5, 5, 7)), faults=Faults.drawn(rng), spares=rng.choice((0, 2))
    )
    run_under_faults(world, duration_ms=5_000)
    world.heal()
    for _ in range(60):
        world.run(50)
        world.propose(1)
    before = len(world.checker.acked)
    for _ in range(20):
        world.run(50)
        world.propose(1)
    world.checker.check_all()
    world.checker.check_nothing_lost()
    assert len(world.leaders()) == 1, world.faults
    assert len(world.checker.acked) > before, "nothing is acknowledged after the faults stopped"


@pytest.mark.soak
def test_ten_thousand_seeds() -> None:
    for seed in range(10_000, 20_000):
        test_no_fault_breaks_a_promise_and_calm_brings_progress(seed)


def test_calm_serves_reads_and_compacts() -> None:
    world = World(random.Random(1), size=3)
    for _ in range(100):
        world.run(50)
        world.propose(3)
        world.read()
    world.run(500)
    assert world.checker.reads_granted > 80
    assert len(world.checker.acked) > 250
    assert all(node.disk.base_index > 0 for node in world.nodes.values())
