"""What stock consumers write of themselves (ConsumerProtocol): topics, and what they were given."""

from __future__ import annotations

from quantum.broker.streams.types import TopicPartition


def subscribed_topics(metadata: bytes) -> frozenset[str]:
    """Read the topics of a subscription; none where it is not one, for any protocol may be here."""
    topics = set()
    count = int.from_bytes(metadata[2:6], "big", signed=True)
    position = 6
    for _ in range(max(0, min(count, len(metadata)))):
        start = position + 2
        position = start + int.from_bytes(metadata[position:start], "big")
        if position > len(metadata) or start > len(metadata):
            return frozenset()
        topics.add(metadata[start:position].decode(errors="replace"))
    return frozenset(topics)


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """Read what a member was given; nothing where it is not such an assignment."""
    found: list[TopicPartition] = []
    topics, position = _number(assignment, 2), 6
    for _ in range(max(0, min(topics, len(assignment)))):
        start = position + 2
        position = start + int.from_bytes(assignment[position:start], "big")
        name = assignment[start:position].decode(errors="replace")
        count = _number(assignment, position)
        position += 4
        if count < 0 or position + 4 * count > len(assignment):
            return []
        numbers = (_number(assignment, position + 4 * each) for each in range(count))
        found += [(name, each) for each in numbers if each >= 0]
        position += 4 * count
    return found


def _number(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "big", signed=True)
