"""What a receiver's filters say of a message."""

from __future__ import annotations

from quantum.broker.queues import QueueEntry
from quantum.protocols.amqp.selectors import MessageFacts, SelectorError, parse_selector
from quantum.protocols.amqp.session.queue_dispatch import Wants


def wants_of(selector: str, not_from: bytes) -> Wants | None:
    """Return what tells whether a receiver wants a message; None: it wants every one.

    `not_from` is the mark of a sender whose messages it does not want. A selector was understood
    where its link was attached; who cannot understand it here is given nothing.
    """
    if not selector and not not_from:
        return None
    try:
        asked = parse_selector(selector) if selector else None
    except SelectorError:
        return lambda _entry, _payload: False

    def wants(entry: QueueEntry, payload: bytes) -> bool:
        if not_from and entry.sender == not_from:
            return False
        return asked is None or asked.accepts(MessageFacts(entry, payload))

    return wants
