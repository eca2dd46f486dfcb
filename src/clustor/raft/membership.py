"""Configurations and how one becomes another: simple, into a joint one, and out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256

import msgspec

from clustor.raft.errors import MembershipRefused
from clustor.raft.quorum import VoteResult, joint_vote, reached_by_joint, reached_by_majority
from clustor.raft.types import ReplicaId, RoutingEpoch

Members = frozenset[ReplicaId]
NONE: Members = frozenset()


class MemberKind(StrEnum):
    VOTER = "voter"
    LEARNER = "learner"
    OBSERVER = "observer"


class ChangeKind(StrEnum):
    ADD_VOTER = "v"
    ADD_LEARNER = "l"
    ADD_OBSERVER = "o"
    REMOVE = "r"
    UPDATE = "u"  # changes nothing here; a product may tell its members something with it


@dataclass(frozen=True, slots=True)
class Change:
    kind: ChangeKind
    replica_id: ReplicaId


@dataclass(frozen=True, slots=True)
class Membership:
    """Who votes, who learns, who watches. It is joint while `outgoing` is not empty.

    `learners_next` are outgoing voters that become learners when the joint phase ends: a
    replica never votes and learns at once.
    """

    voters: Members = NONE
    outgoing: Members = NONE
    learners: Members = NONE
    learners_next: Members = NONE
    observers: Members = NONE
    auto_leave: bool = False

    def __post_init__(self) -> None:
        assert not self.learners & (self.voters | self.outgoing)
        assert self.learners_next <= self.outgoing
        assert not self.observers & (self.voters | self.outgoing | self.learners)

    @property
    def is_joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def all_voters(self) -> Members:
        return self.voters | self.outgoing

    @property
    def members(self) -> Members:
        return self.voters | self.outgoing | self.learners | self.observers

    def kind_of(self, replica_id: ReplicaId) -> MemberKind | None:
        if replica_id in self.voters or replica_id in self.outgoing:
            return MemberKind.VOTER
        if replica_id in self.learners:
            return MemberKind.LEARNER
        return MemberKind.OBSERVER if replica_id in self.observers else None

    def reached(self, of: Callable[[ReplicaId], int]) -> int:
        """Return the highest index that a quorum has reached."""
        if not self.outgoing:
            return reached_by_majority(self.voters, of)
        return reached_by_joint(self.voters, self.outgoing, of)

    def vote(self, votes: Mapping[ReplicaId, bool]) -> VoteResult:
        return joint_vote(self.voters, self.outgoing, votes)

    def __str__(self) -> str:
        text = f"voters={_ids(self.voters)}"
        if self.outgoing:
            text += f"&&{_ids(self.outgoing)}"
        for name in ("learners", "learners_next", "observers"):
            ids = getattr(self, name)
            text += f" {name}={_ids(ids)}" if ids else ""
        return text + (" autoleave" if self.auto_leave else "")


NO_MEMBERS = Membership()


def _ids(members: Iterable[ReplicaId]) -> str:
    return "(" + " ".join(str(member) for member in sorted(members)) + ")"


def change_simply(config: Membership, changes: Sequence[Change]) -> Membership:
    """Return the configuration after changes that touch at most one voter.

    Two majorities that differ in one voter always overlap, so no joint phase is needed.
    """
    if config.is_joint:
        raise MembershipRefused("can't apply simple config change in joint config")
    after = _apply(config, changes)
    if len(after.voters ^ config.voters) > 1:
        raise MembershipRefused("more than one voter changed without entering joint config")
    return after


def enter_joint(
    config: Membership, changes: Sequence[Change], *, auto_leave: bool = False
) -> Membership:
    """Return the joint configuration in which the old voters still have their say."""
    if config.is_joint:
        raise MembershipRefused("config is already joint")
    if not config.voters:
        raise MembershipRefused("can't make a zero-voter config joint")
    joint = replace(config, outgoing=config.voters, auto_leave=auto_leave)
    return _apply(joint, changes)


def leave_joint(config: Membership) -> Membership:
    """Return the new configuration alone; demoted voters become learners now."""
    if not config.is_joint:
        raise MembershipRefused("can't leave a non-joint config")
    return Membership(
        voters=config.voters,
        learners=config.learners | config.learners_next,
        observers=config.observers,
    )


def _apply(config: Membership, changes: Sequence[Change]) -> Membership:
    for change in changes:
        if change.replica_id and change.kind is not ChangeKind.UPDATE:
            config = _apply_one(config, change)
    if not config.voters:
        raise MembershipRefused("removed all voters")
    return config


def _apply_one(config: Membership, change: Change) -> Membership:
    one = frozenset((change.replica_id,))
    if change.kind is ChangeKind.ADD_LEARNER and one & (config.learners | config.learners_next):
        return config
    bare = replace(
        config,
        voters=config.voters - one,
        learners=config.learners - one,
        learners_next=config.learners_next - one,
        observers=config.observers - one,
    )
    match change.kind:
        case ChangeKind.ADD_VOTER:
            return replace(bare, voters=bare.voters | one)
        case ChangeKind.ADD_LEARNER if one <= config.outgoing:
            return replace(bare, learners_next=bare.learners_next | one)
        case ChangeKind.ADD_LEARNER:
            return replace(bare, learners=bare.learners | one)
        case ChangeKind.ADD_OBSERVER if one <= config.outgoing:
            raise MembershipRefused("an outgoing voter can't observe", replica_id=change.replica_id)
        case ChangeKind.ADD_OBSERVER:
            return replace(bare, observers=bare.observers | one)
        case _:
            return bare


class _ConfigurationBytes(msgspec.Struct, array_like=True):
    voters: list[int]
    outgoing: list[int]
    learners: list[int]
    learners_next: list[int]
    observers: list[int]
    auto_leave: bool


class _ChangeBytes(msgspec.Struct, array_like=True):
    before: _ConfigurationBytes
    after: _ConfigurationBytes
    goal: _ConfigurationBytes | None
    routing_epoch: int
    placement_digest: bytes
    reason: str
    failing: list[int]
    override_ref: str


@dataclass(frozen=True, slots=True)
class MembershipEntry:
    """The payload of a MembershipChange or MembershipRollback entry (clustor §9.9).

    `goal` is what the whole change is after: a leader that takes over in mid-change reads from
    the log how to go on. `reason`, `failing` and `override_ref` belong to rollbacks.
    """

    before: Membership
    after: Membership
    goal: Membership | None
    routing_epoch: RoutingEpoch
    placement_digest: bytes
    reason: str = ""
    failing: tuple[ReplicaId, ...] = ()
    override_ref: str = ""


def encode_membership(entry: MembershipEntry) -> bytes:
    return msgspec.msgpack.encode(
        _ChangeBytes(
            before=_flat(entry.before),
            after=_flat(entry.after),
            goal=_flat(entry.goal) if entry.goal else None,
            routing_epoch=entry.routing_epoch,
            placement_digest=entry.placement_digest,
            reason=entry.reason,
            failing=list(entry.failing),
            override_ref=entry.override_ref,
        )
    )


def decode_membership(payload: bytes) -> MembershipEntry:
    """Read the payload back; a msgspec.DecodeError means that it is not such an entry."""
    flat = msgspec.msgpack.decode(payload, type=_ChangeBytes)
    return MembershipEntry(
        before=_full(flat.before),
        after=_full(flat.after),
        goal=_full(flat.goal) if flat.goal else None,
        routing_epoch=RoutingEpoch(flat.routing_epoch),
        placement_digest=flat.placement_digest,
        reason=flat.reason,
        failing=tuple(ReplicaId(member) for member in flat.failing),
        override_ref=flat.override_ref,
    )


def membership_digest(config: Membership) -> bytes:
    """Digest who the members are, equal on every replica that holds equal members."""
    return sha256(msgspec.msgpack.encode(_flat(config))).digest()


def _flat(config: Membership) -> _ConfigurationBytes:
    return _ConfigurationBytes(
        voters=sorted(config.voters),
        outgoing=sorted(config.outgoing),
        learners=sorted(config.learners),
        learners_next=sorted(config.learners_next),
        observers=sorted(config.observers),
        auto_leave=config.auto_leave,
    )


def _full(flat: _ConfigurationBytes) -> Membership:
    return Membership(
        voters=_members(flat.voters),
        outgoing=_members(flat.outgoing),
        learners=_members(flat.learners),
        learners_next=_members(flat.learners_next),
        observers=_members(flat.observers),
        auto_leave=flat.auto_leave,
    )


def _members(ids: Iterable[int]) -> Members:
    return frozenset(ReplicaId(member) for member in ids)
