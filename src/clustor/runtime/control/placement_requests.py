"""An order at a group becomes a placement: the control plane checks it, the group carries it out.

Clustor §9.9 wants the preflight, the routing epoch and the record from ControlPlaneRaft. So
`POST /groups/<n>/members` on a node of a cluster that has one places the partition anew; its
leader finds the placement in its copy and begins the change (`control_steering`), and whoever
leads it next goes on. The control plane's own group is the exception: it records itself.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import msgspec

from clustor.control import (
    Members,
    NodeSpec,
    Placement,
    PlacePartition,
    RefusalCode,
    Refused,
    find,
)
from clustor.raft.errors import MembershipRefused
from clustor.runtime.admin.commands import CONTROL_EXPIRED, Answer
from clustor.runtime.control.records import CONTROL_PARTITION, operator_of
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.members import SURVIVABLE_VOTERS_MIN, PlacedChange, WantedChange

if TYPE_CHECKING:
    from clustor.runtime.control.service import ControlService
    from clustor.runtime.node import Node

UNDER_WAY: Final = "another change is under way"
NOT_PLACED: Final = "the group is not placed yet"
NODE_UNKNOWN: Final = "the control plane does not know the node yet"
_OVERTAKEN: Final = (RefusalCode.ROUTING_EPOCH_MISMATCH, RefusalCode.IN_USE)
_PATH: Final = re.compile(r"/groups/([1-9][0-9]{0,19})/members")

journal = logging.getLogger("clustor.control")


def placement_for(held: Placement, wanted: WantedChange) -> PlacePartition | None:
    """Make the placement that an order asks for; None: it stands. Raises MembershipRefused."""
    goal = changed(held.members, wanted)
    if goal == held.members and held.previous is None:
        return None
    if held.previous is not None:
        raise MembershipRefused(UNDER_WAY, routing_epoch=held.routing_epoch)
    before, after = len(held.members.voters), len(goal.voters)
    if after < min(before, SURVIVABLE_VOTERS_MIN) and not wanted.reason:
        raise MembershipRefused("the group would not survive a loss")
    return PlacePartition(
        partition_id=held.partition_id,
        tenant_id=held.tenant_id,
        members=goal,
        load=held.load,
        profile=held.profile,
        expected_routing_epoch=held.routing_epoch,
    )


def changed(members: Members, wanted: WantedChange) -> Members:
    """Return the members after an order: a voter more, or a member of any kind less."""

    def without(nodes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(nodes) - {wanted.node_id}))

    more = (wanted.node_id,) if wanted.kind == "add" else ()
    return Members(
        voters=tuple(sorted((*without(members.voters), *more))),
        learners=without(members.learners),
        observers=without(members.observers),
    )


class GroupOrders:
    """Takes orders for the groups of one node, and passes them on as placements."""

    def __init__(self, node: Node, service: ControlService) -> None:
        self._node = node
        self._service = service
        self._operator = operator_of(node.cluster.id)

    def post(self, path: str, body: bytes) -> Awaitable[Answer] | None:
        """Begin to answer; None: it is no order of this kind."""
        found = _PATH.fullmatch(path)
        if found is None or int(found[1]) == CONTROL_PARTITION:
            return None
        return self._answer(int(found[1]), body)

    async def _answer(self, partition: int, body: bytes) -> Answer:
        try:
            wanted = msgspec.json.decode(body, type=WantedChange)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return 400, {"error": f"not what this page takes: {error}"}
        known = {entry.node_id for entry in self._node.cluster.nodes}
        if wanted.kind == "add" and wanted.node_id not in known:
            return 409, {"error": "no such node in the cluster", "node_id": wanted.node_id}
        try:
            return await self._place(partition, wanted)
        except ControlUnavailable:
            return 503, {"error": CONTROL_EXPIRED}
        except MembershipRefused as error:
            return 409, {"error": error.reason}

    async def _place(self, partition: int, wanted: WantedChange) -> Answer:
        store = await self._service.reading()
        held = find(store, Placement, partition)
        if held is None:
            raise MembershipRefused(NOT_PLACED)
        if wanted.kind == "add" and find(store, NodeSpec, wanted.node_id) is None:
            raise MembershipRefused(NODE_UNKNOWN)
        command = placement_for(held, wanted)
        if command is None:
            return 200, PlacedChange(held.routing_epoch)
        answer = await self._service.call(command, self._operator, self._service.request_id())
        if isinstance(answer, Refused):
            if answer.code in _OVERTAKEN:
                raise MembershipRefused(UNDER_WAY)
            journal.warning("group %d: the placement is refused: %s", partition, answer.reason)
            raise MembershipRefused(f"{answer.code}: {answer.reason}")
        journal.info("group %d: %s node %d is placed", partition, wanted.kind, wanted.node_id)
        return 202, PlacedChange(int(answer.result["routing_epoch"]))
