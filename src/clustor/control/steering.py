"""How a group's leader follows its placement: the change that leads from one to the other."""

from __future__ import annotations

from clustor.control.placement import Placement
from clustor.control.types import MILLION
from clustor.raft.membership import Change, ChangeKind, Configuration, Members
from clustor.raft.reconfiguration import MembershipRequest, Preflight
from clustor.raft.types import ReplicaId, RoutingEpoch


def membership_request(
    placement: Placement, current: Configuration, routing_epoch: RoutingEpoch
) -> MembershipRequest | None:
    """Return what the leader must change to have the placed members; None where nothing is due.

    `routing_epoch` is that of the members in force. A change that is under way is not disturbed,
    and a placement that the group rolled back is not tried again: it has no newer epoch.
    """
    if current.is_joint or placement.routing_epoch <= routing_epoch:
        return None
    changes = tuple(_changes(placement, current))
    if not changes:
        return None
    preflight = Preflight(
        utilization_after=placement.utilization / MILLION,
        survivable=placement.survivable,
        placement_digest=placement.placement_digest,
        override_ref=placement.override_ref or "",
    )
    return MembershipRequest(changes, RoutingEpoch(placement.routing_epoch), preflight)


def _changes(placement: Placement, current: Configuration) -> list[Change]:
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
