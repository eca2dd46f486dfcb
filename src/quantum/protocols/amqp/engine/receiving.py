"""What becomes of an incoming transfer: one delivery of one frame or of many (§2.6.12 to §2.6.14).

A delivery is told when it is whole. Until then its pieces are held, bounded by the link's message
size and by what the connection may hold of all.
"""

from __future__ import annotations

from typing import Final

from quantum.protocols.amqp.engine import hot
from quantum.protocols.amqp.engine.composites import (
    Declare,
    DeliveryState,
    Discharge,
    TransactionalState,
    TransferFrame,
)
from quantum.protocols.amqp.engine.errors import AmqpPeerFault, Condition, FaultScope, ProtocolFault
from quantum.protocols.amqp.engine.events import (
    DeclareReceived,
    DeliveryAborted,
    DeliveryReceived,
    DischargeReceived,
)
from quantum.protocols.amqp.engine.fields import composite_from, decode_state, encode_composite
from quantum.protocols.amqp.engine.link import EngineLink, PartialDelivery
from quantum.protocols.amqp.engine.messages import body_value
from quantum.protocols.amqp.engine.settings import TAG_BYTES_MAX
from quantum.protocols.amqp.engine.types import Described, ReceiverSettleMode, SenderSettleMode

_RARE: Final = hot.MORE | hot.ABORTED | hot.RESUME
"""What a delivery of one new frame does not say."""


def take_transfer(link: EngineLink, row: hot.Row, buffer: bytes) -> None:
    """Take one transfer of an attached receiver."""
    partial = link.partial
    if partial is None:
        if not row[7] & _RARE and row[8] < 0 and not link.is_rare:
            second = _check_first(link, row)
            tag = buffer[row[4] : row[5]]
            message_format = row[6] if row[6] > 0 else 0
            settled = bool(row[7] & hot.SETTLED)
            payload = buffer[row[10] : row[11]]
            _check_whole(link, settled, len(payload))
            if not settled:
                link.session.incoming[row[3]] = (link, tag, second)
            link.wire.events.append(
                DeliveryReceived(link, row[3], tag, message_format, settled, payload, None, False)  # noqa: FBT003
            )
            return
        partial = _begin(link, row, buffer)
        if not row[7] & (hot.MORE | hot.ABORTED):
            _complete(link, partial, buffer[row[10] : row[11]])
            return
        link.partial = partial
    else:
        _check_continuation(link, partial, row, buffer)
    _continue(link, partial, row, buffer)


def _check_first(link: EngineLink, row: hot.Row) -> bool:
    """Judge a delivery's first transfer, and take its credit; True if the sender settles first."""
    delivery_id = row[3]
    if delivery_id < 0 or row[4] < 0:
        raise link.fault(Condition.INVALID_FIELD, "a first transfer has no delivery-id or no tag")
    if row[5] - row[4] > TAG_BYTES_MAX:
        raise link.fault(Condition.INVALID_FIELD, "a delivery tag has more than 32 bytes")
    if row[7] & hot.MORE and row[6] < 0:
        raise link.fault(Condition.INVALID_FIELD, "a first transfer has no message-format")
    if delivery_id in link.session.incoming:
        raise ProtocolFault(
            Condition.INVALID_FIELD, "a delivery-id is in use", FaultScope.SESSION, id=delivery_id
        )
    second = _is_second(link, row[7])
    link.take_credit()
    return second


def _begin(link: EngineLink, row: hot.Row, buffer: bytes) -> PartialDelivery:
    second = _check_first(link, row)
    tag = buffer[row[4] : row[5]]
    resume = bool(row[7] & hot.RESUME)
    if link.incomplete_sent and not resume:
        raise link.fault(
            Condition.NOT_ALLOWED, "a new delivery while our unsettled map is incomplete"
        )
    return PartialDelivery(
        row[3],
        tag,
        row[6] if row[6] > 0 else 0,
        bool(row[7] & hot.SETTLED),
        second,
        decode_state(buffer[row[8] : row[9]]) if row[8] >= 0 else None,
        resume,
        resume and tag not in link.unsettled,
    )


def _is_second(link: EngineLink, flags: int) -> bool:
    is_second = link.rcv_settle_mode is ReceiverSettleMode.SECOND
    if flags & hot.RCV_SECOND and not is_second:
        raise link.fault(
            Condition.INVALID_FIELD, "a delivery asks for rcv-settle-mode second on a link of first"
        )
    return is_second and not flags & hot.RCV_FIRST


def _check_continuation(
    link: EngineLink, partial: PartialDelivery, row: hot.Row, buffer: bytes
) -> None:
    if row[3] >= 0 and row[3] != partial.delivery_id:
        raise link.fault(Condition.INVALID_FIELD, "deliveries are interleaved on one link")
    if row[4] >= 0 and buffer[row[4] : row[5]] != partial.tag:
        raise link.fault(Condition.INVALID_FIELD, "a delivery's tag changes half-way")
    if row[6] >= 0 and row[6] != partial.message_format:
        raise link.fault(Condition.INVALID_FIELD, "a delivery's message-format changes half-way")
    if row[8] >= 0:
        _change_state(link, partial, decode_state(buffer[row[8] : row[9]]))
    if row[7] & hot.SETTLED:
        partial.settled = True


def _change_state(link: EngineLink, partial: PartialDelivery, state: DeliveryState) -> None:
    old = partial.state
    is_same = isinstance(old, TransactionalState) is isinstance(state, TransactionalState)
    if isinstance(old, TransactionalState) and isinstance(state, TransactionalState):
        is_same = old.txn_id == state.txn_id
    if not is_same:
        raise link.fault(Condition.NOT_ALLOWED, "a delivery's frames are of two transactions")
    partial.state = state


def _continue(link: EngineLink, partial: PartialDelivery, row: hot.Row, buffer: bytes) -> None:
    flags = row[7]
    if flags & hot.ABORTED:
        _abort(link, partial)
        return
    size = row[11] - row[10]
    partial.size += size
    wire = link.wire
    wire.partial_bytes += size
    if link.message_bytes_max and partial.size > link.message_bytes_max:
        raise link.fault(
            Condition.MESSAGE_SIZE_EXCEEDED, "a message is larger than the link's limit"
        )
    if wire.partial_bytes > wire.settings.partial_bytes_max:
        raise link.fault(
            Condition.RESOURCE_LIMIT_EXCEEDED, "too much of messages that are not whole"
        )
    if not partial.ignored:
        partial.pieces.append(buffer[row[10] : row[11]])
    if not flags & hot.MORE:
        _forget(link, partial)
        _complete(link, partial, b"".join(partial.pieces))


def _abort(link: EngineLink, partial: PartialDelivery) -> None:
    _forget(link, partial)
    if not partial.ignored:
        link.wire.events.append(DeliveryAborted(link, partial.delivery_id, partial.tag))


def _forget(link: EngineLink, partial: PartialDelivery) -> None:
    link.wire.partial_bytes -= partial.size
    link.partial = None


def _check_whole(link: EngineLink, settled: bool, size: int) -> None:
    if link.message_bytes_max and size > link.message_bytes_max:
        raise link.fault(
            Condition.MESSAGE_SIZE_EXCEEDED, "a message is larger than the link's limit"
        )
    mode = link.snd_settle_mode
    if mode is not SenderSettleMode.MIXED and settled is (mode is SenderSettleMode.UNSETTLED):
        raise link.fault(Condition.INVALID_FIELD, "a delivery is settled against the link's mode")


def _complete(link: EngineLink, partial: PartialDelivery, payload: bytes) -> None:
    _check_whole(link, partial.settled, len(payload))
    if partial.ignored:
        return
    if link.is_coordinator:
        _command(link, partial, payload)
        return
    session = link.session
    if not partial.settled:
        session.incoming[partial.delivery_id] = (link, partial.tag, partial.second)
    link.wire.events.append(
        DeliveryReceived(
            link,
            partial.delivery_id,
            partial.tag,
            partial.message_format,
            partial.settled,
            payload,
            partial.state,
            partial.resume,
        )
    )


def _command(link: EngineLink, partial: PartialDelivery, payload: bytes) -> None:
    """Read a declare or a discharge: one amqp-value, and never settled (§4.2, §4.3)."""
    if partial.settled:
        raise link.fault(Condition.NOT_ALLOWED, "a transaction's command was sent settled")
    command = _command_in(link, payload)
    link.session.incoming[partial.delivery_id] = (link, partial.tag, partial.second)
    events = link.wire.events
    if isinstance(command, Declare):
        events.append(DeclareReceived(link, partial.delivery_id, command.global_id))
    else:
        events.append(
            DischargeReceived(link, partial.delivery_id, command.txn_id, bool(command.fail))
        )


def _command_in(link: EngineLink, payload: bytes) -> Declare | Discharge:
    try:
        value = body_value(payload, link.wire.settings.limits)
        command = composite_from(value) if isinstance(value, Described) else None
    except AmqpPeerFault as fault:
        raise link.fault(fault.condition, fault.reason) from None
    if not isinstance(command, Declare | Discharge):
        raise link.fault(Condition.NOT_IMPLEMENTED, "neither a declare nor a discharge")
    return command


def row_of(channel: int, body: TransferFrame, payload: bytes) -> tuple[hot.Row, bytes]:
    """Make the row, and the buffer that it counts in, of a transfer in an unusual encoding."""
    tag = body.delivery_tag
    state = b"" if body.state is None else encode_composite(body.state)
    buffer = (tag or b"") + state + payload
    after_tag = len(tag or b"")
    after_state = after_tag + len(state)
    flags = 0 if body.settled is None else hot.SETTLED_SET | int(body.settled)
    for is_set, flag in (
        (body.more, hot.MORE),
        (body.resume, hot.RESUME),
        (body.aborted, hot.ABORTED),
        (body.batchable, hot.BATCHABLE),
        (body.rcv_settle_mode is ReceiverSettleMode.FIRST, hot.RCV_FIRST),
        (body.rcv_settle_mode is ReceiverSettleMode.SECOND, hot.RCV_SECOND),
    ):
        flags |= flag if is_set else 0
    row = (
        hot.TRANSFER,
        channel,
        body.handle,
        -1 if body.delivery_id is None else body.delivery_id,
        -1 if tag is None else 0,
        -1 if tag is None else after_tag,
        -1 if body.message_format is None else body.message_format,
        flags,
        after_tag if state else -1,
        after_state if state else -1,
        after_state,
        len(buffer),
    )
    return row, buffer
