"""Streams by AMQP on three nodes: any node writes and reads, killed ones take nothing along."""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from proton import Message

from tests.interop.amqp_torture import Seen, TortureSender
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.kafka_clients import kafka_of, make_topic, read_partition
from tests.interop.mqtt_places import all_served
from tests.interop.stock_proton import LinkDetached, connected, send_all
from tests.interop.test_amqp_cluster import ports_of
from tests.interop.test_amqp_streams import bodies, reader, take

pytestmark = pytest.mark.filterwarnings("default")  # the clients' own warnings are not ours
PARTITIONS = 3
TORTURE_SECONDS = 20.0
TOLD_MIN = 20
DEADLINE_SECONDS = 180.0


def test_any_node_serves_any_stream_and_killed_ones_lose_nothing(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "c", tenant_prgs=3, patience=UNHURRIED) as cluster:
        cluster.until(lambda: all_served(cluster), "every partition is served")
        make_topic(kafka_of(cluster), "spread", PARTITIONS)
        make_topic(kafka_of(cluster), "torture", PARTITIONS)
        ports = ports_of(cluster)
        until_known(cluster, ports)
        for number, port in enumerate(ports):
            with connected(port) as connection:
                for partition in range(PARTITIONS):
                    address = f"/streams/spread/{partition}"
                    send_all(connection, address, f"{number}-{partition}", f"{number}-again")
        for port in ports:
            with connected(port) as connection:
                for partition in range(PARTITIONS):
                    found = take(reader(connection, f"/streams/spread/{partition}", "first"), 6)
                    assert [each.body for each in found] == [
                        f"{number}-{word}" for number in range(3) for word in (partition, "again")
                    ]
        follow(ports)
        torture(cluster, ports)


def until_known(cluster: ClusterProcess, ports: list[int]) -> None:
    """Wait until every node's own replica knows the topics: followers are a little behind."""

    def is_known() -> bool:
        try:
            for port in ports:
                with connected(port) as connection:
                    for name in ("spread", "torture"):
                        connection.create_sender(f"/streams/{name}").close()
        except LinkDetached:
            return False
        return True

    cluster.until(is_known, "every node knows the streams")


def follow(ports: list[int]) -> None:
    """Who reads at one node is given what comes in at another."""
    with connected(ports[0]) as one, connected(ports[2]) as three:
        receivers = [reader(three, f"/streams/spread/{p}", "next") for p in range(PARTITIONS)]
        for partition, receiver in enumerate(receivers):
            send_all(one, f"/streams/spread/{partition}", Message(body=b"news"))
            assert bodies(take(receiver, 1)) == ["news"]


def torture(cluster: ClusterProcess, ports: list[int]) -> None:
    """Kill a node every two seconds while clients send; each attempt is a message of its own."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    seen = Seen()
    senders = [
        TortureSender(ports, f"/streams/torture/{p}", f"s{n}-{p}", seen)
        for p in range(PARTITIONS)
        for n in (1, 2)
    ]
    for sender in senders:
        sender.start()
    begun = time.monotonic()
    while time.monotonic() < begun + TORTURE_SECONDS or len(seen.told) < TOLD_MIN:
        assert time.monotonic() < begun + DEADLINE_SECONDS, f"told no more than {len(seen.told)}"
        time.sleep(2.0)
        cluster.kill(rng.randint(1, 3))
    for sender in senders:
        sender.stopping.set()
    for sender in senders:
        sender.join(60)
    cluster.until(lambda: all_served(cluster), "every partition is served again")
    print(f"told {len(seen.told)}, lives {seen.lives}")
    check_torture(cluster, ports, seen)


def check_torture(cluster: ClusterProcess, ports: list[int], seen: Seen) -> None:
    """What was accepted is there, nothing is there twice, and every node shows the same."""
    whole: list[Any] = []
    for partition in range(PARTITIONS):
        kept = read_partition(kafka_of(cluster), "torture", partition)
        shown = []
        for port in ports:
            with connected(port) as connection:
                receiver = reader(connection, f"/streams/torture/{partition}", "first")
                shown.append([each.body for each in take(receiver, len(kept))])
        assert shown == [[value for _, value in kept]] * len(ports)
        whole += shown[0]
    assert seen.told <= set(whole)
    assert max(Counter(whole).values()) == 1
