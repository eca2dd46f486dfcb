"""The leader's desk: what is answered when, what confirms what, and in whose name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.control import (
    AccessRole,
    Binding,
    Caller,
    ControlMachine,
    Done,
    GrantDek,
    InitializeCluster,
    KeyPurpose,
    Members,
    PlacePartition,
    ProofBatch,
    PublishedProof,
    RefusalCode,
    RegisterKey,
    RegisterNode,
    ReportNode,
    WriterMode,
    decode_answer,
    encode_call,
    find,
)
from clustor.control import Refused as CallRefused
from clustor.control.calls import decode_call
from clustor.control.command_gates import CommandGate
from clustor.control.objects import canonical
from clustor.kv import StoreId
from clustor.log.types import (
    DurabilityModeEpoch,
    IoWriterMode,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.raft.reads import ReadKind, ReadRefusal
from clustor.raft.types import DurabilityTuple
from clustor.replica import (
    Applied,
    NotLeader,
    Outcome,
    ReadDenied,
    ReadOutcome,
    ReadReady,
    ReplicaOutput,
    RequestId,
    RequestsRefused,
    Unknown,
)
from clustor.runtime.control.leader_requests import FIRST_REQUEST, Desk
from clustor.runtime.control.records import key_id_of
from clustor.runtime.control.wire import (
    Answered,
    AnswerStatus,
    Confirmed,
    Message,
    NewestAsked,
    Passed,
    Reply,
    Wished,
    decode_message,
    encode_message,
    wished,
)
from clustor.runtime.pki.identity import ClusterId, NodeId, spiffe_uri

CLUSTER = ClusterId("test")
KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
OPERATOR = Caller(identity="spiffe://test/operator")
TUPLE = DurabilityTuple(
    Term(3), LogIndex(9), SegmentSeq(1), IoWriterMode.FIXED_URING, DurabilityModeEpoch(0)
)


@dataclass
class FakeReplica:
    machine: ControlMachine
    leads: bool = True
    waiting: list[tuple[RequestId, bytes]] = field(default_factory=list)

    asked: list[RequestId] = field(default_factory=list)

    def propose(self, request_id: RequestId, command: bytes) -> None:
        self.waiting.append((request_id, command))

    def read(self, request_id: RequestId, deadline_ms: int, kind: ReadKind) -> None:
        assert deadline_ms > 0 and kind is ReadKind.QUORUM
        self.asked.append(request_id)


@dataclass
class FakeAdmission:
    open: bool = True

    def admit(self, _size: int) -> bool:
        return self.open


@dataclass
class FakeGroup:
    replica: FakeReplica
    admission: FakeAdmission = field(default_factory=FakeAdmission)
    paused: bool = False


class FakeCluster:
    id = CLUSTER


class FakeNode:
    """A node's clock and its hands, as far as the desk uses them."""

    cluster = FakeCluster()
    stopping = False

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def touch(self, _group: object) -> None:
        """The turn is the test's."""


class Lab:
    """A desk whose log commits when the test says so."""

    def __init__(self) -> None:
        self.node = FakeNode()
        self.machine = ControlMachine(StoreId(b"0123456789abcdef"))
        self.group = FakeGroup(FakeReplica(self.machine))
        self.answers: list[tuple[NodeId, Reply]] = []
        self.index = 0
        self.desk = Desk(
            cast("Any", self.node),
            cast("Any", self.group),
            lambda peer, reply: self.answers.append((peer, reply)),
            key_id_of(1),
            KEY,
        )

    def found(self) -> None:
        """Initialize the cluster, with node 2 and a partition on it."""
        keys = RegisterKey(
            purpose=KeyPurpose.CONTROL_PLANE_PROOF,
            key_id=key_id_of(1),
            public_key=KEY.public_key().public_bytes_raw(),
        )
        for number, command in enumerate(
            (
                InitializeCluster(
                    cluster_id="test",
                    development=True,
                    bindings=(Binding(identity=OPERATOR.identity, role=AccessRole.OPERATOR),),
                    keys=(keys,),
                ),
                _node(2),
                PlacePartition(
                    partition_id=7, members=Members(voters=(2,)), load=1, expected_routing_epoch=0
                ),
            )
        ):
            self.index += 1
            call = encode_call(OPERATOR, f"f{number}", 1, command)
            (reply,) = self.machine.apply_batch(self.index, [call])
            assert isinstance(decode_answer(reply), Done)

    def take(self, question: Passed | Wished | NewestAsked, peer: int = 2) -> None:
        self.desk.take(NodeId(peer), question)

    def commit(self) -> None:
        """Apply what waits, as one entry, and let the desk hear of it."""
        self.desk.prepare()
        waiting, self.group.replica.waiting = self.group.replica.waiting, []
        self.index += 1
        replies = self.machine.apply_batch(self.index, [command for _, command in waiting])
        ids = [request_id for request_id, _ in waiting]
        self.hear(Applied(LogIndex(self.index), ids, replies))

    def confirm(self) -> None:
        """Let a quorum answer what was asked, and the desk hear of it."""
        self.desk.prepare()
        asked, self.group.replica.asked = self.group.replica.asked, []
        ready: list[ReadOutcome] = [ReadReady(each, LogIndex(self.index)) for each in asked]
        self.desk.on_output(ReplicaOutput(reads=ready))

    def hear(self, outcome: Outcome) -> None:
        self.desk.on_output(ReplicaOutput(replies=[outcome]))


def _node(number: int) -> RegisterNode:
    return RegisterNode(
        node_id=number,
        identity=spiffe_uri(CLUSTER, NodeId(number)),
        zone="z",
        address="a",
        capacity=10,
    )


def passed(number: int, request_id: str) -> Passed:
    return Passed(number, OPERATOR, request_id, canonical(_node(3)))


def test_a_call_is_answered_when_it_is_applied_and_not_before() -> None:
    lab = Lab()
    lab.found()
    lab.take(passed(5, "r1"))
    lab.desk.prepare()
    assert lab.answers == []
    lab.commit()
    ((peer, reply),) = lab.answers
    assert isinstance(reply, Answered)
    assert (peer, reply.number, reply.standing) == (2, 5, AnswerStatus.ANSWERED)
    assert isinstance(decode_answer(reply.body), Done)


def test_who_repeats_a_call_gets_the_same_bytes() -> None:
    lab = Lab()
    lab.found()
    for number in (1, 2):
        lab.take(passed(number, "r1"))
        lab.commit()
        lab.node.ms += 1_000
    first, second = (reply for _, reply in lab.answers)
    assert isinstance(first, Answered)
    assert isinstance(second, Answered)
    assert first.body == second.body


STANDINGS = {
    "lost leadership": (Unknown([RequestId(FIRST_REQUEST)]), AnswerStatus.UNSETTLED),
    "never led": (NotLeader([RequestId(FIRST_REQUEST)], None), AnswerStatus.NOT_LEADER),
    "refused": (
        RequestsRefused([RequestId(FIRST_REQUEST)], "MembershipUnacknowledged"),
        AnswerStatus.BUSY,
    ),
}


@pytest.mark.parametrize(("outcome", "standing"), STANDINGS.values(), ids=STANDINGS.keys())
def test_what_did_not_come_to_an_answer_says_so(outcome: Outcome, standing: AnswerStatus) -> None:
    lab = Lab()
    lab.take(passed(5, "r1"))
    lab.hear(outcome)
    assert lab.answers == [(2, Answered(5, standing))]


def test_who_does_not_lead_says_so_and_who_hangs_says_nothing() -> None:
    lab = Lab()
    lab.group.replica.leads = False
    lab.take(NewestAsked(1, 10_000))
    assert lab.answers == [(2, Answered(1, AnswerStatus.NOT_LEADER))]
    lab.group.paused = True
    lab.take(NewestAsked(2, 10_000))
    assert len(lab.answers) == 1


def test_a_full_group_takes_no_calls() -> None:
    lab = Lab()
    lab.group.admission.open = False
    lab.take(passed(5, "r1"))
    assert lab.answers == [(2, Answered(5, AnswerStatus.BUSY))]
    assert lab.group.replica.waiting == []


# Confirmations.


def test_a_round_confirms_only_those_that_asked_before_it_began_and_writes_nothing() -> None:
    lab = Lab()
    lab.found()
    lab.take(NewestAsked(1, 0), peer=1)
    lab.take(NewestAsked(2, 0), peer=2)
    lab.desk.prepare()
    (request_id,) = lab.group.replica.asked  # one round for both
    lab.group.replica.asked.clear()
    lab.take(NewestAsked(3, 0), peer=3)  # too late for it
    lab.desk.on_output(ReplicaOutput(reads=[ReadReady(request_id, LogIndex(1))]))
    assert lab.group.replica.waiting == []
    revision = lab.machine.kv.revision
    assert lab.answers == [(1, Confirmed(1, revision, 0)), (2, Confirmed(2, revision, 0))]
    lab.confirm()
    assert lab.answers[2:] == [(3, Confirmed(3, revision, 0))]


def test_a_young_confirmation_serves_those_that_say_so_with_its_age() -> None:
    lab = Lab()
    lab.found()
    lab.take(NewestAsked(1, 2_500))
    lab.desk.prepare()
    lab.node.ms += 40  # the round takes its time: it confirms the moment it began
    lab.confirm()
    lab.node.ms += 1_000
    lab.take(NewestAsked(2, 2_500))
    assert lab.answers[-1] == (2, Confirmed(2, lab.machine.kv.revision, 1_040))
    lab.take(NewestAsked(3, 500))
    lab.take(NewestAsked(4, 0))
    assert len(lab.answers) == 2  # a round of their own must say it
    lab.confirm()
    assert [reply.number for _, reply in lab.answers[2:]] == [3, 4]


def test_a_question_that_lost_its_leader_is_not_confirmed() -> None:
    lab = Lab()
    lab.take(NewestAsked(1, 0))
    lab.desk.prepare()
    denied = ReadDenied(RequestId(FIRST_REQUEST), ReadRefusal.NOT_LEADER)
    lab.desk.on_output(ReplicaOutput(reads=[denied]))
    assert lab.answers == [(2, Answered(1, AnswerStatus.NOT_LEADER))]
    lab.node.ms += 1
    lab.take(NewestAsked(2, 60_000))
    assert len(lab.answers) == 1  # nothing was confirmed yet


def test_who_leads_knows_whom_it_heard_and_who_does_not_begins_anew() -> None:
    lab = Lab()
    assert lab.desk.heard() == ({}, 1_000, 1_000)
    lab.node.ms = 2_000
    lab.take(NewestAsked(1, 0), peer=3)
    lab.node.ms = 3_000
    assert lab.desk.heard() == ({3: 2_000}, 1_000, 3_000)
    lab.group.replica.leads = False
    assert lab.desk.heard() == ({}, 3_000, 3_000)


# Proofs.


def test_proofs_are_published_in_the_name_of_the_node_that_sent_them() -> None:
    lab = Lab()
    lab.found()
    lab.take(wished(1, ProofBatch("b1", 99, ((PartitionId(7), TUPLE),))), peer=2)
    _, command = lab.group.replica.waiting[0]
    assert decode_call(command).caller == Caller(identity=spiffe_uri(CLUSTER, NodeId(2)))
    lab.commit()
    published = find(lab.machine.kv, PublishedProof, 7)
    assert published is not None
    assert (published.published_by, published.proof.proven()) == (2, TUPLE)


def test_proofs_of_a_stranger_are_refused_by_the_log() -> None:
    lab = Lab()
    lab.found()
    lab.take(wished(1, ProofBatch("b1", 2, ((PartitionId(7), TUPLE),))), peer=3)
    lab.commit()
    assert find(lab.machine.kv, PublishedProof, 7) is None


MESSAGES: list[Message] = [
    passed(1, "r"),
    wished(2, ProofBatch("b", 2, ((PartitionId(7), TUPLE),))),
    NewestAsked(3, 4),
    Answered(5, AnswerStatus.BUSY),
    Confirmed(6, 7, 8),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_messages_and_bytes_agree(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


GARBAGE = {
    "nothing": b"",
    "no message": b"\x93\x09\x01\x02",
    "a writer mode that is none": encode_message(Wished(1, "b", [(7, 1, 1, 1, 99, 0)])),
    "a caller without a name": encode_message(
        Passed(1, Caller(identity=""), "r", canonical(_node(3)))
    ),
}


@pytest.mark.parametrize("encoded", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_peer_cannot_make_it_raise_anything_else(encoded: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_message(encoded)


@pytest.mark.parametrize("command", [b"", b"{", b'{"kind":"RegisterKey"}', b"[" * 100, b"\xff"])
def test_a_command_that_is_none_is_answered_as_such(command: bytes) -> None:
    lab = Lab()
    lab.found()
    lab.take(Passed(5, OPERATOR, "r1", command))
    lab.commit()
    ((_, reply),) = lab.answers
    assert isinstance(reply, Answered)
    answer = decode_answer(reply.body)
    assert isinstance(answer, CallRefused)
    assert answer.code is RefusalCode.MALFORMED


# Calls that not every build knows.


def test_a_call_that_some_member_cannot_apply_never_enters_the_log() -> None:
    lab = Lab()
    lab.found()
    grant = GrantDek(epoch=7, wrapped="w" * 60, kek_fingerprint="0123456789abcdef")
    lab.take(Passed(5, OPERATOR, "r1", canonical(grant)))
    lab.take(Passed(6, OPERATOR, "r2", b'{"kind":"FromTheFuture"}'))
    lab.desk.prepare()
    assert lab.group.replica.waiting == []
    bodies = [reply.body for _, reply in lab.answers if isinstance(reply, Answered)]
    refused = [decode_answer(body) for body in bodies]
    assert [each.code for each in refused if isinstance(each, CallRefused)] == [
        RefusalCode.NOT_SUPPORTED,
        RefusalCode.NOT_SUPPORTED,
    ]
    assert lab.desk.counts.refused_early == 2
    word = ReportNode(
        node_id=2,
        version="1",
        io_writer_mode=WriterMode.BLOCKING,
        features=tuple(each.value for each in CommandGate),
    )
    caller = Caller(identity=spiffe_uri(CLUSTER, NodeId(2)))
    lab.take(Passed(7, caller, "r3", canonical(word)))
    lab.commit()
    lab.take(Passed(8, OPERATOR, "r4", canonical(grant)))
    lab.desk.prepare()
    assert len(lab.group.replica.waiting) == 1
