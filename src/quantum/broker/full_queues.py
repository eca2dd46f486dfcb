"""C24: what becomes of messages for a lasting session whose queue is full, as its tenant chose.

The choice is state: it came by the log, and every replica drops the same. Blocking, the default,
is in `delivering`: nothing is dropped, and publishers wait.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from quantum.broker.outbound import Outbound

if TYPE_CHECKING:
    from quantum.broker.session import Session
    from quantum.broker.state import State

FULL_REASON: Final = "its queue is full"


class FullQueue(IntEnum):
    """What a tenant chose; the numbers stand in logs and snapshots."""

    BLOCK = 0
    DROP_OLDEST = 1
    DROP_NEWEST = 2
    END_SESSION = 3


def is_overfull(state: State, outbound: Outbound) -> bool:
    """Say whether a queue holds more than it may."""
    settings = state.settings
    return len(outbound) > settings.queue_messages_max or outbound.weight > settings.queue_bytes_max


def give_way(state: State, session: Session) -> None:
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


def count_dropped(state: State, policy: FullQueue, count: int) -> None:
    """Count messages that a full queue cost, by the choice that cost them."""
    state.dropped_full[policy] = state.dropped_full.get(policy, 0) + count
