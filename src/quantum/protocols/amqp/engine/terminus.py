"""What an attach may ask for, as far as the wire alone can tell (§2.7.3, §3.5)."""

from __future__ import annotations

from typing import Final

from quantum.protocols.amqp.engine.composites import (
    OUTCOMES,
    AttachFrame,
    Coordinator,
    SourceTerminus,
    TargetTerminus,
)
from quantum.protocols.amqp.engine.ends import AmqpLink
from quantum.protocols.amqp.engine.errors import Condition, FaultScope, ProtocolFault
from quantum.protocols.amqp.engine.settings import TAG_BYTES_MAX
from quantum.protocols.amqp.engine.types import LinkRole

_OUTCOME_NAMES: Final = frozenset(each.NAME for each in OUTCOMES)


def check_attach(link: AmqpLink, attach: AttachFrame) -> None:
    """Raise the fault of an attach that contradicts itself; it ends the link, or the session."""
    if attach.role is LinkRole.SENDER and attach.initial_delivery_count is None:
        raise ProtocolFault(
            Condition.INVALID_FIELD,
            "a sender attaches without a delivery-count",
            FaultScope.SESSION,
        )
    asked = attach.source if attach.role is LinkRole.RECEIVER else attach.target
    if (
        isinstance(asked, SourceTerminus | TargetTerminus)
        and asked.dynamic
        and asked.address is not None
    ):
        raise link.fault(Condition.INVALID_FIELD, "a dynamic node is asked for by address")
    if isinstance(attach.target, Coordinator) and attach.role is LinkRole.RECEIVER:
        raise link.fault(Condition.INVALID_FIELD, "a coordinator does not send")
    if any(len(tag) > TAG_BYTES_MAX for tag in attach.unsettled or ()):
        raise link.fault(Condition.INVALID_FIELD, "an unsettled tag has more than 32 bytes")
    if attach.source is not None and not _OUTCOME_NAMES.issuperset(attach.source.outcomes):
        raise link.fault(Condition.INVALID_FIELD, "an outcome is none that there is")
