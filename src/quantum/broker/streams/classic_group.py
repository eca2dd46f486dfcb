"""One group of the classic protocol: members join, one of them assigns, all are synced.

A generation is a set of members with one protocol and one assignment. Whatever changes the set
begins a rebalance: all join again, or are left behind when their time is over.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

from quantum.broker.streams.group_commands import (
    CompleteJoin,
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
    SyncCompleted,
    SyncedAssignment,
    SyncGroup,
)
from quantum.broker.streams.types import StreamRefusal

_R = StreamRefusal


class ClassicState(IntEnum):
    """Kafka's names: Empty, PreparingRebalance, CompletingRebalance, Stable."""

    EMPTY = 0
    PREPARING = 1
    COMPLETING = 2
    STABLE = 3


@dataclass(slots=True)
class ClassicMember:
    """One member. `joined` holds while it has joined the rebalance that runs.

    `joins` counts how often it came: who wants to expire it says what it had seen.
    """

    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    joined: bool = True
    joins: int = 1
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class ClassicGroup:
    """The state of one group. Invariant: a STABLE or COMPLETING group has a leader and a protocol.

    `pending` are ids that were given out and not used yet (KIP-394), each with its session.
    """

    name: str
    members_max: int
    initial_delay_ms: int
    state: ClassicState = ClassicState.EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    changed_ms: int = 0
    first_rebalance: bool = False
    members: dict[str, ClassicMember] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    _events: list[GroupEvent] = field(default_factory=list)

    @property
    def is_blank(self) -> bool:
        """Nobody was ever let in."""
        return not (self.generation or self.members or self.pending)

    def instance(self, instance_id: str) -> str | None:
        """Return the member that has an instance id."""
        found = (k for k, m in self.members.items() if m.instance_id == instance_id)
        return next(found, None)

    def take_events(self) -> tuple[GroupEvent, ...]:
        events, self._events = tuple(self._events), []
        return events

    def check_member(self, member_id: str, instance_id: str | None) -> StreamRefusal | None:
        """Refuse who is not, or not any more, the member that it says it is."""
        if instance_id is not None:
            holder = self.instance(instance_id)
            if holder is not None and holder != member_id:
                return _R.FENCED_INSTANCE
        return None if member_id in self.members else _R.UNKNOWN_MEMBER

    def check_heartbeat(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> StreamRefusal | None:
        """Judge a heartbeat; nothing of it is logged."""
        refusal = self.check_member(member_id, instance_id)
        if refusal is not None:
            return refusal
        if generation != self.generation:
            return _R.STALE_GENERATION
        return _R.REBALANCING if self.state is ClassicState.PREPARING else None

    def on_join(self, command: JoinGroup, now_ms: int) -> GroupResult:
        if not command.protocol_type or not command.protocols or not self._suits(command):
            return GroupResult(_R.INCONSISTENT_PROTOCOL)
        if not command.member_id:
            return self._join_unknown(command, now_ms)
        if command.member_id in self.pending:
            return self._admit(command.member_id, command, now_ms)
        refusal = self.check_member(command.member_id, command.instance_id)
        if refusal is not None:
            return GroupResult(refusal)
        return self._join_known(command.member_id, command, now_ms)

    def _suits(self, command: JoinGroup) -> bool:
        """Say whether all members could still agree on a protocol."""
        others = [
            member
            for key, member in self.members.items()
            if key != command.member_id
            and (command.instance_id is None or member.instance_id != command.instance_id)
        ]
        if not others:
            return True
        if command.protocol_type != self.protocol_type:
            return False
        mine = {name for name, _ in command.protocols}
        return any(all(name in dict(m.protocols) for m in others) for name in mine)

    def _join_unknown(self, command: JoinGroup, now_ms: int) -> GroupResult:
        if command.instance_id is not None:
            holder = self.instance(command.instance_id)
            if holder is not None:
                return self._replace(holder, command, now_ms)
        if len(self.members) + len(self.pending) >= self.members_max:
            return GroupResult(_R.GROUP_FULL)
        if command.needs_known_id and command.instance_id is None:
            self.pending[command.fresh_member_id] = command.session_ms
            return GroupResult(NewMemberId(command.fresh_member_id))
        return self._admit(command.fresh_member_id, command, now_ms)

    def _admit(self, member_id: str, command: JoinGroup, now_ms: int) -> GroupResult:
        self.pending.pop(member_id, None)
        if not self.members:
            self.protocol_type = command.protocol_type
        self.members[member_id] = ClassicMember(
            command.instance_id,
            command.client_id,
            command.client_host,
            command.session_ms,
            command.rebalance_ms,
            command.protocols,
        )
        self.leader = self.leader or member_id
        return self._rejoin(member_id, now_ms)

    def _replace(self, holder: str, command: JoinGroup, now_ms: int) -> GroupResult:
        """A static member is back with a new id: the old one is fenced, its place is kept."""
        member = self.members.pop(holder)
        same = member.protocols == command.protocols
        self.members[command.fresh_member_id] = member
        if self.leader == holder:
            self.leader = command.fresh_member_id
        self._events.append(MemberFenced(self.name, holder))
        self._refresh(member, command)
        if self.state is ClassicState.STABLE and same:
            return self._done(self.joined(command.fresh_member_id))
        return self._rejoin(command.fresh_member_id, now_ms)

    def _refresh(self, member: ClassicMember, command: JoinGroup) -> None:
        member.protocols = command.protocols
        member.session_ms, member.rebalance_ms = command.session_ms, command.rebalance_ms
        member.client_id, member.client_host = command.client_id, command.client_host
        member.joins += 1

    def _join_known(self, member_id: str, command: JoinGroup, now_ms: int) -> GroupResult:
        member = self.members[member_id]
        same = member.protocols == command.protocols
        self._refresh(member, command)
        if same and self.state is ClassicState.COMPLETING:
            return self._done(self.joined(member_id))  # its answer was lost
        if same and self.state is ClassicState.STABLE and member_id != self.leader:
            return self._done(self.joined(member_id))
        return self._rejoin(member_id, now_ms)

    def _rejoin(self, member_id: str, now_ms: int) -> GroupResult:
        if self.state is not ClassicState.PREPARING:
            self._prepare(now_ms)
        self.members[member_id].joined = True
        if not (self.first_rebalance and self.initial_delay_ms):
            self._complete_if_all(now_ms)
        if self.state is ClassicState.COMPLETING:
            return self._done(self.joined(member_id))
        return self._done(MemberWaits(member_id))

    def _done(self, answer: JoinedGeneration | MemberWaits | SyncedAssignment) -> GroupResult:
        return GroupResult(answer, self.take_events())

    def _prepare(self, now_ms: int) -> None:
        """Begin a rebalance: everybody is to join again."""
        self.first_rebalance = self.state is ClassicState.EMPTY
        self.state = ClassicState.PREPARING
        self.changed_ms = now_ms
        for member in self.members.values():
            member.joined = False
            member.assignment = b""
        self._events.append(RebalanceBegun(self.name))

    def deadline_ms(self) -> int | None:
        """Say when CompleteJoin is due, by the log's clock; None outside of a rebalance."""
        if self.state is not ClassicState.PREPARING:
            return None
        if self.first_rebalance:
            return self.changed_ms + self.initial_delay_ms
        longest = max((each.rebalance_ms for each in self.members.values()), default=0)
        return self.changed_ms + longest

    def on_complete_join(self, command: CompleteJoin, now_ms: int) -> GroupResult:
        if self.state is ClassicState.PREPARING and command.generation == self.generation:
            self.first_rebalance = False
            self._drop_absent()
            self._complete_join(now_ms)
        return GroupResult(None, self.take_events())

    def _drop_absent(self) -> None:
        """Leave behind who did not join; a static member keeps its place until its session ends."""
        absent = [k for k, m in self.members.items() if not m.joined and m.instance_id is None]
        for member_id in absent:
            del self.members[member_id]
        self.pending.clear()

    def _complete_if_all(self, now_ms: int) -> None:
        if self.state is not ClassicState.PREPARING or self.pending:
            return
        if all(each.joined for each in self.members.values()):
            self._complete_join(now_ms)

    def _complete_join(self, now_ms: int) -> None:
        present = [key for key, member in self.members.items() if member.joined]
        if self.members and not present:
            self.changed_ms = now_ms  # static members alone, none of them back: wait again
            return
        self.generation += 1
        self.changed_ms = now_ms
        self.first_rebalance = False
        if not self.members:
            self.state, self.protocol, self.leader = ClassicState.EMPTY, "", ""
        else:
            if self.leader not in present:
                self.leader = present[0]
            self.protocol = self._select_protocol()
            self.state = ClassicState.COMPLETING
        self._events.append(JoinCompleted(self.name, self.generation))

    def _select_protocol(self) -> str:
        """Choose what all members know and most of them like best; by name where votes tie."""
        known = [set(dict(each.protocols)) for each in self.members.values()]
        common = set.intersection(*known)
        votes = Counter(
            next(name for name, _ in each.protocols if name in common)
            for each in self.members.values()
        )
        return min(votes, key=lambda name: (-votes[name], name))

    def joined(self, member_id: str) -> JoinedGeneration:
        """Say what a member is told when its join is complete."""
        rows: tuple[tuple[str, str | None, bytes], ...] = ()
        if member_id == self.leader:
            rows = tuple(
                (key, each.instance_id, each.metadata(self.protocol))
                for key, each in self.members.items()
            )
        facts = (self.generation, self.protocol_type, self.protocol, self.leader, member_id)
        return JoinedGeneration(*facts, rows)

    def on_sync(self, command: SyncGroup) -> GroupResult:
        refusal = self.check_member(command.member_id, command.instance_id)
        if refusal is not None:
            return GroupResult(refusal)
        if command.generation != self.generation:
            return GroupResult(_R.STALE_GENERATION)
        if self.state is ClassicState.PREPARING:
            return GroupResult(_R.REBALANCING)
        if self.state is ClassicState.COMPLETING:
            if command.member_id != self.leader:
                return GroupResult(MemberWaits(command.member_id))
            self._assign(dict(command.assignments))
        assignment = self.members[command.member_id].assignment
        return self._done(SyncedAssignment(assignment))

    def _assign(self, assignments: dict[str, bytes]) -> None:
        for member_id, member in self.members.items():
            member.assignment = assignments.get(member_id, b"")
        self.state = ClassicState.STABLE
        self._events.append(SyncCompleted(self.name, self.generation))

    def on_leave(self, command: LeaveGroup, now_ms: int) -> GroupResult:
        answers: list[StreamRefusal | None] = []
        for member_id, instance_id in command.members:
            found = member_id
            if instance_id is not None and not member_id:
                found = self.instance(instance_id) or ""
            if self.pending.pop(found, None) is not None:
                answers.append(None)
                self._complete_if_all(now_ms)
                continue
            answers.append(self.check_member(found, instance_id))
            if answers[-1] is None:
                self._remove(found, now_ms)
        return GroupResult(tuple(answers), self.take_events())

    def on_expire(self, member_id: str, joins: int, now_ms: int) -> GroupResult:
        """Remove a member that was silent, unless it came again since that was seen."""
        if self.pending.pop(member_id, None) is not None:
            self._complete_if_all(now_ms)
        elif member_id in self.members and self.members[member_id].joins == joins:
            self._remove(member_id, now_ms)
        return GroupResult(None, self.take_events())

    def _remove(self, member_id: str, now_ms: int) -> None:
        del self.members[member_id]
        if self.state in {ClassicState.STABLE, ClassicState.COMPLETING}:
            self._prepare(now_ms)
        if self.members and self.leader == member_id:
            self.leader = next(iter(self.members))
        if not (self.members and self.first_rebalance and self.initial_delay_ms):
            self._complete_if_all(now_ms)
