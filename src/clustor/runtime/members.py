"""Changes of a group's members on a real node: what is asked, what is checked, who records it.

The replicas drive a change through the four phases of clustor §9.9. What they expect from
ControlPlaneRaft before they begin is here, as far as one node can give it: a verdict and a routing
epoch. That serves clusters without a control plane, and the control plane's own group; all others
get their changes as placements (`control_orders`).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from clustor.log.types import LogIndex
from clustor.raft.errors import MembershipRefused
from clustor.raft.hard_state import MembershipAck
from clustor.raft.membership import (
    Change,
    ChangeKind,
    Membership,
    enter_joint,
    leave_joint,
    membership_digest,
)
from clustor.raft.reconfiguration import MembershipRequest, Preflight
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.runtime.group import HostedGroup

SURVIVABLE_VOTERS_MIN: Final = 3
"""So many voters go on when one of them is lost."""

_KINDS: Final = {"add": ChangeKind.ADD_VOTER, "remove": ChangeKind.REMOVE}


class WantedChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`POST /groups/<number>/members`: one node more, or one less.

    `reason` overrides the verdict that the group would not survive a loss afterwards.
    """

    kind: Literal["add", "remove"]
    node_id: int
    reason: str = ""


class ChangeBegun(msgspec.Struct, frozen=True):
    """The change's first entry is in the leader's log; `GET /status` tells how it goes on."""

    index: int
    routing_epoch: int


class PlacedChange(msgspec.Struct, frozen=True):
    """The change is placed under this epoch; the group's leader carries it out."""

    routing_epoch: int


def change_members(
    group: HostedGroup, wanted: WantedChange, epoch: RoutingEpoch | None = None
) -> ChangeBegun:
    """Begin a change of a group that this node leads, or raise MembershipRefused.

    `epoch` is above every one that the control plane gave out; without one the group counts.
    """
    request = request_for(group, wanted, epoch)
    index: LogIndex = group.replica.change_membership(request)
    group.rolled_back = ""
    return ChangeBegun(index, request.routing_epoch)


def request_for(
    group: HostedGroup, wanted: WantedChange, epoch: RoutingEpoch | None = None
) -> MembershipRequest:
    """Make the request that a change is begun or rehearsed with, or raise MembershipRefused."""
    replica = group.replica
    core = replica.group.core
    if not replica.leads:
        raise MembershipRefused("not the leader", leader_id=replica.leader_id)
    change = Change(_KINDS[wanted.kind], ReplicaId(wanted.node_id))
    goal = leave_joint(enter_joint(core.config, [change]))
    # One change at a time is under way, and a new leader sees the newest committed one, so that
    # counting here gives each change its own.
    epoch = epoch or RoutingEpoch(core.hard.routing_epoch + 1)
    return MembershipRequest((change,), epoch, _preflight(core.config, goal, wanted.reason))


def _preflight(before: Membership, goal: Membership, reason: str) -> Preflight:
    """Judge a change as far as one node can: the control plane also knows how full nodes are."""
    shrinks = len(goal.voters) < min(len(before.voters), SURVIVABLE_VOTERS_MIN)
    return Preflight(
        utilization_after=0.0,
        survivable=not shrinks,
        placement_digest=membership_digest(goal),
        override_ref=reason,
    )


def record_membership(group: HostedGroup, members: MembershipAck) -> None:
    """Confirm a finalised membership, for clients wait until it is recorded (clustor §9.9).

    Only where nobody else can: without a control plane, and for its own group. The record is the
    group's own log: the entry that finalised the change is durable on a quorum of the new members
    before a leader asks for this. Every other group waits for the control plane's word.
    """
    group.replica.membership_acknowledged(members)
