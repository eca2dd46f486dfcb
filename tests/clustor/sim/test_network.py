"""The simulated network: one seed, one course of events; and each fault does what it says."""

from __future__ import annotations

import random

import pytest

from clustor.sim.network import Arrival, Network, NodeId, SimLink
from clustor.sim.timeline import Microseconds, Timeline

ONE, TWO, THREE = NodeId(1), NodeId(2), NodeId(3)
NODES = (ONE, TWO, THREE)
STEADY = SimLink(latency_min=Microseconds(100), latency_max=Microseconds(100))
WILD = SimLink(
    tail_ppm=50_000,
    tail_max=Microseconds(50_000),
    loss_ppm=100_000,
    duplicate_ppm=100_000,
    reorder_ppm=100_000,
)


class World:
    def __init__(self, link: SimLink, seed: int = 0) -> None:
        # Wider than the network needs, as in a whole simulation.
        self.timeline = Timeline[Arrival | str]()
        self.network = Network(random.Random(seed), self.timeline, link=link)

    def send(self, source: NodeId, destination: NodeId, *payloads: bytes) -> None:
        for payload in payloads:
            self.network.send(source, destination, payload)

    def deliver_all(self) -> list[tuple[int, bytes]]:
        """Run until nothing is on its way; return when what got through."""
        delivered: list[tuple[int, bytes]] = []
        while (arrival := self.timeline.take_next()) is not None:
            assert isinstance(arrival, Arrival)
            if self.network.take_arrival(arrival):
                delivered.append((self.timeline.now, arrival.payload))
        return delivered


def _numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def _stormy_course(seed: int) -> tuple[bytes, list[tuple[int, bytes]]]:
    """Send, cut and mend at random; everything drawn from the seed."""
    world = World(WILD, seed)
    faults = random.Random(seed + 1)
    delivered = []
    for number in range(300):
        source, destination = faults.sample(NODES, 2)
        match faults.randrange(10):
            case 0:
                world.network.cut(source, destination)
            case 1:
                world.network.isolate(source, NODES)
            case 2 | 3:
                world.network.heal()
            case _:
                world.send(source, destination, b"%d" % number)
        if faults.random() < 0.2:
            delivered += world.deliver_all()
    return world.network.trace_digest(), delivered + world.deliver_all()


@pytest.mark.parametrize("seed", range(10))
def test_one_seed_is_one_course_of_events(seed: int) -> None:
    assert _stormy_course(seed) == _stormy_course(seed)


def test_another_seed_is_another_course() -> None:
    assert len({_stormy_course(seed)[0] for seed in range(20)}) == 20


def test_the_course_of_a_seed_is_the_same_on_every_machine() -> None:
    digest, _ = _stormy_course(7)
    assert digest.hex() == "ea6da81ddf5187b3a317b80f68ac3910"


def test_a_calm_link_keeps_time_and_order() -> None:
    world = World(STEADY)
    world.send(ONE, TWO, *_numbered(5))
    assert world.deliver_all() == [(100, payload) for payload in _numbered(5)]


@pytest.mark.parametrize("seed", range(5))
def test_without_reordering_nobody_is_overtaken(seed: int) -> None:
    world = World(SimLink(tail_ppm=300_000, tail_max=Microseconds(9_000)), seed)
    world.send(ONE, TWO, *_numbered(200))
    delivered = world.deliver_all()
    assert [payload for _, payload in delivered] == _numbered(200)
    assert delivered[-1][0] > 1_000, "no message drew the tail"


@pytest.mark.parametrize("seed", range(5))
def test_reordering_loses_nothing(seed: int) -> None:
    world = World(SimLink(reorder_ppm=500_000), seed)
    world.send(ONE, TWO, *_numbered(200))
    payloads = [payload for _, payload in world.deliver_all()]
    assert payloads != _numbered(200)
    assert sorted(payloads) == sorted(_numbered(200))


@pytest.mark.parametrize(
    ("link", "least", "most"),
    [
        (SimLink(loss_ppm=1_000_000), 0, 0),
        (SimLink(loss_ppm=500_000), 400, 600),
        (SimLink(), 1_000, 1_000),
        (SimLink(duplicate_ppm=500_000), 1_400, 1_600),
        (SimLink(duplicate_ppm=1_000_000), 2_000, 2_000),
    ],
)
def test_losses_and_duplicates_come_as_often_as_they_should(
    link: SimLink, least: int, most: int
) -> None:
    world = World(link, seed=3)
    world.send(ONE, TWO, *_numbered(1_000))
    assert least <= len(world.deliver_all()) <= most


def test_a_cut_is_of_one_direction() -> None:
    world = World(STEADY)
    world.network.cut(ONE, TWO)
    world.send(ONE, TWO, b"no")
    world.send(TWO, ONE, b"yes")
    assert world.deliver_all() == [(100, b"yes")]
    assert world.network.is_cut(ONE, TWO)
    assert not world.network.is_cut(TWO, ONE)


def test_what_was_on_its_way_when_the_link_was_cut_is_lost_even_if_it_is_mended() -> None:
    world = World(STEADY)
    world.send(ONE, TWO, b"on its way")
    world.network.cut(ONE, TWO)
    world.network.mend(ONE, TWO)
    world.send(ONE, TWO, b"after")
    assert world.deliver_all() == [(100, b"after")]


def test_a_partition_stands_between_its_sides_only() -> None:
    world = World(STEADY)
    world.network.partition([ONE], [TWO, THREE])
    for source in NODES:
        for destination in NODES:
            world.send(source, destination, b"%d>%d" % (source, destination))
    through = {payload for _, payload in world.deliver_all()}
    assert through == {b"1>1", b"2>2", b"2>3", b"3>2", b"3>3"}
    world.network.heal()
    world.send(ONE, THREE, b"healed")
    assert world.deliver_all() == [(200, b"healed")]


def test_a_link_of_its_own_touches_no_other() -> None:
    world = World(STEADY)
    slow = Microseconds(5_000)
    world.network.set_link(ONE, TWO, SimLink(latency_min=slow, latency_max=slow))
    world.send(ONE, TWO, b"slow")
    world.send(ONE, THREE, b"fast")
    assert world.deliver_all() == [(100, b"fast"), (5_000, b"slow")]


def test_time_moves_by_events_alone() -> None:
    timeline = Timeline[str]()
    for at, event in ((7, "late"), (3, "first"), (3, "second")):
        timeline.schedule(Microseconds(at), event)
    assert timeline.next_at() == 3
    taken = [timeline.take_next(), timeline.take_next(), timeline.now, timeline.take_next()]
    assert taken == ["first", "second", 3, "late"]
    assert (timeline.take_next(), timeline.next_at(), timeline.now) == (None, None, 7)
    with pytest.raises(AssertionError):
        timeline.schedule(Microseconds(6), "in the past")
