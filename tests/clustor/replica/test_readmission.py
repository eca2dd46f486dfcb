"""How a damaged replica comes back: what it may conclude, and that no step of it loses anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.log.ledger import LEDGER_FILE
from clustor.log.types import LogId, LogIndex, Term
from clustor.raft.errors import DataLost, MembershipRefused
from clustor.raft.membership import Change, ChangeKind
from clustor.raft.reconfiguration import MembershipRequest, Preflight, ReconfigurationPhase
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.replica import (
    ReadmissionStep,
    RepairPhase,
    Replica,
    ReplicaDamaged,
    VoteStanding,
    is_checksum_fault,
    plan_readmission,
    plan_rejoin_epoch,
    quarantined_replica,
)
from clustor.replica.readmission import believed_leader
from tests.clustor.replica.harness import PARTITION, Cluster, Node, put

A, B, C, D, E = map(ReplicaId, range(1, 6))
GOOD = Preflight(utilization_after=0.1, survivable=True, placement_digest=b"p")
FOLLOWS = VoteStanding(
    term=Term(5),
    leads=False,
    settled=True,
    proven=False,
    routing_epoch=RoutingEpoch(3),
    commit_index=LogIndex(40),
    voters=frozenset((A, B, C)),
    others=frozenset(),
)
LEADS = replace(FOLLOWS, leads=True, proven=True)

EPOCHS = {
    "a leader and a follower of three": ({A: LEADS, B: FOLLOWS}, 3),
    "nobody": ({}, None),
    "no leader": ({A: FOLLOWS, B: FOLLOWS}, None),
    "a leader alone may be deposed": ({A: LEADS}, None),
    "somebody knows a later term": ({A: LEADS, B: replace(FOLLOWS, term=Term(6))}, None),
    "the later of two leaders": ({A: LEADS, B: replace(LEADS, term=Term(6))}, 3),
    "a change is under way": ({A: replace(LEADS, settled=False), B: FOLLOWS}, None),
    "nothing committed in its term": ({A: replace(LEADS, proven=False), B: FOLLOWS}, None),
    "our own word does not count": ({A: LEADS, C: FOLLOWS}, None),
    "who has no vote does not count": ({A: LEADS, D: FOLLOWS, E: FOLLOWS}, None),
}


@pytest.mark.parametrize(("standings", "epoch"), EPOCHS.values(), ids=EPOCHS.keys())
def test_an_epoch_is_believed_from_a_leader_that_a_majority_follows(
    standings: dict[ReplicaId, VoteStanding], epoch: int | None
) -> None:
    assert plan_rejoin_epoch(standings, C) == epoch


OUT = replace(LEADS, voters=frozenset((A, B)))
LEARNS = replace(OUT, others=frozenset((C,)))
R, S = RepairPhase, ReadmissionStep
STEPS = {
    "a voter without a vote leaves": (LEADS, R.REJOINING, True, 40, S.REMOVE),
    "it asks again": (LEADS, R.REMOVING, True, 40, S.REMOVE),
    "it is out and asks to come back": (OUT, R.REMOVING, True, 40, S.ADD),
    "and asks again": (OUT, R.REMOVED, True, 40, S.ADD),
    "somebody else took it out": (OUT, R.REJOINING, True, 40, S.GONE),
    "it catches up": (LEARNS, R.REMOVED, False, 39, S.WAIT),
    "a learner waits for its vote": (LEARNS, R.REMOVED, False, 40, S.WAIT),
    "a learner from before has none to lose": (LEARNS, R.REJOINING, True, 40, S.DONE),
    "but it must have all": (LEARNS, R.REJOINING, True, 39, S.WAIT),
    "a voter again, before it knows": (LEADS, R.REMOVED, True, 40, S.WAIT),
    "a voter again, and behind": (LEADS, R.REMOVED, False, 39, S.WAIT),
    "a voter again, and whole": (LEADS, R.REMOVED, False, 40, S.DONE),
    "an operator did it": (LEADS, R.REJOINING, False, 40, S.DONE),
    "another change goes first": (replace(LEADS, settled=False), R.REJOINING, True, 40, S.WAIT),
}


@pytest.mark.parametrize(
    ("leader", "phase", "rejoining", "durable", "step"), STEPS.values(), ids=STEPS.keys()
)
def test_each_step_of_the_way_back(
    leader: VoteStanding, phase: RepairPhase, rejoining: bool, durable: int, step: ReadmissionStep
) -> None:
    found = plan_readmission(leader, C, phase, rejoining=rejoining, durable=LogIndex(durable))
    assert found is step


def test_a_fenced_replica_says_nothing_and_writes_nothing() -> None:
    cluster = Cluster(3)
    replica = quarantined_replica(
        Replica,
        cluster.settings(),
        replica_id=C,
        partition_id=PARTITION,
        log_id=LogId(b"x" * 16),
        reason="a bit turned",
        now_ms=cluster.now_ms,
    )
    output = replica.take()
    assert (output.disk, output.messages) == ([], [])
    assert output.failed is not None and "a bit turned" in output.failed
    assert replica.is_damaged and not replica.ready and not replica.leads


def test_a_failed_checksum_is_told_from_a_failed_authentication() -> None:
    cluster = Cluster(3)
    node = cluster.nodes[A]
    cluster.propose(cluster.leader(), (1, put("k", "v" * 500)))
    cluster.settle()
    node.disk.flip_bit(LEDGER_FILE, 60, 1)
    with pytest.raises(ReplicaDamaged) as crc:
        cluster.open(node)
    assert is_checksum_fault(crc.value)
    node.disk.flip_bit(LEDGER_FILE, 60, 1)
    name = next(n for n in node.disk.names("wal") if n.startswith("segment") and "log" in n)
    node.disk.flip_bit(f"wal/{name}", 200, 1)  # type: ignore[arg-type]
    with pytest.raises(ReplicaDamaged) as tag:
        cluster.open(node)
    assert not is_checksum_fault(tag.value)


class Repair:
    """The damaged replica's part, as a node plays it: `phase` is what its record says."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self.cluster, self.node = cluster, node
        self.phase = RepairPhase.QUARANTINED
        self.epoch = 0
        self.done = False

    def standing(self, node: Node) -> VoteStanding:
        raft = node.up.group
        core = raft.core
        idle = not core.leads or raft.leadership.reconfiguration.phase is ReconfigurationPhase.IDLE
        return VoteStanding(
            core.hard.term,
            node.up.leads,
            idle and core.config_index <= core.commit_index and not core.config.is_joint,
            core.leads and core.wal_committed_index > 0,
            core.hard.routing_epoch,
            core.commit_index,
            core.config.all_voters,
            core.config.learners | core.config.learners_next,
        )

    def standings(self) -> dict[ReplicaId, VoteStanding]:
        others = (each for each in self.cluster.nodes.values() if each is not self.node)
        return {each.id: self.standing(each) for each in others if each.replica is not None}

    def step(self, plan_steps: int | None = None) -> None:
        """Do what comes next; with `plan_steps` power fails within the first plan of a rejoin."""
        node, cluster = self.node, self.cluster
        if node.replica is None:
            self.start()
        elif node.up.failed is not None:
            self.rejoin(plan_steps)
        else:
            self.readmit()
        cluster.run(300)

    def start(self) -> None:
        cluster, node = self.cluster, self.node
        try:
            cluster.open(node)
        except (DataLost, ReplicaDamaged) as error:
            node.replica = quarantined_replica(
                Replica,
                cluster.settings(),
                replica_id=node.id,
                partition_id=PARTITION,
                log_id=LogId(cluster.rng.randbytes(16)),
                reason=str(error),
                now_ms=cluster.now_ms,
            )

    def rejoin(self, plan_steps: int | None) -> None:
        cluster, node = self.cluster, self.node
        epoch = plan_rejoin_epoch(self.standings(), node.id)
        if epoch is None:
            return
        node.replica = Replica.rejoin(
            cluster.settings(),
            node.disk,
            node.home,
            log_id=LogId(cluster.rng.randbytes(16)),
            rejoin_epoch=epoch,
            now_ms=cluster.now_ms,
        )
        if plan_steps is not None:
            node.disk.execute(node.up.take().disk[0].plan[:plan_steps])
            cluster.crash(node)
        else:
            cluster.turn(node)

    def readmit(self) -> None:
        node, core = self.node, self.node.up.group.core
        if not node.up.ready:
            return
        if self.phase is RepairPhase.QUARANTINED:
            self.phase = RepairPhase.REJOINING
        found = believed_leader(self.standings())
        if found is None:
            return
        rejoining, durable = core.hard.rejoining, core.local_wal_durable_index
        step = plan_readmission(found[1], node.id, self.phase, rejoining=rejoining, durable=durable)
        assert step is not ReadmissionStep.GONE
        self.done = step is ReadmissionStep.DONE
        if step is ReadmissionStep.REMOVE:
            self.phase = RepairPhase.REMOVING
            self.order(found[0], ChangeKind.REMOVE)
        elif step is ReadmissionStep.ADD:
            self.phase = RepairPhase.REMOVED
            self.order(found[0], ChangeKind.ADD_VOTER)

    def order(self, leader: ReplicaId, kind: ChangeKind) -> None:
        self.epoch += 1
        at = self.cluster.nodes[leader]
        epoch = RoutingEpoch(max(self.epoch, at.up.group.core.hard.routing_epoch + 1))
        try:
            at.up.change_membership(MembershipRequest((Change(kind, self.node.id),), epoch, GOOD))
        except MembershipRefused:
            return
        self.cluster.turn(at)


def write(cluster: Cluster, acknowledged: list[int], number: int) -> None:
    leader = next((each for each in cluster.nodes.values() if each.replica and each.up.leads), None)
    if leader is None:
        return
    before = len(leader.outcomes)
    cluster.propose(leader, (number, put(f"k{number}", "v" * 50)))
    cluster.run(200)
    if any(type(each).__name__ == "Applied" for each in leader.outcomes[before:]):
        acknowledged.append(number)


@pytest.mark.parametrize("others_too", [False, True], ids=["alone", "others die too"])
@pytest.mark.parametrize("crash_at", range(12))
def test_nothing_acknowledged_is_lost_wherever_the_repair_is_interrupted(
    crash_at: int, others_too: bool
) -> None:
    """One disk of three is damaged, and power fails at one step of the repair; writes go on."""
    cluster = Cluster(3, seed=crash_at)
    acknowledged: list[int] = []
    leader = cluster.leader()
    for number in range(10):
        write(cluster, acknowledged, number)
    assert len(acknowledged) == 10
    # Every other time it is the leader's disk that is damaged.
    node = leader if crash_at % 2 else next(n for n in cluster.nodes.values() if n is not leader)
    name = next(n for n in node.disk.names("wal") if n.startswith("segment") and "log" in n)
    node.disk.flip_bit(f"wal/{name}", 200, 1)  # type: ignore[arg-type]
    node.up.log_damaged("a scrub found it")
    cluster.turn(node)
    repair = Repair(cluster, node)
    for step in range(60):
        if step == crash_at:
            for each in cluster.nodes.values() if others_too else (node,):
                if each.replica is not None:
                    cluster.crash(each)
            for each in cluster.nodes.values():
                if each is not node and each.replica is None:
                    cluster.open(each)
            cluster.run(2_000)
        within_plan = 3 * crash_at + 1 if step < crash_at and crash_at % 3 == 0 else None
        repair.step(within_plan)
        write(cluster, acknowledged, 100 + step)
        if repair.done and step > crash_at:
            break
    assert repair.done, (repair.phase, node.up.failed)
    assert not node.up.group.core.hard.rejoining
    assert len(acknowledged) > 12
    # One of the others goes, so that the repaired one must be counted on.
    gone = next(each for each in cluster.nodes.values() if each is not node)
    cluster.crash(gone)
    cluster.leader()
    cluster.run(1_000)
    for each in (each for each in cluster.nodes.values() if each is not gone):
        for number in acknowledged:
            found = each.up.machine.get(f"k{number}".encode())  # type: ignore[attr-defined]
            assert found is not None, (each.id, number)
