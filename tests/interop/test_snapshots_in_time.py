"""Snapshots that time makes due, on real nodes: full ones, deltas, and a follower fed from both."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.request import urlopen

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.control import (
    Feature,
    FeatureRow,
    GateState,
    KeyPurpose,
    ManifestContent,
    PublishFeatureManifest,
    RegisterKey,
    SetFeatureGate,
    sign,
)
from clustor.runtime.gated_features import DIGESTS, PREDICATES
from clustor.runtime.kv_client import KvClient
from clustor.runtime.transport import Address
from quantum.cli.admin_client import AdminUnreachable
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.control_process import all_healthy, call_once, insist, prepared
from tests.interop.test_catch_up import started

NODES = (1, 2, 3)
GROUPS = 2
KIB = 1 << 10
NUMBERS = {
    "snapshot_full_ms": 4_000,
    "snapshot_delta_ms": 500,
    "snapshot_full_ms_max": 60_000,
    "snapshot_delta_ms_max": 60_000,
    "snapshot_log_bytes": 256 * KIB,
    "segment_bytes": 512 * KIB,
}
DELTAS = Feature.INCREMENTAL_SNAPSHOTS

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("in-time") / "cluster"
    prepared(data, **NUMBERS, patience=UNHURRIED)
    with ClusterProcess(data, restart=False) as running:
        running.until(lambda: all_healthy(running, GROUPS), "every group is proven")
        yield running


async def write(cluster: ClusterProcess, count: int) -> None:
    async with KvClient(cluster.admins(), timeout_seconds=60) as client:
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
    with urlopen(f"http://{address}/metrics", timeout=60) as page:
        lines = page.read().decode().splitlines()
    rows = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


def covers_all(group: dict[str, Any] | None) -> bool:
    """Say whether a group's newest snapshot misses nothing that it has applied."""
    return group is not None and group["snapshot_base_index"] == group["applied_index"]


def open_gate(cluster: ClusterProcess) -> None:
    """Open the gate of incremental snapshots, as an operator with a release key does."""
    key = Ed25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    register = RegisterKey(purpose=KeyPurpose.CP_RELEASE, key_id="release", public_key=public)
    insist(cluster, register, "register")
    rows = (FeatureRow(name=DELTAS, predicate=PREDICATES[DELTAS]),)
    signature = sign(key, "release", KeyPurpose.CP_RELEASE, ManifestContent(version=1, rows=rows))
    insist(cluster, PublishFeatureManifest(version=1, rows=rows, signature=signature), "manifest")
    opened = SetFeatureGate(name=DELTAS, state=GateState.ENABLED, predicate_digest=DIGESTS[DELTAS])
    tries = itertools.count()

    def is_open() -> bool:  # not before every node has reported what its build can do
        try:
            return call_once(cluster.admin(1), opened, f"gate-{next(tries)}")[0] == 200
        except AdminUnreachable:
            return False

    cluster.until(is_open, "the gate is open")


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

    for _ in range(60):
        leader = cluster.wait_for_leader(but=away)
        if is_offered(cluster.group(leader)):
            break
        await write(cluster, 15)
        cluster.until(partial(is_covered, cluster, leader), "a snapshot covers it")
    offered = cluster.wait_for_group(leader)
    assert is_offered(offered), offered
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
        digests = {group["state_digest"] for group in groups(cluster)}
        assert len(digests) == 1
        # A chain on its disk is what a killed node starts from.
        follower = min(set(NODES) - {leader, away})
        cluster.kill(follower)
        cluster.until(lambda: cluster.group(follower) is None, "it is gone")
        with started(cluster, follower):
            cluster.until(lambda: cluster.caught_up(follower), "it is back")
            assert {cluster.wait_for_group(follower)["state_digest"]} == digests
