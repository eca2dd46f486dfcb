"""Shared subscriptions: each message goes to one member, in turn, among those that are connected.

Or, if the tenant wants it (C12), to the member that its key belongs to: the one whose id gives the
highest hash together with the key. So a member that leaves gives up its own keys and no others,
and one that comes takes only those that are its own from now on. Who is not there, or has no
room, is passed over as in the other way: nothing waits for a slow member.

The partition that owns a topic keeps the members and the turn, wherever their sessions are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_64_intdigest

KEY_SEED: Final = 1
"""Another one would be another way to share: messages would move between members."""


@dataclass(slots=True)
class ShareMember:
    """A session in a group; `prg` is where the session lives."""

    prg: int
    client_id: bytes
    epoch: int
    qos: int
    identifier: int
    online: bool
    full: bool = False  # its queue has no room


@dataclass(slots=True, eq=False)
class ShareGroup:
    """One `$share/name/filter`. `turn` counts the messages given out: it is replicated state."""

    name: bytes
    filter: bytes
    members: dict[tuple[int, bytes], ShareMember] = field(default_factory=dict)
    turn: int = 0
    unlogged_turn: int = 0
    """Counts what only connections get. It is no part of the state: every node has its own."""

    @property
    def is_blocked(self) -> bool:
        """Whether no member has room."""
        return all(member.full for member in self.members.values())

    def is_unreachable(self, unreachable: frozenset[int]) -> bool:
        """Whether no member has room and is in a partition that can be reached."""
        members = self.members.values()
        return all(member.full or member.prg in unreachable for member in members)

    def join(self, member: ShareMember) -> None:
        """Take a member in, or note what changed about it."""
        self.members[member.prg, member.client_id] = member

    def leave(self, prg: int, client_id: bytes) -> None:
        self.members.pop((prg, client_id), None)

    def rehome(self, home: Callable[[bytes], int]) -> None:
        """Find every member where its client's session belongs."""
        for member in self.members.values():
            member.prg = home(member.client_id)
        self.members = {(each.prg, each.client_id): each for each in self.members.values()}

    def pick(
        self, unreachable: frozenset[int] = frozenset(), key: bytes | None = None
    ) -> ShareMember | None:
        """Return whose turn, or whose key it is: a connected member with room, or the next best.

        Members in `unreachable` partitions come last.
        """
        chosen = self.next_member(unreachable, key)
        if chosen is not None and key is None:
            self.turn += 1
        return chosen

    def next_member(self, unreachable: frozenset[int], key: bytes | None) -> ShareMember | None:
        """Return whom `pick` would choose now; nothing changes."""
        candidates = self._candidates(unreachable)
        if not candidates:
            return None
        if key is not None:
            return owner_of_key(candidates, key)
        return candidates[self.turn % len(candidates)]

    def _candidates(self, unreachable: frozenset[int]) -> list[ShareMember]:
        members = list(self.members.values())
        with_room = [each for each in members if not each.full and each.prg not in unreachable]
        online = [member for member in with_room if member.online]
        return online or with_room or members

    def pick_unlogged(self, key: bytes | None = None) -> ShareMember | None:
        """Return a connected member for a message that is not logged (QoS 0), or None.

        This changes nothing that is replicated.
        """
        online = [member for member in self.members.values() if member.online]
        if not online:
            return None
        if key is not None:
            return owner_of_key(online, key)
        self.unlogged_turn += 1
        return online[self.unlogged_turn % len(online)]


def owner_of_key(members: list[ShareMember], key: bytes) -> ShareMember:
    """Return the member that a key belongs to, the same whatever their order is."""
    return max(members, key=lambda each: (_rank(each.client_id, key), each.client_id))


def _rank(client_id: bytes, key: bytes) -> int:
    length = len(client_id).to_bytes(2, "little")
    return xxh3_64_intdigest(length + client_id + key, seed=KEY_SEED)
