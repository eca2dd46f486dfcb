"""Shared subscriptions: each message goes to one member, in turn, among those that are connected.

The partition that owns a topic keeps the members and the turn, wherever their sessions are.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Member:
    """A session in a group; `prg` is where the session lives."""

    prg: int
    client_id: bytes
    epoch: int
    qos: int
    identifier: int
    online: bool


@dataclass(slots=True, eq=False)
class ShareGroup:
    """One `$share/name/filter`. `turn` counts the messages given out: it is replicated state."""

    name: bytes
    filter: bytes
    members: dict[tuple[int, bytes], Member] = field(default_factory=dict)
    turn: int = 0
    unlogged_turn: int = 0
    """Counts what is not logged (QoS 0): the leader's own, and no part of the state."""

    def join(self, member: Member) -> None:
        """Take a member in, or note what changed about it."""
        self.members[member.prg, member.client_id] = member

    def leave(self, prg: int, client_id: bytes) -> None:
        self.members.pop((prg, client_id), None)

    def pick(self) -> Member | None:
        """Return whose turn it is: a connected member, or else one whose session will return."""
        candidates = [member for member in self.members.values() if member.online]
        if not candidates:
            candidates = list(self.members.values())
        if not candidates:
            return None
        chosen = candidates[self.turn % len(candidates)]
        self.turn += 1
        return chosen

    def pick_unlogged(self) -> Member | None:
        """Return whose turn it is for a message that is not logged: a connected member."""
        candidates = [member for member in self.members.values() if member.online]
        if not candidates:
            return None
        self.unlogged_turn += 1
        return candidates[self.unlogged_turn % len(candidates)]
