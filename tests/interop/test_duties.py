"""What a running cluster does without being asked, and what it does not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from clustor.control import CommitFence, DrainNode, LiftFence
from clustor.runtime.development import node_directory
from clustor.runtime.pki import NodeId
from quantum.cli import audit
from quantum.cli.admin_client import fetch, post
from quantum.cli.app import build
from quantum.mqtt import ReasonCode
from tests.interop.cluster_process import ClusterProcess, is_so
from tests.interop.control_process import all_healthy, insist, prepared
from tests.quantum.serving.client import Client, SocketLine, connect

NODES = (1, 2, 3)
ROUNDS = 2
"""So many times the copies of all nodes are confirmed; each is some seconds after the last."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("duties") / "var"
    prepared(data, fault_injection=True, patience=4)
    with ClusterProcess(data, tenant_prgs=2) as running:
        running.until(lambda: all_healthy(running, groups=4), "everything is led and proven")
        yield running


class Door:
    """A node's plaintext listener."""

    def __init__(self, cluster: ClusterProcess, node: int) -> None:
        self._port = cluster.base_port + 10 * node + 2

    def dial(self) -> SocketLine:
        return SocketLine(self._port)


def leave(client: Client) -> None:
    client.leave()
    client.cut()


def led_by(cluster: ClusterProcess, node: int) -> int:
    """Say how many groups a node leads, the control plane's too."""
    status = statuses(cluster)[node - 1]
    groups = (*status["groups"], status["control"]["group"])
    return sum(group["role"] == "Leader" for group in groups)


def served(cluster: ClusterProcess, node: int, name: str) -> Client:
    """Return a client that was let in by a node."""
    found: list[Client] = []

    def connected() -> bool:
        with contextlib.suppress(AssertionError, OSError):
            client = connect(Door(cluster, node), client_id=name, session_expiry_interval=600)
            if not client.connack.reason_code.is_failure:
                found.append(client)
                return True
            client.cut()
        return False

    cluster.until(connected, f"{name} is served by node {node}")
    return found[-1]


def statuses(cluster: ClusterProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def answered() -> bool:
        answers = [cluster.status(node) for node in NODES]
        found[:] = [each for each in answers if each is not None]
        return len(found) == len(NODES)

    cluster.until(answered, "all nodes answer")
    return found


def last_indexes(cluster: ClusterProcess) -> list[list[int]]:
    """Return how long the log of every group is, the control plane's too, on every node."""
    return [
        [group["last_index"] for group in (*status["groups"], status["control"]["group"])]
        for status in statuses(cluster)
    ]


def confirmations(cluster: ClusterProcess) -> int:
    return sum(int(status["control"]["confirmations_led"]) for status in statuses(cluster))


def test_a_cluster_at_rest_writes_nothing_and_its_copies_stay_fresh(
    cluster: ClusterProcess,
) -> None:
    """Who leads is confirmed by a quorum's word, liveness by questions: no entry for either."""
    before = last_indexes(cluster)
    for _ in range(8):  # a start has something to record, and so has an election
        before, confirmed = last_indexes(cluster), confirmations(cluster)
        cluster.until(
            lambda at=confirmed: confirmations(cluster) >= at + ROUNDS,  # type: ignore[misc]
            "the copies are confirmed again",
        )
        if last_indexes(cluster) == before:
            break
    else:
        raise AssertionError(f"it never rests: {before}, then {last_indexes(cluster)}")
    assert {each["control"]["cache_state"] for each in statuses(cluster)} == {"Fresh"}


def test_a_drained_node_leads_nothing_and_serves_nobody_until_it_is_wanted_again(
    cluster: ClusterProcess,
) -> None:
    client = served(cluster, 1, "drained-away")
    assert insist(cluster, DrainNode(node_id=1, draining=True), "drain-1")["outcome"] == "Done"
    cluster.until(lambda: led_by(cluster, 1) == 0, "its groups are led elsewhere")
    while client.receive() is not None:
        pass  # told where to go, or just closed
    client.cut()
    cluster.until(lambda: statuses(cluster)[0]["mode"] == "Draining", "it says so")
    code, body = fetch(cluster.admin(1), "/readyz")
    assert (code, body["mode"]) == (503, "Draining")
    refused = connect(Door(cluster, 1), client_id="drained-away")
    assert refused.connack.reason_code is ReasonCode.USE_ANOTHER_SERVER
    refused.cut()

    def reported() -> bool:
        code, view = fetch(cluster.admin(2), "/v1/nodes/1")
        led = int(view["load"]["groups_led"]) if code == 200 else -1
        return led == 0 and view["state"] == "Draining"

    cluster.until(lambda: is_so(reported), "everybody sees how far it is")
    leave(served(cluster, 2, "drained-away"))
    assert insist(cluster, DrainNode(node_id=1, draining=False), "drain-2")["outcome"] == "Done"
    leave(served(cluster, 1, "drained-away"))


def test_a_fenced_partition_acknowledges_nothing_until_the_fence_is_lifted(
    cluster: ClusterProcess,
) -> None:
    cluster.until(lambda: all_healthy(cluster, groups=4), "everything is led and proven")
    groups = [group["partition_id"] for group in statuses(cluster)[0]["groups"]][1:]
    client = served(cluster, 2, "fenced")
    assert not client.publish(b"before", b"", 1).is_failure
    fence = CommitFence(fence_id="f1", region="here", partitions=tuple(groups))
    assert insist(cluster, fence, "fence-1")["outcome"] == "Done"

    def closed() -> bool:
        with contextlib.suppress(AssertionError, OSError):
            late = connect(Door(cluster, 2), client_id="late", session_expiry_interval=600)
            refused = late.connack.reason_code
            late.cut()
            return refused is ReasonCode.SERVER_UNAVAILABLE
        return False

    cluster.until(closed, "nobody is let in")
    with contextlib.suppress(AssertionError, OSError):  # held, and then closed: never a PUBACK
        answer = client.publish(b"during", b"", 1)
        raise RuntimeError(f"acknowledged under a fence: {answer}")
    client.cut()
    assert insist(cluster, LiftFence(fence_id="f1"), "fence-2")["outcome"] == "Done"
    again = served(cluster, 2, "fenced")
    assert not again.publish(b"after", b"", 1).is_failure
    leave(again)


def test_a_node_whose_clock_jumps_leads_nothing_until_it_is_steady(cluster: ClusterProcess) -> None:
    node = cluster.wait_for_leader()
    assert led_by(cluster, node) > 0
    assert post(cluster.admin(node), "/clock", {"shift_ms": 60_000})[0] == 200
    cluster.until(lambda: led_by(cluster, node) == 0, "it leads nothing")
    assert fetch(cluster.admin(node), "/doctor")[1]["clock_alarm"] == "the time of day jumped"
    cluster.until(lambda: all_healthy(cluster, groups=4), "others lead, and all goes on")
    leave(served(cluster, node, "wrong-clock"))

    def steady() -> bool:
        return not fetch(cluster.admin(node), "/doctor")[1]["clock_alarm"]

    cluster.until(lambda: is_so(steady), "it may lead again")


def test_who_came_and_went_is_in_the_audit_log(cluster: ClusterProcess) -> None:
    leave(served(cluster, 2, "came-and-went"))

    def told() -> bool:
        found: set[str] = set()
        for node in NODES:
            directory = str(node_directory(cluster.data, NodeId(node)))
            for what in ("ClientConnected", "ClientDisconnected"):
                shown = CliRunner().invoke(audit.app, ["show", directory, "--what", what, "--json"])
                lines = [each for each in shown.stdout.splitlines() if each.startswith("{")]
                found |= {json.loads(each)["what"] for each in lines}
        return found == {"ClientConnected", "ClientDisconnected"}

    cluster.until(told, "the log tells of it")


def examined(cluster: ClusterProcess) -> tuple[int, dict[str, Any]]:
    """Let the doctor look at the whole cluster."""
    command = ["doctor", "--cluster", str(cluster.admin(1)), "--json"]
    shown = CliRunner().invoke(build(["doctor"]), command)
    return shown.exit_code, json.loads(shown.stdout)


def test_the_doctor_finds_nothing_ill_in_health_and_names_a_node_that_is(
    cluster: ClusterProcess,
) -> None:
    def is_well() -> bool:
        code, body = examined(cluster)
        return code == 0 and body["healthy"] and len(body["nodes"]) == len(NODES)

    cluster.until(lambda: is_so(is_well), "the doctor has nothing to say")
    assert post(cluster.admin(2), "/clock", {"shift_ms": -90_000})[0] == 200

    def is_ill() -> bool:
        code, body = examined(cluster)
        found = {(each["node"], each["check"]) for each in body["findings"]}
        return code == 1 and (2, "clocks") in found

    cluster.until(lambda: is_so(is_ill), "the doctor names the clock")
    cluster.kill(3)

    def is_gone() -> bool:
        found = {(each["node"], each["check"]) for each in examined(cluster)[1]["findings"]}
        return (3, "answers") in found

    cluster.until(lambda: is_so(is_gone), "the doctor names who is gone")
