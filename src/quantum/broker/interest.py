"""What the other partitions are told about what the sessions here want."""

from __future__ import annotations

from quantum.broker.commands import PRGS_MAX
from quantum.broker.items import BLOCKED, NOTHING, WANTED, Interest, Item
from quantum.broker.state import BrokerState
from quantum.broker.types import TRANSFER, Sequence
from quantum.topics import has_wildcard


def is_peer(state: BrokerState, prg: int) -> bool:
    """Say whether a number names another partition of the ring, or its transfer channel.

    A fresh partition that knows nothing yet believes whoever speaks first.
    """
    number = prg & (TRANSFER - 1)
    if prg < 0 or number == state.settings.prg:
        return False
    return number < state.prg_count or (not state.is_open and number < PRGS_MAX)


def takes_items(state: BrokerState, origin: int) -> bool:
    """Say whether items of that channel count now: a fresh partition takes only what moves."""
    return is_peer(state, origin) and (state.is_open or origin >= TRANSFER)


def partitions_of(state: BrokerState, topic_filter: bytes) -> list[int]:
    """Return the other partitions that may own a topic which the filter matches."""
    here = state.settings.prg
    if has_wildcard(topic_filter):
        return [prg for prg in range(state.prg_count) if prg != here]
    owner = state.owner(topic_filter)
    return [] if owner == here else [owner]


def send_item(state: BrokerState, prg: int, item: Item) -> Sequence:
    """Append an item to the channel to another partition."""
    return state.channels.to(prg).append(item)


def tell(state: BrokerState, topic_filter: bytes) -> None:
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
        state.changes.told_no_more(topic_filter)
    else:
        if topic_filter not in state.told:
            state.changes.told_first(topic_filter)
        state.changes.told.add(topic_filter)
        state.told[topic_filter] = level
    for prg in partitions_of(state, topic_filter):
        send_item(state, prg, Interest(topic_filter, level))
