"""A group's leader follows its placement, and reports where it has come."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

from clustor.control import (
    Answer,
    Command,
    MembershipFacts,
    Placement,
    Reading,
    Refused,
    find,
    membership_report,
    membership_request,
)
from clustor.log.types import PartitionId
from clustor.raft.errors import MembershipRefused
from clustor.raft.reconfiguration import Phase
from clustor.runtime.control_records import mirrored
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.hosted_group import HostedGroup

Call: TypeAlias = Callable[[Command], Awaitable[Answer]]

journal = logging.getLogger("clustor.control")


def facts_of(group: HostedGroup) -> MembershipFacts:
    """Return what a leading replica knows of its members."""
    raft = group.replica.group
    hard = raft.core.hard
    return MembershipFacts(
        hard.membership,
        hard.routing_epoch,
        hard.durability_mode_epoch,
        is_idle=raft.leadership.reconfiguration.phase is Phase.IDLE,
        wants_record=not raft.leadership.membership_acknowledged(),
        proven=raft.access.control.proof,
    )


class Steering:
    """The groups that one node leads. One report of a group is under way at a time."""

    def __init__(self, node_id: int, call_for_node: Call, call_as_steward: Call) -> None:
        self._node_id = node_id
        self._call_for_node = call_for_node
        self._call_as_steward = call_as_steward
        self._under_way: set[PartitionId] = set()

    def steer(self, group: HostedGroup, store: Reading) -> Coroutine[None, None, None] | None:
        """Begin a change that is placed, or return what must be told to the control plane."""
        partition = group.partition_id
        placement = find(store, Placement, partition)
        if placement is None or partition in self._under_way:
            return None
        facts = facts_of(group)
        request = membership_request(placement, facts)
        if request is not None:
            try:
                group.replica.change_membership(request)
            except MembershipRefused as error:
                journal.info("group %d: the placed members wait: %s", partition, error.reason)
            return None
        report = membership_report(placement, facts, self._node_id)
        if report is not None:
            return self._report(partition, self._call_for_node, report)
        own = mirrored(placement, facts)
        return None if own is None else self._report(partition, self._call_as_steward, own)

    async def _report(self, partition: PartitionId, call: Call, command: Command) -> None:
        self._under_way.add(partition)
        try:
            answer = await call(command)
        except ControlUnavailable:
            return  # the next word of the control plane brings us here again
        finally:
            self._under_way.discard(partition)
        if isinstance(answer, Refused):
            journal.warning("group %d: %s: %s", partition, type(command).__name__, answer.reason)
