"""AMQP on three nodes: any node serves any queue, and killed leaders take nothing along."""

from __future__ import annotations

import random
import time
from pathlib import Path

from quantum.cli.admin_client import fetch
from tests.interop.amqp_torture import Seen, TortureReceiver, TortureSender
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.mqtt_places import all_served
from tests.interop.stock_proton import connected, send_all, take_all
from tests.interop.test_amqp_resumption import send_over_kills

AMQP_PLACE = 5
"""Behind a node's admin port."""
TORTURE_SECONDS = 20.0


def ports_of(cluster: ClusterProcess) -> list[int]:
    return [address.port + AMQP_PLACE for address in cluster.admins()]


def test_queues_are_served_at_every_node_and_outlive_their_leaders(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "c", tenant_prgs=3, patience=UNHURRIED) as cluster:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        first, second, third = ports_of(cluster)
        names = [f"spread-{n}" for n in range(9)]
        with connected(first) as one, connected(second) as two, connected(third) as three:
            for name in names:
                send_all(one, name, *range(10))
            for name in names:
                assert [each.body for each in take_all(three, name, 5)] == list(range(5))
                assert [each.body for each in take_all(two, name, 5)] == list(range(5, 10))
        torture(cluster)


def torture(cluster: ClusterProcess) -> None:
    """Kill a node every two seconds while clients send and receive; then count."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    ports, seen = ports_of(cluster), Seen()
    queues = ["torture-a", "torture-b"]
    senders = [TortureSender(ports, name, f"s{n}-{name}-", seen) for name in queues for n in (1, 2)]
    receivers = [
        TortureReceiver(ports, name, f"r{n}-{name}", seen) for name in queues for n in (1, 2)
    ]
    for client in (*senders, *receivers):
        client.start()
    ends = time.monotonic() + TORTURE_SECONDS
    while time.monotonic() < ends:
        time.sleep(2.0)
        cluster.kill(rng.randint(1, 3))
    for sender in senders:
        sender.stopping.set()
    for sender in senders:
        sender.join(60)
    cluster.until(lambda: all_served(cluster), "every partition is served again")
    cluster.until(lambda: not seen.lost(), "all that was told is received")
    for receiver in receivers:
        receiver.stopping.set()
    for receiver in receivers:
        receiver.join(60)
    print(f"told {len(seen.told)}, accepted {len(seen.accepted)}, lives {seen.lives}")
    assert len(seen.told) > 20
    assert not seen.twice()
    check_dead_letters(ports, queues, seen)


def check_dead_letters(ports: list[int], queues: list[str], seen: Seen) -> None:
    """What was rejected, and nothing else, is a dead letter."""
    dead: set[str] = set()
    with connected(ports[0]) as connection:
        for name in queues:
            wanted = sum(1 for each in seen.rejected if f"-{name}-" in each)
            found = take_all(connection, f"{name}/$dead-letters", wanted)
            dead |= {str(each.body) for each in found}
    assert dead <= seen.rejected
    assert not (dead & seen.accepted.keys())


def test_a_sender_resumes_over_killed_leaders(tmp_path: Path) -> None:
    """The node that leads the queue is killed each time; what is told twice counts once."""
    with ClusterProcess(tmp_path / "c", tenant_prgs=3, patience=UNHURRIED) as cluster:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        ports = ports_of(cluster)
        with connected(ports[0]) as connection:
            send_all(connection, "over", "first")
            take_all(connection, "over", 1)

        def kill() -> None:
            code, page = fetch(cluster.admins()[0], "/v1/tenants/dev/queues/over")
            assert code == 200, page
            cluster.kill(page["leader"] or 1)
            cluster.until(lambda: all_served(cluster), "every partition is served again")

        made = send_over_kills(ports, kill, "over")
        with connected(ports[0]) as connection:
            found = sorted(int(each.body) for each in take_all(connection, "over", made))
            assert found == list(range(made))
