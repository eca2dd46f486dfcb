"""Everything that was acknowledged arrives, whatever dies: three real nodes under `kill -9`."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from quantum.cli.admin_client import AdminUnreachable, fetch, post
from tests.interop.cluster_process import UNHURRIED, ClusterProcess, is_so
from tests.interop.torture_clients import Client, Publisher, Subscriber

SECONDS = float(os.environ.get("QUANTUM_TORTURE_SECONDS", "60"))
SOAK_SECONDS = 1800.0
DRAIN_SECONDS = 180.0
FIRST_PARTITION = 1000


class Disturber:
    """Kills nodes, moves leaders and drops connections, one thing at a time."""

    def __init__(self, cluster: ClusterProcess, clients: list[Client], rng: random.Random) -> None:
        self._cluster = cluster
        self._clients = clients
        self._rng = rng
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            await asyncio.sleep(self._rng.uniform(0.3, 1.5))  # the pace of the disturbances
            kind = self._rng.choices(["client", "leader", "kill"], [6, 3, 2])[0]
            self.counts[kind] += 1
            if kind == "client":
                self._rng.choice(self._clients).disturb()
            elif kind == "leader":
                await asyncio.to_thread(self._move_leader)
            else:
                await self._kill()

    def _move_leader(self) -> None:
        partition = FIRST_PARTITION + self._rng.randrange(3)
        target = self._rng.randrange(1, 4)
        for node in (1, 2, 3):
            try:
                post(
                    self._cluster.admin(node),
                    f"/groups/{partition}/leader",
                    {"node_id": target},
                )
            except AdminUnreachable:
                continue

    async def _kill(self) -> None:
        """Kill one node, and let it come back before the next thing happens."""
        node = self._rng.randrange(1, 4)
        starts = await asyncio.to_thread(self._cluster.started, node)
        self._cluster.kill(node)
        await asyncio.to_thread(
            self._cluster.until,
            lambda: self._cluster.starts[node] > starts and self._serves(node),
            f"node {node} is back",
        )

    def _serves(self, node: int) -> bool:
        try:
            code, _ = fetch(self._cluster.admin(node), "/v1/broker/status")
        except AdminUnreachable:
            return False
        return code == 200


async def torture(cluster: ClusterProcess, seed: int, seconds: float) -> None:
    rng = random.Random(seed)
    ports = [cluster.base_port + 10 * node + 2 for node in (1, 2, 3)]
    subscribers = [
        Subscriber("all-2", ports, random.Random(rng.random()), topic_filter="t/#", qos=2),
        Subscriber("all-1", ports, random.Random(rng.random()), topic_filter="t/+/x", qos=1),
    ]
    publishers = [
        Publisher(
            f"p{number}",
            ports,
            random.Random(rng.random()),
            topics=[f"t/{number}/{name}" for name in ("x", "y", "z")],
            qos=1 + number % 2,
        )
        for number in range(6)
    ]
    tasks = [asyncio.create_task(client.run()) for client in subscribers]
    async with asyncio.timeout(DRAIN_SECONDS):
        for subscriber in subscribers:
            await subscriber.subscribed.wait()
    tasks += [asyncio.create_task(client.run()) for client in publishers]
    disturber = Disturber(cluster, [*subscribers, *publishers], rng)
    await disturber.run(seconds)
    for publisher in publishers:
        publisher.limit = publisher.next_number - 1
    await until(
        lambda: all(each.idle for each in publishers),
        lambda: f"every publish is acknowledged: {stuck(publishers)} {statuses(cluster)}",
    )
    await until(
        lambda: arrived(subscribers, publishers),
        lambda: f"everything acknowledged has arrived: {statuses(cluster)}",
    )
    for client in (*subscribers, *publishers):
        client.finished.set()
        client.disturb()
    await asyncio.gather(*tasks)
    total = sum(len(each.acknowledged) for each in publishers)
    print(f"seed {seed}: {total} acknowledged, disturbed {dict(disturber.counts)}")
    judge(subscribers, publishers)
    assert total > 100


def stuck(publishers: list[Publisher]) -> list[str]:
    return [f"{each.name}@{each.line is not None}: {each}" for each in publishers if not each.idle]


def statuses(cluster: ClusterProcess) -> list[object]:
    found: list[object] = []
    for node in (1, 2, 3):
        try:
            found.append(fetch(cluster.admin(node), "/v1/broker/status")[1])
        except AdminUnreachable as error:
            found.append(str(error))
            with suppress(ProcessLookupError):
                os.kill(cluster.pids[node], signal.SIGUSR1)
    found.append(cluster.last_words())
    return found


async def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + DRAIN_SECONDS
    began = loop.time()
    while not is_so(condition):
        assert loop.time() < end, f"never: {what()}"
        await asyncio.sleep(max(0.05, 3 * (loop.time() - began)))  # most of the time is clients'
        began = loop.time()


def wanted(subscriber: Subscriber, publisher: Publisher, number: int) -> bool:
    topic = publisher.topics[number % len(publisher.topics)]
    return subscriber.topic_filter == "t/#" or topic.endswith("/x")


def arrived(subscribers: list[Subscriber], publishers: list[Publisher]) -> bool:
    return not any(missing(each, publishers) for each in subscribers)


def missing(subscriber: Subscriber, publishers: list[Publisher]) -> set[tuple[str, int]]:
    got = {(publisher, number) for publisher, _, number in subscriber.deliveries}
    return {
        (publisher.name, number)
        for publisher in publishers
        for number in publisher.acknowledged
        if wanted(subscriber, publisher, number) and (publisher.name, number) not in got
    }


def judge(subscribers: list[Subscriber], publishers: list[Publisher]) -> None:
    """Nothing lost at QoS 1, exactly once at QoS 2, order kept by topic and publisher."""
    qos = {publisher.name: publisher.qos for publisher in publishers}
    for subscriber in subscribers:
        assert not missing(subscriber, publishers)
        counts = Counter((publisher, number) for publisher, _, number in subscriber.deliveries)
        twice = {
            key
            for key, count in counts.items()
            if count > 1 and min(qos[key[0]], subscriber.qos) == 2
        }
        assert not twice, f"{subscriber.name}: more than once at QoS 2: {sorted(twice)[:5]}"
        last: dict[tuple[str, str], int] = {}
        seen: set[tuple[str, int]] = set()
        for publisher, topic, number in subscriber.deliveries:
            if (publisher, number) in seen:
                continue  # a repetition at QoS 1 may come late
            seen.add((publisher, number))
            before = last.get((publisher, topic), 0)
            assert number > before, f"{subscriber.name}: {publisher}'s {number} behind {before}"
            last[publisher, topic] = number
    for client in (*subscribers, *publishers):
        assert client.sessions_lost == 0, f"{client.name} lost its session"


@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_and_qos_2_arrives_once(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    with ClusterProcess(tmp_path, tenant_prgs=3, patience=UNHURRIED) as cluster:
        cluster.wait_for_leader()
        asyncio.run(torture(cluster, seed, SECONDS))


@pytest.mark.soak
def test_half_an_hour_of_it(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    with ClusterProcess(tmp_path, tenant_prgs=3) as cluster:
        cluster.wait_for_leader()
        asyncio.run(torture(cluster, seed, SOAK_SECONDS))
