"""What a partition's leader hears about its queues once an entry is durable."""

from __future__ import annotations

from quantum.broker.sections import SectionEffect


class QueueGrew(SectionEffect):
    """Messages may be given to receivers; `payloads` are theirs, or none where files have them."""

    name: bytes
    numbers: list[int]
    payloads: list[bytes]


class QueueShrank(SectionEffect):
    """Messages are gone: settled, expired, purged, or `died`, which are dead letters now."""

    name: bytes
    numbers: list[int]
    died: list[int]


class QueueEnded(SectionEffect):
    """The queue is gone."""

    name: bytes
