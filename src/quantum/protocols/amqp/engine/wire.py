"""What the parts of one connection share: the bytes to send, the events to pull, the peer's limits.

Connection, sessions and links are one machine in several files; nothing outside holds this.
"""

from __future__ import annotations

from collections import deque

from quantum.protocols.amqp.engine.composites import Composite, ErrorValue
from quantum.protocols.amqp.engine.ends import AmqpLink
from quantum.protocols.amqp.engine.errors import AmqpMisuse, AmqpPeerFault
from quantum.protocols.amqp.engine.events import Event
from quantum.protocols.amqp.engine.framing import AMQP_FRAME, encode_frame
from quantum.protocols.amqp.engine.settings import FRAME_BYTES_MIN, EngineSettings
from quantum.protocols.amqp.engine.types import LinkRole


class FrameWriter:
    """Outgoing bytes, outgoing events, and what the peer's open said."""

    __slots__ = (
        "events",
        "is_writable",
        "links",
        "out",
        "partial_bytes",
        "peer_channel_max",
        "peer_frame_bytes_max",
        "settings",
    )

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.out: list[bytes] = []
        self.events: deque[Event] = deque()
        self.peer_frame_bytes_max = FRAME_BYTES_MIN
        self.peer_channel_max = 0
        self.is_writable = False
        """From our open to our close: nothing else may be written."""
        self.partial_bytes = 0
        """What deliveries that are not whole hold, on all links."""
        self.links: dict[tuple[str, LinkRole], AmqpLink] = {}
        """Links that are attached, by name and our role: a name is unique in a direction."""

    def send(self, channel: int, body: Composite) -> None:
        """Queue a frame; refuse one that the peer could not accept."""
        if not self.is_writable:
            raise AmqpMisuse("the connection is not open: call open() first, or it is closed")
        frame = encode_frame(channel, body, AMQP_FRAME)
        if len(frame) > self.peer_frame_bytes_max:
            raise AmqpMisuse(
                "a frame is larger than the peer accepts: say less in it",
                size=len(frame),
                limit=self.peer_frame_bytes_max,
            )
        self.out.append(frame)


def error_of(fault: AmqpPeerFault) -> ErrorValue:
    """Say a fault to the peer: its condition and its sentence, and no facts."""
    return ErrorValue(fault.condition, fault.reason)
