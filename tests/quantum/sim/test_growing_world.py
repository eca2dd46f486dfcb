"""The whole broker under drawn faults while its ring grows: nothing lost, twice, or overtaken."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from quantum.partition.leader import PartitionLeader
from quantum.partition.ring_change import RingKeeper
from quantum.partition.transfers import StreamIn
from quantum.sim import run_growing_seed

ORDINARY_SEEDS = 6
SOAK_SEEDS = 1_000
Patch: TypeAlias = pytest.MonkeyPatch


@pytest.mark.parametrize("seed", range(ORDINARY_SEEDS))
def test_nothing_is_lost_or_comes_twice_or_overtakes(seed: int) -> None:
    report = run_growing_seed(seed)
    assert report.violation is None, f"seed {seed}\n{report.violation}\n{report.detail}"
    assert report.acknowledged > 0 and report.events["delivered"] > 0


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_thousand_seeds() -> None:
    for seed in range(ORDINARY_SEEDS, SOAK_SEEDS):
        report = run_growing_seed(seed)
        assert report.violation is None, f"seed {seed}\n{report.violation}\n{report.detail}"


# Bugs in the leader's part, planted on purpose: some seed has to notice each.


def a_fresh_partition_takes_streams_before_it_is_open(patch: Patch) -> None:
    def receive(
        prg: PartitionLeader, origin: int, first: int, items: list[object], base: int
    ) -> None:
        stream = prg._streams_in.setdefault(origin, StreamIn(prg, origin))
        stream.receive(first, items, base)  # type: ignore[arg-type]

    patch.setattr(PartitionLeader, "receive_items", receive)


def nothing_is_flushed(patch: Patch) -> None:
    patch.setattr(RingKeeper, "_flush", lambda keeper, move: None)


PLANTED: tuple[Callable[[Patch], None], ...] = (
    a_fresh_partition_takes_streams_before_it_is_open,
    nothing_is_flushed,
)


@pytest.mark.parametrize("plant", PLANTED, ids=lambda each: each.__name__)
def test_a_planted_bug_is_noticed(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    assert any(run_growing_seed(seed).violation is not None for seed in range(20))
