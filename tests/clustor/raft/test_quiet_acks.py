"""What a follower says to heartbeats that bring nothing: who waits for an attestation gets it."""

from __future__ import annotations

from clustor.log.types import DurabilityModeEpoch, Entry, LogId, LogIndex, PartitionId, Term
from clustor.raft.following import ACK_REPEAT_MS
from clustor.raft.group import Group
from clustor.raft.membership import Membership
from clustor.raft.messages import AppendEntries, AppendResponse, DurabilityAck, Message
from clustor.raft.profiles import THROUGHPUT
from clustor.raft.types import LeaseEpoch, ReadSeq, ReplicaId, ReplicaIdentity
from tests.clustor.raft.test_group import settle

LEADER = ReplicaId(2)
IDENTITY = ReplicaIdentity(ReplicaId(1), PartitionId(1), LogId(b"x" * 16), holds_data=False)


def append(prev: int, entries: list[Entry], wal_committed: int) -> AppendEntries:
    nothing = LogIndex(0)
    return AppendEntries(
        Term(1),
        LEADER,
        Term(1 if prev else 0),
        LogIndex(prev),
        entries,
        LogIndex(wal_committed),
        LogIndex(wal_committed),
        DurabilityModeEpoch(0),
        ReadSeq(0),
        sent_ms=0,
        rtt_ms=0,
        lease_epoch=LeaseEpoch(0),
        quorum_applied_index=nothing,
        quorum_sm_durable_index=nothing,
    )


def said(group: Group, message: AppendEntries) -> list[type[Message]]:
    group.receive(message)
    return [type(each) for output in settle(group) for _, each in output.messages]


def follower() -> Group:
    """A follower that has attested its one entry."""
    voters = Membership(voters=frozenset(map(ReplicaId, (1, 2, 3))))
    group = Group.start(IDENTITY, THROUGHPUT, lambda low, _: low, now_ms=0, bootstrap=voters)
    settle(group)
    entry = Entry(Term(1), LogIndex(1), b"a")
    assert said(group, append(0, [entry], 0)) == [DurabilityAck]
    return group


def test_a_leader_that_has_its_quorum_is_told_once() -> None:
    group = follower()
    for now_ms in (50, 100, 150):
        group.tick(now_ms)
        assert said(group, append(1, [], 1)) == [AppendResponse]


def test_a_leader_whose_quorum_is_behind_hears_it_with_every_heartbeat() -> None:
    """The attestation may be lost, and the leader waits for nothing else."""
    group = follower()
    for now_ms in (50, 100, 150):
        group.tick(now_ms)
        assert said(group, append(1, [], 0)) == [AppendResponse, DurabilityAck]


def test_a_lost_attestation_is_made_good_though_nobody_waits_for_it() -> None:
    group = follower()
    for now_ms in range(50, ACK_REPEAT_MS, 50):
        group.tick(now_ms)
        assert said(group, append(1, [], 1)) == [AppendResponse]
    group.tick(ACK_REPEAT_MS)
    assert said(group, append(1, [], 1)) == [AppendResponse, DurabilityAck]
    assert said(group, append(1, [], 1)) == [AppendResponse]


def test_a_follower_that_repairs_says_so_with_every_heartbeat() -> None:
    group = follower()
    group.receive(append(1, [Entry(Term(1), LogIndex(2), b"b")], 2))
    settle(group)
    assert said(group, append(2, [], 2)) == [AppendResponse]
    group.log_damaged(LogIndex(2), LogIndex(2))
    settle(group)
    for _ in range(3):
        assert DurabilityAck in said(group, append(2, [], 2))
