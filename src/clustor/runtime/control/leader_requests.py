"""The control plane's leader at work: calls become entries, and entries become answers.

A read is confirmed by a quorum that still follows: whoever asked before that round knows, when it
is answered and the machine has applied what was committed then, that nothing older than the
question is missing. No entry is written for it. Questions of one turn share a round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.control import Caller, ControlMachine, encode_call, signed_command
from clustor.control.calls import encode_passed_call
from clustor.control.command_gates import refuse_early
from clustor.control.objects import canonical
from clustor.raft.reads import ReadKind
from clustor.replica import (
    Applied,
    NotLeader,
    Outcome,
    ReadOutcome,
    ReadReady,
    ReplicaOutput,
    RequestId,
    Unknown,
)
from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.control.wire import (
    Answered,
    AnswerStatus,
    Confirmed,
    NewestAsked,
    Passed,
    Question,
    Reply,
    Wished,
    batch_of,
)
from clustor.runtime.group import HostedGroup
from clustor.runtime.pki.identity import NodeId, spiffe_uri
from clustor.runtime.pki.trust_roots import refuse_trust
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node

FIRST_REQUEST: Final = 1 << 62  # below are the requests of the group's key-value clients
_CONFIRM_MS_MAX: Final = 2_000  # who asked asks again then

Answer = Callable[[NodeId, Reply], None]


@dataclass(slots=True)
class _Proposed:
    """Who waits for an entry or for a quorum's word, and since when."""

    askers: list[tuple[NodeId, int]]
    at_ms: int


@dataclass(slots=True)
class DeskCounts:
    """What this node did as the leader."""

    calls: int = 0
    publications: int = 0
    confirmations: int = 0
    refused_busy: int = 0
    refused_early: int = 0


@dataclass(slots=True)
class Desk:
    """The questions of all nodes, where the group is led. Others answer that they do not lead."""

    node: Node
    group: HostedGroup
    answer: Answer
    key_id: str
    proof_key: Ed25519PrivateKey
    counts: DeskCounts = field(default_factory=DeskCounts)
    _proposed: dict[RequestId, _Proposed] = field(default_factory=dict)
    _asked: dict[RequestId, _Proposed] = field(default_factory=dict)
    _next_request: int = FIRST_REQUEST
    _confirming: list[tuple[NodeId, int]] = field(default_factory=list)
    _heard_ms: dict[int, int] = field(default_factory=dict)
    _listens_since_ms: int | None = None  # this node leads, and hears everybody, since then
    _confirmed_ms: int | None = None  # what is applied here was the newest then, or later

    def take(self, asker: NodeId, question: Question) -> None:
        """Take a question of a node that the transport has proven, or of this one."""
        if self.group.paused:
            return  # as if this process hung
        if not self.group.replica.leads or self.node.stopping:
            self.answer(asker, Answered(question.number, AnswerStatus.NOT_LEADER))
            return
        self._heard_ms[int(asker)] = self.node.now_ms()
        match question:
            case NewestAsked():
                self._on_asked(asker, question)
            case Passed():
                if self._refused_early(asker, question):
                    return
                self.counts.calls += 1
                stamped = encode_passed_call(
                    question.caller, question.request_id, wall_clock_ms(), question.command
                )
                self._propose(asker, question.number, stamped)
            case Wished():
                self._on_wished(asker, question)

    def _refused_early(self, asker: NodeId, question: Passed) -> bool:
        """Answer a call that must never enter the log: some replica could not apply it, or what it
        sets could be used by nobody."""
        machine = self.group.replica.machine
        assert isinstance(machine, ControlMachine)
        refused = refuse_early(machine.kv, question.command, CONTROL_PARTITION)
        refused = refused or refuse_trust(question.command)
        if refused is None:
            return False
        self.counts.refused_early += 1
        self.answer(asker, Answered(question.number, AnswerStatus.ANSWERED, canonical(refused)))
        return True

    def _on_wished(self, asker: NodeId, question: Wished) -> None:
        """Stamp and sign a node's proofs: they are published as that node's own call."""
        self.counts.publications += 1
        now_ms = wall_clock_ms()
        batch = batch_of(question, asker)
        command = signed_command(batch, self.proof_key, self.key_id, now_ms)
        caller = Caller(identity=spiffe_uri(self.node.cluster.id, asker))
        call = encode_call(caller, batch.request_id, now_ms, command)
        self._propose(asker, question.number, call)

    def _propose(self, asker: NodeId, number: int, command: bytes) -> None:
        if not self.group.admission.admit(len(command)):
            self.counts.refused_busy += 1
            self.answer(asker, Answered(number, AnswerStatus.BUSY))
            return
        self._enter(command, _Proposed([(asker, number)], self.node.now_ms()))

    def _enter(self, command: bytes, proposed: _Proposed) -> None:
        request_id = self._request_id()
        self._proposed[request_id] = proposed
        self.group.replica.propose(request_id, command)
        self.node.touch(self.group)

    def _request_id(self) -> RequestId:
        given, self._next_request = self._next_request, self._next_request + 1
        return RequestId(given)

    def heard(self) -> tuple[dict[int, int], int, int]:
        """Return when each node was last heard, since when this one listens as the leader, and now.

        Who does not lead hears nobody: it listens from now on.
        """
        now_ms = self.node.now_ms()
        if not self.group.replica.leads:
            self._heard_ms.clear()
            self._listens_since_ms = None
        elif self._listens_since_ms is None:
            self._listens_since_ms = now_ms
        since_ms = now_ms if self._listens_since_ms is None else self._listens_since_ms
        return self._heard_ms, since_ms, now_ms

    # Confirming.

    def _on_asked(self, asker: NodeId, question: NewestAsked) -> None:
        known_ms = self._confirmed_ms
        age_ms = None if known_ms is None else self.node.now_ms() - known_ms
        if age_ms is not None and age_ms <= question.age_ms_max:
            self.answer(asker, Confirmed(question.number, self._revision(), age_ms))
            return
        self._confirming.append((asker, question.number))
        self.node.touch(self.group)

    @property
    def is_asked(self) -> bool:
        """Whether somebody waits for a round of the quorum."""
        return bool(self._confirming)

    def prepare(self) -> None:
        """Let everybody who asked in this turn wait for one round of the quorum."""
        if not self._confirming:
            return
        askers, self._confirming = self._confirming, []
        self.counts.confirmations += 1
        now_ms = self.node.now_ms()
        request_id = self._request_id()
        self._asked[request_id] = _Proposed(askers, now_ms)
        self.group.replica.read(request_id, now_ms + _CONFIRM_MS_MAX, ReadKind.QUORUM)
        self.node.touch(self.group)

    def _revision(self) -> int:
        machine = self.group.replica.machine
        assert isinstance(machine, ControlMachine)
        return machine.kv.revision

    # Outcomes.

    def on_output(self, output: ReplicaOutput) -> None:
        """Answer those whose entries are over, and those whom a quorum answered."""
        for read in output.reads:
            self._confirm(read)
        for outcome in output.replies:
            for number, request_id in enumerate(outcome.request_ids):
                proposed = self._proposed.pop(request_id, None)
                if proposed is not None:
                    self._conclude(proposed, outcome, number)

    def _confirm(self, read: ReadOutcome) -> None:
        asked = self._asked.pop(read.request_id, None)
        if asked is None:
            return
        if isinstance(read, ReadReady):
            self._confirmed_ms = max(self._confirmed_ms or 0, asked.at_ms)
        for asker, number in asked.askers:
            if isinstance(read, ReadReady):
                self.answer(asker, Confirmed(number, self._revision(), 0))
            else:
                self.answer(asker, Answered(number, AnswerStatus.NOT_LEADER))

    def _conclude(self, proposed: _Proposed, outcome: Outcome, nth: int) -> None:
        applied = isinstance(outcome, Applied)
        if applied:
            self._confirmed_ms = max(self._confirmed_ms or 0, proposed.at_ms)
        for asker, number in proposed.askers:
            if not isinstance(outcome, Applied):
                self.answer(asker, Answered(number, _standing(outcome)))
            else:
                self.answer(asker, Answered(number, AnswerStatus.ANSWERED, outcome.replies[nth]))


def _standing(outcome: Outcome) -> AnswerStatus:
    if isinstance(outcome, NotLeader):
        return AnswerStatus.NOT_LEADER
    return AnswerStatus.UNSETTLED if isinstance(outcome, Unknown) else AnswerStatus.BUSY
