"""Partitions are added while everything goes on: nothing is lost, doubled or overtaken.

The worlds are those of `test_world`, with rings that grow while clients, leaders and networks do
what they like. What is particular to a move is told as tables below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.quantum.broker.world import KEPT_TOPICS, Plan, World, peopled_world

BASE = Plan(kept_topics=0.5)
GROWTHS = {
    "1 to 2": (replace(BASE, partitions=1), (2,)),
    "3 to 4": (BASE, (4,)),
    "3 to 5": (BASE, (5,)),
    "2 to 7 in a calm network": (replace(BASE, partitions=2, loss=0.0, repeats=0.0), (7,)),
    "2 to 3 to 4 to 6": (replace(BASE, partitions=2), (3, 4, 6)),
    "busy, 3 to 6": (replace(BASE, publishes=60), (6,)),
    "busy, 2 to 4 in a calm network": (
        replace(BASE, partitions=2, publishes=60, loss=0.0, repeats=0.0),
        (4,),
    ),
    "short queues": (replace(BASE, queue_messages_max=8), (4, 5)),
    "short channels": (replace(BASE, channel_items_max=6, partitions=2), (4,)),
}


ROOMY = (BASE.queue_messages_max, BASE.channel_items_max)


def run_growing(seed: int, plan: Plan, counts: tuple[int, ...], steps: int) -> World:
    """Live, grow in the middle, live on; judge when all has come to rest."""
    world = peopled_world(seed, plan)
    for count in counts:
        world.run(steps)
        world.grow(count)
        world.run(steps)
    world.settle()
    world.check_all()
    if (plan.queue_messages_max, plan.channel_items_max) == ROOMY:
        assert not any(client.refused for client in world.clients), "a move refused somebody"
    check_ring(world, counts[-1])
    check_retained(world)
    world.check_nothing_remains()
    return world


def check_ring(world: World, count: int) -> None:
    """Everybody is where the ring says, once, and no step of a move is left."""
    for partition in world.partitions:
        state = partition.broker.state
        assert state.is_open and state.prg_count == count
        subscriptions = sum(len(each.subscriptions) for each in state.sessions.values())
        assert state.subscription_count == subscriptions
        assert state.move is None and not state.routes.blind and not state.leaving
        for client_id in state.sessions:
            assert world.home(client_id, count) == partition.number
        for topic, _ in state.retained.items():
            assert world.owner(topic, count) == partition.number
        for group in state.groups.values():
            for number, client_id in group.members:
                assert client_id in world.partitions[number].broker.state.sessions


def check_retained(world: World) -> None:
    """What is retained is the last of what one client published there, at QoS 2."""
    newest = {
        topic: max((each.number for each in of_topic if each.acknowledged), default=0)
        for topic in KEPT_TOPICS
        for of_topic in [[each for each in world.messages.values() if each.topic == topic]]
    }
    found = dict.fromkeys(KEPT_TOPICS, 0)
    for topic, payload in retained(world):
        if topic in found:
            assert found[topic] == 0, f"{topic!r} is retained twice"
            found[topic] = int(payload.split(b"|")[3])
    assert found == newest


def retained(world: World) -> Iterator[tuple[bytes, bytes]]:
    for partition in world.partitions:
        for topic, message in partition.broker.state.retained.items():
            yield topic, message.payload


@pytest.mark.parametrize("name", GROWTHS)
@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_lost_while_the_ring_grows(name: str, seed: int) -> None:
    plan, counts = GROWTHS[name]
    run_growing(seed, plan, counts, 300 // len(counts))


@pytest.mark.soak
@pytest.mark.parametrize("name", GROWTHS)
@pytest.mark.parametrize("seed", range(1_000, 1_300))
def test_nothing_is_lost_in_many_growing_worlds(name: str, seed: int) -> None:
    plan, counts = GROWTHS[name]
    run_growing(seed, plan, counts, 900 // len(counts))
