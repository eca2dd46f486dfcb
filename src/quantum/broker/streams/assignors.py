"""Who gets which partitions, decided on the server (KIP-848): equal inputs, equal answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from quantum.broker.streams.types import TopicPartition

Assignment = dict[str, set[TopicPartition]]
Subscriptions = Mapping[str, frozenset[str]]
"""The topics of each member."""


def assign_range(
    subscriptions: Subscriptions, counts: Mapping[str, int], current: Assignment
) -> Assignment:
    """Cut each topic into ranges, one for each of its members; the first ones get one more."""
    del current
    result: Assignment = {member: set() for member in subscriptions}
    for topic in sorted({each for topics in subscriptions.values() for each in topics}):
        members = sorted(each for each, topics in subscriptions.items() if topic in topics)
        share, extra = divmod(counts.get(topic, 0), len(members))
        start = 0
        for nth, member in enumerate(members):
            end = start + share + (1 if nth < extra else 0)
            result[member] |= {(topic, partition) for partition in range(start, end)}
            start = end
    return result


def assign_uniform(
    subscriptions: Subscriptions, counts: Mapping[str, int], current: Assignment
) -> Assignment:
    """Give everybody as many as possible alike, and leave what can stay where it is."""
    eligible = {
        topic: sorted(each for each, topics in subscriptions.items() if topic in topics)
        for topic in sorted({each for topics in subscriptions.values() for each in topics})
    }
    wanted = [(t, n) for t in eligible for n in range(counts.get(t, 0))]
    result: Assignment = {member: set() for member in sorted(subscriptions)}
    holders = {part: member for member in sorted(current) for part in current[member]}
    for part in wanted:
        holder = holders.get(part)
        if holder in eligible[part[0]]:
            result[holder].add(part)
        else:
            holders[part] = ""
    for part in wanted:
        if not holders[part]:
            _give(part, min(eligible[part[0]], key=lambda m: (len(result[m]), m)), holders, result)
    _level(wanted, eligible, holders, result)
    return result


def _give(
    part: TopicPartition, member: str, holders: dict[TopicPartition, str], result: Assignment
) -> None:
    result.get(holders[part], set()).discard(part)
    holders[part] = member
    result[member].add(part)


def _level(
    wanted: list[TopicPartition],
    eligible: Mapping[str, list[str]],
    holders: dict[TopicPartition, str],
    result: Assignment,
) -> None:
    """Move single partitions from the many to the few until no move helps.

    Each move makes the sum of squares of the loads smaller, so this ends.
    """
    moved = True
    while moved:
        moved = False
        for part in reversed(wanted):
            fewest = min(eligible[part[0]], key=lambda m: (len(result[m]), m))
            if len(result[holders[part]]) > len(result[fewest]) + 1:
                _give(part, fewest, holders, result)
                moved = True


Assignor = Callable[[Subscriptions, Mapping[str, int], Assignment], Assignment]
ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR: Final = "uniform"
