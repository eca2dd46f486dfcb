"""The group as its driver meets it: batches, keys, misuse, and who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    IoWriterMode,
    LogId,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.raft.control_plane import ControlPlaneUpdate, VerifiedProof
from clustor.raft.errors import DataLost, GroupMisuse
from clustor.raft.fallback import BlockingReason, GatedOperation
from clustor.raft.group import Group
from clustor.raft.hard_state import HardState, MembershipAck
from clustor.raft.idempotency import IdempotencyTable, KeyOf, frame_with_key, key_of_frame
from clustor.raft.leadership import ProposalAccepted, ProposalRefusal, ProposalRefused
from clustor.raft.membership import Membership, membership_digest
from clustor.raft.memory_log import MemoryLog
from clustor.raft.messages import (
    AppendEntries,
    DurabilityAck,
    InstallSnapshot,
    PreVoteResponse,
    VoteResponse,
)
from clustor.raft.output import NoteKind, Output, SnapshotReason
from clustor.raft.profiles import CONSISTENCY_PROFILE, THROUGHPUT, Profile, ReplicationNumbers
from clustor.raft.reads import (
    FailedClause,
    ReadGranted,
    ReadKind,
    ReadRefusal,
    ReadRefused,
    ReadRequest,
)
from clustor.raft.transition import Transition
from clustor.raft.types import (
    CommitVisibility,
    HardStateSeq,
    HardStateStored,
    LogStored,
    ReadId,
    ReplicaId,
    ReplicaIdentity,
    RoutingEpoch,
    WriteSeq,
)

IDENTITY = ReplicaIdentity(ReplicaId(1), PartitionId(1), LogId(b"x" * 16), holds_data=False)


def settle(group: Group) -> list[Output]:
    """Let the disk do everything at once, until nothing comes out any more."""
    outputs = []
    while True:
        output = group.take()
        outputs.append(output)
        if output.hard_state is not None:
            group.stored(HardStateStored(output.hard_state.seq))
        for batch in output.appends:
            group.stored(_receipt(group, batch.write_seq, batch.entries))
        if output.apply:
            group.applied(output.apply[-1].index)
        if output.hard_state is None and not output.appends and not output.apply:
            return outputs


def _receipt(group: Group, seq: WriteSeq, entries: list[Entry]) -> LogStored:
    last = entries[-1]
    return LogStored(seq, last.term, last.index, SegmentSeq(1), IoWriterMode.FIXED_URING)


def leader(
    *,
    key_of: KeyOf | None = None,
    profile: Profile = THROUGHPUT,
    log: MemoryLog | None = None,
) -> Group:
    """A group of one voter, which leads: what it acks is what its own disk holds."""
    alone = Membership(voters=frozenset((ReplicaId(1),)))
    ack = MembershipAck(RoutingEpoch(0), membership_digest(alone), DurabilityModeEpoch(0))
    term = log.last_term if log is not None else Term(0)
    group = Group.start(
        IDENTITY,
        profile,
        lambda low, high: low,
        now_ms=0,
        hard_state=HardState(term=term, membership=alone, membership_ack=ack),
        key_of=key_of,
        log=log,
    )
    group.tick(200)
    settle(group)
    assert group.core.leads
    return group


def acked(outputs: list[Output]) -> int:
    return max((output.acked.through for output in outputs if output.acked), default=0)


def test_one_batch_carries_all_that_waited() -> None:
    group = leader()
    first = group.propose([b"a", b"b"])
    second = group.propose([b"c"])
    assert isinstance(first, ProposalAccepted) and isinstance(second, ProposalAccepted)
    assert (first.first_index, first.last_index, second.last_index) == (2, 3, 4)
    output = group.take()
    assert [[e.payload for e in batch.entries] for batch in output.appends] == [[b"a", b"b", b"c"]]
    assert output.acked is None


def test_a_repeated_key_gets_the_index_of_its_first_time() -> None:
    group = leader(key_of=key_of_frame)
    one, two = frame_with_key(b"k1", b"x"), frame_with_key(b"k2", b"y")
    group.propose([one])
    again = group.propose([one, two, two])
    assert isinstance(again, ProposalAccepted)
    assert again.repeated == {0: 2, 2: 3}, "also while it is under way, and within a batch"
    assert (again.first_index, again.last_index) == (3, 3)
    assert acked(settle(group)) == 3
    late = group.propose([one])
    assert isinstance(late, ProposalAccepted)
    assert late.repeated == {0: 2} and late.last_index < late.first_index
    keyless = group.propose([frame_with_key(b"", b"z")] * 2)
    assert keyless == ProposalAccepted(Term(1), LogIndex(4), LogIndex(5))


def test_a_new_leader_knows_the_keys_in_its_log() -> None:
    log = MemoryLog()
    log.append([Entry(Term(1), LogIndex(1), frame_with_key(b"k1", b"x"))])
    group = leader(key_of=key_of_frame, log=log)
    repeated = group.propose([frame_with_key(b"k1", b"x")])
    assert isinstance(repeated, ProposalAccepted) and repeated.repeated == {0: 1}


def test_the_table_of_keys_is_bounded_and_survives_a_snapshot() -> None:
    table = IdempotencyTable(key_of_frame, keys_max=2)
    entries = [Entry(Term(1), LogIndex(n), frame_with_key(b"k%d" % n, b"")) for n in (1, 2, 3, 4)]
    table.applied(entries[:3])
    assert [table.lookup(e.payload)[1] for e in entries] == [None, 2, 3, None]
    twin = IdempotencyTable(key_of_frame, keys_max=2)
    twin.restore(table.encode(LogIndex(2)))
    twin.applied(entries[2:])
    table.applied(entries[3:])
    assert [twin.lookup(e.payload)[1] for e in entries] == [None, None, 3, 4]
    assert [table.lookup(e.payload)[1] for e in entries] == [None, None, 3, 4]
    with pytest.raises(ValueError, match="255"):
        frame_with_key(b"k" * 256, b"")


def test_a_follower_refuses_proposals_and_says_who_leads() -> None:
    group = Group.start(
        IDENTITY, THROUGHPUT, lambda low, high: low, now_ms=0, bootstrap=Membership()
    )
    refused = group.propose([b"a"])
    assert isinstance(refused, ProposalRefused) and refused.reason is ProposalRefusal.NOT_LEADER


def test_what_is_too_large_or_too_much_is_refused_before_it_is_held() -> None:
    group = leader()
    huge = group.propose([b"x" * (4 << 20)])
    assert isinstance(huge, ProposalRefused) and huge.reason is ProposalRefusal.TOO_LARGE
    small = replace(THROUGHPUT, replication=ReplicationNumbers(uncommitted_bytes_max=1_000))
    group = leader(profile=small)
    assert isinstance(group.propose([b"x" * 2_000]), ProposalAccepted)
    more = group.propose([b"y"])
    assert isinstance(more, ProposalRefused) and more.reason is ProposalRefusal.OVERLOADED
    settle(group)
    assert isinstance(group.propose([b"y"]), ProposalAccepted)


def test_the_driver_s_mistakes_are_named() -> None:
    group = leader()
    with pytest.raises(GroupMisuse):
        group.tick(0)
    with pytest.raises(GroupMisuse):
        group.stored(HardStateStored(HardStateSeq(99)))
    with pytest.raises(GroupMisuse):
        group.stored(
            LogStored(WriteSeq(99), Term(1), LogIndex(1), SegmentSeq(1), IoWriterMode.BLOCKING)
        )
    with pytest.raises(GroupMisuse):
        group.applied(LogIndex(99))
    with pytest.raises(GroupMisuse):
        group.log_damaged(LogIndex(1), LogIndex(99))


def test_a_log_that_ends_before_its_commits_is_refused() -> None:
    hard = HardState(term=Term(3), durable_commit_index=LogIndex(5))
    log = MemoryLog()
    log.append_payloads(Term(1), [b""] * 4)
    with pytest.raises(DataLost):
        Group.start(IDENTITY, THROUGHPUT, lambda low, high: low, now_ms=0, hard_state=hard, log=log)


def test_a_follower_s_large_backlog_is_one_fetch_and_no_blocking() -> None:
    """Entries below the window are asked for; other followers do not wait for them."""
    group = Group.start(
        IDENTITY,
        CONSISTENCY_PROFILE,
        lambda low, high: low,
        now_ms=0,
        bootstrap=Membership(voters=frozenset((ReplicaId(1), ReplicaId(2), ReplicaId(3)))),
        log=MemoryLog(evict_entries_min=1),
    )
    _win(group)
    group.propose([b"x"] * 10)
    settle(group)
    _attest(group, 2, 11)
    settle(group)
    group.tick(210)
    group.propose([b"y"])
    first = group.take()
    assert not first.fetches, "3 has not answered its probe yet: one message is under way"
    progress = group.core.progress[ReplicaId(3)]
    progress.become_probe(1)
    output = group.take()
    assert [(f.replica_id, f.first_index) for f in output.fetches] == [(3, 1)]
    assert not group.take().fetches, "asked once"
    entries = [Entry(Term(1), LogIndex(1), b"")]
    group.fetched(output.fetches[0], entries)
    sent = [m for to, m in group.take().messages if to == 3 and isinstance(m, AppendEntries)]
    assert sent[0].entries == entries


def _win(group: Group) -> None:
    group.tick(200)
    settle(group)
    group.receive(PreVoteResponse(Term(1), ReplicaId(2), vote_granted=True))
    settle(group)
    group.receive(VoteResponse(Term(1), ReplicaId(2), vote_granted=True))
    settle(group)
    assert group.core.leads


def _attest(group: Group, sender: int, index: int) -> None:
    group.receive(
        DurabilityAck(
            Term(1),
            PartitionId(1),
            ReplicaId(sender),
            LogIndex(index),
            SegmentSeq(1),
            IoWriterMode.FIXED_URING,
        )
    )


def _prove(group: Group) -> None:
    """Let the control plane publish what the leader offers."""
    group.control_plane(ControlPlaneUpdate())
    for output in settle(group):
        if output.publish_proof is not None:
            proof = VerifiedProof(output.publish_proof, 0)
            group.control_plane(ControlPlaneUpdate(proof=proof))


def test_pre_durable_visibility_needs_group_fsync_and_goes_with_the_latch() -> None:
    """§10.3.1."""
    group = leader()
    wanted = CommitVisibility.COMMIT_ALLOWS_PRE_DURABLE
    assert not group.set_commit_visibility(wanted), "the mode is Strict"
    group.tick(2_000)
    _prove(group)
    assert not group.fallback.asserted
    group.propose_transition(Transition(DurabilityMode.GROUP_FSYNC, DurabilityModeEpoch(1)))
    settle(group)
    assert group.set_commit_visibility(wanted)
    assert group.access.visibility is wanted
    group.tick(2_000 + 150_001)
    assert group.access.visibility is CommitVisibility.DURABLE_ONLY
    _prove(group)
    assert group.access.visibility is CommitVisibility.DURABLE_ONLY, "it is not set by itself"
    with_consistency = leader(profile=CONSISTENCY_PROFILE)
    assert not with_consistency.set_commit_visibility(wanted)


def test_a_leader_clamps_its_own_disk_when_group_fsync_overruns() -> None:
    group = leader()
    group.tick(2_000)
    _prove(group)
    group.propose_transition(Transition(DurabilityMode.GROUP_FSYNC, DurabilityModeEpoch(1)))
    settle(group)

    def mode() -> DurabilityMode:
        group.propose([b"x"])
        output = group.take()
        for batch in output.appends:
            group.stored(_receipt(group, batch.write_seq, batch.entries))
        return output.appends[0].mode

    assert mode() is DurabilityMode.GROUP_FSYNC
    group.group_fsync_batch(65_537, 1)
    assert mode() is DurabilityMode.GROUP_FSYNC
    group.group_fsync_batch(1, 6)
    assert mode() is DurabilityMode.STRICT
    group.tick(3_000)
    assert mode() is DurabilityMode.GROUP_FSYNC


def test_a_clock_alarm_ends_the_leadership_at_once() -> None:
    group = leader()
    group.clock_alarm(raised=True)
    assert not group.core.leads
    assert any(note.kind is NoteKind.CLOCK_GUARD_ALARM for note in group.take().notes)


def test_proofs_are_offered_once_a_second_while_the_mark_moves() -> None:
    """C7: at least every second while the watermark moves, and not for every batch."""
    group = leader()
    group.tick(5_000)
    _prove(group)
    offers = 0
    for step in range(100):
        group.tick(5_010 + step * 20)
        group.propose([b"x"])
        offers += sum(output.publish_proof is not None for output in settle(group))
    assert 1 <= offers <= 3


def test_equal_inputs_give_equal_outputs() -> None:
    def run() -> list[Output]:
        group = leader(key_of=key_of_frame)
        group.propose([frame_with_key(b"k", b"v")])
        return [*settle(group), group.take()]

    assert run() == run()


def test_an_observer_gets_its_share_of_the_bandwidth_and_no_more() -> None:
    """§6.1: 0.1 × snapshot.max_bytes_per_sec, and only what a quorum holds."""
    numbers = ReplicationNumbers(snapshot_bytes_per_second_max=50_000, message_bytes_max=500)
    observer = ReplicaId(9)
    config = Membership(voters=frozenset((ReplicaId(1),)), observers=frozenset((observer,)))
    group = Group.start(
        IDENTITY,
        replace(THROUGHPUT, replication=numbers),
        lambda low, high: low,
        now_ms=0,
        bootstrap=config,
    )
    group.tick(200)
    settle(group)
    group.tick(2_000)
    _prove(group)
    group.propose([b"x" * 76] * 200)  # 100 bytes each with their overhead
    settle(group)
    group.core.progress[observer].become_replicate(LogIndex(0))
    sent: list[AppendEntries] = []
    for now in range(2_010, 3_010, 10):
        group.tick(now)
        for message in _sent_to(observer, settle(group)):
            sent.append(message)
            last = message.entries[-1].index
            group.core.progress[observer].matched(last)
    sent_bytes = sum(100 * len(message.entries) for message in sent)
    assert 9_500 <= sent_bytes <= 10_500, "a second's share saved up, another one, a message"


def _sent_to(replica_id: ReplicaId, outputs: list[Output]) -> list[AppendEntries]:
    return [
        message
        for output in outputs
        for to, message in output.messages
        if to == replica_id and isinstance(message, AppendEntries) and message.entries
    ]


def test_a_read_of_a_single_voter_is_granted_in_the_same_turn() -> None:
    group = leader()
    group.tick(2_000)
    _prove(group)
    group.read(ReadRequest(ReadId(1), ReadKind.READ_INDEX, deadline_ms=3_000))
    assert group.take().reads == [ReadGranted(ReadId(1), ReadKind.READ_INDEX, LogIndex(1))]
    assert group.read_gate_clause() is FailedClause.NONE
    group.tick(200_000)
    assert group.standing_clause() is FailedClause.CONTROL_PLANE_CACHE_STALE


def test_a_proof_conflict_holds_the_latch_until_an_operator_reconciles() -> None:
    """§9.8: no newer proof mends it by itself."""
    group = leader()
    group.tick(2_000)
    _prove(group)
    proof = group.access.control.proof
    assert proof is not None
    other = replace(proof, segment_seq=SegmentSeq(9))
    group.control_plane(ControlPlaneUpdate(proof=VerifiedProof(other, 0)))
    assert group.fallback.blocking is BlockingReason.PROOF_CONFLICT
    assert group.is_gated(GatedOperation.SNAPSHOT_DELTA)
    kinds = [note.kind for note in group.take().notes]
    assert NoteKind.CONTROL_PLANE_PROOF_CONFLICT in kinds
    group.proof_conflict_reconciled()
    group.control_plane(ControlPlaneUpdate(proof=VerifiedProof(proof, 0)))
    assert not group.fallback.asserted


def test_a_follower_read_that_was_served_is_not_revoked() -> None:
    group = Group.start(
        IDENTITY, THROUGHPUT, lambda low, high: low, now_ms=0, bootstrap=Membership()
    )
    group.control_plane(ControlPlaneUpdate(follower_read_snapshot_capability=True))
    for number in (1, 2):
        group.read(ReadRequest(ReadId(number), ReadKind.SNAPSHOT_ONLY, deadline_ms=100))
    assert len(group.take().reads) == 2
    group.read_finished(ReadId(1))
    group.control_plane(ControlPlaneUpdate(follower_read_snapshot_capability=False))
    refused = ReadRefused(ReadId(2), ReadRefusal.FOLLOWER_CAPABILITY_REVOKED)
    assert group.take().reads == [refused]


def test_structural_lag_asks_for_a_snapshot_and_ends_a_ripe_leadership() -> None:
    group = leader()
    group.propose([b"x"])
    settle(group)
    group.request_snapshot()
    group.request_snapshot()
    emit = group.take().emit_snapshot
    assert emit is not None and emit.reason is SnapshotReason.STRUCTURAL_LAG
    assert group.take().emit_snapshot is None, "one at a time"
    group.step_down("structural lag")
    leads = []
    for now in (300, 940, 950, 1_690):
        group.tick(now)
        settle(group)
        leads.append(group.core.leads)
    assert leads == [True, True, False, False], "not before 750 ms, and not again for as long"


def test_compaction_follows_the_snapshot_and_the_quorum_s_state() -> None:
    """C5, §9.6: an authorised snapshot alone deletes nothing."""
    group = leader()
    group.propose([b"x"] * 5)
    settle(group)
    group.snapshot_emitted(LogIndex(4))
    assert group.take().compact_through is None, "no quorum has said that its state is durable"
    group.applied(LogIndex(6), LogIndex(6))
    group.tick(300)
    settle(group)
    group.tick(400)
    assert group.take().compact_through == 4
    assert group.core.log.base_index == 4


def test_clients_wait_until_the_control_plane_has_recorded_the_members() -> None:
    """§9.9: the acknowledgement is persisted before client traffic is served."""
    alone = Membership(voters=frozenset((ReplicaId(1),)))
    hard = HardState(term=Term(1), membership=alone, routing_epoch=RoutingEpoch(4))
    group = Group.start(IDENTITY, THROUGHPUT, lambda low, high: low, now_ms=0, hard_state=hard)
    group.tick(200)
    wanted = [o.record_membership for o in settle(group) if o.record_membership is not None]
    assert wanted == [
        MembershipAck(RoutingEpoch(4), membership_digest(alone), DurabilityModeEpoch(0))
    ]
    assert group.propose([b"x"]) == ProposalRefused(
        ProposalRefusal.MEMBERSHIP_UNACKNOWLEDGED, ReplicaId(1)
    )
    group.read(ReadRequest(ReadId(1), ReadKind.READ_INDEX, deadline_ms=9_000))
    assert group.take().reads == [ReadRefused(ReadId(1), ReadRefusal.MEMBERSHIP_UNACKNOWLEDGED)]
    group.membership_acknowledged(wanted[0])
    persisted = group.take().hard_state
    assert persisted is not None and persisted.state.membership_ack == wanted[0]
    assert isinstance(group.propose([b"x"]), ProposalAccepted)


def test_a_follower_whose_messages_were_lost_and_compacted_since_gets_a_snapshot() -> None:
    voters = frozenset((ReplicaId(1), ReplicaId(2), ReplicaId(3)))
    group = Group.start(
        IDENTITY,
        replace(CONSISTENCY_PROFILE, replication=ReplicationNumbers(inflight_messages_max=1)),
        lambda low, high: low,
        now_ms=0,
        bootstrap=Membership(voters=voters),
    )
    _win(group)
    _attest(group, 3, 1)
    for _ in range(3):  # the window of 3 is full after the first, and stays so
        group.propose([b"x"])
        settle(group)
        _attest(group, 2, group.core.log.last_index)
        settle(group)
    group.core.log.compact_through(LogIndex(4))
    group.tick(260)
    messages = [message for to, message in group.take().messages if to == 3]
    assert any(isinstance(message, InstallSnapshot) for message in messages)
