"""Partitions are added while real clients publish and receive: nothing is lost, nothing twice."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from clustor.runtime.peers.transport import Address
from quantum.cli.admin_client import AdminUnreachable, fetch, post
from quantum.cli.exits import Exit
from quantum.cli.tenants import app
from quantum.node.replaying import replay_directory
from tests.interop.broker_process import DEADLINE_SECONDS, BrokerProcess
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.test_mqtt_torture import Disturber, arrived, judge, stuck, until
from tests.interop.torture_clients import Client, Publisher, Subscriber

LOAD_SECONDS = float(os.environ.get("QUANTUM_REBALANCE_SECONDS", "2"))
SOAK_SECONDS_EACH = float(os.environ.get("QUANTUM_REBALANCE_SOAK_SECONDS", "60"))
PAGE = "/v1/tenants/dev/ring"


def people(ports: list[int], rng: random.Random) -> tuple[list[Subscriber], list[Publisher]]:
    """Enough of both that some sessions and some topics move, whatever the ring."""
    subscribers = [
        Subscriber(f"s{number}", ports, random.Random(rng.random()), topic_filter="t/#", qos=2)
        for number in range(4)
    ]
    subscribers.append(
        Subscriber("s-x", ports, random.Random(rng.random()), topic_filter="t/+/x", qos=1)
    )
    publishers = [
        Publisher(
            f"p{number}",
            ports,
            random.Random(rng.random()),
            topics=[f"t/{number}/{name}" for name in ("x", "y", "z")],
            qos=1 + number % 2,
        )
        for number in range(8)
    ]
    return subscribers, publishers


def ring(admins: list[Address]) -> dict[str, Any] | None:
    """Return the ring as the first node that answers sees it."""
    for admin in admins:
        try:
            code, page = fetch(admin, PAGE)
        except AdminUnreachable:
            continue
        if code == 200:
            return page
    return None


def grow(admins: list[Address], count: int) -> None:
    """Order it until a node says that it is done: to order it twice is to order it once."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    for admin in itertools.cycle(admins):
        assert time.monotonic() < deadline, "no node answered"
        with suppress(AdminUnreachable):
            code, answer = post(admin, PAGE, {"prg_count": count})
            assert code == 200, answer
            return


async def settled(admins: list[Address], count: int) -> None:
    """Wait until every partition of every node that answers has done its part."""

    def all_there() -> bool:
        page = ring(admins)
        return page is not None and page["settled"] and page["prg_count"] == count

    await until(all_there, lambda: f"the ring has {count} partitions: {ring(admins)}")


async def loaded(publishers: list[Publisher]) -> None:
    """Let them publish for a while, and on a slow machine until enough is acknowledged."""

    def acknowledged() -> int:
        return sum(len(each.acknowledged) for each in publishers)

    goal = acknowledged() + 100
    await asyncio.sleep(LOAD_SECONDS / 2)
    await until(lambda: acknowledged() > goal, lambda: f"load: {stuck(publishers)}")


Disturb = Callable[[list[Client]], Awaitable[None]]


async def calm(_clients: list[Client]) -> None:
    """Disturb nobody."""


async def live_through(
    admins: list[Address],
    ports: list[int],
    seed: int,
    counts: list[int],
    disturb: Disturb = calm,
) -> list[Client]:
    """Load, growth, a disturbance in the middle, more load; then judge."""
    rng = random.Random(seed)
    subscribers, publishers = people(ports, rng)
    tasks = [asyncio.create_task(client.run()) for client in subscribers]
    async with asyncio.timeout(DEADLINE_SECONDS):
        for subscriber in subscribers:
            await subscriber.subscribed.wait()
    tasks += [asyncio.create_task(client.run()) for client in publishers]
    await loaded(publishers)
    for count in counts:
        await asyncio.to_thread(grow, admins, count)
        await asyncio.sleep(rng.uniform(0.0, 0.4))  # somewhere in the middle of it
        await disturb([*subscribers, *publishers])
        await settled(admins, count)
        await loaded(publishers)  # on the new ring
    for publisher in publishers:
        publisher.limit = publisher.next_number - 1
    await until(
        lambda: all(each.idle for each in publishers),
        lambda: f"every publish is acknowledged: {stuck(publishers)} {ring(admins)}",
    )
    await until(
        lambda: arrived(subscribers, publishers), lambda: f"all has arrived: {ring(admins)}"
    )
    clients: list[Client] = [*subscribers, *publishers]
    for client in clients:
        client.finished.set()
        client.disturb()
    await asyncio.gather(*tasks)
    total = sum(len(each.acknowledged) for each in publishers)
    print(f"seed {seed}: {total} acknowledged, rings {counts}")
    judge(subscribers, publishers)
    assert total > 100
    return clients


@pytest.mark.timeout(900)
def test_three_nodes_grow_from_three_to_five_under_load_and_a_kill(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    with ClusterProcess(tmp_path, tenant_prgs=3, patience=UNHURRIED) as cluster:
        cluster.wait_for_leader()
        ports = [cluster.base_port + 10 * node + 2 for node in (1, 2, 3)]
        victim = random.Random(seed).randrange(1, 4)

        async def kill(_clients: list[Client]) -> None:
            cluster.kill(victim)

        asyncio.run(live_through(cluster.admins(), ports, seed, [5], kill))


@pytest.mark.soak
def test_growing_again_and_again_while_nodes_die_and_leaders_move(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    with ClusterProcess(tmp_path, tenant_prgs=2) as cluster:
        cluster.wait_for_leader()
        ports = [cluster.base_port + 10 * node + 2 for node in (1, 2, 3)]

        chance = random.Random(seed)

        async def torture(clients: list[Client]) -> None:
            disturber = Disturber(cluster, clients, chance)
            await disturber.run(SOAK_SECONDS_EACH)
            print(f"disturbed {dict(disturber.counts)}")

        asyncio.run(live_through(cluster.admins(), ports, seed, [3, 5, 6, 9], torture))


@pytest.mark.timeout(900)
def test_one_process_grows_through_power_cuts_and_its_logs_replay(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    with BrokerProcess(tmp_path / "data", partitions=1) as broker:

        def crash() -> None:
            broker.kill()
            broker.start()

        async def restart(_clients: list[Client]) -> None:
            await asyncio.to_thread(crash)

        asyncio.run(live_through([broker.admin], [broker.mqtt], seed, [2, 4], restart))
        rows = broker.page("/v1/broker/digests")["partitions"]
    assert {row["partition"] for row in rows} == {0, 1, 2, 3}
    for row in rows:  # the log may have gone on since
        replayed = replay_directory(tmp_path / "data", int(row["index"]), lambda _: None)
        mine = [each.digest for each in replayed if each.partition == row["partition"]]
        assert mine == [row["digest"]]


def ordered(broker: BrokerProcess, path: str, count: object) -> tuple[int, dict[str, Any]]:
    """Order something until the broker answers: nothing here does more when it is done twice."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return post(broker.admin, path, {"prg_count": count})
        except AdminUnreachable:
            assert time.monotonic() < deadline, broker.last_words()


def test_a_ring_that_shrinks_and_a_tenant_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", partitions=2) as broker:
        code, answer = ordered(broker, PAGE, 1)
        assert code == 409 and "only grows" in answer["message"]
        code, answer = ordered(broker, PAGE, 2)
        assert (code, answer["prg_count"]) == (200, 2)
        assert ordered(broker, "/v1/tenants/nobody/ring", 3)[0] == 404
        assert ordered(broker, PAGE, "x")[0] == 400


def test_what_is_added_is_archived_too(tmp_path: Path) -> None:
    archive = (tmp_path / "archive").as_uri()
    with BrokerProcess(tmp_path / "data", partitions=1, archive=archive) as broker:
        grow([broker.admin], 2)
        asyncio.run(settled([broker.admin], 2))

        def archived() -> bool:
            rows = broker.page("/v1/archive")["partitions"]
            return len(rows) == 2 and all(row["behind"] == "0" for row in rows)

        asyncio.run(until(archived, lambda: str(broker.page("/v1/archive"))))


def command(*arguments: str) -> Result:
    """Run `quantum tenants …` as an operator would, who asks again where nobody answered."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    result = CliRunner().invoke(app, arguments)
    while result.exit_code == Exit.UNREACHABLE and time.monotonic() < deadline:
        result = CliRunner().invoke(app, arguments)
    return result


def test_the_command_grows_a_ring_and_says_so(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", partitions=1) as broker:
        there = ["--admin", f"{broker.admin.host}:{broker.admin.port}"]
        grown = command("grow", "dev", "--prgs", "3", "--timeout", "180", *there)
        assert grown.exit_code == 0 and "dev has 3 partitions (ring 1)" in grown.output
        shown = json.loads(command("show", "dev", *there).output)
        assert shown["settled"] and [each["open"] for each in shown["partitions"]] == [True] * 3
        refused = command("grow", "dev", "--prgs", "2", *there)
        assert refused.exit_code == 1 and "only grows" in refused.output
    gone = CliRunner().invoke(app, ["grow", "dev", "--prgs", "4", *there])
    assert gone.exit_code == Exit.UNREACHABLE
