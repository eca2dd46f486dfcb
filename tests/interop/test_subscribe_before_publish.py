"""After a SUBACK, a PUBLISH of whoever saw it reaches the subscription, wherever both live.

Three partitions on three nodes: the session of the subscriber, the topic and the session of the
publisher each live somewhere, and clients come by any node.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.interop import luck
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.mqtt_places import all_served
from tests.interop.test_half_open import Port
from tests.quantum.serving.client import V311, Client, connect

ROUNDS = 200
SEED = 15


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("before")
    with ClusterProcess(data, tenant_prgs=3, patience=PATIENT) as made:
        made.until(lambda: all_served(made), "every partition is served")
        yield made


def doors(cluster: ClusterProcess) -> list[Port]:
    return [Port(cluster.base_port + 10 * node + 2) for node in range(1, cluster.nodes + 1)]


@pytest.mark.skipif(bool(luck.ROAMS), reason="who moves is connected anew, with other sessions")
def test_what_is_published_after_a_suback_arrives(cluster: ClusterProcess) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    clients = [connect(door, V311) for door in doors(cluster) for _ in range(4)]
    for number in range(ROUNDS):
        subscriber, publisher = rng.choice(clients), rng.choice(clients)
        qos, topic = rng.randint(0, 2), b"round/%d/x" % number
        topic_filter = rng.choice([topic, b"round/%d/+" % number, b"round/%d/#" % number])
        subscriber.subscribe(topic_filter, qos)
        publisher.publish(topic, b"%d" % number, qos)
        arrives(subscriber, topic, number)
        subscriber.unsubscribe(topic_filter)
    for client in clients:
        client.cut()


@pytest.mark.skipif(bool(luck.ROAMS), reason="who moves is connected anew, with other sessions")
def test_what_a_client_publishes_behind_its_subscribe_arrives(cluster: ClusterProcess) -> None:
    """In one piece, without waiting for the SUBACK: what is heard first takes effect first."""
    clients = [connect(door, V311) for door in doors(cluster) for _ in range(4)]
    for number in range(ROUNDS):
        client, topic = clients[number % len(clients)], b"behind/%d" % number
        name = len(topic).to_bytes(2, "big") + topic
        first, packet_id = (0x30, b"") if number % 2 else (0x32, b"\0\x09")
        publish = bytes((first, len(name) + len(packet_id) + 1)) + name + packet_id + b"%d" % 7
        subscribe = bytes((0x82, 2 + len(name) + 1)) + b"\0\x08" + name + b"\0"
        client.send(subscribe + publish)
        assert client.receive_raw() == (0x90, b"\0\x08\0"), "SUBACK comes first"
        rest = [client.receive_raw() for _ in range(1 if number % 2 else 2)]
        assert (0x30, name + b"7") in rest, rest
    for client in clients:
        client.cut()


def arrives(subscriber: Client, topic: bytes, number: int) -> None:
    message = subscriber.take()
    assert (message.topic, message.payload) == (topic, b"%d" % number)
