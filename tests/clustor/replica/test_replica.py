"""One and three replicas on simulated disks: commands in, replies out, restarts in between."""

from __future__ import annotations

from typing import cast

import pytest

from clustor.kv import Found, Get, Key, KvMachine, KvWritten, decode_reply, encode_command
from clustor.log.steps import Sync, WriteFile
from clustor.raft.election import CampaignClause
from clustor.raft.errors import DataLost
from clustor.raft.leadership import ProposalRefusal
from clustor.raft.messages import AppendEntries, DurabilityAck
from clustor.raft.reads import ReadKind
from clustor.raft.types import ReplicaId
from clustor.replica import (
    Applied,
    NotLeader,
    ReadDenied,
    ReadReady,
    ReplicaExists,
    RequestId,
    RequestsRefused,
    Unknown,
)
from clustor.sim.disk import SimDisk
from tests.clustor.replica.harness import Cluster, put


def value(cluster: Cluster, replica_id: int, key: str) -> bytes | None:
    machine = cluster.nodes[ReplicaId(replica_id)].up.machine
    assert isinstance(machine, KvMachine)
    record = machine.get(Key(key.encode()))
    return None if record is None else record.value


@pytest.mark.parametrize("size", [1, 3])
def test_everything_that_waits_becomes_one_entry_and_each_request_gets_its_reply(size: int) -> None:
    cluster = Cluster(size)
    leader = cluster.leader()
    before = leader.up.group.core.log.last_index
    get = encode_command(Get(Key(b"a")))
    cluster.propose(leader, (1, put("a", "x")), (2, put("b", "y")), (3, get))
    cluster.settle()
    assert leader.up.group.core.log.last_index == before + 1
    (applied,) = leader.outcomes
    assert isinstance(applied, Applied)
    assert applied.request_ids == [1, 2, 3]
    replies = [decode_reply(reply) for reply in applied.replies]
    assert isinstance(replies[0], KvWritten) and isinstance(replies[1], KvWritten)
    assert isinstance(replies[2], Found) and replies[2].record is not None
    cluster.run(200)
    digests = {node.up.machine.digest() for node in cluster.nodes.values()}
    assert len(digests) == 1
    assert {value(cluster, n, "b") for n in cluster.nodes} == {b"y"}


def test_no_reply_before_a_quorum_has_synced() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    followers = [node for node in cluster.nodes.values() if node is not leader]
    cluster.propose(leader, (1, put("a", "x")))
    while cluster.mail:
        cluster.deliver()
    cluster.work(leader)
    assert leader.outcomes == [] and value(cluster, leader.id, "a") is None
    cluster.work(followers[0])
    assert leader.outcomes == [], "the follower's word has not arrived yet"
    while cluster.mail:
        cluster.deliver()
    assert isinstance(leader.outcomes[0], Applied)


def test_a_follower_names_the_leader_and_promises_nothing() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    cluster.propose(follower, (9, put("a", "x")))
    assert follower.outcomes == [NotLeader([RequestId(9)], leader.id)]


def test_a_leader_that_is_cut_off_says_that_it_does_not_know() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.cut_off = {leader.id}
    cluster.propose(leader, (1, put("a", "x")))
    cluster.run(1_500)
    assert leader.outcomes == [Unknown([RequestId(1)])]
    assert cluster.leader() is not leader
    cluster.cut_off = set()
    cluster.run(1_000)
    assert value(cluster, leader.id, "a") is None, "a new leader's log replaced it"


def test_a_read_is_granted_at_what_was_committed_before_it() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.run(100)
    cluster.propose(leader, (1, put("a", "x")))
    cluster.settle()
    leader.up.read(RequestId(2), cluster.now_ms + 1_000)
    cluster.turn(leader)
    assert leader.reads == []
    cluster.run(200)
    assert leader.reads == [ReadReady(RequestId(2), leader.up.applied_index)]
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    follower.up.read(RequestId(3), cluster.now_ms + 1_000)
    cluster.turn(follower)
    assert isinstance(follower.reads[0], ReadDenied)


def test_a_quorum_confirms_a_read_without_a_proof_and_without_an_entry() -> None:
    """The control plane reads so: it is the one that would publish the proof."""
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.run(100)
    cluster.control_is_down = True
    before = leader.up.group.core.log.last_index
    leader.up.read(RequestId(2), cluster.now_ms + 1_000, ReadKind.QUORUM)
    cluster.turn(leader)
    assert leader.reads == [], "a quorum has not answered yet"
    cluster.settle()
    assert leader.reads == [ReadReady(RequestId(2), leader.up.applied_index)]
    assert leader.up.group.core.log.last_index == before


def test_under_a_fence_nothing_is_taken_and_nothing_is_acknowledged() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.run(100)
    leader.outcomes.clear()
    cluster.propose(leader, (1, put("a", "x")))
    leader.up.set_fence("f1")  # it is in the log, and no quorum has it yet
    cluster.run(200)
    cluster.propose(leader, (2, put("a", "y")))
    cluster.run(200)
    assert leader.outcomes == [
        Unknown([RequestId(1)]),
        RequestsRefused([RequestId(2)], ProposalRefusal.FENCED),
    ]
    leader.up.set_fence("")
    leader.outcomes.clear()
    cluster.propose(leader, (3, put("a", "z")))
    cluster.run(200)
    assert [type(each) for each in leader.outcomes] == [Applied]


def test_a_wrong_clock_ends_a_lead_and_keeps_from_the_next() -> None:
    cluster = Cluster(3)
    first = cluster.leader()
    first.up.group.clock_alarm(raised=True)
    cluster.run(3_000)
    assert not first.up.leads
    assert first.up.group.election.campaign_clause() is CampaignClause.CLOCK_ALARM
    assert cluster.leader() is not first
    for node in cluster.nodes.values():
        if node is not first:
            node.up.group.clock_alarm(raised=True)
    cluster.run(3_000)
    assert not any(node.up.leads for node in cluster.nodes.values())
    first.up.group.clock_alarm(raised=False)
    assert cluster.leader() is first


def test_a_leader_that_nobody_follows_confirms_nothing() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.run(100)
    cluster.cut_off = {leader.id}
    leader.up.read(RequestId(2), cluster.now_ms + 5_000, ReadKind.QUORUM)
    cluster.turn(leader)
    cluster.run(6_000)
    assert [type(each) for each in leader.reads] == [ReadDenied]


@pytest.mark.parametrize("seed", range(12))
def test_what_was_acknowledged_is_there_after_all_lose_power(seed: int) -> None:
    cluster = Cluster(3, seed=seed)
    leader = cluster.leader()
    for number in range(20):
        cluster.propose(leader, (number, put(f"k{number}", "v" * number)))
        for _ in range(cluster.rng.randint(0, 6)):
            if cluster.mail:
                cluster.deliver()
            busy = [node for node in cluster.nodes.values() if node.works]
            if busy:
                cluster.work(cluster.rng.choice(busy))
    promised = [r for o in leader.outcomes if isinstance(o, Applied) for r in o.request_ids]
    cluster.mail.clear()
    for node in cluster.nodes.values():
        cluster.crash(node)
        cluster.open(node)
    cluster.settle()
    cluster.leader()
    cluster.run(300)
    for number in promised:
        assert value(cluster, 1, f"k{number}") == b"v" * number
    assert len({node.up.machine.digest() for node in cluster.nodes.values()}) == 1


def test_a_lost_disk_is_never_taken_for_a_new_one() -> None:
    cluster = Cluster(3)
    cluster.leader()
    node = cluster.nodes[ReplicaId(2)]
    node.disk = SimDisk()
    with pytest.raises(DataLost):
        cluster.open(node)
    with pytest.raises(ReplicaExists):
        cluster.create(node)


def test_nothing_leaves_before_the_first_plan_is_durable() -> None:
    cluster = Cluster(1)
    cluster.leader()
    node = cluster.nodes[ReplicaId(1)]
    cluster.open(node)
    node.up.tick(cluster.now_ms + 10_000)
    cluster.turn(node)
    assert not node.up.ready and not cluster.mail
    cluster.settle()
    assert node.up.ready


def test_a_failed_disk_stops_the_replica_and_the_others_go_on() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.propose(leader, (1, put("a", "x")))
    work = leader.works[0]
    leader.up.disk_failed(work.token, OSError("no more"))
    leader.works.clear()
    cluster.turn(leader)
    assert leader.outcomes == [Unknown([RequestId(1)])]
    assert leader.outputs[-1].failed is not None
    cluster.propose(leader, (2, put("a", "y")))
    assert isinstance(leader.outcomes[-1], NotLeader)
    cluster.run(1_000)
    assert not leader.up.leads
    others = [node for node in cluster.nodes.values() if node is not leader]
    assert any(node.up.leads for node in others)


def test_messages_can_leave_before_the_leaders_own_plan_is_made() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.settle()
    leader.up.propose(RequestId(1), put("a", "x"))
    output = leader.up.take(plan_later=True)
    assert output.disk == []
    sent = [message for _, message in output.messages if isinstance(message, AppendEntries)]
    assert [len(message.entries) for message in sent] == [1, 1]
    (work,) = leader.up.take_disk()
    assert [type(step) for step in work.plan] == [WriteFile, Sync, WriteFile, Sync]
    assert leader.up.take_disk() == []
    leader.works.append(work)
    cluster.mail += ((leader.id, to, message) for to, message in output.messages)
    cluster.settle()
    assert isinstance(leader.outcomes[0], Applied)


def test_a_plan_that_was_left_is_taken_before_the_next_output() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.settle()
    leader.up.propose(RequestId(1), put("a", "x"))
    leader.up.take(plan_later=True)
    with pytest.raises(AssertionError, match="take_disk"):
        leader.up.take()


def test_a_follower_acknowledges_before_it_applies() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    for number in range(2):
        cluster.propose(leader, (number, put("a", str(number))))
        if number == 0:
            cluster.settle()
    messages = [message for _, to, message in cluster.mail if to == follower.id]
    follower.up.receive(cast("AppendEntries", messages[-1]))
    (work,) = follower.up.take().disk
    follower.disk.execute(work.plan)
    follower.up.disk_done(work.token, 1.0)
    kinds = [type(message) for _, message in follower.up.take().messages]
    assert kinds == [DurabilityAck]
    assert value(cluster, follower.id, "a") is None, "the first put, committed by the second"
    assert follower.up.catch_up()
    assert value(cluster, follower.id, "a") == b"0"
    assert not follower.up.catch_up()


def test_a_tick_applies_what_nobody_asked_for() -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    cluster.propose(leader, (1, put("a", "x")))
    cluster.settle()
    cluster.propose(leader, (2, put("b", "y")))
    messages = [message for _, to, message in cluster.mail if to == follower.id]
    follower.up.receive(cast("AppendEntries", messages[-1]))
    follower.up.take()
    assert value(cluster, follower.id, "a") is None
    follower.up.tick(cluster.now_ms)
    assert value(cluster, follower.id, "a") == b"x"
