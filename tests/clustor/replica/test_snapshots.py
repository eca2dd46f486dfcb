"""Snapshots of a replica: emitted, compacted behind, sent, installed; and crashes in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.log.types import LogIndex
from clustor.raft.profiles import CONSISTENCY_PROFILE, ReplicationNumbers
from clustor.raft.types import ReplicaId
from clustor.replica import Applied
from tests.clustor.replica.harness import Cluster, Node, put

EAGER = replace(
    CONSISTENCY_PROFILE,
    replication=ReplicationNumbers(
        message_bytes_max=2_000, snapshot_log_bytes_target=3_000, snapshot_retry_ms=200
    ),
)
"""A profile that wants a snapshot every few entries."""


def fill(cluster: Cluster, node: Node, first: int, count: int) -> None:
    for number in range(first, first + count):
        cluster.propose(node, (number, put(f"key{number % 7}", f"{number}" * 40)))
        cluster.settle()


def test_the_log_shrinks_behind_a_snapshot_and_a_restart_finds_the_same_state() -> None:
    cluster = Cluster(3, profile=EAGER)
    leader = cluster.leader()
    fill(cluster, leader, 0, 60)
    cluster.run(500)
    for node in cluster.nodes.values():
        newest = node.up.catalog.newest
        assert newest is not None and newest.acknowledged
        assert node.up.group.core.log.base_index == newest.manifest.base_index
        assert node.up.log.entries.base_index > 0, "no segment was deleted"
    digest = leader.up.machine.digest()
    for node in cluster.nodes.values():
        cluster.crash(node)
    cluster.mail.clear()
    for node in cluster.nodes.values():
        cluster.open(node)
    cluster.settle()
    cluster.leader()
    cluster.run(300)
    assert {node.up.machine.digest() for node in cluster.nodes.values()} == {digest}


def test_a_held_log_keeps_its_entries_until_it_is_let_go() -> None:
    cluster = Cluster(3, profile=EAGER)
    leader = cluster.leader()
    for node in cluster.nodes.values():
        node.up.snapshots.hold_log(LogIndex(10))
    fill(cluster, leader, 0, 60)
    cluster.run(500)
    for node in cluster.nodes.values():
        assert node.up.group.core.log.base_index == 10
        assert node.up.log.entries.base_index <= 10
        node.up.snapshots.hold_log(None)
    cluster.run(500)
    for node in cluster.nodes.values():
        assert node.up.group.core.log.base_index > 10


def test_a_segment_is_closed_when_an_archiver_asks_and_the_next_append_opens_another() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    fill(cluster, leader, 0, 3)
    closed = leader.up.log.closed_segments()
    leader.up.seal_segment()
    leader.up.seal_segment()
    cluster.settle()
    assert len(leader.up.log.closed_segments()) == len(closed) + 1, "an empty one stays open"
    fill(cluster, leader, 3, 3)
    assert leader.up.log.open_segment() is not None
    for node in cluster.nodes.values():
        cluster.crash(node)
    cluster.mail.clear()
    for node in cluster.nodes.values():
        cluster.open(node)
    assert cluster.leader().up.group.core.log.last_index >= 6


def test_a_follower_that_was_away_too_long_gets_a_snapshot_and_goes_on() -> None:
    cluster = Cluster(3, profile=EAGER)
    leader = cluster.leader()
    away = next(node for node in cluster.nodes.values() if node is not leader)
    cluster.cut_off = {away.id}
    fill(cluster, leader, 0, 60)
    cluster.run(300)
    assert leader.up.group.core.log.base_index > away.up.group.core.log.last_index
    cluster.cut_off = set()
    cluster.run(1_500)
    assert away.up.catalog.newest is not None
    fill(cluster, cluster.leader(), 100, 5)
    cluster.run(300)
    assert len({node.up.machine.digest() for node in cluster.nodes.values()}) == 1


@pytest.mark.parametrize("seed", range(25))
def test_power_fails_anywhere_and_nothing_that_was_promised_is_missing(seed: int) -> None:
    """Writes, snapshots and one far follower; a node stops between two steps of its disk."""
    cluster = Cluster(3, profile=EAGER, seed=seed)
    rng = cluster.rng
    promised = 0
    for number in range(120):
        leader = cluster.leader()
        cluster.propose(leader, (number, put(f"key{number % 7}", f"{number}" * 40)))
        if rng.random() < 0.1:
            cluster.cut_off = {rng.choice(list(cluster.nodes))} if rng.random() < 0.6 else set()
        if rng.random() < 0.15:
            stop_between_steps(cluster, rng.choice(list(cluster.nodes.values())))
        cluster.settle()
        cluster.run(rng.choice((10, 20, 100)))
        promised += sum(
            isinstance(outcome, Applied) and number in outcome.request_ids
            for outcome in leader.outcomes
        )
    cluster.cut_off = set()
    cluster.leader()
    cluster.run(2_000)
    assert promised > 30
    assert len({node.up.machine.digest() for node in cluster.nodes.values()}) == 1
    assert len({node.up.applied_index for node in cluster.nodes.values()}) == 1
    outcomes = [outcome for node in cluster.nodes.values() for outcome in node.outcomes]
    applied = [outcome.index for outcome in outcomes if isinstance(outcome, Applied)]
    assert max(applied) <= cluster.nodes[ReplicaId(1)].up.applied_index


def stop_between_steps(cluster: Cluster, node: Node) -> None:
    """Carry out a few plans whole and one in part; then the power goes, and comes back."""
    for _ in range(cluster.rng.randint(0, 8)):
        while not node.works and cluster.mail:
            cluster.deliver()
        if node.works:
            cluster.work(node)
    if node.works:
        plan = node.works[0].plan
        node.disk.execute(plan[: cluster.rng.randint(0, len(plan))])
    cluster.crash(node)
    cluster.open(node)
