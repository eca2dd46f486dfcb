"""Power is lost between any two steps of a flush, a checkpoint, a trim or a removal."""

from __future__ import annotations

from random import Random

import pytest

from tests.clustor.streams.world import World


@pytest.mark.parametrize("seed", range(12))
def test_whatever_a_crash_leaves_the_log_makes_it_whole(seed: int) -> None:
    rng = Random(seed)
    world = World(reorder=seed % 2 == 1)
    for _ in range(14):
        for _ in range(rng.randint(1, 12)):
            world.draw(rng)
        store = world.store
        plan = (
            store.plan_flush()
            if rng.random() < 0.3
            else store.plan_checkpoint(rng.choice((None, 1, 2)))
        )
        for moment in world.disk.crash_points(plan.steps):
            world.check_after_crash(moment.copy())
            world.check_after_crash(moment.random_crash(rng))
        store.stored(plan.receipt)
        assert world.held() == world.twin.held()


def test_two_plans_that_are_out_at_once_come_to_the_same() -> None:
    rng = Random(3)
    world = World()
    for _ in range(60):
        world.draw(rng)
    first = world.store.plan_flush()
    for _ in range(30):
        world.draw(rng)
    second = world.store.plan_checkpoint()
    assert world.held() == world.twin.held(), "what is on its way can be read"
    world.carry_out(first)
    world.carry_out(second)
    assert world.held() == world.twin.held()
    world.check_after_crash(world.disk.random_crash(rng))
