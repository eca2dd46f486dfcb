"""Snapshots that time makes due, on real nodes: full ones, deltas, and a follower fed from both."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from clustor.control import Feature
from clustor.runtime.kv.client import KvClient
from clustor.runtime.peers.transport import Address
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.control_process import all_healthy, open_gates, prepared
from tests.interop.test_catch_up import started

NODES = (1, 2, 3)
GROUPS = 2
KIB = 1 << 10
NUMBERS = {
    "snapshot_full_ms": 8_000,
    "snapshot_delta_ms": 500,
    "snapshot_full_ms_max": 60_000,
    "snapshot_delta_ms_max": 60_000,
    "snapshot_log_bytes": 256 * KIB,
    "segment_bytes": 512 * KIB,
}
DEADLINE_SECONDS = 300.0

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("in-time") / "cluster"
    prepared(data, **NUMBERS, patience=PATIENT)
    with ClusterProcess(data, restart=False) as running:
        running.until(lambda: all_healthy(running, GROUPS), "every group is proven")
        yield running


async def write(cluster: ClusterProcess, count: int) -> None:
    async with KvClient(cluster.admins(), timeout_seconds=180) as client:
        numbers = [next(_numbers) for _ in range(count)]
        await asyncio.gather(
            *(client.put(b"key-%d" % (number % 50), os.urandom(4 * KIB)) for number in numbers)
        )


def groups(cluster: ClusterProcess) -> list[dict[str, Any]]:
    found = [cluster.group(node) for node in NODES]
    return [group for group in found if group is not None]


def is_covered(cluster: ClusterProcess, node: int) -> bool:
    return covers_all(cluster.group(node))


def metrics(address: Address) -> dict[str, float]:
    """Return what a node says of itself as a whole."""
    with urlopen(f"http://{address}/metrics", timeout=120) as page:
        lines = page.read().decode().splitlines()
    rows = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def covers_all(group: dict[str, Any] | None) -> bool:
    """Say whether a group's newest snapshot misses nothing that it has applied."""
    return group is not None and group["snapshot_base_index"] == group["applied_index"]


def open_gate(cluster: ClusterProcess) -> None:
    """Open the gate of incremental snapshots, as an operator with a release key does."""
    open_gates(cluster, Feature.INCREMENTAL_SNAPSHOTS)


def is_gone(pid: int) -> bool:
    """Say whether a process was ended and reaped: nothing of it holds a file any more."""
    return not Path(f"/proc/{pid}").exists()


def one_state(cluster: ClusterProcess) -> bool:
    """Say whether all nodes have applied everything, and hold the same."""
    found = groups(cluster)
    alike = {(group["applied_index"], group["state_digest"]) for group in found}
    return len(found) == len(NODES) and len(alike) == 1


async def test_time_alone_makes_full_ones_due_and_keeps_the_log(cluster: ClusterProcess) -> None:
    await write(cluster, 5)

    def emitted() -> bool:
        return [covers_all(group) for group in groups(cluster)] == [True] * len(NODES)

    cluster.until(emitted, "every node has a snapshot of everything")
    for group in groups(cluster):
        assert (group["snapshot_kind"], group["first_index"]) == ("Full", 1)
        assert group["delta_chain_state"] in ("Healthy", "GracefulCatchup")


async def test_a_follower_catches_up_from_a_full_one_and_its_deltas(
    cluster: ClusterProcess,
) -> None:
    open_gate(cluster)
    leader = cluster.wait_for_leader()
    away = min(set(NODES) - {leader})
    cluster.kill(away)
    cluster.until(lambda: len(groups(cluster)) == 2, "the others answer")
    known = max(group["last_index"] for group in groups(cluster))

    def is_offered(group: dict[str, Any] | None) -> bool:
        """Say whether the node that is away needs a snapshot, and gets a delta of several."""
        return (
            group is not None
            and group["first_index"] > known + 1
            and group["snapshot_kind"] == "Delta"
            and group["delta_chain_length"] >= 2
        )

    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        leader = cluster.wait_for_leader(but=away)
        offered = cluster.wait_for_group(leader)
        if is_offered(offered):
            break
        assert time.monotonic() < deadline, offered
        # Much until the log is compacted; then little, so that deltas follow each other in time.
        await write(cluster, 1 if offered["first_index"] > known + 1 else 15)
        cluster.until(partial(is_covered, cluster, leader), "a snapshot covers it")
    told = metrics(cluster.admin(leader))
    assert told["clustor_snapshot_delta_chain_length"] >= 2
    assert "clustor_snapshot_delta_emit_skew_ms" in told

    with started(cluster, away):
        cluster.until(lambda: cluster.caught_up(away), "the node has caught up")
        back = cluster.wait_for_group(away)
        assert back["first_index"] > known + 1, "it came by snapshot"
        assert back["snapshot_kind"] == "Full", "it has made one of the chain"
        assert back["snapshot_base_index"] == offered["snapshot_base_index"]
        assert back["state_digest"] == cluster.wait_for_group(leader)["state_digest"]
        await write(cluster, 3)
        cluster.until(lambda: cluster.caught_up(away), "it goes on from there")
        cluster.until(lambda: one_state(cluster), "all hold the same")
        digest = cluster.wait_for_group(away)["state_digest"]
        # A chain on its disk is what a killed node starts from.
        follower = min(set(NODES) - {leader, away})
        pid = cluster.pid(follower)
        cluster.kill(follower)
        cluster.until(lambda: is_gone(pid), "it is gone")
        with started(cluster, follower):
            cluster.until(lambda: cluster.caught_up(follower), "it is back")
            assert cluster.wait_for_group(follower)["state_digest"] == digest
