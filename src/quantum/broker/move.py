"""How far a change of the ring is, in one partition (`REBALANCE.md`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from quantum.broker.items import Item


@dataclass(slots=True)
class Move:
    """A ring of `old_count` partitions becomes a larger one; over when this partition has done
    its part."""

    routing_epoch: int
    old_count: int
    began: set[int] = field(default_factory=set)
    """Peers that route by the new ring: their messages reach those who leave another way."""
    flushed: set[int] = field(default_factory=set)
    """Old peers of whom nothing comes any more that was routed by the old ring."""
    is_flushed: bool = False
    """Whether the same holds for what this partition sends."""
    is_cut: bool = False
    """Whether what moves is the fresh partitions', though it may not be sent yet; of a fresh
    partition: whether it is open."""
    is_handed: bool = False
    """Whether all that moves was sent."""
    places: dict[int, int] = field(default_factory=dict)
    """How far the old peers must have our channels before the next step."""
    ended: set[int] = field(default_factory=set)
    """Of a fresh partition: whose part is here, whole."""
    held: list[tuple[int, Item]] = field(default_factory=list)
    """Of a fresh partition: messages that wait for all sessions to be here, with their origins."""
    topics: list[bytes] = field(default_factory=list)
    """Whose retained messages are still to be sent, the next one last; it follows from them."""
    untold: list[bytes] = field(default_factory=list)
    """Of a fresh partition: filters that nobody was told of yet, the next one last; likewise."""
