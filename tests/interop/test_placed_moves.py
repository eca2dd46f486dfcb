"""A placement moves a real group's voters, and goes on when whoever coordinates it is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clustor.control import Members, PlacePartition
from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.kv.client import KvClient, KvUnavailable
from quantum.cli.admin_client import AdminUnreachable, fetch, post
from tests.interop.cluster_process import PATIENT, ClusterProcess
from tests.interop.control_process import all_healthy, everybody, insist, prepared
from tests.interop.test_members import command, goes_on, loaded

GROUP = 1


def page(cluster: ClusterProcess, path: str) -> dict[str, Any]:
    for node in range(1, cluster.nodes + 1):
        try:
            code, found = fetch(cluster.admin(node), path)
        except AdminUnreachable:
            continue
        if code == 200:
            return dict(found)
    return {}


def arrived(cluster: ClusterProcess, voters: list[int]) -> bool:
    """Say whether the group has these voters, and the control plane recorded them."""
    placement = page(cluster, f"/v1/groups/{GROUP}").get("placement") or {}
    leader = cluster.leader()
    group = None if leader is None else cluster.group(leader)
    if group is None or not placement or placement["previous"] is not None:
        return False
    recorded = group["voters"] == voters and group["membership_recorded"]
    return recorded and list(map(int, placement["members"]["voters"])) == voters


def place(cluster: ClusterProcess, name: str, *voters: int) -> None:
    answers: list[dict[str, Any]] = []

    def answered() -> bool:
        answers.append(page(cluster, f"/v1/groups/{GROUP}"))
        return bool(answers[-1])

    cluster.until(answered, "a node answers")
    held = answers[-1]["placement"]
    move = PlacePartition(
        partition_id=GROUP,
        members=Members(voters=voters),
        load=int(held["load"]),
        expected_routing_epoch=int(held["routing_epoch"]),
    )
    answer = insist(cluster, move, name)
    assert answer["outcome"] == "Done", answer


def hang(cluster: ClusterProcess, node: int, partition: int, *, paused: bool) -> None:
    answers: list[tuple[int, dict[str, Any]]] = []

    def answered() -> bool:
        path = f"/groups/{partition}/pause"
        answers.append(post(cluster.admin(node), path, {"paused": paused}))
        return True

    cluster.until(answered, f"node {node} answers")
    assert answers[-1][0] == 200, answers


async def test_clients_wait_until_the_control_plane_has_recorded_the_members(
    tmp_path: Path,
) -> None:
    """Clustor §9.9: nothing is served under a membership that is not acknowledged."""
    data = tmp_path / "cluster"
    prepared(data, nodes=4, fault_injection=True, patience=PATIENT)
    with ClusterProcess(data, nodes=4) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        place(cluster, "away", 1, 2, 3)
        cluster.until(lambda: arrived(cluster, [1, 2, 3]), "three voters, recorded")
        hang(cluster, 4, GROUP, paused=True)
        place(cluster, "back", 1, 2, 3, 4)

        def leader() -> dict[str, Any]:
            node = cluster.leader()
            return {} if node is None else cluster.group(node) or {}

        cluster.until(lambda: 4 in leader().get("learners", ()), "node 4 is to catch up")
        for node in (1, 2, 3, 4):
            hang(cluster, node, CONTROL_PARTITION, paused=True)
        hang(cluster, 4, GROUP, paused=False)
        cluster.until(lambda: leader().get("voters") == [1, 2, 3, 4], "it votes")
        cluster.until(lambda: leader().get("membership_phase") == "Idle", "the change is final")
        cluster.until(lambda: leader().get("membership_recorded") is False, "nobody recorded it")
        async with KvClient(cluster.admins(), timeout_seconds=1) as client:
            with pytest.raises(KvUnavailable):
                await client.put(b"too", b"early")
        for node in (1, 2, 3, 4):
            hang(cluster, node, CONTROL_PARTITION, paused=False)
        cluster.until(lambda: arrived(cluster, [1, 2, 3, 4]), "the members are recorded")
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            await client.put(b"in", b"time")


async def test_a_placement_moves_a_group_through_the_deaths_of_its_coordinators(
    tmp_path: Path,
) -> None:
    with ClusterProcess(tmp_path / "cluster", spare_nodes=1, patience=PATIENT) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        await asyncio.to_thread(command, cluster, "add-node")
        cluster.nodes = 4
        cluster.until(lambda: arrived(cluster, [1, 2, 3, 4]), "four voters, recorded")
        async with loaded(cluster) as load:
            await asyncio.to_thread(place, cluster, "move", 2, 3, 4)
            cluster.kill(await asyncio.to_thread(cluster.wait_for_leader))
            await goes_on(load)
            leaders = {each["group"]["leader_id"] for each in everybody(cluster)} - {None}
            for control_leader in list(leaders)[:1]:
                cluster.kill(control_leader)
            await goes_on(load)
            await asyncio.to_thread(
                cluster.until, lambda: arrived(cluster, [2, 3, 4]), "the move is over and recorded"
            )
            await goes_on(load)

        def reported() -> bool:
            reports = page(cluster, "/v1/nodes").get("items", ())
            states = {each["report_state"] for each in reports}
            hosted = [int(each["load"]["groups_hosted"]) >= 2 for each in reports]
            return bool(hosted) and all(hosted) and states <= {"Fresh", "Stale"}

        cluster.until(reported, "every node says what it hosts")
