"""The numbers of a partition's broker. They are the same on every replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

TopicPartition: TypeAlias = Callable[[bytes], int]
"""Say which partition of the tenant's ring owns a topic."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """`prg` is this partition's number, of `prg_count` in the ring."""

    prg: int
    prg_count: int
    topic_partition: TopicPartition
    queue_messages_max: int = 1_000
    queue_bytes_max: int = 64 << 20
    received_max: int = 4_096  # QoS 2 publishes of one session that are not released
    subscriptions_max: int = 256
    message_ttl_ms: int = 259_200_000
    session_expiry_seconds_max: int = 604_800
    retained_topics_max: int = 10_000_000
