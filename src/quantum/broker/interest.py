"""What the other partitions are told about what the sessions here want."""

from __future__ import annotations

from quantum.broker.items import BLOCKED, NOTHING, WANTED, Interest, Item
from quantum.broker.state import State
from quantum.broker.types import Sequence
from quantum.topics import has_wildcard


def is_peer(state: State, prg: int) -> bool:
    """Say whether a number names another partition of the ring."""
    return 0 <= prg < state.settings.prg_count and prg != state.settings.prg


def partitions_of(state: State, topic_filter: bytes) -> list[int]:
    """Return the other partitions that may own a topic which the filter matches."""
    settings = state.settings
    if has_wildcard(topic_filter):
        return [prg for prg in range(settings.prg_count) if prg != settings.prg]
    owner = settings.topic_partition(topic_filter)
    return [] if owner == settings.prg else [owner]


def send_item(state: State, prg: int, item: Item) -> Sequence:
    """Append an item to the stream to another partition."""
    return state.channels.to(prg).append(item)


def tell(state: State, topic_filter: bytes) -> None:
    """Tell the partitions concerned, if the interest in a filter changed."""
    subscribers = state.filters.get(topic_filter)
    level = NOTHING
    if subscribers:
        full = state.routes.full
        level = BLOCKED if full and not full.isdisjoint(subscribers) else WANTED
    if state.told.get(topic_filter, NOTHING) == level:
        return
    if level == NOTHING:
        del state.told[topic_filter]
    else:
        state.told[topic_filter] = level
    for prg in partitions_of(state, topic_filter):
        send_item(state, prg, Interest(topic_filter, level))
