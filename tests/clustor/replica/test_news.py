"""When a driver must ask a replica what it has to say, and when it may leave it alone."""

from __future__ import annotations

from clustor.raft.messages import DurabilityAck
from clustor.replica import Replica, RequestId
from tests.clustor.replica.harness import Cluster, Node, put


def speaks(replica: Replica) -> bool:
    return replica.has_news


def settled() -> tuple[Cluster, Node]:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.settle()
    return cluster, leader


def test_a_round_has_news_when_it_begins_and_when_a_quorum_is_durable_and_not_between() -> None:
    cluster, leader = settled()
    replica = leader.up
    assert not speaks(replica)

    cluster.propose(leader, (1, put("a", "1")))
    followers = [node for node in cluster.nodes.values() if node is not leader]
    work = leader.works.popleft()
    leader.disk.execute(work.plan)
    replica.disk_done(work.token, 1.0)
    assert not speaks(replica), "its own disk is no quorum"

    for node in followers:
        while not node.works:
            cluster.deliver()
        assert not node.outputs[-1].messages, "nothing is attested before it is durable"
        cluster.work(node)
    acks: list[DurabilityAck] = []
    for _, to, message in cluster.mail:
        if to == leader.id:
            assert isinstance(message, DurabilityAck)
            acks.append(message)
    cluster.mail.clear()
    assert len(acks) == 2

    replica.receive(acks[0])
    assert speaks(replica), "a quorum is durable: somebody waits for the answer"
    cluster.turn(leader)
    assert [type(outcome).__name__ for outcome in leader.outcomes[-1:]] == ["Applied"]
    replica.receive(acks[1])
    assert not speaks(replica), "the last ack changes nothing"


def test_a_tick_is_news_to_a_leader_when_a_heartbeat_is_due() -> None:
    cluster, leader = settled()
    replica = leader.up
    cluster.turn(leader)
    replica.tick(cluster.now_ms)
    assert not speaks(replica)

    replica.tick(cluster.now_ms + replica.settings.profile.heartbeat_ms)
    assert speaks(replica)


def test_a_command_is_news() -> None:
    _, leader = settled()
    leader.up.propose(RequestId(7), put("a", "1"))
    assert speaks(leader.up)


def test_a_replica_that_stopped_has_news_once() -> None:
    cluster, leader = settled()
    leader.up.stop_for_good("a test")
    assert speaks(leader.up)
    cluster.turn(leader)
    assert not speaks(leader.up)
