"""Whole clusters under drawn faults: safety all the time, life after healing."""

from __future__ import annotations

import pytest

from clustor.sim.run import run_scenario, run_seed, shrink
from clustor.sim.scenario import Fault, FaultKind, Scenario
from clustor.sim.timeline import Microseconds

ORDINARY_SEEDS = 150  # the first 26 meet every bug of `mutations` twice; `make soak` goes on
SOAK_SEEDS = 10_000
BLOCK = 10
SOAK_BLOCK = 50


@pytest.mark.parametrize("first", range(0, ORDINARY_SEEDS, BLOCK))
def test_no_promise_breaks_under_faults_and_life_returns_after_them(first: int) -> None:
    """A block of seeds; `quantum sim --seed S --seeds 1` replays one of them."""
    for seed in range(first, first + BLOCK):
        report = run_seed(seed)
        assert report.violation is None, f"{report.replay}\n{report.violation}\n{report.detail}"
        assert report.acknowledged > 0


@pytest.mark.soak
@pytest.mark.parametrize("first", range(ORDINARY_SEEDS, SOAK_SEEDS, SOAK_BLOCK))
def test_ten_thousand_seeds(first: int) -> None:
    """In blocks, so that one sees how far it is: all of them take the better part of an hour."""
    for seed in range(first, first + SOAK_BLOCK):
        report = run_seed(seed)
        assert report.violation is None, f"{report.replay}\n{report.violation}\n{report.detail}"


@pytest.mark.parametrize("seed", range(6))
def test_equal_seeds_have_equal_courses(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert first == second
    assert first.trace_hash != run_seed(seed + 1).trace_hash


def test_every_kind_of_fault_is_drawn_and_hits_something() -> None:
    drawn = {fault.kind for seed in range(60) for fault in Scenario.drawn(seed).faults}
    assert drawn == set(FaultKind)
    hit: set[str] = set()
    for seed in range(60):
        if hit == set(FaultKind):
            break
        hit |= set(run_seed(seed).faults)
    assert hit == set(FaultKind)


def test_shrinking_keeps_what_matters_and_drops_the_rest() -> None:
    """The stand-in fails while one particular fault is left."""
    scenario = next(s for s in map(Scenario.drawn, range(50)) if len(s.faults) > 12)
    guilty = scenario.faults[len(scenario.faults) // 2]
    smaller, runs = shrink(scenario, fails=lambda candidate: guilty in candidate.faults)
    assert smaller.faults == (guilty,)
    assert smaller.duration < scenario.duration
    assert runs < 200


def test_a_calm_scenario_has_no_faults_and_answers_everything() -> None:
    calm = Scenario.drawn(1).smaller(faults=())
    report = run_scenario(calm)
    assert report.violation is None
    assert report.faults == {}


def test_a_fault_after_the_end_is_left_out() -> None:
    scenario = Scenario.drawn(3)
    late = Fault(Microseconds(scenario.duration), FaultKind.KILL, 1)
    assert late not in scenario.smaller(faults=(*scenario.faults, late)).faults
