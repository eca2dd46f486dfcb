"""Two small files: who this replica is, and what it must not forget.

    replica.json      in the node's own directory: it outlives the partition's disk
    hard_state.json   in the partition's directory

Both are canonical JSON with the SHA-256 of their members, and are replaced whole. 64-bit
numbers are decimal strings, because JSON has none.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, TypeVar

import msgspec
import rfc8785

from clustor.log.steps import FileName, Plan, Storage, plan_replace
from clustor.log.types import (
    DurabilityMode,
    DurabilityModeEpoch,
    LogId,
    LogIndex,
    PartitionId,
    Term,
)
from clustor.raft.hard_state import HardState, MembershipAck
from clustor.raft.membership import Members, Membership
from clustor.raft.types import ReplicaId, ReplicaIdentity, RoutingEpoch
from clustor.replica.errors import ReplicaDamaged

IDENTITY_FILE: Final = FileName("replica.json")
HARD_STATE_FILE: Final = FileName("hard_state.json")
_FILE_BYTES_MAX: Final = 1 << 20


class _Identity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    replica_id: str
    partition_id: str
    log_id: str
    format_version: int = 1


class MembersDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A configuration in JSON; members in rising order."""

    voters: tuple[str, ...]
    outgoing: tuple[str, ...]
    learners: tuple[str, ...]
    learners_next: tuple[str, ...]
    observers: tuple[str, ...]
    auto_leave: bool


class _Ack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    routing_epoch: str
    membership_digest: str
    durability_mode_epoch: int


class _HardState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    term: str
    voted_for: str | None
    membership: MembersDocument
    membership_index: str
    durable_commit_index: str
    routing_epoch: str
    membership_ack: _Ack | None
    durability_mode: int
    durability_mode_epoch: int
    rejoin_epoch: str | None
    format_version: int = 1


_Document = TypeVar("_Document", _Identity, _HardState)


def plan_identity(identity: ReplicaIdentity) -> Plan:
    """Plan the identity's file. It exists from the moment on at which data may exist."""
    document = _Identity(
        str(identity.replica_id), str(identity.partition_id), identity.log_id.hex()
    )
    return plan_replace(IDENTITY_FILE, _encode(document))


def read_identity(storage: Storage) -> ReplicaIdentity | None:
    """Read who the replica is; None where none was ever created.

    Raises ReplicaDamaged for a file that is not what was written.
    """
    found = _read(storage, IDENTITY_FILE, _Identity)
    if found is None:
        return None
    return ReplicaIdentity(
        ReplicaId(int(found.replica_id)),
        PartitionId(int(found.partition_id)),
        LogId(bytes.fromhex(found.log_id)),
        holds_data=True,
    )


def plan_hard_state(hard: HardState) -> Plan:
    """Plan the hard state's file: the old one or the new one after a crash."""
    ack = hard.membership_ack
    document = _HardState(
        term=str(hard.term),
        voted_for=None if hard.voted_for is None else str(hard.voted_for),
        membership=members_document(hard.membership),
        membership_index=str(hard.membership_index),
        durable_commit_index=str(hard.durable_commit_index),
        routing_epoch=str(hard.routing_epoch),
        membership_ack=None
        if ack is None
        else _Ack(str(ack.routing_epoch), ack.membership_digest.hex(), ack.durability_mode_epoch),
        durability_mode=int(hard.durability_mode),
        durability_mode_epoch=hard.durability_mode_epoch,
        rejoin_epoch=None if hard.rejoin_epoch is None else str(hard.rejoin_epoch),
    )
    return plan_replace(HARD_STATE_FILE, _encode(document))


def read_hard_state(storage: Storage) -> HardState | None:
    """Read the hard state; None where there is none. Raises ReplicaDamaged."""
    found = _read(storage, HARD_STATE_FILE, _HardState)
    if found is None:
        return None
    ack = found.membership_ack
    return HardState(
        term=Term(int(found.term)),
        voted_for=None if found.voted_for is None else ReplicaId(int(found.voted_for)),
        membership=members_of(found.membership),
        membership_index=LogIndex(int(found.membership_index)),
        durable_commit_index=LogIndex(int(found.durable_commit_index)),
        routing_epoch=RoutingEpoch(int(found.routing_epoch)),
        membership_ack=None
        if ack is None
        else MembershipAck(
            RoutingEpoch(int(ack.routing_epoch)),
            bytes.fromhex(ack.membership_digest),
            DurabilityModeEpoch(ack.durability_mode_epoch),
        ),
        durability_mode=DurabilityMode(found.durability_mode),
        durability_mode_epoch=DurabilityModeEpoch(found.durability_mode_epoch),
        rejoin_epoch=None if found.rejoin_epoch is None else RoutingEpoch(int(found.rejoin_epoch)),
    )


def members_document(config: Membership) -> MembersDocument:
    """Write a configuration for JSON."""
    return MembersDocument(
        _names(config.voters),
        _names(config.outgoing),
        _names(config.learners),
        _names(config.learners_next),
        _names(config.observers),
        config.auto_leave,
    )


def members_of(document: MembersDocument) -> Membership:
    """Read back what `members_document` wrote."""
    return Membership(
        _ids(document.voters),
        _ids(document.outgoing),
        _ids(document.learners),
        _ids(document.learners_next),
        _ids(document.observers),
        document.auto_leave,
    )


def _names(members: Members) -> tuple[str, ...]:
    return tuple(str(member) for member in sorted(members))


def _ids(names: tuple[str, ...]) -> Members:
    return frozenset(ReplicaId(int(name)) for name in names)


def _encode(document: _Identity | _HardState) -> bytes:
    members: dict[str, Any] = msgspec.to_builtins(document)
    members["sha256"] = _digest(members)
    return rfc8785.dumps(members) + b"\n"


def _read(storage: Storage, file: FileName, kind: type[_Document]) -> _Document | None:
    try:
        data = storage.read(file, 0, _FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        members = msgspec.json.decode(data, type=dict[str, Any])
        digest = members.pop("sha256", None)
        if digest == _digest(members):
            return msgspec.convert(members, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ReplicaDamaged("a document cannot be read", file=file) from error
    raise ReplicaDamaged("a document does not match its digest", file=file)


def _digest(members: dict[str, Any]) -> str:
    return hashlib.sha256(rfc8785.dumps(members)).hexdigest()
