"""One group of the newer protocol (KIP-848): the server assigns, each member follows at its pace.

The group has an epoch, and for it a target: who should have what. A member first gives up what is
not its own any more, then takes over the epoch, and gets the rest as others give it up. So no
partition ever has two owners, and nobody stops for a member that does not change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from quantum.broker.streams.assignors import ASSIGNORS, DEFAULT_ASSIGNOR
from quantum.broker.streams.group_commands import ConsumerHeartbeat, GroupResult, HeartbeatAnswer
from quantum.broker.streams.types import StreamRefusal, TopicPartition

_R = StreamRefusal
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2


@dataclass(slots=True)
class AssignedMember:
    """One member. It may hold `assigned` and `revoking`, and nobody else may hold any of these.

    `told` is the assignment of its last answer. `joins` counts how often it came.
    """

    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    topics: frozenset[str] = frozenset()
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = 0
    joins: int = 1
    revoking_since_ms: int = 0
    assigned: set[TopicPartition] = field(default_factory=set)
    revoking: set[TopicPartition] = field(default_factory=set)
    target: set[TopicPartition] = field(default_factory=set)
    told: set[TopicPartition] | None = None


@dataclass(slots=True)
class AssignedGroup:
    """The state of one group. Invariant: no partition is held by two members."""

    name: str
    members_max: int
    epoch: int = 0
    changed_ms: int = 0
    members: dict[str, AssignedMember] = field(default_factory=dict)

    @property
    def is_blank(self) -> bool:
        """Nobody was ever let in."""
        return not (self.epoch or self.members)

    def on_heartbeat(
        self, command: ConsumerHeartbeat, counts: Mapping[str, int], now_ms: int
    ) -> GroupResult:
        if command.assignor is not None and command.assignor not in ASSIGNORS:
            return GroupResult(_R.UNKNOWN_ASSIGNOR)
        if command.epoch in {LEAVE_EPOCH, STATIC_LEAVE_EPOCH}:
            return self._leave(command, counts, now_ms)
        refusal = self._join(command) if command.epoch == JOIN_EPOCH else self._check(command)
        if refusal is not None:
            return GroupResult(refusal)
        member = self.members[command.member_id]
        self._update(member, command, counts, now_ms)
        if command.owned is not None:
            member.revoking &= set(command.owned)
        self._reconcile(member, now_ms)
        assert self._held_once()
        answer = self.answer(command)
        member.told = set(member.assigned)
        return GroupResult(answer)

    def would_change(self, command: ConsumerHeartbeat) -> bool:
        """Say whether a heartbeat brings news; else `answer` it from what is known, unlogged."""
        member = self.members.get(command.member_id)
        if member is None or command.epoch != member.epoch or command.epoch <= JOIN_EPOCH:
            return True
        if command.topics is not None and frozenset(command.topics) != member.topics:
            return True
        if command.assignor not in {None, member.assignor}:
            return True
        if command.instance_id not in {None, member.instance_id}:
            return True  # to be refused
        gave_up = command.owned is not None and not member.revoking <= set(command.owned)
        behind = member.epoch != self.epoch and not member.revoking
        grows = not member.revoking and bool(self._free(member))
        return gave_up or behind or grows or member.told != member.assigned

    def check_commit(self, member_id: str, epoch: int) -> StreamRefusal | None:
        """Judge who commits offsets: only a member, and only under its own epoch."""
        if not self.members and epoch < 0:
            return None
        member = self.members.get(member_id)
        if member is None:
            return _R.UNKNOWN_MEMBER
        return None if member.epoch == epoch else _R.STALE_MEMBER_EPOCH

    def _check(self, command: ConsumerHeartbeat) -> StreamRefusal | None:
        member = self.members.get(command.member_id)
        if member is None:
            return _R.UNKNOWN_MEMBER
        if command.instance_id != member.instance_id and command.instance_id is not None:
            return _R.FENCED_INSTANCE
        if command.epoch == member.epoch:
            return None
        # Its last answer was lost: it may go on if it holds nothing that is not its own.
        owned = set(command.owned or ())
        lost = command.epoch == member.previous_epoch and command.owned is not None
        return (
            None if lost and owned <= member.assigned | member.revoking else _R.STALE_MEMBER_EPOCH
        )

    def _join(self, command: ConsumerHeartbeat) -> StreamRefusal | None:
        holder = self._instance(command.instance_id)
        if holder is not None and holder != command.member_id:
            if self.members[holder].epoch != STATIC_LEAVE_EPOCH:
                return _R.UNRELEASED_INSTANCE
            self.members[command.member_id] = self.members.pop(holder)
        member = self.members.get(command.member_id)
        if member is None:
            if len(self.members) >= self.members_max:
                return _R.GROUP_FULL
            self.members[command.member_id] = AssignedMember(
                command.instance_id, command.client_id, command.client_host, command.rebalance_ms
            )
            return None
        member.joins += 1
        member.epoch = member.previous_epoch = 0
        member.revoking = set()  # who joins anew holds nothing
        member.told = None
        return None

    def _instance(self, instance_id: str | None) -> str | None:
        if instance_id is None:
            return None
        found = (k for k, m in self.members.items() if m.instance_id == instance_id)
        return next(found, None)

    def _update(
        self,
        member: AssignedMember,
        command: ConsumerHeartbeat,
        counts: Mapping[str, int],
        now_ms: int,
    ) -> None:
        topics = member.topics if command.topics is None else frozenset(command.topics)
        assignor = member.assignor if command.assignor is None else command.assignor
        fresh = member.epoch == 0 and not member.target
        if fresh or (topics, assignor) != (member.topics, member.assignor):
            member.topics, member.assignor = topics, assignor
            self.assign(counts, now_ms)

    def assign(self, counts: Mapping[str, int], now_ms: int) -> None:
        """Begin a new epoch with a new target for everybody."""
        self.epoch += 1
        self.changed_ms = now_ms
        if not self.members:
            return
        target = ASSIGNORS[self.assignor_name()](
            {key: each.topics for key, each in self.members.items()},
            counts,
            {key: each.target for key, each in self.members.items()},
        )
        for key, member in self.members.items():
            member.target = target[key]

    def assignor_name(self) -> str:
        """Name what most members want to be assigned by."""
        votes = Counter(each.assignor or DEFAULT_ASSIGNOR for each in self.members.values())
        return min(votes, key=lambda name: (-votes[name], name), default=DEFAULT_ASSIGNOR)

    def _reconcile(self, member: AssignedMember, now_ms: int) -> None:
        """Bring one member a step nearer to its target."""
        if member.revoking:
            return
        lost = member.assigned - member.target
        if lost and member.epoch != 0:
            member.assigned -= lost
            member.revoking = lost
            member.revoking_since_ms = now_ms
            return
        member.assigned -= lost
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        member.assigned |= self._free(member)

    def _free(self, member: AssignedMember) -> set[TopicPartition]:
        """What a member should have and nobody holds."""
        wanted = member.target - member.assigned
        for other in self.members.values():
            if other is not member:
                wanted -= other.assigned
                wanted -= other.revoking
        return wanted

    def answer(self, command: ConsumerHeartbeat) -> HeartbeatAnswer:
        """Answer a member that holds its epoch; the assignment where it is not known to hold it."""
        member = self.members[command.member_id]
        differs = command.owned is not None and set(command.owned) != member.assigned
        assignment: tuple[TopicPartition, ...] | None = None
        if member.told != member.assigned or differs:
            assignment = tuple(sorted(member.assigned))
        return HeartbeatAnswer(command.member_id, member.epoch, assignment)

    def _leave(
        self, command: ConsumerHeartbeat, counts: Mapping[str, int], now_ms: int
    ) -> GroupResult:
        member = self.members.get(command.member_id)
        if member is None:
            return GroupResult(_R.UNKNOWN_MEMBER)
        if command.epoch == STATIC_LEAVE_EPOCH:
            if member.instance_id is None or command.instance_id != member.instance_id:
                return GroupResult(_R.FENCED_INSTANCE)
            member.epoch = STATIC_LEAVE_EPOCH
            member.told = None
        else:
            self.remove(command.member_id, counts, now_ms)
        return GroupResult(HeartbeatAnswer(command.member_id, command.epoch, None))

    def remove(self, member_id: str, counts: Mapping[str, int], now_ms: int) -> None:
        """Take a member out; what it held is free."""
        del self.members[member_id]
        self.assign(counts, now_ms)

    def deadline_ms(self) -> int | None:
        """Say when a member has had long enough to give up what it must; None: none has to."""
        due = (m.revoking_since_ms + m.rebalance_ms for m in self.members.values() if m.revoking)
        return min(due, default=None)

    def overdue(self, now_ms: int) -> list[str]:
        """Name the members that did not give up in time."""
        return [
            key
            for key, m in self.members.items()
            if m.revoking and now_ms >= m.revoking_since_ms + m.rebalance_ms
        ]

    def _held_once(self) -> bool:
        held = Counter(
            part for each in self.members.values() for part in (*each.assigned, *each.revoking)
        )
        return all(count == 1 for count in held.values())
