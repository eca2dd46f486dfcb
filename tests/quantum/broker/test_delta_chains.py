"""Replicas of a partition that emit deltas, on simulated disks: who was away is fed from a chain,
and power fails anywhere in one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.replica import Applied, ReplicaSettings
from clustor.snapshot.types import SnapshotKind
from quantum.broker import OWN_ORIGIN, Attach, Broker, Subscribe, encode_command, encode_publishes
from tests.clustor.replica.harness import Cluster, Node
from tests.clustor.replica.test_emission_by_time import CADENCE, FEW_BYTES, kinds, restart_all
from tests.clustor.replica.test_snapshots import stop_between_steps
from tests.quantum.broker.desk import SETTINGS, record, spec


class Doubting(Broker):
    """Makes of every delta something else than its sender did."""

    doubts = 0

    def delta_digest(self) -> bytes:
        Doubting.doubts += 1
        return b"something else"


class BrokerCluster(Cluster):
    """Replicas of one partition."""

    machine: type[Broker] = Broker

    def settings(self) -> ReplicaSettings:
        return replace(super().settings(), new_machine=lambda: self.machine(SETTINGS))

    def say(self, number: int) -> None:
        """Propose what a client does: it comes and subscribes, or publishes."""
        client, now_ms = b"client %d" % (number % 5), 1_000 + number
        if number % 4 == 0:
            attach = Attach(
                now_ms, client, clean_start=number % 3 == 0, expiry_seconds=90, window=3
            )
            wants = Subscribe(now_ms, client, 0, [spec(b"t/%d" % (number % 3))])
            self.propose(self.leader(), (2 * number, encode_command(attach)))
            self.propose(self.leader(), (2 * number + 1, encode_command(wants)))
            return
        records = [record(b"t/%d" % (number % 7), b"%d" % number * 9, retain=number % 2 == 0)]
        command = encode_publishes(now_ms, OWN_ORIGIN, 0, 0, records)
        self.propose(self.leader(), (2 * number, command))

    def digests(self) -> set[bytes]:
        return {node.up.machine.digest() for node in self.nodes.values()}


def write(cluster: BrokerCluster, first: int, count: int = 3) -> None:
    for number in range(first, first + count):
        cluster.say(number)
        cluster.settle()


def cut_off_until_a_chain(cluster: BrokerCluster) -> tuple[Node, Node]:
    """Let a follower miss so much that it needs a chain; return it, and who leads."""
    leader = cluster.leader()
    away = next(node for node in cluster.nodes.values() if node is not leader)
    write(cluster, 0, 5)
    cluster.run(600)
    cluster.cut_off = {away.id}
    for turn in range(1, 60):
        write(cluster, 10 * turn)
        cluster.run(100)
        leader = cluster.leader()
        newest = leader.up.catalog.newest
        chain = 0 if newest is None else newest.manifest.delta_chain_length
        if chain >= 2 and leader.up.group.core.log.base_index > away.up.applied_index:
            return away, leader
    raise AssertionError("no chain")


def bases(node: Node, kind: SnapshotKind) -> set[int]:
    snapshots = node.up.catalog.snapshots
    return {each.manifest.base_index for each in snapshots if each.manifest.snapshot_kind is kind}


LONG = replace(CADENCE, delta_chain_max=30)


def test_a_follower_catches_up_from_a_full_one_and_its_deltas() -> None:
    cluster = BrokerCluster(3, profile=FEW_BYTES, cadence=LONG)
    away, leader = cut_off_until_a_chain(cluster)
    cluster.cut_off = set()
    cluster.run(1_500)
    deltas = bases(leader, SnapshotKind.DELTA)
    assert deltas & bases(away, SnapshotKind.FULL), "what was a chain is a full one here"
    assert len(cluster.digests()) == 1
    for turn in range(70, 80):  # what it installed is something that its own deltas begin at
        write(cluster, 10 * turn)
        cluster.run(100)
    assert SnapshotKind.DELTA in kinds(away)
    digests = cluster.digests()
    restart_all(cluster)
    assert cluster.digests() == digests and len(digests) == 1


def test_a_chain_that_leads_elsewhere_is_not_installed() -> None:
    cluster = BrokerCluster(3, profile=FEW_BYTES, cadence=LONG)
    away, leader = cut_off_until_a_chain(cluster)
    Doubting.doubts, cluster.machine = 0, Doubting
    cluster.cut_off = set()
    cluster.run(1_500)
    assert Doubting.doubts > 0
    assert not bases(leader, SnapshotKind.DELTA) & bases(away, SnapshotKind.FULL)


@pytest.mark.parametrize("seed", range(8))
def test_power_fails_anywhere_in_a_chain_and_nothing_is_missing(seed: int) -> None:
    cluster = BrokerCluster(3, profile=FEW_BYTES, cadence=CADENCE, seed=seed)
    rng = cluster.rng
    seen: set[SnapshotKind] = set()
    for number in range(100):
        cluster.say(number)
        if rng.random() < 0.1:
            cluster.cut_off = {rng.choice(list(cluster.nodes))} if rng.random() < 0.6 else set()
        if rng.random() < 0.15:
            stop_between_steps(cluster, rng.choice(list(cluster.nodes.values())))
        cluster.settle()
        cluster.run(rng.choice((20, 100, 200)))
        seen |= {kind for node in cluster.nodes.values() if node.replica for kind in kinds(node)}
    cluster.cut_off = set()
    cluster.leader()
    cluster.run(2_000)
    outcomes = [each for node in cluster.nodes.values() for each in node.outcomes]
    assert sum(isinstance(each, Applied) for each in outcomes) > 30
    assert seen == {SnapshotKind.FULL, SnapshotKind.DELTA}
    digests = cluster.digests()
    restart_all(cluster)
    assert cluster.digests() == digests and len(digests) == 1
