"""What becomes of an outgoing delivery: frames, as many as the peer's frame size asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quantum.protocols.amqp.engine import hot
from quantum.protocols.amqp.engine.ends import OutgoingDelivery

HEAD_BYTES: Final = 64
"""What a transfer's frame has at most beside tag, state and payload."""
_TRANSACTIONAL: Final = b"\0\x53\x34"


@dataclass(slots=True)
class PendingDelivery:
    """A delivery of which frames are still to be sent; `sent` counts payload bytes."""

    delivery: OutgoingDelivery
    message_format: int
    flags: int
    state: bytes
    payload: bytes
    sent: int = 0
    is_begun: bool = False
    is_aborted: bool = False

    @property
    def is_done(self) -> bool:
        return self.is_begun and (self.is_aborted or self.sent >= len(self.payload))


def next_frame(pending: PendingDelivery, channel: int, frame_bytes_max: int) -> list[bytes]:
    """Return the pieces of the delivery's next frame, and count it as sent."""
    first = not pending.is_begun
    room = frame_bytes_max - HEAD_BYTES
    # Each frame of a transaction's delivery names it (§4.4.1); other states stand on the first.
    state = pending.state if first or pending.state.startswith(_TRANSACTIONAL) else b""
    room -= len(pending.delivery.tag) + len(state)
    stop = min(len(pending.payload), pending.sent + max(room, 1))
    flags = pending.flags
    if pending.is_aborted:
        flags |= hot.ABORTED
        stop = pending.sent
    elif stop < len(pending.payload):
        flags |= hot.MORE
    payload = pending.payload[pending.sent : stop]
    head = hot.transfer_head(
        channel,
        pending.delivery.link.handle,
        pending.delivery.delivery_id if first else -1,
        pending.delivery.tag,
        pending.message_format if first else -1,
        flags,
        state,
        len(payload),
    )
    pending.sent = stop
    pending.is_begun = True
    return [head, payload]


def next_sendable(waiting: list[PendingDelivery]) -> PendingDelivery | None:
    """Return the first that may go on: credit may have been taken back while it waited."""
    held: set[int] = set()
    for each in waiting:
        link = each.delivery.link
        if each.is_begun or (link.credit > 0 and link.handle not in held):
            return each
        held.add(link.handle)
    return None
