"""AMQP on three nodes: any node serves any queue, and killed leaders take nothing along."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path

import pytest
from proton import Timeout

from quantum.cli.admin_client import fetch, post
from tests.interop.amqp_torture import (
    ResumingSender,
    Seen,
    TortureClient,
    TortureMover,
    TortureReceiver,
    TortureSender,
)
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.mqtt_places import all_served
from tests.interop.proton_transactions import spread_over
from tests.interop.stock_proton import connected, is_empty, send_all, take_all
from tests.interop.test_amqp_resumption import send_over_kills

AMQP_PLACE = 5
"""Behind a node's admin port."""
TORTURE_SECONDS = 30.0
SOAK_SECONDS = 1_800.0


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
        torture(cluster, TORTURE_SECONDS)


@pytest.mark.soak
def test_killed_nodes_for_half_an_hour(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "c", tenant_prgs=3, patience=UNHURRIED) as cluster:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        torture(cluster, SOAK_SECONDS)


def torture(cluster: ClusterProcess, seconds: float) -> None:
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
    moves = Moves(cluster, ports)
    for client in (*senders, *receivers):
        client.start()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        cluster.until(moves.went_on, "transactions go on")
        time.sleep(rng.uniform(0.0, 2.0))
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
    moves.check()


class Moves:
    """Transactions over three partitions, and a durable link, while nodes are killed."""

    def __init__(self, cluster: ClusterProcess, ports: list[int]) -> None:
        self._cluster, self._ports = cluster, ports
        admin = cluster.admins()[0]
        self._source, *self._targets = spread_over(admin, "moved")
        self._durable = "durable-torture"
        # Who is killed fails what it held, however often that is.
        unbounded: dict[str, object] = {"name": self._source, "deliveries_max": 0}
        code, page = post(admin, "/v1/tenants/dev/queues", unbounded)
        assert code in {200, 201}, page
        self._seen, self._before = Seen(), 0
        self._senders = [TortureSender(ports, self._source, f"m{n}-", self._seen) for n in (1,)]
        self._movers = [
            TortureMover(ports, self._source, self._targets, f"mover-{n}", self._seen)
            for n in (1, 2)
        ]
        self._resuming = ResumingSender(ports, self._durable, "resuming")
        for client in (*self._senders, *self._movers, self._resuming):
            client.start()

    def went_on(self) -> bool:
        """Say whether something was moved since this was last so."""
        before, self._before = self._before, self.moved
        return self._before > before

    @property
    def moved(self) -> int:
        return sum(each.moved for each in self._movers)

    def _count(self, queue: str) -> int:
        code, page = fetch(self._cluster.admins()[0], f"/v1/tenants/dev/queues/{queue}")
        return int(page["messages"]) if code == 200 else -1

    def check(self) -> None:
        """Each message that was told is once in both targets; any other in both or in none."""
        sending: tuple[TortureClient | ResumingSender, ...] = (*self._senders, self._resuming)
        for client in sending:
            client.stopping.set()
        for client in sending:
            client.join(120)
            assert not client.is_alive()
        self._cluster.until(lambda: self._count(self._source) == 0, "everything is moved")
        for mover in self._movers:
            mover.stopping.set()
        for mover in self._movers:
            mover.join(120)
        first, second = (self._bodies(each) for each in self._targets)
        told = self._seen.told
        refused = sum(each.refused for each in self._movers)
        print(f"told {len(told)} to move, {self.moved} moved, {refused} refused")
        print(f"{self._resuming.made} on a durable link, resumed {self._resuming.resumed} times")
        assert first == second
        assert len(first) == len(set(first)), "moved twice"
        assert told <= set(first)
        assert self.moved > 10
        durable = sorted(map(int, self._bodies(self._durable)))
        assert durable == list(range(self._resuming.made))
        assert self._resuming.resumed > 1

    def _bodies(self, queue: str) -> list[str]:
        """Take all that a queue holds, and nothing is left."""
        found: list[str] = []
        with connected(self._ports[0]) as connection:
            receiver = connection.create_receiver(queue, credit=50)

            def is_drained() -> bool:
                with suppress(Timeout):
                    while True:
                        message = receiver.receive(timeout=1)  # a body lives as long as it
                        body = message.body
                        receiver.accept()
                        found.append(body if isinstance(body, str) else bytes(body).decode())
                return self._count(queue) == 0

            self._cluster.until(is_drained, "the queue is empty")
            assert is_empty(receiver)
        return sorted(found)


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
