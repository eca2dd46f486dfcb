"""QoS 2 publishers elsewhere are stopped before a full queue, not after.

What comes through a channel was accepted by its session's partition: it cannot be refused any
more. So the owner of a topic whose subscribers have no room takes it all the same, and tells the
partition it came from to refuse what follows, until there is room again.
"""

from __future__ import annotations

from typing import Final

from quantum.broker.holdings import RETAINED_BYTES, RETAINED_TOPICS
from quantum.broker.interest import send_item
from quantum.broker.items import Pressure
from quantum.broker.limiting import judge
from quantum.broker.routes import TopicRoute
from quantum.broker.state import BrokerState

RETAINING: Final = b""
"""Instead of a topic: nothing more is retained, because the tenant has all that it may."""


def is_stored_full(state: BrokerState, route: TopicRoute) -> bool:
    """Say whether a message would go into queues that hold all that their tenant may have."""
    full = state.full_stores
    return (bool(route.kept) and state.settings.prg in full) or not full.isdisjoint(route.remotes)


def is_without_room(state: BrokerState, topic: bytes) -> bool:
    """Say whether a topic's messages have somebody without room among those who want them."""
    route = state.routes.route(topic)
    return route.is_blocked or (bool(state.full_stores) and is_stored_full(state, route))


def note_congestion(state: BrokerState, origin: int, topic: bytes) -> None:
    """Tell a partition, once, that a topic of this one has no room."""
    told = state.congested.setdefault(topic, [])
    if origin not in told:
        told.append(origin)
        send_item(state, origin, Pressure(topic, refuse=True))


def lift_congestion(state: BrokerState) -> None:
    """Tell those who were told when topics have room again."""
    for topic in [each for each in state.congested if _has_room(state, each)]:
        for origin in state.congested.pop(topic):
            send_item(state, origin, Pressure(topic, refuse=False))


def _has_room(state: BrokerState, topic: bytes) -> bool:
    if topic == RETAINING:
        return not judge(state, RETAINED_TOPICS, 1) and not judge(state, RETAINED_BYTES, 0)
    return not is_without_room(state, topic)


def drop_congestion(state: BrokerState) -> None:
    """Take back what was said of topics that are another partition's now: it says so itself."""
    here = state.settings.prg
    for topic in [
        each for each in state.congested if each != RETAINING and state.owner(each) != here
    ]:
        for origin in state.congested.pop(topic):
            send_item(state, origin, Pressure(topic, refuse=False))


def on_pressure(state: BrokerState, pressure: Pressure) -> None:
    """Take note of what another partition says of its topic."""
    if pressure.refuse:
        state.refusing[pressure.topic] = None
    else:
        state.refusing.pop(pressure.topic, None)


def is_congested(state: BrokerState, topic: bytes) -> bool:
    """Say whether the owner of a topic, another partition, has no room for it."""
    return topic in state.refusing
