"""Nodes join and leave a real cluster under load, and a lost disk comes back: nothing is lost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from clustor.runtime.kv.client import KvClient
from quantum.cli.cluster import app
from quantum.cli.exits import Exit
from tests.clustor.runtime.waiting import until
from tests.interop.cluster_process import DEADLINE_SECONDS, PATIENT, ClusterProcess
from tests.interop.control_process import all_healthy
from tests.interop.test_cluster import WORKERS, Load

PATIENTLY = ("--timeout", "180")


def command(cluster: ClusterProcess, *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run `quantum cluster …` as an operator would, who asks again where nobody answered."""
    line = [*arguments, "--data", str(cluster.data), "--json"]
    deadline = time.monotonic() + DEADLINE_SECONDS
    result = CliRunner().invoke(app, line)
    while result.exit_code == Exit.UNREACHABLE and time.monotonic() < deadline:
        result = CliRunner().invoke(app, line)
    assert result.exit_code == code, f"{result.output}\n{cluster.last_words()}"
    found: dict[str, Any] = json.loads(result.stdout) if code == 0 else {}
    return found


def listed(cluster: ClusterProcess) -> list[list[int]]:
    """Return the voters of the groups that have a leader now."""
    result = CliRunner().invoke(app, ["members", "--data", str(cluster.data), "--json"])
    if result.exit_code != 0:
        return []
    return voters(json.loads(result.stdout))


def voters(found: dict[str, Any]) -> list[list[int]]:
    return [group["voters"] for group in found["groups"]]


@asynccontextmanager
async def loaded(cluster: ClusterProcess) -> AsyncIterator[Load]:
    """Load the cluster while the context lasts, and judge what happened at its end."""
    async with KvClient(cluster.admins(), timeout_seconds=180) as client:
        async with Load(client).running() as load:
            await goes_on(load)
            yield load
            await goes_on(load)
        await load.check()


async def goes_on(load: Load) -> None:
    before = len(load.acknowledged) + WORKERS
    await until(partial(load.has_more_than, before), "writes are acknowledged")


async def test_nodes_join_lead_die_and_leave_under_load(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    with ClusterProcess(data, tenant_prgs=1, spare_nodes=1, patience=PATIENT) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=3), "every group is led and proven")
        async with loaded(cluster) as load:
            added = await asyncio.to_thread(command, cluster, "add-node")
            assert added["node_id"] == 4
            assert voters(added) == [[1, 2, 3, 4]] * 2
            cluster.nodes = 4
            await asyncio.to_thread(command, cluster, "transfer-leader", "--to", "4", *PATIENTLY)
            await goes_on(load)
            cluster.kill(4)
            await goes_on(load)  # led by another, or by this one when it is back
            removed = await asyncio.to_thread(command, cluster, "remove-node", "1", *PATIENTLY)
            assert voters(removed) == [[2, 3, 4]] * 2
            assert "node 1 has left" in await last_lines(cluster, "node 1")
            await goes_on(load)
        command(cluster, "remove-node", "1", code=Exit.NOT_FOUND)
    with ClusterProcess(
        data, tenant_prgs=1, spare_nodes=1
    ) as cluster:  # the same command as before
        cluster.nodes = 4
        cluster.until(lambda: listed(cluster) == [[2, 3, 4]] * 2, "both groups as they were")
        cluster.until(lambda: sorted(cluster.pids) == [2, 3, 4], "these are started")
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            assert (await client.range(b"own-", b"own.", 1000)).records


async def last_lines(cluster: ClusterProcess, about: str) -> list[str]:
    def ended() -> bool:
        return any(line.startswith(about) and "left" in line for line in cluster.lines)

    await until(ended, f"the command says that {about} ended")
    return cluster.lines


async def test_a_lost_disk_rejoins_as_a_learner(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "cluster", patience=PATIENT) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "every group is led and proven")
        leader = cluster.wait_for_leader()
        lost = min({1, 2, 3} - {leader})
        async with loaded(cluster) as load:
            rejoin = ("rejoin-node", str(lost))
            await asyncio.to_thread(command, cluster, *rejoin, code=Exit.FAILED)  # it is running
            state = tmp_path / "cluster" / f"node-{lost}" / "state"
            state.rename(tmp_path / "lost")  # at once: it is started again when it is killed
            cluster.kill(lost)

            def refused() -> bool:
                return any("empty where data was" in line for line in cluster.lines)

            await until(refused, "the node refuses to start")
            await goes_on(load)
            rejoined = await asyncio.to_thread(command, cluster, *rejoin)
            assert voters(rejoined) == [[1, 2, 3]]
        cluster.until(lambda: cluster.caught_up(lost), "the node has caught up")
        cluster.until(lambda: not cluster.wait_for_group(lost)["rejoining"], "it votes again")


async def test_a_group_is_not_shrunk_below_what_survives_without_a_word(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "cluster", patience=PATIENT) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "every group is led and proven")
        command(cluster, "remove-node", "3", *PATIENTLY, code=Exit.FAILED)
        cluster.until(lambda: listed(cluster) == [[1, 2, 3]], "all are there still")
        removed = command(cluster, "remove-node", "3", "--force", "one node is sold", *PATIENTLY)
        assert voters(removed) == [[1, 2]]
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            await client.put(b"key", b"value")
