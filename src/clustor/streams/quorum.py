"""When enough replicas have an entry: the quorum policies, over sets of replicas as bit masks.

A policy is monotone: one acknowledgement more never takes a quorum away. Policies are values
and are stored with their partition; a custom one is stored by its name and must be registered
again at every start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from clustor.raft.types import ReplicaId
from clustor.streams.errors import StreamMisuse, UnknownPolicy


@dataclass(frozen=True, slots=True)
class Majority:
    """More than half of the members."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """At least `acks` members; more than there are is never reached, and says so in `holds()`."""

    acks: int

    def __post_init__(self) -> None:
        if self.acks < 1:
            raise StreamMisuse("a threshold is at least 1", acks=self.acks)


@dataclass(frozen=True, slots=True)
class FixedSet:
    """Every one of these replicas; one that is not a member cannot acknowledge."""

    replicas: frozenset[ReplicaId]

    def __post_init__(self) -> None:
        if not self.replicas:
            raise StreamMisuse("a fixed quorum names at least one replica")


@dataclass(frozen=True, slots=True)
class Custom:
    """A policy that the application registered under this name."""

    name: str


QuorumPolicy: TypeAlias = Majority | Threshold | FixedSet | Custom
CustomRule: TypeAlias = Callable[[frozenset[ReplicaId], frozenset[ReplicaId]], bool]
"""Takes who acknowledged and who is a member; must be monotone in the first."""
Predicate: TypeAlias = Callable[[int], bool]
"""Says whether a mask of acknowledgements is a quorum."""


class PolicyRegistry:
    """The custom policies of a process, by name."""

    def __init__(self) -> None:
        self._rules: dict[str, CustomRule] = {}

    def register(self, name: str, rule: CustomRule) -> None:
        """Make `rule` known; a name is given once."""
        if name in self._rules:
            raise StreamMisuse("a policy of this name is registered", name=name)
        self._rules[name] = rule

    def rule(self, name: str) -> CustomRule:
        rule = self._rules.get(name)
        if rule is None:
            raise UnknownPolicy("no such policy is registered", name=name)
        return rule


class Replicas:
    """The members of the group, each with a bit of its own while it is one.

    Who leaves takes its bit along: back again it gets another, and must speak for itself anew.
    """

    def __init__(self, members: Iterable[ReplicaId] = ()) -> None:
        self._bits: dict[ReplicaId, int] = {}
        self._bits_given = 0
        self.members: frozenset[ReplicaId] = frozenset()
        self.set_members(members)

    def set_members(self, members: Iterable[ReplicaId]) -> None:
        self.members = frozenset(members)
        self._bits = {at: bit for at, bit in self._bits.items() if at in self.members}
        for replica in sorted(self.members - self._bits.keys()):
            self._bits[replica] = 1 << self._bits_given
            self._bits_given += 1
        self.mask = self.mask_of(self.members)

    def bit(self, replica: ReplicaId) -> int:
        """Return the member's bit, 0 for a stranger."""
        return self._bits[replica] if replica in self.members else 0

    def mask_of(self, replicas: Iterable[ReplicaId]) -> int:
        mask = 0
        for replica in replicas:
            mask |= self._bits.get(replica, 0)
        return mask

    def of_mask(self, mask: int) -> frozenset[ReplicaId]:
        """Return the members whose bits are set."""
        return frozenset(replica for replica in self.members if self._bits[replica] & mask)


def predicate_of(policy: QuorumPolicy, replicas: Replicas, registry: PolicyRegistry) -> Predicate:
    """Compile a policy for the present members. Raises UnknownPolicy."""
    members = replicas.mask
    match policy:
        case Majority():
            needed = len(replicas.members) // 2 + 1
            return lambda mask: (mask & members).bit_count() >= needed
        case Threshold(acks):
            return lambda mask: (mask & members).bit_count() >= acks
        case FixedSet(wanted):
            if not wanted <= replicas.members:
                return lambda _: False
            wanted_mask = replicas.mask_of(wanted)
            return lambda mask: mask & wanted_mask == wanted_mask
        case Custom(name):
            rule = registry.rule(name)
            return lambda mask: rule(replicas.of_mask(mask), replicas.members)
        case _:
            assert_never(policy)


def is_met_by_majority(policy: QuorumPolicy, replicas: Replicas) -> bool:
    """Say whether any majority of the members, whichever it is, is a quorum of this policy."""
    match policy:
        case Majority():
            return True
        case Threshold(acks):
            return acks <= len(replicas.members) // 2 + 1
        case FixedSet() | Custom():
            return False
        case _:
            assert_never(policy)
