"""Data keys of real nodes are rotated by themselves when they are due, though nodes are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from clustor.log.keyfile import decode_keyring
from clustor.runtime.keys.lifecycle import WISH_PREFIX
from clustor.runtime.keys.rotation import REGISTRY_FILE
from clustor.runtime.keys.signers import REGISTRY_FILE as SIGNERS_FILE
from clustor.runtime.keys.store import KEYRING_FILE, KEYS_DIRECTORY, read_staged
from clustor.security import KeyState, KeyUse, decode_registry
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.control_process import all_healthy, everybody, prepared
from tests.interop.test_members import goes_on, loaded

NODES = (1, 2, 3)
PERIOD_MS = 4_000
PROOF = KeyUse.CONTROL_PLANE_PROOF


def keys_of(cluster: ClusterProcess, node: int) -> Path:
    return cluster.data / f"node-{node}" / KEYS_DIRECTORY


def active(cluster: ClusterProcess, node: int) -> int:
    """Return the epoch that a node encrypts with, as its registry says."""
    path = keys_of(cluster, node) / REGISTRY_FILE
    entries = decode_registry(path.read_bytes()).of(KeyUse.DEK) if path.exists() else ()
    return next((each.epoch for each in entries if each.state is KeyState.ACTIVE), 0)


def signs_with(cluster: ClusterProcess, node: int) -> int:
    """Return the epoch of the key that a node would sign proofs with."""
    path = keys_of(cluster, node) / SIGNERS_FILE
    entries = decode_registry(path.read_bytes()).of(PROOF) if path.exists() else ()
    return next((each.epoch for each in entries if each.state is KeyState.ACTIVE), 0)


async def test_a_due_key_reaches_all_nodes_though_the_leader_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    prepared(data, dek_period_ms=PERIOD_MS, patience=PATIENT)
    with ClusterProcess(data) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        async with loaded(cluster) as load:

            def granted() -> bool:
                return any(read_staged(keys_of(cluster, node)) is not None for node in NODES)

            await asyncio.to_thread(cluster.until, granted, "a key is granted")
            leaders = {each["group"]["leader_id"] for each in everybody(cluster)} - {None}
            cluster.kill(min(leaders, default=1))
            await goes_on(load)
            await asyncio.to_thread(
                cluster.until,
                lambda: min(active(cluster, node) for node in NODES) >= 2,
                "every node encrypts with a new key",
            )
            await goes_on(load)
            for node in NODES:
                (keys_of(cluster, node) / (WISH_PREFIX + PROOF.value)).touch()
            await asyncio.to_thread(
                cluster.until,
                lambda: min(signs_with(cluster, node) for node in NODES) >= 2,
                "every node signs proofs with a new key",
            )
            await goes_on(load)
        cluster.until(lambda: all_healthy(cluster, groups=2), "proofs of new keys are believed")
        rings = [
            decode_keyring((keys_of(cluster, node) / KEYRING_FILE).read_bytes()) for node in NODES
        ]
        second = {each.wrapped for ring in rings for each in ring.deks if each.epoch == 2}
        assert len(second) == 1, "one epoch, one key"
