"""What a running cluster does without being asked, and what it does not."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from clustor.control import CommitFence, DrainNode, LiftFence
from clustor.runtime.development import node_directory
from clustor.runtime.pki.identity import NodeId
from quantum.cli import audit
from quantum.cli.admin_client import fetch, post
from quantum.cli.app import build
from quantum.cli.exits import Exit
from quantum.protocols.mqtt.codec import Disconnect, ReasonCode
from tests.interop.cluster_process import PATIENT, ClusterProcess, is_so
from tests.interop.control_process import all_healthy, insist, prepared
from tests.quantum.serving.client import Client, SocketLine, connect

NODES = (1, 2, 3)
ROUNDS = 2
"""So many times the copies of all nodes are confirmed; each is some seconds after the last."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("duties") / "var"
    prepared(data, fault_injection=True, patience=PATIENT)
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
    """Say goodbye, and read what was on its way before."""
    client.send(Disconnect())
    while client.receive() is not None:
        pass
    client.cut()


def shift_clock(cluster: ClusterProcess, node: int, shift_ms: int) -> None:
    """Let a node see another time of day; told twice it is no other."""
    codes: list[int] = []

    def told() -> bool:
        codes.append(post(cluster.admin(node), "/clock", {"shift_ms": shift_ms})[0])
        return True

    cluster.until(told, f"node {node} answers")
    assert codes[-1] == 200


def journal_of(cluster: ClusterProcess, node: int) -> str:
    return (cluster.data / f"node-{node}.log").read_text(errors="replace")


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


def publish(cluster: ClusterProcess, node: int, name: str) -> Client:
    """Return a client of a node whose publish was acknowledged; it dials again like any other."""
    found: list[Client] = []

    def acknowledged() -> bool:
        client = served(cluster, node, name)
        with contextlib.suppress(AssertionError, OSError):
            if not client.publish(b"duties", b"", 1).is_failure:
                found.append(client)
                return True
        client.cut()
        return False

    cluster.until(acknowledged, f"{name} publishes by node {node}")
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
    cluster.until(
        lambda: {each["control"]["cache_state"] for each in statuses(cluster)} == {"Fresh"},
        "every copy is fresh",
    )


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

    def unready() -> bool:
        code, body = fetch(cluster.admin(1), "/readyz")
        return (code, body["mode"]) == (503, "Draining")

    cluster.until(unready, "it is not ready")

    def sent_away() -> bool:
        with contextlib.suppress(AssertionError, OSError):
            refused = connect(Door(cluster, 1), client_id="drained-away")
            refused.cut()
            return refused.connack.reason_code is ReasonCode.USE_ANOTHER_SERVER
        return False

    cluster.until(sent_away, "it sends clients elsewhere")

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
    client = publish(cluster, 2, "fenced")
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
    cluster.until(lambda: fenced(cluster) == set(groups), "every leader has heard of the fence")
    with contextlib.suppress(AssertionError, OSError):  # held, and then closed: never a PUBACK
        answer = client.publish(b"during", b"", 1)
        raise RuntimeError(f"acknowledged under a fence: {answer}")
    client.cut()
    assert insist(cluster, LiftFence(fence_id="f1"), "fence-2")["outcome"] == "Done"
    leave(publish(cluster, 2, "fenced"))


def fenced(cluster: ClusterProcess) -> set[int]:
    """Name the groups whose leaders of this moment say that they are fenced."""
    return {
        group["partition_id"]
        for node in NODES
        for group in fetch(cluster.admin(node), "/doctor")[1]["groups"]
        if group["leads"] and group["fence"]
    }


def test_a_node_whose_clock_jumps_leads_nothing_until_it_is_steady(cluster: ClusterProcess) -> None:
    node = cluster.wait_for_leader()
    shift_clock(cluster, node, 60_000)
    # Its alarm may be over before anybody asks for it; what it wrote stays.
    cluster.until(lambda: "the time of day jumped" in journal_of(cluster, node), "it has noticed")
    cluster.until(lambda: led_by(cluster, node) == 0, "it leads nothing")
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
    """Let the doctor look at the whole cluster, once a node tells it who the others are."""
    command = ["doctor", "--cluster", str(cluster.admin(1)), "--json"]
    shown: list[Result] = []

    def answered() -> bool:
        shown.append(CliRunner().invoke(build(["doctor"]), command))
        return shown[-1].exit_code != Exit.UNREACHABLE

    cluster.until(answered, "the doctor is answered")
    return shown[-1].exit_code, json.loads(shown[-1].stdout)


def test_the_doctor_finds_nothing_ill_in_health_and_names_a_node_that_is(
    cluster: ClusterProcess,
) -> None:
    def is_well() -> bool:
        code, body = examined(cluster)
        return code == 0 and body["healthy"] and len(body["nodes"]) == len(NODES)

    cluster.until(lambda: is_so(is_well), "the doctor has nothing to say")
    jumps = itertools.count(1)

    def is_ill() -> bool:
        shift_clock(cluster, 2, -90_000 * next(jumps))  # an alarm is over after ten seconds
        code, body = examined(cluster)
        found = {(each["node"], each["check"]) for each in body["findings"]}
        return code == 1 and (2, "clocks") in found

    cluster.until(lambda: is_so(is_ill), "the doctor names the clock")

    def is_gone() -> bool:
        found = {(each["node"], each["check"]) for each in examined(cluster)[1]["findings"]}
        return (3, "answers") in found

    stopped = cluster.pid(3)
    os.kill(stopped, signal.SIGSTOP)  # one that is killed may be back before it is asked
    try:
        cluster.until(lambda: is_so(is_gone), "the doctor names who is gone")
    finally:
        os.kill(stopped, signal.SIGCONT)
