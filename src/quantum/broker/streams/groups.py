"""All consumer groups of one partition of the ring: both protocols, and their offsets.

Generations, assignments and offsets come from the log. Heartbeats do not: they are the memory of
whoever leads, and a session that ended is a command (`ExpireMember`). A new leader begins every
session anew, so a change of leader expires nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, assert_never

from quantum.broker.streams.assigned_group import AssignedGroup
from quantum.broker.streams.classic_group import ClassicGroup, ClassicState
from quantum.broker.streams.coding import decode_state, digest_of, encode_state
from quantum.broker.streams.group_commands import (
    NO_GENERATION,
    AdmitGroupTransaction,
    CommitInTransaction,
    CommitOffsets,
    CompleteJoin,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    EndInGroup,
    ExpireMember,
    ExpireOffsets,
    GroupCommand,
    GroupResult,
    JoinGroup,
    LeaveGroup,
    SetPartitionCounts,
    SyncGroup,
)
from quantum.broker.streams.group_frames import (
    FrozenConsumerGroup,
    FrozenGroups,
    freeze_group,
    thaw_group,
)
from quantum.broker.streams.offsets import GroupOffsets
from quantum.broker.streams.subscriptions import subscribed_topics
from quantum.broker.streams.types import StreamRefusal

_NAME: Final = "quantum.streams.groups"
_VERSION: Final = 1
_R = StreamRefusal


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The bounds of groups, the same for all replicas."""

    members_max: int = 10_000
    initial_delay_ms: int = 3_000
    offsets_retention_ms: int = 7 * 86_400_000


@dataclass(slots=True)
class ConsumerGroup:
    """One group: who is in it, by either protocol, and what it committed."""

    members: ClassicGroup | AssignedGroup | None = None
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    empty_since_ms: int = 0

    @property
    def has_members(self) -> bool:
        return self.members is not None and bool(self.members.members)

    def topics(self) -> frozenset[str]:
        """The topics that its members read."""
        match self.members:
            case AssignedGroup(members=members):
                return frozenset().union(*(each.topics for each in members.values()))
            case ClassicGroup(members=rows, protocol=protocol):
                found = (subscribed_topics(each.metadata(protocol)) for each in rows.values())
                return frozenset().union(*found)
            case None:
                return frozenset()


class GroupCoordinator:
    """The machine: one command in, one result out."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self._settings = settings or GroupSettings()
        self.now_ms = 0
        self._groups: dict[str, ConsumerGroup] = {}
        self._counts: dict[str, int] = {}

    def names(self) -> list[str]:
        return sorted(self._groups)

    def get(self, name: str) -> ConsumerGroup | None:
        """Return a group, to be read and not to be changed."""
        return self._groups.get(name)

    def check_heartbeat(
        self, group: str, member_id: str, instance_id: str | None, generation: int
    ) -> StreamRefusal | None:
        """Judge a heartbeat of the classic protocol."""
        found = self._groups.get(group)
        if found is None or not isinstance(found.members, ClassicGroup):
            return _R.UNKNOWN_MEMBER
        return found.members.check_heartbeat(member_id, instance_id, generation)

    def would_change(self, command: ConsumerHeartbeat) -> bool:
        """Say whether a heartbeat of KIP-848 must be logged."""
        found = self._groups.get(command.group)
        if found is None or not isinstance(found.members, AssignedGroup):
            return True
        return found.members.would_change(command)

    def apply(self, command: GroupCommand) -> GroupResult:
        """Apply one committed command: equal state and command give an equal result."""
        self.now_ms = max(self.now_ms, command.now_ms)
        match command:
            case JoinGroup() | SyncGroup() | LeaveGroup() | CompleteJoin():
                return self._on_classic(command)
            case ConsumerHeartbeat():
                return self._on_consumer_heartbeat(command)
            case ExpireMember():
                return self._on_expire_member(command)
            case CommitOffsets() | CommitInTransaction():
                return self._on_commit(command)
            case AdmitGroupTransaction():
                group = self._groups.setdefault(command.group, self._fresh())
                return GroupResult(group.offsets.admit(command.producer_id, command.epoch))
            case EndInGroup():
                return self._on_end(command)
            case DeleteGroup():
                return self._on_delete(command)
            case DeleteOffsets():
                return self._on_delete_offsets(command)
            case ExpireOffsets():
                return self._on_expire_offsets()
            case SetPartitionCounts():
                return self._on_counts(command)
            case _:
                assert_never(command)

    def _fresh(self) -> ConsumerGroup:
        return ConsumerGroup(empty_since_ms=self.now_ms)

    def _on_classic(
        self, command: JoinGroup | SyncGroup | LeaveGroup | CompleteJoin
    ) -> GroupResult:
        if isinstance(command, JoinGroup):
            group = self._groups.setdefault(command.group, self._fresh())
            if isinstance(group.members, AssignedGroup) and group.has_members:
                return GroupResult(_R.INCONSISTENT_PROTOCOL)
            if not isinstance(group.members, ClassicGroup):
                settings = self._settings
                generation = group.members.epoch if group.members is not None else 0
                group.members = ClassicGroup(
                    command.group,
                    settings.members_max,
                    settings.initial_delay_ms,
                    generation=generation,
                )
            result = group.members.on_join(command, self.now_ms)
            self._drop_blank(command.group)
            return self._noting_empty(group, result)
        found = self._groups.get(command.group)
        if found is None or not isinstance(found.members, ClassicGroup):
            if isinstance(command, LeaveGroup):
                return GroupResult(tuple(_R.UNKNOWN_MEMBER for _ in command.members))
            return GroupResult(None if isinstance(command, CompleteJoin) else _R.UNKNOWN_MEMBER)
        if isinstance(command, SyncGroup):
            return found.members.on_sync(command)
        if isinstance(command, LeaveGroup):
            return self._noting_empty(found, found.members.on_leave(command, self.now_ms))
        return self._noting_empty(found, found.members.on_complete_join(command, self.now_ms))

    def _noting_empty(self, group: ConsumerGroup, result: GroupResult) -> GroupResult:
        """While a group has members its offsets do not age: keep when it last had one."""
        group.empty_since_ms = self.now_ms
        return result

    def _on_consumer_heartbeat(self, command: ConsumerHeartbeat) -> GroupResult:
        group = self._groups.get(command.group)
        if group is None:
            if command.epoch != 0:
                return GroupResult(_R.UNKNOWN_MEMBER)
            group = self._groups.setdefault(command.group, self._fresh())
        if isinstance(group.members, ClassicGroup) and group.members.members:
            return GroupResult(_R.WRONG_GROUP_KIND)
        if not isinstance(group.members, AssignedGroup):
            epoch = group.members.generation if group.members is not None else 0
            group.members = AssignedGroup(command.group, self._settings.members_max, epoch)
        result = group.members.on_heartbeat(command, self._counts, self.now_ms)
        self._drop_blank(command.group)
        return self._noting_empty(group, result)

    def _drop_blank(self, name: str) -> None:
        """Forget a group whose first word was refused: who is refused must not fill the state."""
        group = self._groups[name]
        blank = group.members is None or group.members.is_blank
        if blank and group.offsets.is_empty:
            del self._groups[name]

    def _on_expire_member(self, command: ExpireMember) -> GroupResult:
        group = self._groups.get(command.group)
        if group is None or group.members is None:
            return GroupResult()
        if isinstance(group.members, ClassicGroup):
            result = group.members.on_expire(command.member_id, command.joins, self.now_ms)
            return self._noting_empty(group, result)
        member = group.members.members.get(command.member_id)
        if member is not None and member.joins == command.joins:
            group.members.remove(command.member_id, self._counts, self.now_ms)
        return self._noting_empty(group, GroupResult())

    def _on_commit(self, command: CommitOffsets | CommitInTransaction) -> GroupResult:
        group = self._groups.get(command.group)
        if group is None:
            if command.generation != NO_GENERATION or isinstance(command, CommitInTransaction):
                unknown = isinstance(command, CommitInTransaction)
                return GroupResult(_R.TRANSACTION_NOT_OPEN if unknown else _R.STALE_GENERATION)
            group = self._groups.setdefault(command.group, self._fresh())
        refusal = self._check_committer(group, command)
        if refusal is not None:
            return GroupResult(refusal)
        if isinstance(command, CommitOffsets):
            answers = group.offsets.commit(command.offsets, self.now_ms)
            self._drop_blank(command.group)
            return GroupResult(answers)
        facts = (command.producer_id, command.epoch, command.offsets, self.now_ms)
        return GroupResult(group.offsets.commit_in(*facts))

    def _check_committer(
        self, group: ConsumerGroup, command: CommitOffsets | CommitInTransaction
    ) -> StreamRefusal | None:
        if command.generation == NO_GENERATION and not command.member_id:
            # Somebody outside of the group: well while it has no members, or within a transaction.
            outside = not group.has_members or isinstance(command, CommitInTransaction)
            return None if outside else _R.UNKNOWN_MEMBER
        match group.members:
            case AssignedGroup() as assigned:
                return assigned.check_commit(command.member_id, command.generation)
            case ClassicGroup() as classic:
                refusal = classic.check_member(command.member_id, command.instance_id)
                if refusal is None and command.generation != classic.generation:
                    return _R.STALE_GENERATION
                if refusal is None and classic.state is ClassicState.COMPLETING:
                    return _R.REBALANCING
                return refusal
            case None:
                return _R.UNKNOWN_MEMBER

    def _on_end(self, command: EndInGroup) -> GroupResult:
        group = self._groups.get(command.group)
        if group is None:
            return GroupResult()
        facts = (command.producer_id, command.epoch)
        return GroupResult(group.offsets.end(*facts, commit=command.commit))

    def _on_delete(self, command: DeleteGroup) -> GroupResult:
        group = self._groups.get(command.group)
        if group is None:
            return GroupResult(_R.GROUP_UNKNOWN)
        if group.has_members or group.offsets.transactions:
            return GroupResult(_R.GROUP_NOT_EMPTY)
        del self._groups[command.group]
        return GroupResult()

    def _on_delete_offsets(self, command: DeleteOffsets) -> GroupResult:
        group = self._groups.get(command.group)
        if group is None:
            return GroupResult(_R.GROUP_UNKNOWN)
        topics = group.topics()
        answers: list[StreamRefusal | None] = []
        for partition in command.partitions:
            subscribed = partition[0] in topics
            answers.append(_R.SUBSCRIBED if subscribed else None)
            if not subscribed:
                group.offsets.committed.pop(partition, None)
        return GroupResult(tuple(answers))

    def _on_expire_offsets(self) -> GroupResult:
        before = self.now_ms - self._settings.offsets_retention_ms
        for name, group in list(self._groups.items()):
            if group.has_members or group.empty_since_ms >= before:
                continue
            group.offsets.expire(before)
            pending = isinstance(group.members, ClassicGroup) and group.members.pending
            if group.offsets.is_empty and not pending:
                del self._groups[name]
        return GroupResult()

    def _on_counts(self, command: SetPartitionCounts) -> GroupResult:
        changed = set()
        for topic, count in command.counts:
            if self._counts.get(topic, 0) != count:
                changed.add(topic)
            if count:
                self._counts[topic] = count
            else:
                self._counts.pop(topic, None)
        for group in self._groups.values():
            if isinstance(group.members, AssignedGroup) and changed & group.topics():
                group.members.assign(self._counts, self.now_ms)
        return GroupResult()

    def snapshot(self) -> bytes:
        """Encode the whole state; equal states give equal bytes."""
        rows = [freeze_group(name, group) for name, group in sorted(self._groups.items())]
        frozen = FrozenGroups(self.now_ms, sorted(self._counts.items()), rows)
        return encode_state(_NAME, _VERSION, frozen)

    def restore(self, snapshot: bytes) -> None:
        """Take the state of a snapshot. Raises SnapshotUnreadable, and changes nothing then."""
        frozen = decode_state(_NAME, _VERSION, FrozenGroups, snapshot)
        self.now_ms = frozen.now_ms
        self._counts = dict(frozen.counts)
        settings = self._settings
        bounds = (settings.members_max, settings.initial_delay_ms)
        self._groups = {row.name: ConsumerGroup(*thaw_group(row, *bounds)) for row in frozen.groups}

    # One group at a time: a section of a larger machine keeps each on a page of its own.

    def freeze(self, name: str) -> bytes | None:
        """Encode one group; None where it is not known."""
        group = self._groups.get(name)
        if group is None:
            return None
        return encode_state(_NAME, _VERSION, freeze_group(name, group))

    def thaw(self, data: bytes) -> None:
        """Take one group of a snapshot. Raises SnapshotUnreadable."""
        row = decode_state(_NAME, _VERSION, FrozenConsumerGroup, data)
        bounds = (self._settings.members_max, self._settings.initial_delay_ms)
        self._groups[row.name] = ConsumerGroup(*thaw_group(row, *bounds))

    def drop(self, name: str) -> None:
        """Let go of one group."""
        self._groups.pop(name, None)

    def put_counts(self, counts: dict[str, int]) -> None:
        """Take how many partitions topics have, as a snapshot says: nobody is assigned anew."""
        self._counts = counts

    def forget_topic(self, topic: str) -> list[str]:
        """Forget what was committed of a topic that is gone; name the groups that had some."""
        touched = []
        for name, group in self._groups.items():
            gone = [each for each in group.offsets.committed if each[0] == topic]
            for each in gone:
                del group.offsets.committed[each]
            if gone:
                touched.append(name)
        return touched

    def assigned_to(self, topic: str) -> list[str]:
        """Name the groups that are assigned by the server and read a topic."""
        return [
            name
            for name, group in self._groups.items()
            if isinstance(group.members, AssignedGroup) and topic in group.topics()
        ]

    def due_ms(self, name: str) -> int | None:
        """Say when a rebalance of a group has waited long enough; None: none runs."""
        group = self._groups.get(name)
        if group is None or group.members is None:
            return None
        return group.members.deadline_ms()

    def let_go(self, name: str) -> GroupResult:
        """Do what is due in a group: end its join, or leave behind who does not give up."""
        group = self._groups.get(name)
        match group.members if group is not None else None:
            case ClassicGroup(generation=generation):
                return self.apply(CompleteJoin(self.now_ms, name, generation))
            case AssignedGroup() as assigned:
                for member_id in assigned.overdue(self.now_ms):
                    assigned.remove(member_id, self._counts, self.now_ms)
        return GroupResult()

    def digest(self) -> bytes:
        """Digest the state, to compare replicas."""
        return digest_of(self.snapshot())
