"""The process of one node: how it refuses to start, and how it only looks."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from clustor.runtime.peers.transport import Address
from quantum.cli.admin_client import fetch_status
from tests.interop.cluster_process import DEADLINE_SECONDS, ClusterProcess


def node_command(data: Path, *flags: str, node: int = 1) -> list[str]:
    return [
        *(sys.executable, "-m", "clustor.runtime.main", "--cluster", str(data / "cluster.json")),
        *("--node", str(node), "--data", str(data / f"node-{node}"), *flags),
    ]


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix not in (".log", ".lock")  # which says who has it open
    }


def ran_once(data: Path) -> ClusterProcess:
    with ClusterProcess(data, nodes=1) as cluster:
        cluster.until(lambda: have_applied(cluster), "both groups have something on disk for good")
    return cluster


def have_applied(cluster: ClusterProcess) -> bool:
    """Say whether the group of the cluster's file and the control plane's own have an entry."""
    status = cluster.status(1)
    if status is None:
        return False
    return all(
        each["applied_index"] > 0 for each in (*status["groups"], status["control"]["group"])
    )


def test_repair_mode_shows_everything_and_changes_nothing(tmp_path: Path) -> None:
    data = tmp_path / "c"
    cluster = ran_once(data)
    before = digests(data)
    process = subprocess.Popen(node_command(data, "--repair"), stderr=subprocess.DEVNULL)
    answers: list[dict[str, Any]] = []

    def answered() -> bool:
        answers.append(fetch_status(cluster.admin(1)))
        return True

    try:
        cluster.until(answered, "the node answers")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0
    status = answers[-1]
    assert status["mode"] == "Repair"
    assert len(status["groups"]) == 2, "the control plane's own group too"
    for group in status["groups"]:
        assert (group["state"], group["failed_clause"]) == ("Healthy", "RepairMode")
        assert group["durable_index"] == group["last_index"] > 0
    assert digests(data) == before


def test_a_node_that_answers_ends_in_order_when_it_is_asked_to(tmp_path: Path) -> None:
    """However early that is: it may not have begun to serve."""
    cluster = ran_once(tmp_path / "c")
    process = subprocess.Popen(node_command(cluster.data), stderr=subprocess.DEVNULL)
    try:
        cluster.until(lambda: listens(cluster.admin(1)), "it listens")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0


def listens(address: Address) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address.host, address.port)) == 0


def test_a_node_refuses_to_run_without_its_assertions(tmp_path: Path) -> None:
    command = node_command(tmp_path)
    command.insert(1, "-O")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "refusing to run under -O" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_directory_is_open_once(tmp_path: Path) -> None:
    data = tmp_path / "c"
    with ClusterProcess(data, nodes=1) as cluster:
        cluster.wait_for_leader()
        ended = subprocess.run(node_command(data), capture_output=True, text=True, timeout=120)
        assert ended.returncode == 3
        assert "another process has the data directory open" in ended.stderr
        os.kill(cluster.pid(1), 0)  # the first one lives on
