"""Topics by AMQP on three nodes: any node serves, and killed ones take nothing along."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from proton import Message, ProtonException
from proton.reactor import DurableSubscription

from tests.interop.amqp_torture import Seen, TortureClient, TortureSender
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.kafka_clients import kafka_of, read_partition
from tests.interop.mqtt_places import all_served
from tests.interop.mqtt_tap import tapped
from tests.interop.stock_proton import connected, send_all
from tests.interop.test_amqp_cluster import ports_of
from tests.interop.test_amqp_topics import take
from tests.interop.test_kafka_node import quantum

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours
TOPICS = 6
KILLS = 6
TOLD_EACH = 40


class LastingReceiver(TortureClient):
    """Has one durable subscription, at one node after the other."""

    def work(self, connection: Any, life: int) -> None:
        receiver = connection.create_receiver(
            self._queue, credit=50, name="lasting", options=DurableSubscription()
        )
        while not self.stopping.is_set():
            try:
                body: str = receiver.receive(timeout=1).body
            except ProtonException as error:
                if type(error).__name__ == "Timeout":
                    continue
                raise
            with self.seen.lock:
                self.seen.accepted.setdefault(body, []).append(life)
            receiver.accept()


def test_any_node_serves_any_topic_and_killed_ones_lose_nothing(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "c", tenant_prgs=3, patience=UNHURRIED) as cluster:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        ports = ports_of(cluster)
        everywhere(cluster, ports)
        torture(cluster, ports)


def everywhere(cluster: ClusterProcess, ports: list[int]) -> None:
    """Who subscribes at one node is given what comes in at the others, by either protocol."""
    with connected(ports[0]) as one, connected(ports[1]) as two, tapped(mqtt_of(cluster, 3)) as tap:
        receivers = [
            each.create_receiver("/topics/spread/#", credit=50, name=f"r{n}")
            for n, each in enumerate((one, two))
        ]
        tap.subscribe("spread/#")
        for number in range(TOPICS):
            send_all(one, f"/topics/spread/{number}", Message(body=b"one", inferred=True))
            send_all(two, f"/topics/spread/{number}", Message(body=b"two", inferred=True))
            tap.publish(f"spread/{number}", b"tap")
        wanted = sorted([b"one", b"two", b"tap"] * TOPICS)
        for receiver in receivers:
            assert sorted(bytes(each.body) for each in take(receiver, 3 * TOPICS)) == wanted
        assert sorted(each.payload for each in tap.take(3 * TOPICS)) == wanted


def mqtt_of(cluster: ClusterProcess, node: int) -> int:
    return cluster.admin(node).port + 1


def torture(cluster: ClusterProcess, ports: list[int]) -> None:
    """Kill nodes while clients send, again and again; each attempt is a message of its own."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    seen = Seen()
    admin = cluster.admin(1)
    words = ("streams", "create", "kept", "--capture", "torture/#")
    quantum(*words, "--admin", f"{admin.host}:{admin.port}")
    receiver = LastingReceiver(ports, "/topics/torture/#", "receiver", seen)
    receiver.options = {"container_id": "lasting"}
    with connected(ports[0], **receiver.options) as connection:
        connection.create_receiver(
            "/topics/torture/#", name="lasting", options=DurableSubscription()
        )
    clients: list[TortureClient] = [
        receiver,
        *(TortureSender(ports, f"/topics/torture/{n}", f"s{n}", seen) for n in range(TOPICS)),
    ]
    for client in clients:
        client.start()
    for _ in range(KILLS):
        until_told(cluster, seen, len(seen.told) + TOLD_EACH)
        cluster.kill(rng.randint(1, 3))
    for client in clients[1:]:
        client.stopping.set()
    for client in clients[1:]:
        client.join(60)
    cluster.until(lambda: all_served(cluster), "every partition is served again")
    cluster.until(lambda: not seen.lost(), "all that was accepted is received")
    receiver.stopping.set()
    receiver.join(60)
    print(f"told {len(seen.told)}, lives {seen.lives}, received {len(seen.accepted)}")
    kept = [body for p in range(3) for _, body in read_partition(kafka_of(cluster), "kept", p)]
    assert seen.told <= set(kept)
    assert max(Counter(kept).values()) == 1
    assert set(seen.accepted) <= set(kept)


def until_told(cluster: ClusterProcess, seen: Seen, wanted: int) -> None:
    cluster.until(lambda: len(seen.told) >= wanted, "clients are served again")
