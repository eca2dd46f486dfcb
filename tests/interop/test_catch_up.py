"""A node that was down while the log was compacted catches up by a snapshot over the wire."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.kv.client import KvClient
from clustor.runtime.pki.identity import cluster_id, utc_now
from tests.interop.cluster_process import DEADLINE_SECONDS, PATIENT, ClusterProcess
from tests.interop.test_members import command, voters
from tests.interop.test_node_process import node_command

MIB = 1 << 20
VALUE = os.urandom(8 << 10)
KEYS = 500


def prepared(data: Path, *, snapshot_bytes_per_second: int) -> None:
    """Make a cluster that compacts its log after a megabyte or two."""
    cluster = prepare_cluster(
        data, cluster_id("dev"), nodes=3, base_port=7000, groups=1, now=utc_now()
    )
    small = msgspec.structs.replace(
        cluster,
        segment_bytes=2 * MIB,
        snapshot_log_bytes=2 * MIB,
        snapshot_bytes_per_second=snapshot_bytes_per_second,
        patience=PATIENT,
    )
    (data / CLUSTER_FILE).write_bytes(encode_cluster_file(small))


async def write(cluster: ClusterProcess, first: int, last: int) -> None:
    async with KvClient(cluster.admins(), timeout_seconds=180) as client:
        for start in range(first, last, 100):
            puts = (
                client.put(b"key-%d" % (number % KEYS), b"%d:" % number + VALUE)
                for number in range(start, start + 100)
            )
            await asyncio.gather(*puts)


def running(cluster: ClusterProcess) -> list[dict[str, Any]]:
    groups = [cluster.group(node) for node in range(1, cluster.nodes + 1)]
    return [group for group in groups if group is not None]


@contextmanager
def started(cluster: ClusterProcess, node: int) -> Iterator[None]:
    """Run a node that the command started and that was killed since."""
    with (cluster.data / f"node-{node}.log").open("ab") as log:
        process = subprocess.Popen(node_command(cluster.data, node=node), stdout=log, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0


async def test_a_node_that_missed_what_was_compacted_gets_a_snapshot(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    rate = 2 * MIB
    prepared(data, snapshot_bytes_per_second=rate)
    with ClusterProcess(data, restart=False, spare_nodes=1) as cluster:
        leader = cluster.wait_for_leader()
        away = min({1, 2, 3} - {leader})
        await write(cluster, 0, 200)
        cluster.kill(away)
        cluster.until(lambda: len(running(cluster)) == 2, "the others answer")
        known = max(group["last_index"] for group in running(cluster))
        await write(cluster, 200, 1500)

        def compacted() -> bool:
            groups = running(cluster)
            return len(groups) == 2 and all(group["first_index"] > known + 1 for group in groups)

        cluster.until(compacted, "the log is compacted beyond what the node has")
        began = time.monotonic()
        with started(cluster, away):
            cluster.until(lambda: cluster.caught_up(away), "the node has caught up")
            seconds = time.monotonic() - began
            assert cluster.wait_for_group(away)["first_index"] > known + 1, "it came by snapshot"
            print(f"\ncaught up in {seconds:.1f} s")
            state_bytes = 1500 * len(VALUE)  # with its history; the first second's worth is free
            assert seconds > state_bytes / rate - 1.5, "faster than the rate allows"
            await same_everywhere(cluster)
            await write(cluster, 1500, 1700)
            await same_everywhere(cluster)
            await reads_are_right(cluster, 1700)
            added = await asyncio.to_thread(command, cluster, "add-node")
            assert voters(added) == [[1, 2, 3, 4]], "a newcomer's log begins with a snapshot, too"
            cluster.nodes = 4
            await same_everywhere(cluster)


async def same_everywhere(cluster: ClusterProcess) -> None:
    def same() -> bool:
        groups = running(cluster)
        found = {(group["applied_index"], group["state_digest"]) for group in groups}
        return len(found) == 1 and len(groups) == cluster.nodes

    await asyncio.to_thread(cluster.until, same, "all replicas hold the same state")


async def reads_are_right(cluster: ClusterProcess, written: int) -> None:
    async with KvClient(cluster.admins(), timeout_seconds=180) as client:
        for key in range(0, KEYS, 50):
            record = await client.get(b"key-%d" % key)
            newest = max(range(key, written, KEYS))
            assert record is not None and record.value == b"%d:" % newest + VALUE
