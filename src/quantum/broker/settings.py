"""The numbers of a partition's broker. They are the same on every replica."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Partition: TypeAlias = Callable[[bytes, int], int]
"""Say which partition owns a key, in a ring of so many."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """`prg` is this partition's number; `prg_count` were in the ring when the tenant was made.

    The ring grows by commands (`BeginRebalance`): how many there are now is state.
    """

    prg: int
    prg_count: int
    topic_partition: Partition
    session_partition: Partition
    queue_messages_max: int = 1_000
    queue_bytes_max: int = 64 << 20
    received_max: int = 4_096  # QoS 2 publishes of one session that are not released
    dedupe_horizon_ms: int = 259_200_000  # how long one of them is remembered (quantumqtt §4.2)
    subscriptions_max: int = 10_000
    """Filters of one session."""
    wild_forks_max: int = 1_024
    """How far the filters of all may fork below a `+`: it bounds what one publish costs, however
    many filters there are (`quantum.routing.trie`)."""
    message_ttl_ms: int = 259_200_000
    session_expiry_seconds_max: int = 4_294_967_294
    """What no session outlives; how long a client may ask for is the listener's policy."""
    retained_page: int = 1_024
    """How many retained messages one command sends to one subscription at most."""
    channel_items_max: int = 100_000
    channel_bytes_max: int = 256 << 20
    """Above either, publishes and subscriptions that need the channel are refused: its receiver
    is gone, or far behind."""
    streams_max: int = 16_384
    """Streams of a tenant; each has a partition in every PRG."""
    elapse_sessions_max: int = 1_000
    """How many sessions one `Elapse` looks at; the others stay due."""
