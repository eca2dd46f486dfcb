"""A follower that stops costs its leader's clients credits, not memory; and all comes back."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from clustor.flow import CreditLimits, LagNumbers
from clustor.kv import Key, Put, encode_command
from clustor.runtime.admission import FlowNumbers
from clustor.runtime.cluster_file import CLUSTER_FILE, encode_cluster_file
from clustor.runtime.development import prepare_cluster
from clustor.runtime.kv.client import KvClient, KvUnavailable
from clustor.runtime.kv.link import KvLink
from clustor.runtime.kv.stream import KvOperation, Status
from clustor.runtime.pki.identity import cluster_id, utc_now
from tests.interop.cluster_process import PATIENT, ClusterProcess

MIB = 1 << 20
VALUE = os.urandom(64 << 10)
LAG = LagNumbers(
    slack_bytes=256 << 10,
    transient_bytes_max=8 * MIB,
    transient_duration_ms=5_000,
    structural_bytes=8 * MIB,
    structural_stepdown_ms=600_000,
)
CREDITS = CreditLimits(entry_credit_max=256, byte_credit_max=64 * MIB)


def prepared(data: Path, flow: FlowNumbers) -> None:
    cluster = prepare_cluster(
        data, cluster_id("dev"), nodes=3, base_port=7000, groups=1, now=utc_now()
    )
    changed = msgspec.structs.replace(cluster, flow=flow, patience=PATIENT)
    (data / CLUSTER_FILE).write_bytes(encode_cluster_file(changed))


async def write(client: KvClient, count: int, *, at_once: int) -> None:
    for first in range(0, count, at_once):
        keys = range(first, min(first + at_once, count))
        await asyncio.gather(*(client.put(b"key-%d" % (key % 20), VALUE) for key in keys))


def leading(cluster: ClusterProcess) -> dict[str, Any] | None:
    """Return the group as its leader of this moment sees it: a busy machine may change it."""
    leader = cluster.leader()
    group = None if leader is None else cluster.group(leader)
    return group if group is not None and group["flow"] is not None else None


def has(cluster: ClusterProcess, classes: set[str], share: float, away: int) -> bool:
    """Say whether the leader sees one follower behind and gives no more than a share for it."""
    group = leading(cluster)
    if group is None:
        return False
    lags = {member["replica_id"]: member["lag_class"] for member in group["members"]}
    flow = group["flow"]
    return (
        lags.get(away) in classes and flow["lag_class"] in classes and flow["credit_share"] <= share
    )


def is_calm(cluster: ClusterProcess) -> bool:
    group = leading(cluster)
    return group is not None and group["flow"]["reason"] is None


def all_alike(cluster: ClusterProcess) -> bool:
    groups = [group for group in map(cluster.group, (1, 2, 3)) if group is not None]
    return len(groups) == 3 and len({group["state_digest"] for group in groups}) == 1


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_stopped_follower_costs_credits_and_no_memory_and_comes_back(
    tmp_path: Path,
) -> None:
    data = tmp_path / "cluster"
    prepared(data, FlowNumbers(CREDITS, LAG))
    with ClusterProcess(data) as cluster:
        away = min({1, 2, 3} - {cluster.wait_for_leader()})

        async def seen(condition: Callable[[], bool], what: str) -> None:
            await asyncio.to_thread(cluster.until, condition, what)

        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            await write(client, 24, at_once=12)
            await seen(partial(is_calm, cluster), "nothing is slowed")
            with stopped(cluster.pid(away)):
                await write(client, 24, at_once=12)
                behind = {"Transient", "Structural"}  # the second on a machine that is busy
                await seen(partial(has, cluster, behind, 0.5, away), "half of the credits")
                before = {node: resident_bytes(pid) for node, pid in cluster.pids.items()}
                await write(client, 480, at_once=12)
                await seen(partial(has, cluster, {"Structural"}, 0.25, away), "a quarter")
                grown = max(resident_bytes(cluster.pids[node]) - before[node] for node in before)
                print(f"\nno node grew by more than {grown / MIB:.0f} MiB over 30 MiB of writes")
                assert grown < 100 * MIB  # the store itself keeps its last 64 MiB as history
                for _ in range(20):
                    await write(client, 150, at_once=150)  # more at once than 64 credits admit
                    if client.throttled > 0:
                        break
                assert client.throttled > 0, "refused with a hint, and sent again"
            await seen(partial(is_calm, cluster), "the lag has gone")
            await seen(lambda: cluster.caught_up(away), "it has caught up")
            await seen(partial(all_alike, cluster), "all hold the same")


async def test_a_hard_block_refuses_every_write_with_its_envelope(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    prepared(data, FlowNumbers(structural_hard_block=True))
    with ClusterProcess(data) as cluster:
        status, answer = await ask_the_leader(cluster)
        while status in {Status.NOT_LEADER, Status.UNKNOWN}:  # it was one a moment ago
            status, answer = await ask_the_leader(cluster)
        assert status == Status.THROTTLED
        envelope = msgspec.json.decode(answer)
        assert envelope["ingest_status_code"] == "Blocked"
        assert envelope["credit_hint"] == "Shed"
        assert envelope["partition_id"] == "1"
        assert int(envelope["retry_after_ms"]) >= 250
        async with KvClient(cluster.admins(), timeout_seconds=2) as client:
            said = ""
            for _ in range(90):  # whom nobody answered in time has not been told why
                with pytest.raises(KvUnavailable) as refused:
                    await client.put(b"key", b"value")
                if not refused.value.maybe_applied:
                    said = str(refused.value)
                if "throttled: ApplyBudget" in said:
                    break
            assert "throttled: ApplyBudget" in said


async def ask_the_leader(cluster: ClusterProcess) -> tuple[int, bytes]:
    link = await KvLink.open(cluster.admin(await asyncio.to_thread(cluster.wait_for_leader)))
    try:
        body = encode_command(Put(Key(b"key"), b"value"))
        return await link.request(1, KvOperation.COMMAND, body)
    finally:
        link.close()
