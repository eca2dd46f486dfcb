"""Every planted bug is caught: by a scenario that plays otherwise, or by a seed that breaks."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.clustor.raft.faults import run_under_faults
from tests.clustor.raft.mutants import MUTANTS, planted
from tests.clustor.raft.test_scenarios import FOLDER, play
from tests.clustor.raft.world import Faults, World

BY_SEED = {
    "answers_before_the_vote_is_durable",
    "votes_twice",
    "votes_for_shorter_logs",
    "acknowledges_without_its_own_disk",
    "attests_what_is_not_durable",
    "never_goes_back",
}
"""Mutants that the simulation alone must catch, without a story written for them."""

SEEDS_MAX = 40


@pytest.mark.parametrize("name", MUTANTS)
def test_a_scenario_tells_the_mutant(name: str) -> None:
    with planted(MUTANTS[name]):
        told = [path.stem for path in sorted(FOLDER.glob("*.txt")) if not _plays_as_told(path)]
    assert told, f"no scenario notices that the group {name.replace('_', ' ')}"


def _plays_as_told(path: Path) -> bool:
    text = path.read_text()
    try:
        return play(text) == text
    except Exception:  # noqa: BLE001 — a mutant may fail in any way it likes
        return False


@pytest.mark.parametrize("name", sorted(BY_SEED))
def test_a_seed_breaks_the_mutant(name: str) -> None:
    with planted(MUTANTS[name]):
        broken = next((seed for seed in range(SEEDS_MAX) if not _survives(seed)), None)
    assert broken is not None, f"{SEEDS_MAX} seeds do not notice {name}"


def _survives(seed: int) -> bool:
    rng = random.Random(seed)
    world = World(rng, size=rng.choice((3, 5)), faults=Faults.drawn(rng))
    try:
        run_under_faults(world, duration_ms=4_000)
        world.heal()
        before = len(world.checker.acked)
        for _ in range(40):
            world.run(50)
            world.propose(1)
        world.checker.check_all()
        world.checker.check_nothing_lost()
    except Exception:  # noqa: BLE001 — a mutant may fail in any way it likes
        return False
    return len(world.checker.acked) > before
