"""Who of a partition's consumer groups was heard, and when: the leader's memory, never logged.

A new leader begins every session anew, so a change of leader expires nobody. A session that ended
becomes a command: only then the group changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from quantum.broker.streams import (
    AssignedGroup,
    ClassicGroup,
    ClassicState,
    ConsumerGroup,
    ExpireMember,
    GroupCoordinator,
)
from quantum.broker.streams.section import GROUPS, encode_stream_command

ASSIGNED_SESSION_MS: Final = 45_000
"""Of a member of KIP-848: Apache Kafka's own default (`group.consumer.session.timeout.ms`)."""


class GroupSessions:
    """When each member was last heard, by the loop's own clock."""

    __slots__ = ("_fresh", "_heard")

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str], int] = {}
        self._fresh: set[tuple[str, str]] = set()

    def heard(self, group: str, member_id: str) -> None:
        """Note a sign of life; it counts from the next look on."""
        self._fresh.add((group, member_id))

    def expired(self, groups: GroupCoordinator, tick_ms: int, now_ms: int) -> Iterator[bytes]:
        """Yield the commands that expire who was silent for longer than its session."""
        fresh, self._fresh = self._fresh, set()
        before, self._heard = self._heard, {}
        for name in groups.names():
            group = groups.get(name)
            assert group is not None
            for member_id, session_ms, joins in _members(group):
                key = (name, member_id)
                since_ms = tick_ms if key in fresh else before.get(key, tick_ms)
                if tick_ms - since_ms <= session_ms:
                    self._heard[key] = since_ms
                    continue
                command = ExpireMember(0, name, member_id, joins)
                yield encode_stream_command(now_ms, GROUPS, command)


def _members(group: ConsumerGroup) -> Iterator[tuple[str, int, int]]:
    """Walk the members that may expire: id, session, how often it joined."""
    match group.members:
        case ClassicGroup(state=state, members=members, pending=pending):
            for member_id, member in list(members.items()):
                waits = state is ClassicState.PREPARING and member.joined
                if not waits:  # who waits for the others is there
                    yield member_id, member.session_ms, member.joins
            for member_id, session_ms in list(pending.items()):
                yield member_id, session_ms, 0
        case AssignedGroup(members=assigned):
            for member_id, each in list(assigned.items()):
                yield member_id, ASSIGNED_SESSION_MS, each.joins
        case None:
            return
