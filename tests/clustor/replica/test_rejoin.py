"""A replica that lost or cannot believe its data: refused, set aside, and back as a new one."""

from __future__ import annotations

import pytest

from clustor.log.ledger import LEDGER_FILE
from clustor.log.metadata import METADATA_FILE
from clustor.log.steps import FileName, Rename
from clustor.log.types import LogId
from clustor.raft.errors import DataLost
from clustor.raft.membership import Change, ChangeKind
from clustor.raft.messages import VoteResponse
from clustor.raft.reconfiguration import MembershipRequest, Preflight
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.replica import HARD_STATE_FILE, Replica, ReplicaDamaged, read_identity
from clustor.sim.disk import CrashChoice, SimDisk
from tests.clustor.replica.harness import Cluster, Node, put
from tests.clustor.sim.stories import ask_for_vote, votes

GOOD = Preflight(utilization_after=0.1, survivable=True, placement_digest=b"p")


def rejoin(cluster: Cluster, node: Node, epoch: int) -> None:
    node.works.clear()
    node.replica = Replica.rejoin(
        cluster.settings(),
        node.disk,
        node.home,
        log_id=LogId(cluster.rng.randbytes(16)),
        rejoin_epoch=RoutingEpoch(epoch),
        now_ms=cluster.now_ms,
    )
    cluster.turn(node)
    cluster.settle()


def is_rejoining(node: Node) -> bool:
    return node.up.group.core.hard.rejoining


def change(cluster: Cluster, kind: ChangeKind, replica_id: ReplicaId, epoch: int) -> None:
    leader = cluster.leader()
    request = MembershipRequest((Change(kind, replica_id),), RoutingEpoch(epoch), GOOD)
    leader.up.change_membership(request)
    cluster.turn(leader)
    cluster.run(5_000)


def filled(count: int = 12) -> tuple[Cluster, Node]:
    cluster = Cluster(3)
    leader = cluster.leader()
    for number in range(count):
        cluster.propose(leader, (number, put(f"k{number}", "v" * 50)))
        cluster.settle()
    cluster.run(100)
    return cluster, next(node for node in cluster.nodes.values() if node is not leader)


@pytest.mark.parametrize("file", [LEDGER_FILE, METADATA_FILE, HARD_STATE_FILE, "segment"])
def test_damage_is_refused_and_nothing_is_changed(file: FileName) -> None:
    cluster, node = filled()
    if file == "segment":
        names = [name for name in node.disk.names("wal") if name.endswith(".log")]
        file = FileName("wal/" + next(name for name in names if name.startswith("segment")))
    node.disk.flip_bit(file, node.disk.size(file) // 3 if "wal" in file else 40, 3)
    with pytest.raises(ReplicaDamaged):
        cluster.open(node)
    assert node.disk.is_synced


def test_a_wiped_replica_has_no_vote_until_it_left_and_came_back() -> None:
    cluster, node = filled()
    node.replica = None
    node.disk = SimDisk()
    with pytest.raises(DataLost):
        cluster.open(node)
    rejoin(cluster, node, epoch=0)
    assert is_rejoining(node)
    cluster.mail.clear()
    ask_for_vote(cluster, node, ReplicaId(3 if node.id != 3 else 2), 50)
    while node.works:
        cluster.work(node)
    assert votes(cluster) == []
    cluster.run(1_500)
    change(cluster, ChangeKind.REMOVE, node.id, 1)
    change(cluster, ChangeKind.ADD_VOTER, node.id, 2)
    assert not is_rejoining(node)
    assert node.up.machine.digest() == cluster.leader().up.machine.digest()
    assert node.id in cluster.leader().up.group.core.config.voters


def test_what_was_damaged_is_set_aside_under_its_own_names() -> None:
    cluster, node = filled()
    before = {
        name: node.disk.read(FileName(f"wal/{name}"), 0, 1 << 20) for name in node.disk.names("wal")
    }
    old_id = node.up.identity.log_id
    rejoin(cluster, node, epoch=0)
    aside = "set-aside/1/wal"
    assert {
        name: node.disk.read(FileName(f"{aside}/{name}"), 0, 1 << 20) for name in before
    } == before
    identity = read_identity(node.home)
    assert identity is not None and identity.log_id != old_id
    cluster.open(node)
    cluster.settle()
    assert node.up.ready


@pytest.mark.parametrize("step", range(0, 60, 3))
def test_a_rejoin_that_is_interrupted_anywhere_can_be_done_again(step: int) -> None:
    cluster, node = filled(4)
    node.disk.flip_bit(LEDGER_FILE, 60, 1)
    node.replica = Replica.rejoin(
        cluster.settings(),
        node.disk,
        node.home,
        log_id=LogId(b"n" * 16),
        rejoin_epoch=RoutingEpoch(0),
        now_ms=cluster.now_ms,
    )
    first = node.up.take().disk[0]
    node.disk.execute(first.plan[:step])
    node.disk = node.disk.crash(CrashChoice())
    if step < len(first.plan):
        with pytest.raises((DataLost, ReplicaDamaged)):
            cluster.open(node)
        rejoin(cluster, node, epoch=0)
    else:
        cluster.open(node)
        cluster.settle()
    assert node.up.ready and is_rejoining(node)


def test_a_start_makes_a_vote_durable_that_a_killed_process_only_renamed() -> None:
    """The vote's file is in place, its directory is not synced; the next start relies on it."""
    cluster = Cluster(3)
    node = cluster.nodes[ReplicaId(1)]
    ask_for_vote(cluster, node, ReplicaId(2), 5)
    plan = node.works.popleft().plan
    renamed = next(at for at, step in enumerate(plan) if isinstance(step, Rename))
    node.disk.execute(plan[: renamed + 1])
    cluster.open(node)
    while node.works:
        cluster.work(node)
    ask_for_vote(cluster, node, ReplicaId(2), 5)
    while node.works:
        cluster.work(node)
    assert any(isinstance(message, VoteResponse) for _, _, message in cluster.mail)
    given = votes(cluster)
    node.disk = node.disk.crash(CrashChoice())
    cluster.open(node)
    while node.works:
        cluster.work(node)
    ask_for_vote(cluster, node, ReplicaId(3), 5)
    while node.works:
        cluster.work(node)
    assert votes(cluster) == given == [(ReplicaId(2), 5)]
