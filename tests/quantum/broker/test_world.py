"""Whatever clients, leaders and networks do: nothing acknowledged is lost, nothing comes twice."""

from __future__ import annotations

import pytest

from tests.quantum.broker.world import Plan, peopled_world

PLANS = {
    "one partition": Plan(partitions=1, replicas=3),
    "three partitions": Plan(),
    "short queues": Plan(queue_messages_max=8),
    "short channels": Plan(channel_items_max=6, partitions=2),
    "shares by key": Plan(hashes_shares=True),
    "small stores": Plan(store_bytes_max=600),
    "a calm network": Plan(loss=0.0, repeats=0.0, partitions=4),
}


def run(seed: int, plan: Plan, steps: int) -> None:
    world = peopled_world(seed, plan)
    world.run(steps)
    world.settle()
    world.check_all()
    world.check_nothing_remains()


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(12))
def test_nothing_acknowledged_is_lost_and_nothing_comes_twice(name: str, seed: int) -> None:
    run(seed, PLANS[name], 600)


@pytest.mark.soak
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("seed", range(100, 300))
def test_nothing_is_lost_in_many_worlds(name: str, seed: int) -> None:
    run(seed, PLANS[name], 2_000)
