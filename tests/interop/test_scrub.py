"""A disk that lies on a real cluster: found, quarantined, repaired by its peers, nothing lost."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from clustor.log.ledger import LEDGER_FILE
from clustor.log.segment import SEGMENT_HEADER_BYTES
from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.kv.client import KvClient
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.cli.app import build
from quantum.cli.exits import Exit
from tests.interop.cluster_process import DEADLINE_SECONDS, ClusterProcess

GROUPS = (1, 2)
FLIPPED_AT = SEGMENT_HEADER_BYTES + 60
KEPT_BYTES = 4096
WRITTEN: dict[tuple[int, bytes], bytes] = {}
"""What was acknowledged, by group and key: it must be there in the end."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("scrub") / "cluster"
    with ClusterProcess(data, groups=len(GROUPS), patience=4) as process:
        for group in GROUPS:
            process.wait_for_leader(group)
        WRITTEN.clear()
        yield process


def write(cluster: ClusterProcess, group: int, count: int = 20) -> None:
    """Put some records and keep what was acknowledged."""

    async def put() -> None:
        async with KvClient(
            cluster.admins(), partition=group, timeout_seconds=DEADLINE_SECONDS
        ) as client:
            for _ in range(count):
                key = b"key-%d" % len(WRITTEN)
                await client.put(key, b"v" * 200)
                WRITTEN[group, key] = b"v" * 200

    asyncio.run(put())


def check(cluster: ClusterProcess) -> None:
    """See that everything acknowledged is there, through every node's own replica."""

    async def read() -> None:
        for group in GROUPS:
            async with KvClient(
                cluster.admins(), partition=group, timeout_seconds=DEADLINE_SECONDS
            ) as client:
                for (of, key), value in WRITTEN.items():
                    if of == group:
                        found = await client.get(key)
                        assert found is not None and found.value == value, key

    asyncio.run(read())
    for group in GROUPS:
        cluster.until(partial(is_same, cluster, group), f"replicas of {group} agree")


def is_same(cluster: ClusterProcess, group: int) -> bool:
    found = [cluster.group(node, group) for node in (1, 2, 3)]
    return None not in found and len({each["state_digest"] for each in found if each}) == 1


def state(cluster: ClusterProcess, node: int, group: int) -> Path:
    return cluster.data / f"node-{node}" / "state" / str(group)


def wal(cluster: ClusterProcess, node: int, group: int, below: str = "") -> Path:
    return state(cluster, node, group) / below / "wal"


def has_entries(cluster: ClusterProcess, node: int, group: int, size: int = FLIPPED_AT) -> bool:
    """Say whether a replica has written: the quorum that acknowledged may have been the others."""
    segments = wal(cluster, node, group).glob("segment*.log")
    return any(each.stat().st_size > size for each in segments)


def flip(directory: Path) -> Path:
    """Turn one bit of the oldest segment, below everybody's feet."""
    path = min((directory / "wal").glob("segment*.log"))
    with path.open("r+b", buffering=0) as file:
        turn_bit(file, FLIPPED_AT)
    return path


def turn_bit(file: FileIO, offset: int) -> None:
    byte = os.pread(file.fileno(), 1, offset)[0]
    assert os.pwrite(file.fileno(), bytes([byte ^ 8]), offset) == 1


@contextmanager
def standing_still(cluster: ClusterProcess, nodes: set[int]) -> Iterator[None]:
    """Let nodes stand still: a replica whose peers say nothing stays as it is."""
    pids = [cluster.pid(node) for node in nodes]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def page(cluster: ClusterProcess, node: int, path: str) -> Any:
    try:
        return fetch(cluster.admin(node), path)[1]
    except AdminUnreachable:
        return None


def is_unready(cluster: ClusterProcess, node: int) -> bool:
    found = page(cluster, node, "/readyz")
    return found is not None and not found["ready"] and "Quarantined" in found["reasons"]


def is_ready(cluster: ClusterProcess, node: int) -> bool:
    found = page(cluster, node, "/readyz")
    return found is not None and bool(found["ready"])


def why(cluster: ClusterProcess, node: int, group: int) -> dict[str, Any]:
    """Ask why a group is in quarantine, until the node answers."""
    answers: list[dict[str, Any]] = []

    def answered() -> bool:
        found = page(cluster, node, f"/groups/{group}/why/WhyQuarantined")
        answers.extend([found] if isinstance(found, dict) and "clause" in found else [])
        return bool(answers)

    cluster.until(answered, f"node {node} says why")
    return answers[0]


def quarantine(cluster: ClusterProcess, node: int, group: int) -> bool:
    found = cluster.group(node, group)
    return found is not None and found["state"] == "Quarantine"


def is_repaired(cluster: ClusterProcess, node: int, group: int) -> bool:
    found = cluster.group(node, group)
    return (
        found is not None
        and found["state"] == "Running"
        and not found["rejoining"]
        and found["voters"] == [1, 2, 3]
    )


def phase(cluster: ClusterProcess, node: int, group: int) -> str:
    """Read how far a repair is, as the node has made it durable."""
    path = cluster.data / f"node-{node}" / "quarantine" / f"{group}.json"
    try:
        return str(json.loads(path.read_bytes())["phase"])
    except FileNotFoundError:
        return ""


def is_over(cluster: ClusterProcess, node: int, group: int) -> bool:
    return not phase(cluster, node, group)


def set_aside(cluster: ClusterProcess, node: int, group: int) -> list[Path]:
    """Name the damaged logs that a replica has kept: one more with every repair."""
    return sorted((state(cluster, node, group) / "set-aside").glob("*"))


def until_rebuilt(cluster: ClusterProcess, node: int, group: int, before: list[Path]) -> None:
    """Wait until a replica whose damage was found has set it aside, and all is well again."""
    cluster.until(lambda: set_aside(cluster, node, group) != before, "it begins anew")
    cluster.until(lambda: is_over(cluster, node, group), "it is repaired")
    cluster.until(lambda: is_repaired(cluster, node, group), "it votes again")


def scrubbed(cluster: ClusterProcess, *arguments: str) -> tuple[int, str]:
    """Run `quantum scrub` as an operator would; return its exit code and its words."""
    line = ["scrub", "--admin", str(cluster.admin(1)), "--timeout", "180", *arguments]
    deadline = time.monotonic() + DEADLINE_SECONDS
    result = CliRunner().invoke(build(["scrub"]), line)
    while result.exit_code == Exit.UNREACHABLE and time.monotonic() < deadline:
        result = CliRunner().invoke(build(["scrub"]), line)  # a busy node is asked again
    return result.exit_code, result.output


def runs(cluster: ClusterProcess, node: int, group: int) -> bool:
    found = cluster.group(node, group)
    return found is not None and found["state"] == "Running"


def reported(cluster: ClusterProcess, by: int) -> set[tuple[int, int]]:
    """Ask the control plane, at a healthy node, which replicas it holds in quarantine."""
    code, rows = fetch(cluster.admin(by), "/v1/quarantines")
    if code != 200:  # it has no leader now
        raise AdminUnreachable(str(rows))
    return {(int(row["partition_id"]), int(row["node_id"])) for row in rows["items"]}


def was_reported(cluster: ClusterProcess, node: int, group: int, *, by: int) -> bool:
    """Say whether the control plane holds a replica in quarantine, or did and it is over."""
    if (group, node) in reported(cluster, by):
        return True
    log = (cluster.data / f"node-{node}.log").read_text(errors="replace")
    return is_over(cluster, node, group) and f"group {group}: the quarantine is reported" in log


def test_damaged_groups_are_quarantined_at_a_start_and_repaired_by_their_peers(
    cluster: ClusterProcess,
) -> None:
    """Two of the node's three groups are damaged, one of them the control plane's own.

    The node dies once more in the middle of the repair, and goes on where it was.
    """
    for group in GROUPS:
        write(cluster, group)
    other = cluster.wait_for_leader(2)
    node = min({1, 2, 3} - {other})
    cluster.until(partial(has_entries, cluster, node, 2, KEPT_BYTES), "the follower has it too")
    cluster.until(partial(has_entries, cluster, node, CONTROL_PARTITION), "and of the other")
    flip(state(cluster, node, CONTROL_PARTITION))
    damaged = flip(state(cluster, node, 2))
    before = damaged.read_bytes()[:KEPT_BYTES]
    with standing_still(cluster, {1, 2, 3} - {node}):
        cluster.kill(node)
        cluster.until(lambda: phase(cluster, node, 2) == "Quarantined", "group 2 is in quarantine")
        cluster.until(lambda: quarantine(cluster, node, 2), "the node says so")
        assert why(cluster, node, 2)["reason"] == "Integrity"
        assert "a block is not what was written" in why(cluster, node, 2)["sentence"]
        cluster.until(lambda: is_unready(cluster, node), "the node is not ready, and says why")
    cluster.until(lambda: phase(cluster, node, 2) != "Quarantined", "it has begun anew")
    cluster.kill(node)
    cluster.until(partial(runs, cluster, node, 1), "the group beside it serves")
    cluster.until(lambda: was_reported(cluster, node, 2, by=other), "the control plane knows")
    write(cluster, 2)
    for group in (2, CONTROL_PARTITION):
        cluster.until(partial(is_over, cluster, node, group), f"group {group} is repaired")
    cluster.until(lambda: is_repaired(cluster, node, 2), "it votes again")
    cluster.until(lambda: not reported(cluster, other), "the control plane has acknowledged it")
    cluster.until(lambda: is_ready(cluster, node), "the node is ready")
    assert why(cluster, node, 2)["clause"] == "None"
    aside = wal(cluster, node, 2, "set-aside/1") / damaged.name
    assert aside.read_bytes()[:KEPT_BYTES] == before, "kept as it was found"
    check(cluster)


def test_a_scrub_finds_a_turned_bit_on_a_live_follower(cluster: ClusterProcess) -> None:
    write(cluster, 1)
    code, words = scrubbed(cluster)
    assert code == 0 and words.count("whole") == 9, words
    leader = cluster.wait_for_leader(1)
    node = max({1, 2, 3} - {leader})
    before = set_aside(cluster, node, 1)
    flip(state(cluster, node, 1))
    code, words = scrubbed(cluster, "--group", "1")
    assert code == Exit.QUARANTINED and words.count("whole") == 2, words
    (line,) = (line for line in words.splitlines() if f"node {node}  " in line)
    assert "a block is not what was written" in line
    write(cluster, 1)
    until_rebuilt(cluster, node, 1, before)
    check(cluster)
    assert scrubbed(cluster, "--group", "1")[0] == 0
    assert metric(cluster, node, "clustor_scrub_coverage_age_days") < 1
    assert metric(cluster, node, "clustor_scrub_faults_total") == 1


def metric(cluster: ClusterProcess, node: int, name: str) -> float:
    address = cluster.admin(node)
    connection = http.client.HTTPConnection(address.host, address.port, timeout=DEADLINE_SECONDS)
    connection.request("GET", "/metrics")
    body = connection.getresponse().read().decode()
    connection.close()
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            if sample.name == name:
                return float(sample.value)
    raise AssertionError(name)


def test_a_leader_whose_disk_lies_steps_down_and_is_repaired(cluster: ClusterProcess) -> None:
    write(cluster, 2)
    leader = cluster.wait_for_leader(2)
    before = set_aside(cluster, leader, 2)
    flip(state(cluster, leader, 2))
    code, words = scrubbed(cluster, "--group", "2", "--node", str(leader))
    assert code == Exit.QUARANTINED, words
    assert cluster.wait_for_leader(2, but=leader) != leader
    found = why(cluster, leader, 2)
    if found["clause"] != "None":  # else it is over already
        assert found["reason"] == "Integrity"
    write(cluster, 2)
    until_rebuilt(cluster, leader, 2, before)
    check(cluster)


def test_a_checksum_that_fails_once_is_read_again_and_nothing_is_rebuilt(
    cluster: ClusterProcess,
) -> None:
    """It is read again three times in seven seconds: a slow machine tries again to be in time."""
    node = min({1, 2, 3} - {cluster.wait_for_leader(1)})
    assert any(is_left_alone(cluster, node) for _ in range(5)), "it was rebuilt every time"
    check(cluster)


def is_left_alone(cluster: ClusterProcess, node: int) -> bool:
    """Turn a bit, and turn it back when it was read once; say whether nothing was rebuilt."""
    before = set_aside(cluster, node, 1)

    def is_noticed() -> bool:
        return "NeedsRepair" in problem(cluster, node, 1) or set_aside(cluster, node, 1) != before

    with (state(cluster, node, 1) / LEDGER_FILE).open("r+b", buffering=0) as ledger:
        turn_bit(ledger, 60)
        cluster.kill(node)
        cluster.until(is_noticed, "it is read again soon")
        turn_bit(ledger, 60)  # of this file, even where it was set aside
    cluster.until(
        lambda: is_repaired(cluster, node, 1) and is_over(cluster, node, 1), "it is well again"
    )
    return set_aside(cluster, node, 1) == before


def problem(cluster: ClusterProcess, node: int, group: int) -> str:
    found = cluster.group(node, group)
    return str(found["problem"]) if found is not None else ""
