"""Real partitions of real nodes: what was acknowledged stays, in one order, and all ends well.

Every story runs under a load of clients that reach all hosts as far as the story lets them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest

from clustor.runtime.kv.client import KvClient, KvUnavailable
from tests.clustor.runtime.waiting import until
from tests.interop.machine import slowness
from tests.interop.namespaces import CLIENT, Network, why_impossible, within
from tests.interop.node_processes import NodeProcesses
from tests.interop.test_cluster import WORKERS, Load

LONG_SECONDS = 7.0
TIMEOUT_SECONDS = 4.5  # a silent node is given up after a third of it

Story: TypeAlias = Callable[[Load], Awaitable[None]]

IMPOSSIBLE = why_impossible()
pytestmark = pytest.mark.skipif(IMPOSSIBLE is not None, reason=str(IMPOSSIBLE))


class Field:
    """A cluster on its network, and clients that load it while a story is told."""

    def __init__(self, network: Network, nodes: NodeProcesses) -> None:
        self.network = network
        self.nodes = nodes

    @property
    def others(self) -> set[int]:
        return set(self.nodes.nodes) - {self.leader}

    def tell(self, story: Story) -> None:
        """Load the cluster from the clients' namespace, tell the story, heal, and judge."""
        self.leader = self.nodes.wait_for_leader()
        began = time.monotonic()
        try:
            within(self.network.namespace(CLIENT), lambda: asyncio.run(self._under_load(story)))
        finally:
            self.network.heal()
        print(f"told in {time.monotonic() - began:.1f} s")

    async def _under_load(self, story: Story) -> None:
        async with KvClient(self.nodes.admins(), timeout_seconds=TIMEOUT_SECONDS) as client:
            async with Load(client).running() as load:
                await self.goes_on(load)
                await story(load)
                self.network.heal()
                await self.goes_on(load)
            await self.eventually(self.nodes.agree, "all nodes agree")
        async with KvClient(self.nodes.admins(), timeout_seconds=180) as patient:
            await load.check(patient)

    async def goes_on(self, load: Load) -> None:
        """Wait until writes that begin now are acknowledged."""
        before = len(load.acknowledged) + 10 * WORKERS
        await until(partial(load.has_more_than, before), "writes are acknowledged")

    async def eventually(self, condition: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(self.nodes.until, condition, what)

    async def steps_down(self, node: int) -> None:
        """Wait until a node knows that it does not lead: its quorum does not answer."""
        await self.eventually(lambda: self.nodes.none_leads({node}), f"{node} steps down")

    async def acknowledges_nothing(self, nodes: list[int]) -> None:
        """See a write fail that only these nodes could have taken."""
        addresses = [self.nodes.admin(node) for node in nodes]
        async with KvClient(addresses, timeout_seconds=1.5) as client:
            with suppress(KvUnavailable):
                await client.put(b"lonely", b"never")
                pytest.fail("a write was acknowledged without a quorum")

    def is_current(self, node: int) -> bool:
        """Say whether a node has about what the others had a moment before, under load."""
        groups = [self.nodes.group(each) for each in self.nodes.nodes if each != node]
        others = [group["commit_index"] for group in groups if group is not None]
        mine = self.nodes.group(node)
        if mine is None or not others:
            return False
        return bool(mine["leader_id"]) and mine["commit_index"] + 100 > max(others)

    async def is_led_by_one_of(self, nodes: set[int]) -> None:
        await asyncio.to_thread(self.nodes.wait_for_leader, nodes)


@pytest.fixture
def field(tmp_path: Path) -> Iterator[Field]:
    yield from made(tmp_path, 3)


@pytest.fixture
def field_of_five(tmp_path: Path) -> Iterator[Field]:
    yield from made(tmp_path, 5)


def made(root: Path, count: int) -> Iterator[Field]:
    with Network(count) as network, NodeProcesses(root / "cluster", network, count) as nodes:
        nodes.until(nodes.agree, "all nodes agree at first")
        yield Field(network, nodes)


def test_the_leaders_cable_is_pulled(field: Field) -> None:
    async def story(load: Load) -> None:
        field.network.unplug(field.leader)
        await field.steps_down(field.leader)
        await field.is_led_by_one_of(field.others)
        await field.goes_on(load)

    field.tell(story)


def test_a_leader_that_only_clients_reach_promises_nothing(field: Field) -> None:
    """Writes that only it could have taken are not acknowledged, however long they are tried."""

    async def story(load: Load) -> None:
        field.network.part({field.leader}, field.others)
        await field.acknowledges_nothing([field.leader] * 2)  # two: it then asks for no others
        await field.steps_down(field.leader)
        await field.goes_on(load)

    field.tell(story)


def test_a_leader_with_a_minority_gives_way_to_the_majority(field_of_five: Field) -> None:
    field = field_of_five

    async def story(load: Load) -> None:
        minority = {field.leader, min(field.others)}
        majority = set(field.nodes.nodes) - minority
        field.network.part(minority, majority)
        await field.steps_down(field.leader)
        await field.is_led_by_one_of(majority)
        await field.goes_on(load)
        await field.eventually(lambda: field.nodes.none_leads(minority), "no two lead")

    field.tell(story)


def test_a_leader_that_hears_nobody_steps_down(field: Field) -> None:
    """One way only: it still speaks, and must not hold its followers back by that."""

    async def story(load: Load) -> None:
        for other in field.others:
            field.network.lose(other, field.leader)
        await field.steps_down(field.leader)
        await field.is_led_by_one_of(field.others)
        await field.goes_on(load)

    field.tell(story)


def test_a_leader_that_nobody_hears_is_replaced(field: Field) -> None:
    async def story(load: Load) -> None:
        for other in field.others:
            field.network.lose(field.leader, other)
        await field.steps_down(field.leader)
        await field.is_led_by_one_of(field.others)
        await field.goes_on(load)

    field.tell(story)


def test_without_any_majority_nobody_leads_and_nothing_is_acknowledged(field: Field) -> None:
    async def story(load: Load) -> None:
        for node in field.nodes.nodes:
            field.network.part({node}, set(field.nodes.nodes) - {node})
        await field.eventually(field.nodes.none_leads, "nobody leads")
        await field.acknowledges_nothing(field.nodes.nodes)  # what was on its way has come by then
        before = len(load.acknowledged)
        await field.acknowledges_nothing(field.nodes.nodes)
        assert len(load.acknowledged) == before

    field.tell(story)


def test_a_node_is_back_soon_after_a_long_cut(field: Field) -> None:
    """Sooner than TCP's own patience, which doubles with every try, would let it.

    That would let it wait every time; a machine that is busy now and then does not.
    """

    async def story(load: Load) -> None:
        seconds: list[float] = []
        while min(seconds, default=LONG_SECONDS) >= LONG_SECONDS / 2:
            assert len(seconds) < 5, seconds
            seconds.append(await seconds_to_come_back(field))

    field.tell(story)


async def seconds_to_come_back(field: Field) -> float:
    cut = min(field.others)
    field.network.unplug(cut)
    await asyncio.sleep(LONG_SECONDS)
    field.network.plug_in(cut)
    began = time.monotonic()
    busy = await asyncio.to_thread(slowness)
    await field.eventually(lambda: field.is_current(cut), "it has what the leader has")
    return (time.monotonic() - began) / busy


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_forty_cuts_at_random(field_of_five: Field) -> None:
    """Whatever is cut and whenever it heals: nothing acknowledged is lost, in one order."""
    field = field_of_five
    seed = int.from_bytes(os.urandom(4))
    print(f"\nseed {seed}")
    rng = Random(seed)

    async def story(load: Load) -> None:
        for _ in range(40):
            cut_at_random(field, rng)
            await asyncio.sleep(rng.uniform(0.1, 1.5))  # long enough for an election, or not
            if rng.random() < 0.6:
                field.network.heal()
                await field.goes_on(load)

    field.tell(story)


def cut_at_random(field: Field, rng: Random) -> None:
    nodes = list(field.nodes.nodes)
    rng.shuffle(nodes)
    kind = rng.choice(("cable", "sides", "one way"))
    if kind == "cable":
        field.network.unplug(nodes[0])
    elif kind == "sides":
        at = rng.randint(1, len(nodes) - 1)
        field.network.part(set(nodes[:at]), set(nodes[at:]))
    else:
        for other in nodes[1 : rng.randint(2, len(nodes))]:
            field.network.lose(nodes[0], other)
