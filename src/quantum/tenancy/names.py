"""Rules about resources that have plain names: one name each, or all that begin alike.

A question costs one lookup for the name and one for each length that a prefix has, however many
rules there are.
"""

from __future__ import annotations

from quantum.tenancy.access import OPERATIONS_OF, AclRule, Effect, Operation, ResourceKind
from quantum.tenancy.errors import InvalidRule

_Whom = str | None


def read_pattern(
    kind: ResourceKind, topic_filter: str | None, name: str | None, prefix: str | None
) -> tuple[bytes, bool]:
    """Return what a written rule names, and whether only the beginning of it.

    Neither a name nor a prefix: everything of this kind. Raises InvalidRule.
    """
    if kind is ResourceKind.TOPIC:
        if topic_filter is None or name is not None or prefix is not None:
            raise InvalidRule("topics are named by a filter")
        return topic_filter.encode(), False
    if topic_filter is not None:
        raise InvalidRule(f"a filter is of topics: a {kind.value} has a name or a prefix")
    if name is None:
        return (prefix or "").encode(), True
    if prefix is not None:
        raise InvalidRule("a rule has a name or a prefix, not both")
    return name.encode(), False


def check_name_rule(rule: AclRule, number: int) -> None:
    """Raise InvalidRule where a rule cannot be meant as it stands."""
    known = OPERATIONS_OF[rule.kind] | {Operation.DESCRIBE}
    strange = sorted(rule.operations - known)
    if strange:
        raise InvalidRule(f"nobody can {strange[0]} a {rule.kind.value}", rule=number)
    if rule.kind is ResourceKind.CLUSTER and rule.pattern:
        raise InvalidRule("the cluster has no name", rule=number)
    if not rule.pattern and not rule.is_prefix:
        raise InvalidRule(f"a {rule.kind.value} has a name", rule=number)


class NameRules:
    """The rules about one kind of resource. Each answer is the first rule's number, or None."""

    __slots__ = ("_sides",)

    def __init__(self) -> None:
        self._sides: dict[tuple[Effect, Operation], dict[_Whom, _Names]] = {}

    def add(self, rule: AclRule, number: int) -> None:
        """Add a checked rule; only before any question."""
        whom: list[_Whom] = [None] if rule.principals is None else list(rule.principals)
        for operation in rule.operations:
            side = self._sides.setdefault((rule.effect, operation), {})
            for each in whom:
                side.setdefault(each, _Names()).add(rule.pattern, number, rule.is_prefix)

    def find(self, effect: Effect, operation: Operation, principal: str, name: bytes) -> int | None:
        """Return the first rule of this effect that is about such a request."""
        side = self._sides.get((effect, operation))
        if side is None:
            return None
        concerned = (side[each] for each in (None, principal) if each in side)
        found = [number for names in concerned for number in names.matching(name)]
        return min(found, default=None)


class _Names:
    """Names and beginnings of names, each with the first rule that has it."""

    __slots__ = ("_lengths", "_literal", "_prefixes")

    def __init__(self) -> None:
        self._literal: dict[bytes, int] = {}
        self._prefixes: dict[bytes, int] = {}
        self._lengths: tuple[int, ...] = ()

    def add(self, pattern: bytes, number: int, is_prefix: bool) -> None:
        table = self._prefixes if is_prefix else self._literal
        table.setdefault(pattern, number)
        if is_prefix and len(pattern) not in self._lengths:
            self._lengths = tuple(sorted((*self._lengths, len(pattern))))

    def matching(self, name: bytes) -> list[int]:
        found = [self._literal[name]] if name in self._literal else []
        for length in self._lengths:
            if length > len(name):
                break
            number = self._prefixes.get(name[:length])
            if number is not None:
                found.append(number)
        return found
