"""The control plane on real nodes: written, killed, lost for a while, and taken up again."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clustor.control import ClusterConfig, CreateTenant, NodeSpec, Placement, TenantSpec
from clustor.control.objects import ControlObject, decode_object, key_of
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file, read_cluster_file
from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.kv.client import KvClient, KvRejected
from quantum.cli.admin_client import fetch_status, post
from tests.interop.cluster_process import PATIENT, UNHURRIED, ClusterProcess
from tests.interop.control_process import (
    all_healthy,
    call_once,
    control,
    everybody,
    groups_of_leaders,
    insist,
    pause,
    prepared,
)
from tests.interop.test_members import PATIENTLY, command
from tests.interop.test_node_process import node_command


def tenant(number: int) -> CreateTenant:
    return CreateTenant(tenant_id=f"t{number}", sni=f"t{number}.example")


async def held(client: KvClient, kind: type[ControlObject], *parts: str | int) -> Any:
    record = await client.get(bytes(key_of(kind, *parts)))
    return None if record is None else decode_object(kind, record.value)


async def test_a_new_cluster_is_recorded_proven_and_watchable(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "cluster", tenant_prgs=2, patience=PATIENT) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=4), "every group is proven")
        cluster.until(lambda: gates_are_open(cluster, groups=4), "and its gate is open")
        async with control_client(cluster) as client:
            await until_held(client, lambda found: found is not None, ClusterConfig, "config")
            config = await held(client, ClusterConfig, "config")
            assert config.cluster_id == "dev"
            for node in (1, 2, 3):
                await until_held(client, lambda found: found is not None, NodeSpec, node)
                assert (await held(client, NodeSpec, node)).node_id == node
            await until_held(client, lambda found: found is not None, TenantSpec, "dev")
            assert (await held(client, TenantSpec, "dev")).tenant_id == "dev"
            for partition, owner in ((1, None), (CONTROL_PARTITION, None), (1_001, "dev")):
                await until_held(client, lambda found: found is not None, Placement, partition)
                placement = await held(client, Placement, partition)
                assert (placement.members.voters, placement.tenant_id) == ((1, 2, 3), owner)
            await client.put(b"user/mine", b"allowed")
            with pytest.raises(KvRejected, match="KEY_RESERVED"):
                await client.put(b"cluster/config", b"{}")


def gates_are_open(cluster: ClusterProcess, groups: int) -> bool:
    """Say whether every leader's gate is open, or shut by what it committed since its proof."""
    found = groups_of_leaders(cluster)
    return len(found) == groups and all(
        group["gate"] == "Open" or group["failed_clause"] == "ControlPlaneProofMismatch"
        for group in found
    )


def control_client(cluster: ClusterProcess) -> KvClient:
    return KvClient(cluster.admins(), partition=CONTROL_PARTITION, timeout_seconds=180)


async def test_no_answered_call_is_lost_when_each_node_is_killed(tmp_path: Path) -> None:
    """Calls go on through kills of every node; each answer stands, and stays the same."""
    with ClusterProcess(tmp_path / "cluster", patience=UNHURRIED) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        answers: dict[int, dict[str, Any]] = {}
        stopping = asyncio.Event()

        async def call_on() -> None:
            for number in itertools.count():
                if stopping.is_set():
                    return
                answers[number] = await asyncio.to_thread(
                    insist, cluster, tenant(number), f"create-{number}"
                )

        calling = asyncio.create_task(call_on())
        for node in (1, 2, 3):
            await grown(answers, cluster)
            starts = cluster.started(node)
            cluster.kill(node)
            await grown(answers, cluster)
            back = partial(is_back, cluster, node, starts)
            await asyncio.to_thread(cluster.until, back, "the node is back")
        stopping.set()
        await calling
        assert all(answer["outcome"] == "Done" for answer in answers.values()), answers
        async with control_client(cluster) as client:
            for number in answers:
                assert await held(client, TenantSpec, f"t{number}") is not None
        for number, answer in answers.items():
            assert insist(cluster, tenant(number), f"create-{number}") == answer
        reused = insist(cluster, tenant(1_000_000), "create-0")
        assert (reused["outcome"], reused["code"]) == ("Refused", "RequestIdReused")
        cluster.until(lambda: agree(cluster), "the replicas are equal")
        print(f"\n{len(answers)} calls answered and there")


def is_back(cluster: ClusterProcess, node: int, starts: int) -> bool:
    """Say whether a node was started again and its copy is confirmed."""
    seen = control(cluster, node) if cluster.starts[node] > starts else None
    return seen is not None and seen["cache_state"] == "Fresh"


async def grown(answers: dict[int, dict[str, Any]], cluster: ClusterProcess) -> None:
    before = len(answers)
    await asyncio.to_thread(cluster.until, lambda: len(answers) >= before + 5, "calls go on")


def agree(cluster: ClusterProcess) -> bool:
    found = everybody(cluster)
    states = {(each["revision"], each["group"]["state_digest"]) for each in found}
    return len(found) == 3 and len(states) == 1


FRESH_MS, GRACE_MS = 3_000, 12_000
OUTAGES = 5
ROWS = [
    ("Cached", "Healthy", "None"),
    ("Stale", "LocalOnly", "CacheStale"),
    ("Expired", "LocalOnly", "CacheExpired"),
]


async def test_data_goes_on_while_the_control_plane_is_gone(tmp_path: Path) -> None:
    """The truth table of clustor §14.2, row by row, and the way back."""
    data = tmp_path / "cluster"
    numbers = {"cache_fresh_ms": FRESH_MS, "cache_grace_ms": GRACE_MS}
    prepared(data, **numbers, patience=PATIENT, fault_injection=True)
    with ClusterProcess(data) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            await every_row(cluster, client)
            cluster.until(lambda: refuses(cluster, 1, "in-vain") == "CacheExpired", "it says why")
            shut = [("Shut", "ControlPlaneCacheExpired")]
            cluster.until(
                lambda: (
                    [(each["gate"], each["failed_clause"]) for each in data_leaders(cluster)]
                    == shut
                ),
                "its gate is shut",
            )
            cluster.until(lambda: len(everybody(cluster)) == 3, "everybody answers")
            published = sum(each["proofs_published"] for each in everybody(cluster))
            for node in (1, 2, 3):
                pause(cluster, node, paused=False)
            await client.put(b"after", b"the outage")
            await asyncio.to_thread(
                cluster.until, lambda: all_healthy(cluster, groups=2), "proofs are published again"
            )
            cluster.until(
                lambda: sum(each["proofs_published"] for each in everybody(cluster)) > published,
                "more of them than before",
            )
            assert insist(cluster, tenant(1), "in-vain")["outcome"] == "Done"
            record = await client.get(b"written-0")
            assert record is not None


async def every_row(cluster: ClusterProcess, client: KvClient) -> None:
    """Let the control plane be away until every state was seen, in order, and nothing else.

    Each lasts for seconds: who gets no turn for so long misses one, and tries another outage.
    """
    for _ in range(OUTAGES):
        for node in (1, 2, 3):
            pause(cluster, node, paused=True)
        seen = await states_in_order(cluster, client)
        assert seen == [row for row in ROWS if row in seen], seen
        if seen == ROWS:
            return
        for node in (1, 2, 3):
            pause(cluster, node, paused=False)
        back = partial(all_healthy, cluster, groups=2)
        await asyncio.to_thread(cluster.until, back, "the control plane is there again")
    raise AssertionError("a state was missed every time")


def refuses(cluster: ClusterProcess, node: int, request_id: str) -> str:
    """Call one node in vain, and return why it says so.

    A copy that is younger than the data leader's lets the call through: then nobody answers it.
    """
    code, answer = call_once(cluster.admin(node), tenant(1), request_id, seconds_max=0.5)
    assert code == 503, answer
    return str(answer.get("because"))


async def states_in_order(cluster: ClusterProcess, client: KvClient) -> list[tuple[str, str, str]]:
    """Write all the time, and return what the data group's leader was in, in order."""
    seen: list[tuple[str, str, str]] = []
    deadline = time.monotonic() + 180
    for number in itertools.count():
        assert time.monotonic() < deadline, seen
        await client.put(b"written-%d" % number, b"acknowledged")
        for group in data_leaders(cluster):
            state = (
                group["cache_state"],
                group["strict_fallback_state"],
                group["strict_fallback_blocking_reason"],
            )
            if state[0] != "Fresh" and state not in seen:
                seen.append(state)
        if seen and seen[-1][0] == "Expired":
            return seen
    raise AssertionError("unreachable")


def data_leaders(cluster: ClusterProcess) -> list[dict[str, Any]]:
    found = groups_of_leaders(cluster)
    return [group for group in found if group["partition_id"] != CONTROL_PARTITION]


async def test_one_replica_that_hangs_costs_nothing_and_two_cost_calls_only(
    tmp_path: Path,
) -> None:
    data = tmp_path / "cluster"
    prepared(data, fault_injection=True, patience=PATIENT)
    with ClusterProcess(data) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        leaders: list[int] = []

        def led() -> bool:
            leaders[:] = {each["group"]["leader_id"] for each in everybody(cluster)} - {None}
            return len(leaders) == 1

        cluster.until(led, "all know who leads the control plane")
        leader = leaders[0]
        pause(cluster, leader, paused=True)
        assert insist(cluster, tenant(1), "one-hangs")["outcome"] == "Done"
        other = leader % 3 + 1
        pause(cluster, other, paused=True)
        cluster.until(lambda: is_refused(cluster, other % 3 + 1), "it is refused")
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            await client.put(b"data", b"goes on")
        pause(cluster, other, paused=False)
        assert insist(cluster, tenant(2), "two-hang")["outcome"] == "Done"
        pause(cluster, leader, paused=False)
        cluster.until(lambda: agree(cluster), "all three are equal again")


def is_refused(cluster: ClusterProcess, node: int) -> bool:
    code, answer = call_once(cluster.admin(node), tenant(2), "two-hang", 1.0)
    assert code == 503, answer
    return True


def test_a_node_that_starts_alone_goes_on_from_its_copy(tmp_path: Path) -> None:
    """Nobody confirms anything, but the copy on its disk is minutes from being old."""
    data = tmp_path / "cluster"
    with ClusterProcess(data, patience=PATIENT) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
    process = subprocess.Popen(node_command(data), stderr=subprocess.DEVNULL)
    answers: list[dict[str, Any]] = []

    def told() -> bool:
        answers.append(fetch_status(cluster.admin(1)))
        return bool(answers[-1]["groups"][0]["cache_state"] == "Fresh")

    try:
        cluster.until(told, "it goes on from its copy")
    finally:
        process.kill()
        process.wait(90)
    alone = answers[-1]
    assert alone["control"]["group"]["leader_id"] is None
    assert alone["control"]["cache_state"] == "Fresh"
    assert alone["control"]["cache_revision"] >= max(1, alone["control"]["revision"])
    assert alone["control"]["cache_age_ms"] > 0


async def test_a_directory_from_before_the_control_plane_gets_one(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    with ClusterProcess(data, patience=PATIENT) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "every node is there")
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            await client.put(b"old", b"data")
    older = msgspec.structs.replace(read_cluster_file(data / CLUSTER_FILE), control_founders=())
    (data / CLUSTER_FILE).write_bytes(encode_cluster_file(older))
    for node in (1, 2, 3):
        for place in ("state", "identity"):
            shutil.rmtree(data / f"node-{node}" / place / str(CONTROL_PARTITION))
        (data / f"node-{node}" / "control-copy.bin").unlink(missing_ok=True)
    with ClusterProcess(data) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            record = await client.get(b"old")
            assert record is not None and record.value == b"data"


@pytest.mark.parametrize("page", ["/groups/1/pause", f"/groups/{CONTROL_PARTITION}/pause"])
def test_no_group_hangs_on_demand_unless_the_cluster_allows_it(tmp_path: Path, page: str) -> None:
    with ClusterProcess(tmp_path / "cluster", nodes=1) as cluster:
        cluster.wait_for_leader()
        codes: list[int] = []

        def answered() -> bool:
            codes.append(post(cluster.admin(1), page, {"paused": True})[0])
            return True

        cluster.until(answered, "the node answers")
        assert codes == [403]


async def test_a_node_that_joins_is_placed_and_proves_what_it_leads(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    with ClusterProcess(data, spare_nodes=1, patience=PATIENT) as cluster:
        cluster.until(lambda: all_healthy(cluster, groups=2), "the control plane is there")
        await asyncio.to_thread(command, cluster, "add-node")
        cluster.nodes = 4
        await asyncio.to_thread(command, cluster, "transfer-leader", "--to", "4", *PATIENTLY)
        cluster.until(lambda: all_healthy(cluster, groups=2), "node 4 proves what it leads")
        async with control_client(cluster) as client:
            await recorded(client, (1, 2, 3, 4))
            await asyncio.to_thread(command, cluster, "remove-node", "1", *PATIENTLY)
            await recorded(client, (2, 3, 4))
            await until_held(client, lambda held: held is None, NodeSpec, 1)


async def recorded(client: KvClient, voters: tuple[int, ...]) -> None:
    """Wait until both groups are placed and recorded with these voters."""
    for partition in (1, int(CONTROL_PARTITION)):
        await until_held(
            client,
            lambda held: (
                held is not None and (held.members.voters, held.previous) == (voters, None)
            ),
            *(Placement, partition),
        )


async def until_held(
    client: KvClient, holds: Callable[[Any], bool], kind: type[ControlObject], part: int | str
) -> None:
    deadline = time.monotonic() + 180
    while not holds(found := await held(client, kind, part)):
        assert time.monotonic() < deadline, found
