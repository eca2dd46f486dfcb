"""The listener with the machines behind it: groups by their log, SASL by its exchange.

Threads wait where a node would keep a request; everything that is decided, a machine decides.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from quantum.broker.streams import (
    AssignedGroup,
    ClassicGroup,
    ClassicState,
    CommitOffsets,
    CommittedOffset,
    CompleteJoin,
    ConsumerHeartbeat,
    GroupCoordinator,
    GroupSettings,
    HeartbeatAnswer,
    JoinedGeneration,
    JoinGroup,
    LeaveGroup,
    MemberWaits,
    NewMemberId,
    SetPartitionCounts,
    StreamRefusal,
    SyncedAssignment,
    SyncGroup,
    decode_group_command,
    encode_command,
)
from quantum.protocols.kafka.codec import ApiKey, KafkaCode, RequestHead
from quantum.protocols.kafka.requests import code_of
from tests.quantum.kafka.listener import HIDDEN, PARTITIONS, Listener, topic_id

PATIENCE_S = 20


class GroupListener(Listener):
    """A listener whose groups are those of `GroupCoordinator`."""

    hidden = HIDDEN - {ApiKey.CONSUMER_GROUP_HEARTBEAT}

    def __init__(self) -> None:
        super().__init__()
        self.groups = GroupCoordinator(GroupSettings(initial_delay_ms=0))
        self._ids = itertools.count(1)

    def _now(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def _apply(self, command: Any) -> Any:
        result = self.groups.apply(decode_group_command(encode_command(command)))
        self._grown.notify_all()
        return result.answer

    def _classic(self, name: str) -> ClassicGroup:
        group = self.groups.get(name)
        assert group is not None
        assert isinstance(group.members, ClassicGroup)
        return group.members

    def _on_join_group(self, head: RequestHead, body: Any) -> dict[str, Any]:
        rebalance = getattr(body, "rebalance_timeout", body.session_timeout)
        answer = self._apply(
            JoinGroup(
                *(self._now(), body.group_id, body.member_id, f"member-{next(self._ids)}"),
                round(body.session_timeout.total_seconds() * 1000),
                round(rebalance.total_seconds() * 1000),
                body.protocol_type,
                tuple((each.name, each.metadata) for each in body.protocols),
                getattr(body, "group_instance_id", None),
                head.client_id or "",
                needs_known_id=head.api_version >= 4,
            )
        )
        if isinstance(answer, MemberWaits):
            answer = self._await_join(body.group_id, answer.member_id)
        return self._join_facts(head, answer)

    def _await_join(self, name: str, member_id: str) -> Any:
        group = self._classic(name)
        for _ in range(PATIENCE_S * 20):
            if group.state is not ClassicState.PREPARING:
                break
            due = group.deadline_ms()
            if due is not None and self._now() >= due:
                self._apply(CompleteJoin(self._now(), name, group.generation))
            self._grown.wait(0.05)
        return (
            group.joined(member_id) if member_id in group.members else StreamRefusal.UNKNOWN_MEMBER
        )

    def _join_facts(self, head: RequestHead, answer: Any) -> dict[str, Any]:
        none: dict[str, Any] = {
            "generation_id": -1,
            "protocol_type": None,
            "protocol_name": "",
            "leader": "",
        }
        none |= {"skip_assignment": False, "member_id": "", "members": []}
        match answer:
            case NewMemberId(member_id):
                required = KafkaCode.member_id_required
                return none | {"error_code": required, "member_id": member_id}
            case JoinedGeneration() as joined:
                return none | {
                    "generation_id": joined.generation,
                    "protocol_type": joined.protocol_type,
                    "protocol_name": joined.protocol,
                    "leader": joined.leader_id,
                    "member_id": joined.member_id,
                    "members": [
                        {"member_id": key, "group_instance_id": instance, "metadata": metadata}
                        for key, instance, metadata in joined.members
                    ],
                }
            case refusal:
                return none | {"error_code": code_of(refusal, head.api_key, head.api_version)}

    def _on_sync_group(self, head: RequestHead, body: Any) -> dict[str, Any]:
        command = SyncGroup(
            *(self._now(), body.group_id, body.generation_id, body.member_id),
            tuple((each.member_id, each.assignment) for each in body.assignments),
            getattr(body, "group_instance_id", None),
        )
        answer = self._apply(command)
        for _ in range(PATIENCE_S * 20):
            if not isinstance(answer, MemberWaits):
                break
            self._grown.wait(0.05)
            answer = self.groups.apply(command).answer
        facts = {"protocol_type": None, "protocol_name": None}
        if isinstance(answer, SyncedAssignment):
            return facts | {"assignment": answer.assignment}
        code = code_of(answer, head.api_key, head.api_version)
        return facts | {"assignment": b"", "error_code": code}

    def _on_heartbeat(self, head: RequestHead, body: Any) -> dict[str, Any]:
        instance = getattr(body, "group_instance_id", None)
        facts = (body.group_id, body.member_id, instance, body.generation_id)
        refusal = self.groups.check_heartbeat(*facts)
        return {"error_code": code_of(refusal, head.api_key, head.api_version)}

    def _on_leave_group(self, head: RequestHead, body: Any) -> dict[str, Any]:
        members = (
            ((body.member_id, None),)
            if head.api_version < 3
            else tuple((each.member_id, each.group_instance_id) for each in body.members)
        )
        answers = self._apply(LeaveGroup(self._now(), body.group_id, members))
        codes = [code_of(each, head.api_key, head.api_version) for each in answers]
        rows = [
            {"member_id": key, "group_instance_id": instance, "error_code": code}
            for (key, instance), code in zip(members, codes, strict=True)
        ]
        return {"members": rows, "error_code": codes[0] if head.api_version < 3 else 0}

    def _on_offset_commit(self, head: RequestHead, body: Any) -> dict[str, Any]:
        rows = tuple(
            ((topic.name, each.partition_index), CommittedOffset(each.committed_offset))
            for topic in body.topics
            for each in topic.partitions
        )
        facts = (body.group_id, body.generation_id_or_member_epoch, body.member_id, rows)
        answer = self._apply(CommitOffsets(self._now(), *facts))
        refusals = answer if isinstance(answer, tuple) else [answer] * len(rows)
        codes = {
            key: code_of(refusal, head.api_key, head.api_version)
            for (key, _), refusal in zip(rows, refusals, strict=True)
        }
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {
                            "partition_index": each.partition_index,
                            "error_code": codes[topic.name, each.partition_index],
                        }
                        for each in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        }

    def _committed(self, group: str, topic: str, index: int) -> int:
        found = self.groups.get(group)
        row = None if found is None else found.offsets.get((topic, index))
        return row.offset if isinstance(row, CommittedOffset) else -1

    def _on_offset_fetch(self, head: RequestHead, body: Any) -> dict[str, Any]:
        groups = body.groups if head.api_version >= 8 else (body,)
        for each in groups:
            for topic in each.topics or ():
                for index in topic.partition_indexes:
                    key = (each.group_id, topic.name, index)
                    self.offsets[key] = self._committed(*key)
        return super()._on_offset_fetch(head, body)

    def _topic(self, name: str) -> dict[str, Any]:
        self.groups.apply(SetPartitionCounts(self._now(), ((name, PARTITIONS),)))
        return super()._topic(name)

    def _on_consumer_group_heartbeat(self, head: RequestHead, body: Any) -> dict[str, Any]:
        owned = body.topic_partitions
        command = ConsumerHeartbeat(
            *(self._now(), body.group_id, body.member_id or f"member-{next(self._ids)}"),
            body.member_epoch,
            None if body.subscribed_topic_names is None else tuple(body.subscribed_topic_names),
            None
            if owned is None
            else tuple(
                (self.names[each.topic_id], part) for each in owned for part in each.partitions
            ),
            body.instance_id,
            assignor=body.server_assignor,
        )
        if self.groups.would_change(command):
            answer = self._apply(command)
        else:
            answer = self._assigned(body.group_id).answer(command)
        facts = {"error_message": None, "member_id": command.member_id, "heartbeat_interval": 100}
        if not isinstance(answer, HeartbeatAnswer):
            code = code_of(answer, head.api_key, head.api_version)
            return facts | {"error_code": code, "member_epoch": 0, "assignment": None}
        rows = None if answer.assignment is None else {"topic_partitions": _by_topic(answer)}
        return facts | {"member_epoch": answer.epoch, "assignment": rows}

    def _assigned(self, name: str) -> AssignedGroup:
        group = self.groups.get(name)
        assert group is not None
        assert isinstance(group.members, AssignedGroup)
        return group.members


def _by_topic(answer: HeartbeatAnswer) -> list[dict[str, Any]]:
    rows: dict[str, list[int]] = {}
    for topic, part in answer.assignment or ():
        rows.setdefault(topic, []).append(part)
    return [
        {"topic_id": topic_id(each), "partitions": tuple(parts)} for each, parts in rows.items()
    ]
