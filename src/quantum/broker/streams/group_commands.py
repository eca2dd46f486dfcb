"""What is written into the log for consumer groups, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from quantum.broker.streams.coding import CoordinationCommand, decode_command
from quantum.broker.streams.types import (
    Amount,
    Epoch,
    Name,
    Stamp,
    StreamRefusal,
    TopicPartition,
)

Blob: TypeAlias = Annotated[bytes, Meta(max_length=1 << 20)]
NO_GENERATION: Final = -1


class CommittedOffset(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Where a group goes on in one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0


class JoinGroup(CoordinationCommand, tag=0):
    """A member comes, or comes again. `fresh_member_id` is drawn by whoever proposes."""

    now_ms: Stamp
    group: Name
    member_id: Name
    fresh_member_id: Name
    session_ms: Amount
    rebalance_ms: Amount
    protocol_type: Name
    protocols: tuple[tuple[Name, Blob], ...]
    instance_id: Name | None = None
    client_id: Name = ""
    client_host: Name = ""
    needs_known_id: bool = True


class SyncGroup(CoordinationCommand, tag=1):
    """The leader of a generation says who gets what."""

    now_ms: Stamp
    group: Name
    generation: int
    member_id: Name
    assignments: tuple[tuple[Name, Blob], ...]
    instance_id: Name | None = None


class LeaveGroup(CoordinationCommand, tag=2):
    """Members leave, each by its id or by its instance."""

    now_ms: Stamp
    group: Name
    members: tuple[tuple[Name, Name | None], ...]


class ExpireMember(CoordinationCommand, tag=3):
    """The leader of the log did not hear a member for its session; `joins` is what it had seen."""

    now_ms: Stamp
    group: Name
    member_id: Name
    joins: Amount


class CompleteJoin(CoordinationCommand, tag=4):
    """The time to join is over: go on with who is there. Guarded by the generation it ends."""

    now_ms: Stamp
    group: Name
    generation: int


class CommitOffsets(CoordinationCommand, tag=5):
    """A member says how far it is, or with no generation somebody who is in no group."""

    now_ms: Stamp
    group: Name
    generation: int
    member_id: Name
    offsets: tuple[tuple[TopicPartition, CommittedOffset], ...]
    instance_id: Name | None = None


class AdmitGroupTransaction(CoordinationCommand, tag=6):
    """The coordinator has this group in its transaction: offsets of that epoch may come."""

    now_ms: Stamp
    group: Name
    producer_id: Amount
    epoch: Epoch


class CommitInTransaction(CoordinationCommand, tag=7):
    """Offsets that count once their transaction is committed."""

    now_ms: Stamp
    group: Name
    generation: int
    member_id: Name
    producer_id: Amount
    epoch: Epoch
    offsets: tuple[tuple[TopicPartition, CommittedOffset], ...]
    instance_id: Name | None = None


class EndInGroup(CoordinationCommand, tag=8):
    """The coordinator's word on how a transaction ended."""

    now_ms: Stamp
    group: Name
    producer_id: Amount
    epoch: Epoch
    commit: bool


class DeleteGroup(CoordinationCommand, tag=9):
    """Forget a group that has no members."""

    now_ms: Stamp
    group: Name


class DeleteOffsets(CoordinationCommand, tag=10):
    """Forget offsets of partitions that no member is subscribed to."""

    now_ms: Stamp
    group: Name
    partitions: tuple[TopicPartition, ...]


class ExpireOffsets(CoordinationCommand, tag=11):
    """Forget what groups without members committed long ago, and groups without anything."""

    now_ms: Stamp


class ConsumerHeartbeat(CoordinationCommand, tag=12):
    """A heartbeat of KIP-848 that says something new: who comes, goes, subscribes or gives up.

    `epoch` 0 joins, -1 leaves, -2 leaves for a while (static members). None means 'as before'.
    """

    now_ms: Stamp
    group: Name
    member_id: Name
    epoch: int
    topics: tuple[Name, ...] | None = None
    owned: tuple[TopicPartition, ...] | None = None
    instance_id: Name | None = None
    rebalance_ms: Amount = 300_000
    assignor: Name | None = None
    client_id: Name = ""
    client_host: Name = ""


class SetPartitionCounts(CoordinationCommand, tag=13):
    """How many partitions topics have; 0 is a topic that is gone. Groups are assigned anew."""

    now_ms: Stamp
    counts: tuple[tuple[Name, Amount], ...]


GroupCommand = (
    JoinGroup
    | SyncGroup
    | LeaveGroup
    | ExpireMember
    | CompleteJoin
    | CommitOffsets
    | AdmitGroupTransaction
    | CommitInTransaction
    | EndInGroup
    | DeleteGroup
    | DeleteOffsets
    | ExpireOffsets
    | ConsumerHeartbeat
    | SetPartitionCounts
)
_DECODER: Final[msgspec.msgpack.Decoder[GroupCommand]] = msgspec.msgpack.Decoder(GroupCommand)


def decode_group_command(data: bytes) -> GroupCommand:
    """Decode a committed command. Raises CommandUnreadable."""
    return decode_command(_DECODER, data)


@dataclass(slots=True, frozen=True)
class JoinedGeneration:
    """What a member is told at the end of a join; `members` are for the leader alone."""

    generation: int
    protocol_type: str
    protocol: str
    leader_id: str
    member_id: str
    members: tuple[tuple[str, str | None, bytes], ...] = ()


@dataclass(slots=True, frozen=True)
class MemberWaits:
    """The answer comes with an event: a join with `JoinCompleted`, a sync with `SyncCompleted`."""

    member_id: str


@dataclass(slots=True, frozen=True)
class NewMemberId:
    """KIP-394: join again with this id (MEMBER_ID_REQUIRED)."""

    member_id: str


@dataclass(slots=True, frozen=True)
class SyncedAssignment:
    """What one member gets."""

    assignment: bytes


@dataclass(slots=True, frozen=True)
class RebalanceBegun:
    """Whoever waits for a sync is told REBALANCING; heartbeats say it from now on."""

    group: str


@dataclass(slots=True, frozen=True)
class JoinCompleted:
    """Whoever waits for a join asks `joined` and is told."""

    group: str
    generation: int


@dataclass(slots=True, frozen=True)
class SyncCompleted:
    """Whoever waits for a sync asks `assignment_of` and is told."""

    group: str
    generation: int


@dataclass(slots=True, frozen=True)
class MemberFenced:
    """Another member has this one's instance id now: what it waits for fails."""

    group: str
    member_id: str


GroupEvent = RebalanceBegun | JoinCompleted | SyncCompleted | MemberFenced


@dataclass(slots=True, frozen=True)
class HeartbeatAnswer:
    """What a member of KIP-848 is told; `assignment` is None where it did not change."""

    member_id: str
    epoch: int
    assignment: tuple[TopicPartition, ...] | None


GroupAnswer = (
    JoinedGeneration
    | MemberWaits
    | NewMemberId
    | SyncedAssignment
    | HeartbeatAnswer
    | StreamRefusal
    | tuple[StreamRefusal | None, ...]
    | None
)


@dataclass(slots=True, frozen=True)
class GroupResult:
    """What the one who asked is told, and what happened for the others."""

    answer: GroupAnswer = None
    events: tuple[GroupEvent, ...] = ()
