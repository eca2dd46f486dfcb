"""A tenant of three nodes, restored for three others while the first ones live: at a moment, with
streams, topics and queues; and the living ones notice nothing."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file, read_cluster_file
from clustor.runtime.pki.identity import NodeId
from quantum.node.replaying import replay_directory
from quantum.tenants.broker_file import read_broker_file
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.kafka_clients import kafka_of, make_topic, produce_all, read_all
from tests.interop.mqtt_broker import MQTT_ROLE
from tests.interop.mqtt_places import all_served
from tests.interop.stock_proton import browse, connected, send_all
from tests.interop.test_amqp_cluster import ports_of
from tests.interop.test_archive import archiving_cluster
from tests.interop.test_mqtt_replay import Node
from tests.interop.test_scheduled_backups import quantum
from tests.interop.test_streams import create, records
from tests.quantum.serving.client import V311, connect

PARTITIONS = 3
EARLY, LATE = range(30), range(30, 50)


def mqtt(cluster: ClusterProcess, node: int) -> Node:
    return Node(cluster.base_port + 10 * node + MQTT_ROLE)


def load(cluster: ClusterProcess, numbers: range) -> None:
    client = connect(mqtt(cluster, 1), client_id="publisher")
    for number in numbers:
        assert not client.publish(b"sensors/%d" % number, b"m%d" % number, 1).is_failure
    client.leave()
    client.cut()
    produce_all(kafka_of(cluster), "orders", [f"order {number}" for number in numbers])
    with connected(ports_of(cluster)[1]) as connection:
        send_all(connection, "jobs", *(f"job {number}" for number in numbers))


def check(cluster: ClusterProcess, numbers: range) -> None:
    """Let stock clients read at different nodes what every protocol left behind."""
    assert sorted(read_all(kafka_of(cluster), "orders", 3)) == sorted(
        f"order {number}" for number in numbers
    )
    with connected(ports_of(cluster)[2]) as connection:
        bodies = [each.body for each in browse(connection, "jobs", len(numbers))]
        assert bodies == [f"job {number}" for number in numbers]
    for node in (1, 2, 3):
        assert len(records(cluster, node, "log")) == len(numbers)


def waited(cluster: ClusterProcess, count: int) -> list[bytes]:
    """Let the client come again that was away, and take what waited for it."""
    away = connect(mqtt(cluster, 2), V311, client_id="away", clean=False)
    found = sorted(away.take().payload for _ in range(count))
    away.cut()
    return found


def prepared(cluster: ClusterProcess) -> None:
    cluster.until(lambda: all_served(cluster), "every partition is served")
    away = connect(mqtt(cluster, 2), V311, client_id="away", clean=False)
    away.subscribe(b"sensors/#", 1)
    away.cut()
    create(cluster, 1, "log", "--capture", "sensors/#")
    make_topic(kafka_of(cluster), "orders", 3)


def patient(data: Path) -> None:
    """Nobody is elected only because the machine is slow."""
    known = read_cluster_file(data / CLUSTER_FILE)
    wanted = msgspec.structs.replace(known, patience=PATIENT)
    (data / CLUSTER_FILE).write_bytes(encode_cluster_file(wanted))


def test_a_tenant_beside_the_living_one_as_it_stood_at_a_moment(tmp_path: Path) -> None:
    data, url = tmp_path / "var", (tmp_path / "archive").as_uri()
    living = ClusterProcess(data, tenant_prgs=PARTITIONS)
    archiving_cluster(data, url, living.base_port, PARTITIONS)
    with living:
        prepared(living)
        load(living, EARLY)
        between = datetime.now(UTC) + timedelta(milliseconds=1)
        while datetime.now(UTC) <= between:  # a stamp of its own for what is late
            time.sleep(0.002)
        load(living, LATE)
        nodes = [part for each in living.admins() for part in ("--cluster", str(each))]
        keys = ("--keys", str(data))
        made = quantum("backup", "create", *nodes, "--to", url, *keys, "--json")
        assert made.exit_code == 0, made.output
        back = tmp_path / "back"
        beside = ClusterProcess(back, tenant_prgs=PARTITIONS)
        place = ("--nodes", "3", "--base-port", str(beside.base_port), "--into", str(back))
        moment = ("--to-time", between.isoformat(), "--tenant", "dev")
        done = quantum("restore", "--from", url, *keys, *place, *moment, "--json")
        assert done.exit_code == 0, done.output
        wanted = {each["prg"]: each["digest"] for each in json.loads(done.output)["partitions"]}
        on_disk = replay_directory(back, None, lambda _: None)
        assert {each.node for each in on_disk} == {NodeId(1), NodeId(2), NodeId(3)}
        for each in on_disk:
            assert wanted[f"{each.tenant}/{each.partition}"] == each.digest, "on every node"
        assert [each.name for each in read_broker_file(back).tenants] == ["dev"]
        patient(back)
        with beside:
            beside.until(lambda: all_served(beside), "every partition is served")
            check(beside, EARLY)
            beside.kill(1)
            beside.until(lambda: beside.started(1) == 2, "it is started again")
            beside.until(lambda: all_served(beside), "every partition is served again")
            assert waited(beside, len(EARLY)) == sorted(b"m%d" % number for number in EARLY)
            load(beside, range(30, 35))
            check(beside, range(35))
        check(living, range(50))
        assert waited(living, 50) == sorted(b"m%d" % number for number in range(50))
