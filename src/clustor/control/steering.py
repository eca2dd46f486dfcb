"""How a group's leader follows its placement: what it changes, and what it reports back."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.control.moves import RecordMembership
from clustor.control.placement import Placement, digest_of
from clustor.control.types import MILLION
from clustor.log.types import DurabilityModeEpoch
from clustor.raft.membership import (
    Change,
    ChangeKind,
    Members,
    Membership,
    membership_digest,
)
from clustor.raft.reconfiguration import MembershipRequest, Preflight
from clustor.raft.types import DurabilityTuple, ReplicaId, RoutingEpoch


@dataclass(frozen=True, slots=True)
class MembershipFacts:
    """What a leading replica knows of its members: its hard state, and whether a change runs."""

    committed: Membership
    routing_epoch: RoutingEpoch
    durability_mode_epoch: DurabilityModeEpoch
    is_idle: bool  # no change is under way
    wants_record: bool  # the group itself asks for an acknowledgement
    proven: DurabilityTuple | None = None  # cited with the record (clustor §9.9)


def membership_request(placement: Placement, group: MembershipFacts) -> MembershipRequest | None:
    """Return what the leader must change to have the placed members; None where nothing is due.

    A change that is under way is not disturbed, and a placement that the group rolled back is
    not tried again: it has no newer epoch.
    """
    if group.committed.is_joint or not group.is_idle:
        return None
    if placement.routing_epoch <= group.routing_epoch:
        return None
    changes = tuple(_changes(placement, group.committed))
    if not changes:
        return None
    preflight = Preflight(
        utilization_after=placement.utilization / MILLION,
        survivable=placement.survivable,
        placement_digest=placement.placement_digest,
        override_ref=placement.override_ref or "",
    )
    return MembershipRequest(changes, RoutingEpoch(placement.routing_epoch), preflight)


def is_placed_move(placement: Placement, goal: Membership | None) -> bool:
    """Say whether a change under way, which leads to `goal`, is the one that is placed.

    The control plane's own group is changed first, and its placement follows: meanwhile the
    placement may still describe the change before this one.
    """
    if placement.previous is None or goal is None:
        return False
    return membership_digest(goal) == digest_of(placement.members)


def membership_report(
    placement: Placement, group: MembershipFacts, node_id: int
) -> RecordMembership | None:
    """Return what the leader must tell the control plane of its members; None where nothing is due.

    A group whose members are as before asks for no acknowledgement by itself, though the control
    plane waits for one: after a rollback, and where a move was taken back before it began.
    """
    members = digest_of(placement.members)
    before = digest_of(placement.previous) if placement.previous is not None else members
    digest = membership_digest(group.committed)
    begun = group.routing_epoch >= placement.routing_epoch
    arrived = digest == members and (placement.previous is not None or group.wants_record)
    rolled_back = digest == before != members and begun
    if group.committed.is_joint or not group.is_idle or not (arrived or rolled_back):
        return None
    return RecordMembership(
        partition_id=placement.partition_id,
        node_id=node_id,
        routing_epoch=placement.routing_epoch,
        membership_digest=digest,
        durability_mode_epoch=group.durability_mode_epoch,
        proof_term=group.proven.term if group.proven is not None else 0,
        proof_index=group.proven.index if group.proven is not None else 0,
    )


def _changes(placement: Placement, current: Membership) -> list[Change]:
    members = placement.members
    wanted = (
        (ChangeKind.ADD_VOTER, members.voters, current.voters),
        (ChangeKind.ADD_LEARNER, members.learners, current.learners),
        (ChangeKind.ADD_OBSERVER, members.observers, current.observers),
    )
    changes = [
        Change(kind, replica)
        for kind, placed, held in wanted
        for replica in sorted(_ids(placed) - held)
    ]
    gone = current.members - _ids(members.all)
    return changes + [Change(ChangeKind.REMOVE, replica) for replica in sorted(gone)]


def _ids(nodes: tuple[int, ...]) -> Members:
    return frozenset(map(ReplicaId, nodes))
