"""What an attach says of a durable end: whether it is one, and what is unsettled (§2.6.13)."""

from __future__ import annotations

from typing import Final

from quantum.broker.queues import Settlement
from quantum.protocols.amqp.engine import (
    AmqpPeerFault,
    SourceTerminus,
    TargetTerminus,
    TransactionalState,
)
from quantum.protocols.amqp.engine.composites import AttachFrame
from quantum.protocols.amqp.engine.types import TerminusDurability
from quantum.protocols.amqp.session.outgoing import is_outcome, settlement_of

_NUMBER_BYTES: Final = 8
_NEVER: Final = "never"


def is_durable(terminus: SourceTerminus | TargetTerminus) -> bool:
    """Say whether an end outlives its link: it says that it is durable, and never expires."""
    return terminus.durable != TerminusDurability.NONE and terminus.expiry_policy == _NEVER


def tags_of(asked: AttachFrame) -> list[bytes]:
    """Return the tags that a sender does not know to be settled."""
    return list(asked.unsettled or ())


def settlements_of(asked: AttachFrame) -> list[Settlement]:
    """Return what a receiver has decided of what it holds; our tags are messages' numbers."""
    said = []
    for tag, state in (asked.unsettled or {}).items():
        if len(tag) != _NUMBER_BYTES or isinstance(state, TransactionalState):
            continue
        if is_outcome(state):
            try:
                said.append(settlement_of(int.from_bytes(tag, "big"), state))
            except AmqpPeerFault:
                continue  # nothing that could be meant: it is given again
    return said
