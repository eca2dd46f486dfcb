"""Snapshots because their time has come: full ones, deltas, chains, and crashes in between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.raft.profiles import CONSISTENCY_PROFILE, ReplicationNumbers
from clustor.replica import Applied
from clustor.snapshot.cadence import CadenceProfile, DeltaChainState
from clustor.snapshot.types import SnapshotKind
from tests.clustor.replica.harness import Cluster, Node, put
from tests.clustor.replica.test_snapshots import stop_between_steps

CADENCE = CadenceProfile(
    full_emit_period_ms_target=2_000,
    full_emit_period_ms_hard=6_000,
    delta_emit_period_ms_target=400,
    delta_emit_period_ms_hard=1_200,
    delta_chain_max=5,
)
FEW_BYTES = replace(
    CONSISTENCY_PROFILE,
    replication=ReplicationNumbers(
        message_bytes_max=2_000, snapshot_log_bytes_target=2_000, snapshot_retry_ms=200
    ),
)
"""A profile under which the log goes soon."""


def write(cluster: Cluster, first: int, count: int = 3) -> None:
    for number in range(first, first + count):
        cluster.propose(cluster.leader(), (number, put(f"key{number % 7}", f"{number}" * 9)))
        cluster.settle()


def kinds(node: Node) -> list[SnapshotKind]:
    return [each.manifest.snapshot_kind for each in node.up.catalog.snapshots]


def restart_all(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        cluster.crash(node)
    cluster.mail.clear()
    for node in cluster.nodes.values():
        cluster.open(node)
    cluster.settle()
    cluster.leader()
    cluster.run(300)


def test_time_makes_full_ones_and_deltas_due_and_the_log_stays() -> None:
    cluster = Cluster(3, cadence=CADENCE)
    for turn in range(30):
        write(cluster, 10 * turn)
        cluster.run(100)
    for node in cluster.nodes.values():
        assert {SnapshotKind.FULL, SnapshotKind.DELTA} <= set(kinds(node)), kinds(node)
        assert node.up.group.core.log.base_index == 0, "time alone deletes nothing"
        clock = node.up.snapshots.clock
        assert clock is not None and clock.chain is DeltaChainState.HEALTHY
    digest = cluster.leader().up.machine.digest()
    restart_all(cluster)
    assert {node.up.machine.digest() for node in cluster.nodes.values()} == {digest}


def test_a_restart_goes_on_with_its_chain() -> None:
    cluster = Cluster(3, cadence=CADENCE)
    for turn in range(12):
        write(cluster, 10 * turn)
        cluster.run(100)
    before = {node.id: node.up.catalog.newest for node in cluster.nodes.values()}
    restart_all(cluster)
    write(cluster, 500)
    cluster.run(600)
    grown = 0
    for node in cluster.nodes.values():
        older = before[node.id]
        assert older is not None
        parents = {each.manifest.parent for each in node.up.catalog.snapshots}
        grown += older.manifest.manifest_id in parents
    assert grown > 0, "the next snapshot is a delta of what the restart restored"


def test_a_group_at_rest_emits_nothing() -> None:
    cluster = Cluster(3, cadence=CADENCE)
    write(cluster, 0)
    cluster.run(4_000)
    before = [len(node.up.catalog.snapshots) for node in cluster.nodes.values()]
    outputs = [len(node.outputs) for node in cluster.nodes.values()]
    cluster.run(8_000)
    assert [len(node.up.catalog.snapshots) for node in cluster.nodes.values()] == before == [1] * 3
    for node, first in zip(cluster.nodes.values(), outputs, strict=True):
        assert not any(output.disk for output in node.outputs[first:])


@pytest.mark.parametrize("why", ["gate", "fallback"])
def test_without_leave_there_are_full_ones_only(why: str) -> None:
    cluster = Cluster(3, cadence=CADENCE)
    if why == "gate":
        for node in cluster.nodes.values():
            node.up.snapshots.deltas_allowed = False
    cluster.leader()
    for turn in range(40):
        if why == "fallback":
            cluster.control_is_down = True
            cluster.now_ms += CONSISTENCY_PROFILE.control_plane.cache_grace_ms * (turn == 0)
        write(cluster, 10 * turn)
        cluster.run(100)
    for node in cluster.nodes.values():
        assert set(kinds(node)) == {SnapshotKind.FULL}


def test_a_chain_has_an_end_and_old_ones_are_collected() -> None:
    cluster = Cluster(3, cadence=CADENCE)
    for turn in range(120):
        write(cluster, 10 * turn, 1)
        cluster.run(100)
    for node in cluster.nodes.values():
        lengths = [each.manifest.delta_chain_length for each in node.up.catalog.snapshots]
        assert max(lengths) <= CADENCE.delta_chain_max
        fulls = kinds(node).count(SnapshotKind.FULL)
        assert 2 <= fulls <= 3, "two full ones stay, and one that is being replaced"


def test_a_follower_catches_up_from_a_full_one_and_its_deltas() -> None:
    cluster = Cluster(3, profile=FEW_BYTES, cadence=replace(CADENCE, delta_chain_max=30))
    leader = cluster.leader()
    away = next(node for node in cluster.nodes.values() if node is not leader)
    write(cluster, 0, 5)
    cluster.run(600)
    cluster.cut_off = {away.id}
    chain = 0
    for turn in range(1, 60):
        write(cluster, 10 * turn)
        cluster.run(100)
        leader = cluster.leader()
        newest = leader.up.catalog.newest
        chain = 0 if newest is None else newest.manifest.delta_chain_length
        if chain >= 2 and leader.up.group.core.log.base_index > away.up.applied_index:
            break
    assert chain >= 2
    cluster.cut_off = set()
    cluster.run(1_500)
    deltas = {
        each.manifest.base_index
        for each in leader.up.catalog.snapshots
        if each.manifest.snapshot_kind is SnapshotKind.DELTA
    }
    anew = [
        each.manifest.base_index
        for each in away.up.catalog.snapshots
        if each.manifest.snapshot_kind is SnapshotKind.FULL
    ]
    assert deltas & set(anew), "what the leader had as a chain is a full one here"
    assert len({node.up.machine.digest() for node in cluster.nodes.values()}) == 1
    for turn in range(70, 80):  # what it installed is something that its own deltas begin at
        write(cluster, 10 * turn)
        cluster.run(100)
    assert SnapshotKind.DELTA in kinds(away)
    digest = cluster.leader().up.machine.digest()
    restart_all(cluster)
    assert {node.up.machine.digest() for node in cluster.nodes.values()} == {digest}


@pytest.mark.parametrize("seed", range(20))
def test_power_fails_anywhere_in_a_chain_and_nothing_is_missing(seed: int) -> None:
    """Writes, full ones, deltas, imports of chains; a node stops between two steps of its disk."""
    cluster = Cluster(3, profile=FEW_BYTES, cadence=CADENCE, seed=seed)
    rng = cluster.rng
    seen: set[SnapshotKind] = set()
    promised = 0
    for number in range(100):
        leader = cluster.leader()
        cluster.propose(leader, (number, put(f"key{number % 7}", f"{number}" * 20)))
        if rng.random() < 0.1:
            cluster.cut_off = {rng.choice(list(cluster.nodes))} if rng.random() < 0.6 else set()
        if rng.random() < 0.15:
            stop_between_steps(cluster, rng.choice(list(cluster.nodes.values())))
        cluster.settle()
        cluster.run(rng.choice((20, 100, 200)))
        seen |= {kind for node in cluster.nodes.values() if node.replica for kind in kinds(node)}
        promised += any(
            isinstance(outcome, Applied) and number in outcome.request_ids
            for outcome in leader.outcomes
        )
    cluster.cut_off = set()
    cluster.leader()
    cluster.run(2_000)
    assert promised > 30
    assert seen == {SnapshotKind.FULL, SnapshotKind.DELTA}
    assert len({node.up.machine.digest() for node in cluster.nodes.values()}) == 1
    digest = cluster.leader().up.machine.digest()
    restart_all(cluster)
    assert {node.up.machine.digest() for node in cluster.nodes.values()} == {digest}
