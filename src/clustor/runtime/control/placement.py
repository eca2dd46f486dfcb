"""A group's leader follows its placement, in members and in mode, and says what became of it.

A move that the control plane placed stands with the members before it until it is recorded; the
group's leader carries it out and reports. A change that an operator ordered at the group itself
has an epoch above the placement's: then it is the placement that follows.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

from clustor.control import (
    Answer,
    Command,
    DraftReading,
    DurabilityState,
    MembershipFacts,
    MembershipRecord,
    ModeFacts,
    ModeStep,
    Placement,
    PlacePartition,
    RecordDurabilityMode,
    RecordMembership,
    Refused,
    find,
    is_placed_move,
    is_settled,
    membership_report,
    membership_request,
    plan_mode_step,
    why_no_survival,
)
from clustor.control.placement import digest_of
from clustor.log.types import PartitionId
from clustor.raft.errors import MembershipRefused
from clustor.raft.leadership import ProposalRefused as GroupRefused
from clustor.raft.membership import ChangeKind, membership_digest
from clustor.raft.reconfiguration import MembershipRequest, ReconfigurationPhase
from clustor.raft.transition import Transition
from clustor.raft.types import RoutingEpoch
from clustor.runtime.control.records import members_of
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.group import HostedGroup

Call: TypeAlias = Callable[[Command], Awaitable[Answer]]
Step: TypeAlias = MembershipRequest | RecordMembership | PlacePartition

journal = logging.getLogger("clustor.control")


def plan_step(
    placement: Placement, record: MembershipRecord | None, group: MembershipFacts, node_id: int
) -> Step | None:
    """Say what a leader must do so that its group and its placement agree; None: they do.

    A request is the group's own to begin. A record or a placement is for the control plane.
    """
    if group.committed.is_joint or not group.is_idle:
        return None
    if placement.previous is not None:
        request = membership_request(placement, group)
        return request or membership_report(placement, group, node_id)
    agrees = membership_digest(group.committed) == digest_of(placement.members)
    if agrees:
        if record is None or group.wants_record:
            return _record(placement, group, node_id)
        return None
    # A leader that was deposed and does not know it yet sees a placement of a later epoch.
    if record is None or group.routing_epoch > placement.routing_epoch:
        return _follow(placement, group)
    return None


def _record(placement: Placement, group: MembershipFacts, node_id: int) -> RecordMembership:
    proven = group.proven
    return RecordMembership(
        partition_id=placement.partition_id,
        node_id=node_id,
        routing_epoch=placement.routing_epoch,
        membership_digest=membership_digest(group.committed),
        durability_mode_epoch=group.durability_mode_epoch,
        proof_term=proven.term if proven is not None else 0,
        proof_index=proven.index if proven is not None else 0,
    )


def _follow(placement: Placement, group: MembershipFacts) -> PlacePartition:
    return PlacePartition(
        partition_id=placement.partition_id,
        tenant_id=placement.tenant_id,
        members=members_of(group.committed),
        load=placement.load,
        profile=placement.profile,
        expected_routing_epoch=placement.routing_epoch,
    )


def epoch_above(group: HostedGroup, store: DraftReading) -> RoutingEpoch:
    """Return an epoch for a change that is ordered at the group: above every one it knows."""
    hard = group.replica.group.core.hard
    placement = find(store, Placement, group.partition_id)
    known = [hard.routing_epoch]
    if hard.membership_ack is not None:
        known.append(hard.membership_ack.routing_epoch)
    if placement is not None:
        known.append(RoutingEpoch(placement.routing_epoch))
    return RoutingEpoch(max(known) + 1)


def facts_of(group: HostedGroup) -> MembershipFacts:
    """Return what a leading replica knows of its members."""
    raft = group.replica.group
    hard = raft.core.hard
    return MembershipFacts(
        hard.membership,
        hard.routing_epoch,
        hard.durability_mode_epoch,
        is_idle=raft.leadership.reconfiguration.phase is ReconfigurationPhase.IDLE
        and raft.core.config_index <= raft.core.commit_index,
        wants_record=not raft.leadership.membership_acknowledged(),
        proven=raft.access.control.proof,
    )


def mode_facts_of(group: HostedGroup) -> ModeFacts:
    """Return what a leading replica knows of its durability mode."""
    raft = group.replica.group
    hard = raft.core.hard
    return ModeFacts(
        hard.term,
        hard.durability_mode,
        hard.durability_mode_epoch,
        raft.core.log_epoch,
        raft.leadership.group_fsync_clause(),
    )


class Steering:
    """The groups that one node leads. One report of a group is under way at a time."""

    def __init__(
        self,
        node_id: int,
        call_for_node: Call,
        call_as_steward: Call,
        may_observe: Callable[[], bool],
    ) -> None:
        """`may_observe` says whether new observers are admitted (clustor §14.2)."""
        self._node_id = node_id
        self._may_observe = may_observe
        self._waits: dict[PartitionId, str] = {}  # what was said of each last
        self._call_for_node = call_for_node
        self._call_as_steward = call_as_steward
        self._under_way: set[PartitionId] = set()
        self.unsettled: set[PartitionId] = set()
        """Led groups whose placed mode or members are not there yet: look at them again soon."""

    def steer(self, group: HostedGroup, store: DraftReading) -> Coroutine[None, None, None] | None:
        """Begin a change that is placed, or return what must be told: it counts as under way."""
        partition = group.partition_id
        placement = find(store, Placement, partition)
        if placement is None:
            return None
        if partition in self._under_way:
            self.unsettled.add(partition)  # what is said now may come to nothing
            return None
        self._judge(group, placement, store)
        step = self._step(group, placement, store)
        if isinstance(step, MembershipRequest):
            self._begin(group, step)
            return None
        if isinstance(step, Transition):
            self._fence(group, step)
            return None
        if step is None:
            return None
        self._under_way.add(partition)
        by_node = isinstance(step, RecordMembership | RecordDurabilityMode)
        return self._report(
            partition, self._call_for_node if by_node else self._call_as_steward, step
        )

    def _judge(self, group: HostedGroup, placement: Placement, store: DraftReading) -> None:
        """Roll a move back that would not be allowed to begin now (clustor §9.9)."""
        change = group.replica.group.leadership.reconfiguration
        runs = change.phase in (ReconfigurationPhase.CATCH_UP, ReconfigurationPhase.JOINT)
        if not runs or not is_placed_move(placement, change.goal):
            return
        why = why_no_survival(store, placement)
        if why and change.survivable:
            journal.warning("group %d: its move is taken back: %s", group.partition_id, why)
            group.replica.group.survivability_failed()

    def _step(
        self, group: HostedGroup, placement: Placement, store: DraftReading
    ) -> Step | ModeStep | None:
        partition = group.partition_id
        state = find(store, DurabilityState, partition)
        if is_settled(placement, state) and placement.previous is None:
            self.unsettled.discard(partition)
        else:
            self.unsettled.add(partition)
        record = find(store, MembershipRecord, partition)
        step = plan_step(placement, record, facts_of(group), self._node_id)
        return step or plan_mode_step(placement, state, mode_facts_of(group), self._node_id)

    def _fence(self, group: HostedGroup, transition: Transition) -> None:
        """Append the fence; what the group refuses is planned, and named, at the next look."""
        answer = group.replica.propose_transition(transition)
        mode, epoch = transition.to_mode.name, transition.durability_mode_epoch
        if isinstance(answer, GroupRefused):
            why = answer.reason
            journal.info("group %d: %s waits: %s", group.partition_id, mode, why)
        else:
            journal.info("group %d: %s begins with epoch %d", group.partition_id, mode, epoch)

    def _begin(self, group: HostedGroup, request: MembershipRequest) -> None:
        """Begin a change, or say once what it waits for; it is looked at again and again."""
        partition = group.partition_id
        why = self._try(group, request)
        if why != self._waits.get(partition):
            if why:
                journal.info("group %d: the move waits: %s", partition, why)
            else:
                journal.info("group %d: a placed move begins", partition)
        if why:
            self._waits[partition] = why
        else:
            self._waits.pop(partition, None)

    def _try(self, group: HostedGroup, request: MembershipRequest) -> str:
        observes = any(each.kind is ChangeKind.ADD_OBSERVER for each in request.changes)
        if observes and not self._may_observe():
            return "the gate ObserverAdmission is shut"
        try:
            group.replica.change_membership(request)
        except MembershipRefused as error:
            return error.reason
        return ""

    async def _report(self, partition: PartitionId, call: Call, command: Command) -> None:
        try:
            answer = await call(command)
        except ControlUnavailable:
            return  # the next word of the control plane brings us here again
        finally:
            self._under_way.discard(partition)
        if isinstance(answer, Refused):
            journal.warning("group %d: %s: %s", partition, type(command).__name__, answer.reason)
