"""C24: bring a lasting session's queue that is too full back to its bounds, as its tenant chose."""

from __future__ import annotations

from quantum.broker.full_queues import FullQueue
from quantum.broker.outbound import Outbound
from quantum.broker.session import Session
from quantum.broker.state import BrokerState


def is_overfull(state: BrokerState, outbound: Outbound) -> bool:
    """Say whether a queue holds more than it may."""
    settings = state.settings
    return len(outbound) > settings.queue_messages_max or outbound.weight > settings.queue_bytes_max


def give_way(state: BrokerState, session: Session) -> None:
    """Bring an overfull queue back to its bounds, as the tenant chose.

    What is in flight is the client's already, and stays: it bounds itself by its window.
    """
    outbound, policy = session.outbound, state.full_queues
    if policy is FullQueue.END_SESSION:
        if is_overfull(state, outbound):
            state.ending[session.client_id] = None
        return
    state.changes.sessions.add(session.client_id)
    take = outbound.queue.popleft if policy is FullQueue.DROP_OLDEST else outbound.queue.pop
    while outbound.queue and is_overfull(state, outbound):
        outbound.put_on(-take().message.weight)
        count_dropped(state, policy, 1)


def count_dropped(state: BrokerState, policy: FullQueue, count: int) -> None:
    """Count messages that a full queue cost, by the choice that cost them."""
    state.dropped_full[policy] = state.dropped_full.get(policy, 0) + count
