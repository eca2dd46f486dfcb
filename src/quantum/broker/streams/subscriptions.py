"""The topics in a member's metadata, as all stock consumers write it (ConsumerProtocol)."""

from __future__ import annotations


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
