"""Groups as they stand in a snapshot."""

from __future__ import annotations

from typing import Protocol

import msgspec

from quantum.broker.streams.assigned_group import AssignedGroup, AssignedMember
from quantum.broker.streams.classic_group import ClassicGroup, ClassicMember, ClassicState
from quantum.broker.streams.group_commands import CommittedOffset
from quantum.broker.streams.offsets import GroupOffsets, OffsetTransaction
from quantum.broker.streams.types import TopicPartition

Rows = list[tuple[TopicPartition, CommittedOffset]]


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    pass


class FrozenClassicMember(_Frame):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    joined: bool
    joins: int
    assignment: bytes


class FrozenClassic(_Frame, tag=0):
    state: int
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    changed_ms: int
    first_rebalance: bool
    members: list[FrozenClassicMember]
    pending: list[tuple[str, int]]


class FrozenMember(_Frame):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    topics: list[str]
    assignor: str | None
    epoch: int
    previous_epoch: int
    joins: int
    revoking_since_ms: int
    assigned: list[TopicPartition]
    revoking: list[TopicPartition]
    target: list[TopicPartition]
    told: list[TopicPartition] | None


class FrozenAssigned(_Frame, tag=1):
    epoch: int
    changed_ms: int
    members: list[FrozenMember]


class FrozenConsumerGroup(_Frame):
    name: str
    members: FrozenClassic | FrozenAssigned | None
    committed: Rows
    transactions: list[tuple[int, int, Rows]]
    empty_since_ms: int


class FrozenGroups(_Frame):
    now_ms: int
    counts: list[tuple[str, int]]
    groups: list[FrozenConsumerGroup]


class _Group(Protocol):
    members: ClassicGroup | AssignedGroup | None
    offsets: GroupOffsets
    empty_since_ms: int


def freeze_group(name: str, group: _Group) -> FrozenConsumerGroup:
    """Freeze one group; the order of classic members is state, all else is sorted."""
    members: FrozenClassic | FrozenAssigned | None = None
    if isinstance(group.members, ClassicGroup):
        members = _freeze_classic(group.members)
    elif group.members is not None:
        members = _freeze_assigned(group.members)
    transactions = [
        (producer, each.epoch, sorted(each.offsets.items(), key=lambda row: row[0]))
        for producer, each in sorted(group.offsets.transactions.items())
    ]
    committed = sorted(group.offsets.committed.items(), key=lambda row: row[0])
    return FrozenConsumerGroup(name, members, committed, transactions, group.empty_since_ms)


def _freeze_classic(group: ClassicGroup) -> FrozenClassic:
    rows = [
        FrozenClassicMember(
            *(key, m.instance_id, m.client_id, m.client_host, m.session_ms, m.rebalance_ms),
            *(m.protocols, m.joined, m.joins, m.assignment),
        )
        for key, m in group.members.items()
    ]
    facts = (group.state.value, group.generation, group.protocol_type, group.protocol)
    more = (group.leader, group.changed_ms, group.first_rebalance)
    return FrozenClassic(*facts, *more, rows, sorted(group.pending.items()))


def _freeze_assigned(group: AssignedGroup) -> FrozenAssigned:
    rows = [
        FrozenMember(
            *(key, m.instance_id, m.client_id, m.client_host, m.rebalance_ms, sorted(m.topics)),
            *(m.assignor, m.epoch, m.previous_epoch, m.joins, m.revoking_since_ms),
            *(sorted(m.assigned), sorted(m.revoking), sorted(m.target)),
            None if m.told is None else sorted(m.told),
        )
        for key, m in sorted(group.members.items())
    ]
    return FrozenAssigned(group.epoch, group.changed_ms, rows)


def thaw_group(
    row: FrozenConsumerGroup, members_max: int, initial_delay_ms: int
) -> tuple[ClassicGroup | AssignedGroup | None, GroupOffsets, int]:
    """Make the parts of a group again."""
    offsets = GroupOffsets(
        dict(row.committed),
        {
            producer: OffsetTransaction(epoch, dict(rows))
            for producer, epoch, rows in row.transactions
        },
    )
    members: ClassicGroup | AssignedGroup | None = None
    if isinstance(row.members, FrozenClassic):
        members = _thaw_classic(row.name, row.members, members_max, initial_delay_ms)
    elif row.members is not None:
        members = _thaw_assigned(row.name, row.members, members_max)
    return members, offsets, row.empty_since_ms


def _thaw_classic(
    name: str, frozen: FrozenClassic, members_max: int, initial_delay_ms: int
) -> ClassicGroup:
    return ClassicGroup(
        *(name, members_max, initial_delay_ms, ClassicState(frozen.state), frozen.generation),
        *(frozen.protocol_type, frozen.protocol, frozen.leader, frozen.changed_ms),
        frozen.first_rebalance,
        {
            m.member_id: ClassicMember(
                *(m.instance_id, m.client_id, m.client_host, m.session_ms, m.rebalance_ms),
                *(m.protocols, m.joined, m.joins, m.assignment),
            )
            for m in frozen.members
        },
        dict(frozen.pending),
    )


def _thaw_assigned(name: str, frozen: FrozenAssigned, members_max: int) -> AssignedGroup:
    members = {
        row.member_id: AssignedMember(
            *(row.instance_id, row.client_id, row.client_host, row.rebalance_ms),
            frozenset(row.topics),
            row.assignor,
            *(row.epoch, row.previous_epoch, row.joins, row.revoking_since_ms),
            *(set(row.assigned), set(row.revoking), set(row.target)),
            None if row.told is None else set(row.told),
        )
        for row in frozen.members
    }
    return AssignedGroup(name, members_max, frozen.epoch, frozen.changed_ms, members)
