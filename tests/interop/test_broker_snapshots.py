"""Snapshots of a broker's partition on real nodes: damage in one is found and repaired; a follower
that was away is fed from a full one and its deltas, and one that was killed begins from its own
chain: sessions, queues and retained messages are the same everywhere."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clustor.control import Feature
from quantum.cli.admin_client import AdminUnreachable, fetch
from quantum.cli.app import build
from quantum.cli.exits import Exit
from quantum.tenants.group_ids import group_of
from tests.interop.cluster_process import DEADLINE_SECONDS, UNHURRIED, ClusterProcess
from tests.interop.control_process import all_healthy, open_gates, prepared
from tests.interop.test_node_process import node_command
from tests.interop.test_scrub import (
    is_over,
    is_repaired,
    metric,
    reported,
    scrubbed,
    state,
    turn_bit,
)
from tests.interop.test_snapshots_in_time import NODES, NUMBERS, covers_all, is_gone
from tests.interop.test_wills_real import GONE, door
from tests.quantum.serving.client import Client, connect

GROUPS = 3  # a key-value store, the control plane and the partition
GROUP = int(group_of(0, 0))
PARTITION = 2  # its place among a node's groups: behind the store's
PAYLOAD = os.urandom(4 << 10)
QUEUED = 12
LASTS = 600

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("deltas") / "cluster"
    prepared(data, **NUMBERS, patience=UNHURRIED)
    with ClusterProcess(data, restart=False, tenant_prgs=1) as running:
        running.until(lambda: all_healthy(running, GROUPS), "every group is proven")
        open_gates(running, Feature.INCREMENTAL_SNAPSHOTS)
        yield running


@contextmanager
def started(cluster: ClusterProcess, node: int) -> Iterator[None]:
    """Run a node that the command started and that was killed since."""
    command = node_command(cluster.data, node=node)
    command[2] = "quantum.admin.main"  # a broker's node, as the command runs them
    with (cluster.data / f"node-{node}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(DEADLINE_SECONDS) == 0


def keep(cluster: ClusterProcess) -> None:
    """Let a session subscribe that keeps what comes while its client is away."""

    def kept() -> bool:
        with suppress(*GONE), come(cluster) as keeper:
            return not keeper.subscribe(b"queued/#", 1).is_failure
        return False

    cluster.until(kept, "the session is made")


@contextmanager
def come(cluster: ClusterProcess) -> Iterator[Client]:
    at = door(cluster, cluster.wait_for_leader(PARTITION))
    keeper = connect(at, client_id="keeper", clean=False, session_expiry_interval=LASTS)
    with hanging_up(keeper):
        yield keeper


@contextmanager
def hanging_up(client: Client) -> Iterator[None]:
    """Close the connection however its use ends: whoever fails comes again with another."""
    try:
        yield
    finally:
        client.cut()


def check_queue(cluster: ClusterProcess) -> None:
    """See that the session has all that was queued, in order; what was told twice counts once."""
    found: list[bytes] = []

    def taken() -> bool:
        with suppress(*GONE), come(cluster) as keeper:
            while len(found) < QUEUED:
                payload = keeper.take().payload
                found.extend([] if payload in found else [payload])
        return len(found) == QUEUED

    cluster.until(taken, "all that was queued comes")
    assert found == [b"%d" % number for number in range(QUEUED)]


def publish(cluster: ClusterProcess, *messages: tuple[bytes, bytes], away: int = 0) -> None:
    """Publish at QoS 1, retained where the topic says so, whoever leads: until all are taken."""
    waiting = list(messages)

    def published() -> bool:
        with suppress(*GONE):
            at = door(cluster, cluster.wait_for_leader(PARTITION, but=away))
            client = connect(at, client_id=f"publisher {next(_numbers)}")
            with hanging_up(client):
                while waiting:
                    topic, payload = waiting[0]
                    kept = topic.startswith(b"kept")
                    assert not client.publish(topic, payload, 1, retain=kept).is_failure
                    del waiting[0]
                client.leave()
        return not waiting

    cluster.until(published, "all is taken")


def retain_some(cluster: ClusterProcess, count: int, away: int = 0) -> None:
    """Publish retained messages to a few topics, over and over."""
    numbers = [next(_numbers) for _ in range(count)]
    publish(
        cluster,
        *((b"kept/%d" % (each % 40), b"%d " % each + PAYLOAD) for each in numbers),
        away=away,
    )


def digest(cluster: ClusterProcess, node: int) -> tuple[int, str] | None:
    """Return what a node's replica of the partition is, and at which index."""
    try:
        (found,) = fetch(cluster.admin(node), "/v1/broker/digests")[1]["partitions"]
    except (AdminUnreachable, KeyError, ValueError):
        return None
    return int(found["index"]), found["digest"]


def agree(cluster: ClusterProcess) -> bool:
    found = {digest(cluster, node) for node in NODES}
    return len(found) == 1 and None not in found


def is_covered(cluster: ClusterProcess, node: int) -> bool:
    return covers_all(cluster.group(node, PARTITION))


def is_trimmed(group: dict[str, Any] | None, known: int) -> bool:
    """Say whether the log no longer reaches back to who is away since `known`."""
    return group is not None and group["first_index"] > known + 1


def is_offered(group: dict[str, Any] | None, known: int) -> bool:
    """Say whether a node that is away since `known` needs a snapshot, and gets several deltas."""
    return (
        group is not None
        and is_trimmed(group, known)
        and group["snapshot_kind"] == "Delta"
        and group["delta_chain_length"] >= 2
    )


def newest_chunk(cluster: ClusterProcess, node: int) -> Path | None:
    """Return a file of the newest snapshot; None where it was replaced meanwhile."""
    directory = state(cluster, node, GROUP) / "snapshot"
    try:
        manifest = max(directory.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime_ns)
        chunk = json.loads(manifest.read_bytes())["chunks"][0]["chunk_id"]
    except (FileNotFoundError, ValueError):
        return None
    return directory / "chunks" / str(chunk)


def is_damaged(cluster: ClusterProcess, node: int, turned: set[Path]) -> bool:
    """Turn a bit of a node's newest snapshot, and let it be found.

    The next snapshot may have replaced the one whose bit was turned before anybody read it; and
    who had to ask again may be told that all is whole, for it was found and repaired meanwhile.
    """
    chunk = newest_chunk(cluster, node)
    with suppress(FileNotFoundError):
        if chunk is not None and chunk not in turned:
            with chunk.open("r+b", buffering=0) as file:
                turn_bit(file, 100)
            turned.add(chunk)
    code, words = scrubbed(cluster, "--group", str(GROUP))
    if code == Exit.QUARANTINED:
        assert words.count("whole") == len(NODES) - 1, words
        return True
    assert code == 0, words
    with suppress(OSError):
        return metric(cluster, node, "clustor_scrub_faults_total") >= 1
    return False


def was_reported(cluster: ClusterProcess, node: int, by: int) -> bool:
    """Say whether the control plane was told of the quarantine, which may be over by now."""
    if (GROUP, node) in reported(cluster, by):
        return True
    rows = fetch(cluster.admin(by), "/v1/audit?ring=publications&limit=1000")[1].get("items", ())
    return any((row["kind"], row["outcome"]) == ("ReportQuarantine", "Done") for row in rows)


def test_a_turned_bit_in_a_snapshot_is_found_and_repaired(cluster: ClusterProcess) -> None:
    leader = cluster.wait_for_leader(PARTITION)
    retain_some(cluster, 3)
    node = max(set(NODES) - {leader})
    cluster.until(partial(is_covered, cluster, node), "the follower has a snapshot of everything")
    turned: set[Path] = set()
    cluster.until(lambda: is_damaged(cluster, node, turned), "the damage is found")
    cluster.until(lambda: was_reported(cluster, node, leader), "the control plane knows")
    cluster.until(partial(is_over, cluster, node, GROUP), "it is repaired")
    cluster.until(lambda: is_repaired(cluster, node, PARTITION), "it votes again")
    cluster.until(lambda: agree(cluster), "all replicas are the same")
    code, words = scrubbed(cluster, "--group", str(GROUP))
    assert code == 0, words


def test_the_doctor_knows_how_old_snapshots_and_scrubs_are(cluster: ClusterProcess) -> None:
    line = ["doctor", "--cluster", str(cluster.admin(1))]

    def told() -> bool:
        shown = CliRunner().invoke(build(["doctor"]), line).output
        return f"group {GROUP}: snapshot" in shown and "scrubbed within" in shown

    cluster.until(told, "the doctor tells of both")

    def held() -> bool:
        _, facts = fetch(cluster.admin(1), "/doctor")
        (group,) = [each for each in facts["groups"] if each["partition_id"] == GROUP]
        assert group["snapshot_bound_ms"] == NUMBERS["snapshot_full_ms_max"]
        is_young = 0 <= group["snapshot_age_ms"] < group["snapshot_bound_ms"]
        return bool(is_young and 0 <= group["scrub_age_days"] < 1)

    cluster.until(held, "both are within their bounds")


def test_a_partition_is_the_same_by_full_and_deltas(cluster: ClusterProcess) -> None:
    leader = cluster.wait_for_leader(PARTITION)
    keep(cluster)
    away = min(set(NODES) - {leader})
    pid = cluster.pid(away)
    cluster.kill(away)
    cluster.until(lambda: is_gone(pid), "it is gone")
    known = cluster.wait_for_group(leader, PARTITION)["last_index"]
    publish(cluster, *((b"queued/%d" % each, b"%d" % each) for each in range(QUEUED)), away=away)
    leader = write_until_offered(cluster, known, away)
    with started(cluster, away):
        cluster.until(lambda: cluster.caught_up(away, PARTITION), "the node has caught up")
        back = cluster.wait_for_group(away, PARTITION)
        assert back["first_index"] > known + 1, "it came by snapshot"
        cluster.until(lambda: agree(cluster), "all replicas are the same")
        retain_some(cluster, 3)
        cluster.until(lambda: agree(cluster), "and go on alike")
        from_its_own_chain(cluster, leader, away)
        check_queue(cluster)


def write_until_offered(cluster: ClusterProcess, known: int, away: int) -> int:
    """Write until a node that is away since `known` would get several deltas; return who leads.

    Once the log is trimmed little is written: a full snapshot is due soon again.
    """
    leader = 0
    for _ in range(200):
        leader = cluster.wait_for_leader(PARTITION, but=away)
        group = cluster.group(leader, PARTITION)
        if is_offered(group, known):
            return leader
        retain_some(cluster, 1 if is_trimmed(group, known) else 12, away)
        cluster.until(partial(is_covered, cluster, leader), "a snapshot covers it")
    raise AssertionError(f"never several deltas: {cluster.group(leader, PARTITION)}")


def from_its_own_chain(cluster: ClusterProcess, leader: int, away: int) -> None:
    """Kill the third node while its newest snapshot is a delta: it begins from its own chain."""
    follower = min(set(NODES) - {leader, away})
    pid = cluster.pid(follower)
    cluster.kill(follower)
    cluster.until(lambda: is_gone(pid), "it is gone")
    with started(cluster, follower):
        cluster.until(lambda: agree(cluster), "it is the same as before")
