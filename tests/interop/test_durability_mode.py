"""Strict, Group-Fsync and back on real nodes, ordered at the control plane, under publishes."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from clustor.control import Feature, ModeName, SetDurabilityMode, TenantTier, UpdateTenant
from clustor.log.types import IoWriterMode
from clustor.raft.profiles import CONSISTENCY_PROFILE, THROUGHPUT
from clustor.runtime.disk import open_disk
from quantum.cli.admin_client import AdminUnreachable, fetch
from tests.interop.cluster_process import DEADLINE_SECONDS, PATIENT, ClusterProcess
from tests.interop.control_process import all_healthy, insist, open_gates, prepared

HOST = "127.0.0.1"
GROUP = 1_000  # the tenant's only partition
TOPICS = "kept"


class Publisher:
    """Publishes one retained message behind the other, each on a topic of its own."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self.acknowledged: set[int] = set()
        self._sent: dict[int, int] = {}
        self._count = 0
        self._finished = threading.Event()
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            "publisher",
            clean_session=False,
            protocol=paho.MQTTv311,
            reconnect_on_failure=False,
        )
        self._client.on_publish = self._on_publish
        self._client.on_connect = self._on_connect
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._finished.set()
        self._thread.join(DEADLINE_SECONDS)

    def _run(self) -> None:
        turn = 0
        while not self._finished.is_set():
            turn += 1
            try:
                self._client.connect(HOST, self._ports[turn % len(self._ports)], keepalive=10)
            except OSError:
                self._finished.wait(0.02)
                continue
            while not self._finished.is_set():
                if self._client.loop(0.02) != paho.MQTT_ERR_SUCCESS:
                    break
        self._client.disconnect()

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, reason: Any, _more: Any) -> None:
        if not reason.is_failure and not self._sent:
            self._publish()

    def _publish(self) -> None:
        self._count += 1
        number = self._count
        info = self._client.publish(f"{TOPICS}/{number}", b"%d" % number, qos=1, retain=True)
        self._sent[info.mid] = number

    def _on_publish(self, _client: Any, _data: Any, mid: int, *_more: Any) -> None:
        self.acknowledged.add(self._sent.pop(mid))
        self._publish()


def kept(port: int, wanted: set[int]) -> set[int]:
    """Return what is retained, once all that is wanted is there; one more may be on its way."""
    found: set[int] = set()
    client = paho.Client(CallbackAPIVersion.VERSION2, "reader", protocol=paho.MQTTv311)
    client.on_message = lambda _c, _d, message: found.add(int(message.payload))
    client.on_connect = lambda c, *_more: c.subscribe(f"{TOPICS}/#", qos=1)
    client.connect_async(HOST, port)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not wanted <= found and time.monotonic() < deadline:
        if client.loop(0.05) != paho.MQTT_ERR_SUCCESS:  # not yet there, or its leader went
            time.sleep(0.02)
            with suppress(OSError):
                client.reconnect()
    client.disconnect()
    return found


def group_page(cluster: ClusterProcess) -> dict[str, Any]:
    """Return the group's page of the REST API, of whatever node answers."""
    for node in range(1, cluster.nodes + 1):
        try:
            code, page = fetch(cluster.admin(node), f"/v1/groups/{GROUP}")
        except AdminUnreachable:
            continue
        if code == 200 and page["placement"] is not None:
            return {**page, "durability": page["durability"] or {}}
    return {"durability": {}, "placement": None}


def leader_of(cluster: ClusterProcess) -> dict[str, Any]:
    for node in range(1, cluster.nodes + 1):
        for group in (cluster.status(node) or {"groups": []})["groups"]:
            if group["partition_id"] == GROUP and group["role"] == "Leader":
                return {**group, "node_id": node}
    return {}


def order(cluster: ClusterProcess, mode: ModeName, epoch: int) -> None:
    command = SetDurabilityMode(partition_id=GROUP, mode=mode, expected_epoch=epoch)
    answer = insist(cluster, command, f"mode-{epoch}")
    assert answer["outcome"] == "Done", answer


def allow(cluster: ClusterProcess) -> None:
    cluster.until(lambda: group_page(cluster)["placement"] is not None, "the group is placed")
    command = UpdateTenant(
        tenant_id="dev",
        tier=TenantTier.DEVELOPMENT,
        group_fsync_allowed=True,
        dr_shipping=False,
        suspended=False,
    )
    assert insist(cluster, command, "allow")["outcome"] == "Done"


def in_force(cluster: ClusterProcess, mode: ModeName, epoch: int) -> bool:
    """Say whether a leader has recorded the mode as committed.

    What its disk does may still be Strict: a slow machine overruns a batch's five milliseconds.
    """
    said = group_page(cluster)["durability"]
    known = (
        said.get("mode"),
        int(said.get("durability_mode_epoch", 0)),
        said.get("refused_clause"),
    )
    return known == (mode.value, epoch, "")


def writes_by_ring(directory: Path) -> bool:
    """Say whether the kernel lets us have a ring: without one Group-Fsync is refused (§9.3)."""
    disk = open_disk(directory)
    disk.close()
    return disk.mode is not IoWriterMode.BLOCKING


def test_a_mode_is_switched_on_and_off_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    if not writes_by_ring(tmp_path):
        pytest.skip("this machine gives no io_uring")
    data = tmp_path / "cluster"
    prepared(data, profile_name=THROUGHPUT.name, patience=PATIENT)
    with ClusterProcess(data, tenant_prgs=1) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=3), "every group is proven")
        ports = [cluster.base_port + 10 * node + 2 for node in (1, 2, 3)]
        publisher = Publisher(ports)
        publisher.start()

        def more(count: int) -> None:
            wanted = len(publisher.acknowledged) + count
            cluster.until(lambda: len(publisher.acknowledged) >= wanted, "publishes go on")

        more(20)
        allow(cluster)
        order(cluster, ModeName.GROUP_FSYNC, 0)
        cluster.until(
            lambda: group_page(cluster)["durability"].get("refused_clause") == "FeatureGateShut",
            "its gate is shut (clustor §14.2)",
        )
        open_gates(cluster, Feature.GROUP_FSYNC)
        cluster.until(lambda: in_force(cluster, ModeName.GROUP_FSYNC, 1), "Group-Fsync")
        more(20)
        cluster.until(lambda: bool(leader_of(cluster)), "somebody leads")
        cluster.kill(leader_of(cluster).get("node_id", 1))
        more(20)
        cluster.until(lambda: in_force(cluster, ModeName.GROUP_FSYNC, 1), "still Group-Fsync")
        order(cluster, ModeName.STRICT, 1)
        cluster.until(lambda: in_force(cluster, ModeName.STRICT, 2), "Strict again")
        more(20)
        publisher.stop()
        lost = publisher.acknowledged - kept(ports[0], publisher.acknowledged)
        assert not lost
        print(f"\n{len(publisher.acknowledged)} acknowledged and there")


def test_a_profile_without_it_refuses_by_name_and_strict_takes_it_back(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    prepared(data, profile_name=CONSISTENCY_PROFILE.name, patience=PATIENT)
    with ClusterProcess(data, tenant_prgs=1) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=3), "every group is proven")
        allow(cluster)
        order(cluster, ModeName.GROUP_FSYNC, 0)
        said: dict[str, Any] = {}

        def told() -> bool:
            said.update(group_page(cluster)["durability"])
            return bool(said.get("refused_clause"))

        cluster.until(told, "it is told")
        assert (said["mode"], int(said["refused_epoch"])) == ("Strict", 1)
        assert said["refused_clause"] == "ProfileForbids"
        cluster.until(lambda: why(cluster) == ("ProfileForbids", True), "its leader says why")
        order(cluster, ModeName.STRICT, 1)
        cluster.until(lambda: in_force(cluster, ModeName.STRICT, 2), "it is taken back")
        cluster.until(lambda: why(cluster) == ("None", False), "and no more")


def why(cluster: ClusterProcess) -> tuple[str, bool] | None:
    """Return what the leader of this moment says of its durability mode."""
    leader = leader_of(cluster).get("node_id")
    if leader is None:
        return None
    code, found = fetch(cluster.admin(leader), f"/groups/{GROUP}/why/WhyDurabilityMode")
    return (found["clause"], found["holds"]) if code == 200 else None
