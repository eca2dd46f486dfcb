"""A definition comes into force on every replica at one entry, through crashes and snapshots."""

from __future__ import annotations

from hashlib import sha256

from clustor.kv import KvMachine
from clustor.raft.leadership import ProposalAccepted, ProposalRefused
from clustor.replica import Activation, Applied, RequestId, Shadow, ShadowState
from clustor.replica.shadow import MILLION
from tests.clustor.replica.harness import Cluster, Node, put

SMALL = b'{"machine": "kv", "value_bytes_max": 4}'
ACTIVATION = Activation("b1", 1, sha256(SMALL).digest(), b"r" * 32, SMALL)


def machine(node: Node) -> KvMachine:
    found = node.up.machine
    assert isinstance(found, KvMachine)
    return found


def activated(size: int = 3) -> tuple[Cluster, Node]:
    cluster = Cluster(size)
    leader = cluster.leader()
    cluster.propose(leader, (1, put("a", "long enough")))
    cluster.settle()
    assert isinstance(leader.up.propose_activation(ACTIVATION), ProposalAccepted)
    cluster.turn(leader)
    cluster.run(300)
    return cluster, leader


def test_all_replicas_switch_at_the_same_entry() -> None:
    cluster, leader = activated()
    cluster.propose(leader, (2, put("b", "too long")), (3, put("c", "fits")))
    cluster.run(300)
    assert {machine(node).is_defined_by(SMALL) for node in cluster.nodes.values()} == {True}
    assert len({machine(node).digest() for node in cluster.nodes.values()}) == 1
    replies = {
        request: reply
        for outcome in leader.outcomes
        if isinstance(outcome, Applied)
        for request, reply in zip(outcome.request_ids, outcome.replies, strict=True)
    }
    assert [KvMachine.is_refusal(replies[RequestId(number)]) for number in (1, 2, 3)] == [
        False,
        True,
        False,
    ]


def test_who_lost_power_has_it_again_from_its_log_and_from_a_snapshot() -> None:
    cluster, leader = activated()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    for emits in (False, True):
        if emits:
            follower.up.emit_snapshot()
            cluster.turn(follower)
            cluster.run(500)
            assert follower.up.catalog.newest is not None
        cluster.crash(follower)
        cluster.open(follower)
        cluster.run(1_000)
        assert machine(follower).is_defined_by(SMALL)
        assert machine(follower).digest() == machine(leader).digest()


def test_only_a_leader_appends_one() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    assert isinstance(follower.up.propose_activation(ACTIVATION), ProposalRefused)


def test_a_replica_feeds_its_shadow_until_a_definition_comes_into_force() -> None:
    cluster = Cluster(1)
    leader = cluster.leader()
    cluster.propose(leader, (1, put("a", "1234")))
    cluster.settle()
    job = leader.up.applying.begin_shadow(SMALL)
    shadow = leader.up.applying.shadow
    assert job is not None and isinstance(shadow, Shadow)
    cluster.propose(leader, (2, put("b", "12345")))
    cluster.settle()
    shadow.copied(*job())
    assert (shadow.state, shadow.ready_ratio) == (ShadowState.WARM, MILLION // 2)
    assert shadow.checkpoint_index == leader.up.applied_index
    cluster.propose(leader, (3, put("c", "1")), (4, put("d", "2")))
    cluster.settle()
    assert shadow.ready_ratio == 3 * MILLION // 4
    assert isinstance(leader.up.propose_activation(ACTIVATION), ProposalAccepted)
    cluster.turn(leader)
    cluster.settle()
    assert leader.up.applying.shadow is None
