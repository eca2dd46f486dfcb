"""QoS 2 publishers elsewhere are stopped before a full queue, not after.

What comes through a stream was accepted by its session's partition: it cannot be refused any
more. So the owner of a topic whose subscribers have no room takes it all the same, and tells the
partition it came from to refuse what follows, until there is room again.
"""

from __future__ import annotations

from quantum.broker.interest import send_item
from quantum.broker.items import Pressure
from quantum.broker.state import State


def note_congestion(state: State, origin: int, topic: bytes) -> None:
    """Tell a partition, once, that a topic of this one has no room."""
    told = state.congested.setdefault(topic, [])
    if origin not in told:
        told.append(origin)
        send_item(state, origin, Pressure(topic, refuse=True))


def lift_congestion(state: State) -> None:
    """Tell those who were told when topics have room again."""
    routes = state.routes
    for topic in [each for each in state.congested if not routes.route(each).is_blocked]:
        for origin in state.congested.pop(topic):
            send_item(state, origin, Pressure(topic, refuse=False))


def drop_congestion(state: State) -> None:
    """Take back what was said of topics that are another partition's now: it says so itself."""
    here = state.settings.prg
    for topic in [each for each in state.congested if state.owner(each) != here]:
        for origin in state.congested.pop(topic):
            send_item(state, origin, Pressure(topic, refuse=False))


def on_pressure(state: State, pressure: Pressure) -> None:
    """Take note of what another partition says of its topic."""
    if pressure.refuse:
        state.refusing[pressure.topic] = None
    else:
        state.refusing.pop(pressure.topic, None)


def is_congested(state: State, topic: bytes) -> bool:
    """Say whether the owner of a topic, another partition, has no room for it."""
    return topic in state.refusing
