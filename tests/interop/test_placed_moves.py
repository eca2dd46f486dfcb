"""A placement moves a real group's voters, and goes on when whoever coordinates it is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from clustor.control import Members, PlacePartition
from quantum.cli.admin_client import AdminUnreachable, fetch
from tests.interop.cluster_process import ClusterProcess
from tests.interop.control_process import all_healthy, everybody, insist
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


async def test_a_placement_moves_a_group_through_the_deaths_of_its_coordinators(
    tmp_path: Path,
) -> None:
    with ClusterProcess(tmp_path / "cluster", spare_nodes=1) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        await asyncio.to_thread(command, cluster, "add-node")
        cluster.nodes = 4
        cluster.until(lambda: arrived(cluster, [1, 2, 3, 4]), "four voters, recorded")
        async with loaded(cluster) as load:
            held = page(cluster, f"/v1/groups/{GROUP}")["placement"]
            move = PlacePartition(
                partition_id=GROUP,
                members=Members(voters=(2, 3, 4)),
                load=int(held["load"]),
                expected_routing_epoch=int(held["routing_epoch"]),
            )
            answer = await asyncio.to_thread(insist, cluster, move, "move")
            assert answer["outcome"] == "Done", answer
            cluster.kill(await asyncio.to_thread(cluster.wait_for_leader))
            await goes_on(load)
            control_leader = everybody(cluster)[0]["group"]["leader_id"]
            if control_leader is not None:
                cluster.kill(control_leader)
            await goes_on(load)
            await asyncio.to_thread(
                cluster.until, lambda: arrived(cluster, [2, 3, 4]), "the move is over and recorded"
            )
            await goes_on(load)
        reports = page(cluster, "/v1/nodes")["items"]
        assert {each["report_state"] for each in reports} <= {"Fresh", "Stale"}
        assert all(int(each["load"]["groups_hosted"]) >= 2 for each in reports)
