"""DescribeGroups, ListGroups, DeleteGroups: groups as an administrator sees them."""

from __future__ import annotations

from typing import Any, Final

from quantum.broker.streams import (
    AssignedGroup,
    ClassicGroup,
    ClassicState,
    ConsumerGroup,
    DeleteGroup,
    StreamRefusal,
)
from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.session.assigned_groups import assigned_state
from quantum.protocols.kafka.session.gathering import Gathering
from quantum.protocols.kafka.session.group_requests import CoordinationResult, refuse_group
from quantum.protocols.kafka.session.request import KafkaRequest
from quantum.tenancy import Operation, ResourceKind

_NO_OPERATIONS: Final = -(1 << 31)
_STATES: Final = {
    ClassicState.EMPTY: "Empty",
    ClassicState.PREPARING: "PreparingRebalance",
    ClassicState.COMPLETING: "CompletingRebalance",
    ClassicState.STABLE: "Stable",
}
_DEAD: Final = "Dead"
_NOT_FOUND_SINCE: Final = 6


def state_of(group: ConsumerGroup) -> str:
    """Return a group's state by Kafka's name for it."""
    match group.members:
        case ClassicGroup(state=state):
            return _STATES[state]
        case AssignedGroup() as assigned:
            return assigned_state(assigned)
        case None:
            return "Empty"


def on_list_groups(request: KafkaRequest) -> None:
    """List the groups that this node coordinates: clients ask every node."""
    states = {each.lower() for each in getattr(request.body, "states_filter", ())}
    types = {each.lower() for each in getattr(request.body, "types_filter", ())}
    topics = request.tenant.topics
    rows = []
    for prg in range(request.tenant.tenant.prg_count):
        if not topics.leader(prg).is_here:
            continue
        groups = topics.coordinator(prg).groups
        for name in groups.names():
            group = groups.get(name)
            if group is None or not request.may(Operation.DESCRIBE, ResourceKind.GROUP, name):
                continue
            row = _listed(name, group)
            suits = not states or row["group_state"].lower() in states
            if suits and (not types or row["group_type"] in types):
                rows.append(row)
    request.answer({"error_code": KafkaCode.none, "groups": rows})


def _listed(name: str, group: ConsumerGroup) -> dict[str, Any]:
    is_assigned = isinstance(group.members, AssignedGroup)
    kind = group.members.protocol_type if isinstance(group.members, ClassicGroup) else "consumer"
    return {
        "group_id": name,
        "protocol_type": kind,
        "group_state": state_of(group),
        "group_type": "consumer" if is_assigned else "classic",
    }


def on_describe_groups(request: KafkaRequest) -> None:
    request.answer({"groups": [_described(request, name) for name in request.body.groups]})


def _described(request: KafkaRequest, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "error_code": refuse_group(request, name, Operation.DESCRIBE),
        "error_message": None,
        "group_id": name,
        "group_state": _DEAD,
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
        "authorized_operations": _NO_OPERATIONS,
    }
    if row["error_code"] is not KafkaCode.none:
        return row
    topics = request.tenant.topics
    group = topics.coordinator(topics.group(name)).groups.get(name)
    if group is None or (isinstance(group.members, AssignedGroup) and group.has_members):
        missing = request.version >= _NOT_FOUND_SINCE
        return row | ({"error_code": KafkaCode.group_id_not_found} if missing else {})
    row["group_state"] = state_of(group)
    if isinstance(group.members, ClassicGroup):
        classic = group.members
        row["protocol_type"] = classic.protocol_type
        row["protocol_data"] = classic.protocol
        row["members"] = [
            {
                "member_id": key,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(classic.protocol),
                "member_assignment": member.assignment,
            }
            for key, member in classic.members.items()
        ]
    return row


def on_delete_groups(request: KafkaRequest) -> None:
    topics = request.tenant.topics
    rows: list[dict[str, Any]] = []
    gathering = Gathering(lambda: request.answer({"results": rows}))
    for name in request.body.groups_names:
        row: dict[str, Any] = {"group_id": name}
        rows.append(row)
        row["error_code"] = refuse_group(request, name, Operation.MANAGE)
        if row["error_code"] is KafkaCode.none:
            gathering.expect()
            command = DeleteGroup(request.now_ms, name)
            topics.coordinate(topics.group(name), command, _deleted(request, row, gathering))
    gathering.begin()


def _deleted(request: KafkaRequest, row: dict[str, Any], gathering: Gathering) -> Any:
    def done(result: CoordinationResult) -> None:
        answer = None if result is None else result.answer
        if result is None:
            row["error_code"] = KafkaCode.not_coordinator
        elif isinstance(answer, StreamRefusal):
            row["error_code"] = request.code(answer)
        gathering.came()

    return done
