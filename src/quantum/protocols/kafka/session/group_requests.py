"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup: the classic protocol of consumer groups.

What the machine decides at once is answered at once. A join waits for the others, a sync for the
leader's assignment; both are told by events of the group, and asked for then from its state.
"""

from __future__ import annotations

from typing import Any, Final

from quantum.broker.streams import (
    ClassicGroup,
    ClassicState,
    GroupEvent,
    GroupResult,
    JoinCompleted,
    JoinedGeneration,
    JoinGroup,
    LeaveGroup,
    MemberFenced,
    MemberWaits,
    NewMemberId,
    RebalanceBegun,
    StreamRefusal,
    SyncCompleted,
    SyncedAssignment,
    SyncGroup,
    TransactionResult,
)
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

_KNOWN_ID_SINCE: Final = 4
_ID_BYTES: Final = 16
_SESSION_MS_MIN: Final = 6_000
_SESSION_MS_MAX: Final = 1_800_000
CoordinationResult = GroupResult | TransactionResult | None


def refuse_group(request: KafkaRequest, group: str, operation: Operation) -> KafkaCode:
    """Say why a group's request is not for this node or this client; `none`: it is."""
    if not request.may(operation, ResourceKind.GROUP, group):
        return KafkaCode.group_authorization_failed
    topics = request.tenant.topics
    if not topics.leader(topics.group(group)).is_here:
        return KafkaCode.not_coordinator
    return KafkaCode.none


def milliseconds_of(span: Any) -> int:
    return int(span.total_seconds() * 1000)


def classic_group(request: KafkaRequest, name: str) -> ClassicGroup | None:
    """Return a group of the classic protocol as the replica here has it."""
    topics = request.tenant.topics
    found = topics.coordinator(topics.group(name)).groups.get(name)
    members = None if found is None else found.members
    return members if isinstance(members, ClassicGroup) else None


# Joining.


def on_join_group(request: KafkaRequest) -> None:
    body = request.body
    code = refuse_group(request, body.group_id, Operation.CONSUME)
    if code is KafkaCode.none and not body.group_id:
        code = KafkaCode.invalid_group_id
    session_ms = milliseconds_of(body.session_timeout)
    if code is KafkaCode.none and not _SESSION_MS_MIN <= session_ms <= _SESSION_MS_MAX:
        code = KafkaCode.invalid_session_timeout
    if code is not KafkaCode.none:
        request.answer(_join_facts(code, member_id=body.member_id))
        return
    JoinWork(request).begin(session_ms)


class JoinWork:
    """A join on its way."""

    def __init__(self, request: KafkaRequest) -> None:
        self._request = request
        self._group: str = request.body.group_id
        self._prg = request.tenant.topics.group(self._group)
        self._member_id = ""

    def begin(self, session_ms: int) -> None:
        request, body = self._request, self._request.body
        fresh = (
            f"{request.connection.client_id or 'member'}-{request.node.entropy(_ID_BYTES).hex()}"
        )
        peer = request.peer
        command = JoinGroup(
            request.now_ms,
            self._group,
            body.member_id,
            fresh,
            session_ms,
            milliseconds_of(getattr(body, "rebalance_timeout", body.session_timeout)),
            body.protocol_type,
            tuple((each.name, each.metadata) for each in body.protocols),
            getattr(body, "group_instance_id", None),
            request.connection.client_id,
            "" if peer is None else f"/{peer.address.rpartition(':')[0]}",
            needs_known_id=request.version >= _KNOWN_ID_SINCE,
        )
        request.tenant.topics.coordinate(self._prg, command, self._done)

    def _done(self, result: CoordinationResult) -> None:
        answer = None if result is None else result.answer
        if result is None:
            self._fail(KafkaCode.not_coordinator)
        elif isinstance(answer, MemberWaits):
            self._member_id = answer.member_id
            if not self._answer_if_complete():
                self._request.tenant.wait_for_group(self._prg, self._group, self)
        elif isinstance(answer, NewMemberId):
            code = KafkaCode.member_id_required
            self._request.answer(_join_facts(code, member_id=answer.member_id))
        elif isinstance(answer, JoinedGeneration):
            self._tell(answer)
        else:
            assert isinstance(answer, StreamRefusal)
            self._fail(self._request.code(answer))

    def _answer_if_complete(self) -> bool:
        """Events may come before the answer does: ask the group itself."""
        group = classic_group(self._request, self._group)
        if group is None or self._member_id not in group.members:
            self._fail(KafkaCode.unknown_member_id)
            return True
        if group.state is ClassicState.PREPARING:
            return False
        self._tell(group.joined(self._member_id))
        return True

    def _tell(self, joined: JoinedGeneration) -> None:
        request = self._request
        request.tenant.topics.heard(self._group, joined.member_id)
        request.answer(_join_facts(KafkaCode.none, joined.member_id, joined))

    def _fail(self, code: KafkaCode) -> None:
        self._request.answer(_join_facts(code, member_id=self._member_id))

    # What its tenant tells.

    @property
    def is_over(self) -> bool:
        return self._request.is_over

    def on_event(self, event: GroupEvent) -> bool:
        if isinstance(event, MemberFenced) and event.member_id == self._member_id:
            self._fail(KafkaCode.fenced_instance_id)
            return True
        return isinstance(event, JoinCompleted) and self._answer_if_complete()

    def on_moved(self) -> None:
        self._fail(KafkaCode.not_coordinator)


def _join_facts(
    code: KafkaCode, member_id: str = "", joined: JoinedGeneration | None = None
) -> dict[str, Any]:
    none = joined is None
    return {
        "error_code": code,
        "generation_id": -1 if joined is None else joined.generation,
        "protocol_type": None if joined is None else joined.protocol_type,
        "protocol_name": "" if none or joined is None else joined.protocol,
        "leader": "" if joined is None else joined.leader_id,
        "skip_assignment": False,
        "member_id": member_id,
        "members": [
            {"member_id": key, "group_instance_id": instance, "metadata": metadata}
            for key, instance, metadata in (() if joined is None else joined.members)
        ],
    }


# Syncing.


def on_sync_group(request: KafkaRequest) -> None:
    body = request.body
    code = refuse_group(request, body.group_id, Operation.CONSUME)
    if code is not KafkaCode.none:
        request.answer(_sync_facts(code))
        return
    SyncWork(request).begin()


class SyncWork:
    """A sync on its way."""

    def __init__(self, request: KafkaRequest) -> None:
        body = request.body
        self._request = request
        self._group: str = body.group_id
        self._prg = request.tenant.topics.group(self._group)
        self._member_id: str = body.member_id
        self._generation: int = body.generation_id
        self._instance: str | None = getattr(body, "group_instance_id", None)

    def begin(self) -> None:
        request, body = self._request, self._request.body
        group = classic_group(request, self._group)
        if group is not None and not self._may_agree(group):
            request.answer(_sync_facts(KafkaCode.inconsistent_group_protocol))
            return
        assignments = tuple((each.member_id, each.assignment) for each in body.assignments)
        command = SyncGroup(
            *(request.now_ms, self._group, self._generation, self._member_id),
            assignments,
            self._instance,
        )
        request.tenant.topics.coordinate(self._prg, command, self._done)

    def _may_agree(self, group: ClassicGroup) -> bool:
        kind = getattr(self._request.body, "protocol_type", None)
        name = getattr(self._request.body, "protocol_name", None)
        return kind in {None, group.protocol_type} and (
            name in {None, group.protocol} or not group.protocol
        )

    def _done(self, result: CoordinationResult) -> None:
        answer = None if result is None else result.answer
        if result is None:
            self._fail(KafkaCode.not_coordinator)
        elif isinstance(answer, SyncedAssignment):
            self._tell(answer.assignment)
        elif isinstance(answer, MemberWaits):
            if not self._answer_if_complete():
                self._request.tenant.wait_for_group(self._prg, self._group, self)
        else:
            assert isinstance(answer, StreamRefusal)
            self._fail(self._request.code(answer))

    def _answer_if_complete(self) -> bool:
        group = classic_group(self._request, self._group)
        refusal = (
            StreamRefusal.UNKNOWN_MEMBER
            if group is None
            else group.check_heartbeat(self._member_id, self._instance, self._generation)
        )
        if group is None or refusal is not None:
            self._fail(self._request.code(refusal))
            return True
        if group.state is not ClassicState.STABLE:
            return False
        self._tell(group.members[self._member_id].assignment)
        return True

    def _tell(self, assignment: bytes) -> None:
        request = self._request
        request.tenant.topics.heard(self._group, self._member_id)
        group = classic_group(request, self._group)
        request.answer(_sync_facts(KafkaCode.none, assignment, group))

    def _fail(self, code: KafkaCode) -> None:
        self._request.answer(_sync_facts(code))

    @property
    def is_over(self) -> bool:
        return self._request.is_over

    def on_event(self, event: GroupEvent) -> bool:
        ends = isinstance(event, SyncCompleted | RebalanceBegun | JoinCompleted | MemberFenced)
        return ends and self._answer_if_complete()

    def on_moved(self) -> None:
        self._fail(KafkaCode.not_coordinator)


def _sync_facts(
    code: KafkaCode, assignment: bytes = b"", group: ClassicGroup | None = None
) -> dict[str, Any]:
    return {
        "error_code": code,
        "protocol_type": None if group is None else group.protocol_type,
        "protocol_name": None if group is None else group.protocol,
        "assignment": assignment,
    }


# Staying and leaving.


def on_heartbeat(request: KafkaRequest) -> None:
    """Judge a heartbeat from the group's state; nothing of it is logged."""
    body = request.body
    code = refuse_group(request, body.group_id, Operation.CONSUME)
    if code is KafkaCode.none:
        topics = request.tenant.topics
        groups = topics.coordinator(topics.group(body.group_id)).groups
        instance = getattr(body, "group_instance_id", None)
        facts = (body.group_id, body.member_id, instance, body.generation_id)
        refusal = groups.check_heartbeat(*facts)
        if refusal in {None, StreamRefusal.REBALANCING}:
            topics.heard(body.group_id, body.member_id)
        code = request.code(refusal)
    request.answer({"error_code": code})


def on_leave_group(request: KafkaRequest) -> None:
    body = request.body
    members = (
        ((body.member_id, None),)
        if request.version < 3
        else tuple((each.member_id, each.group_instance_id) for each in body.members)
    )
    code = refuse_group(request, body.group_id, Operation.CONSUME)
    if code is not KafkaCode.none:
        request.answer({"error_code": code, "members": []})
        return

    def done(result: CoordinationResult) -> None:
        answers = None if result is None else result.answer
        if not isinstance(answers, tuple):
            code = KafkaCode.not_coordinator
            if isinstance(answers, StreamRefusal):
                code = request.code(answers)
            request.answer({"error_code": code, "members": []})
            return
        codes = [request.code(each) for each in answers]
        rows = [
            {"member_id": key, "group_instance_id": instance, "error_code": code}
            for (key, instance), code in zip(members, codes, strict=True)
        ]
        whole = codes[0] if request.version < 3 else KafkaCode.none
        request.answer({"error_code": whole, "members": rows})

    topics = request.tenant.topics
    command = LeaveGroup(request.now_ms, body.group_id, members)
    topics.coordinate(topics.group(body.group_id), command, done)
