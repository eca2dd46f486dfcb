"""The states of a connection (§2.4.6), made of what was sent and received; of sessions, links."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Half(Enum):
    """How far one direction has come."""

    NOTHING = 0
    HEADER = 1
    OPEN = 2
    CLOSE = 3


class AmqpPhase(Enum):
    """What the next bytes are read as."""

    HEADER = "header"
    SASL = "sasl"
    AMQP = "amqp"
    OVER = "over"


class ConnectionState(Enum):
    START = "START"
    HDR_RCVD = "HDR_RCVD"
    HDR_SENT = "HDR_SENT"
    HDR_EXCH = "HDR_EXCH"
    OPEN_PIPE = "OPEN_PIPE"
    OC_PIPE = "OC_PIPE"
    OPEN_RCVD = "OPEN_RCVD"
    OPEN_SENT = "OPEN_SENT"
    CLOSE_PIPE = "CLOSE_PIPE"
    OPENED = "OPENED"
    CLOSE_RCVD = "CLOSE_RCVD"
    CLOSE_SENT = "CLOSE_SENT"
    DISCARDING = "DISCARDING"
    END = "END"


# (sent, received); a side that only has the peer's close answers from CLOSE_RCVD in any case.
STATES: Final[dict[tuple[Half, Half], ConnectionState]] = {
    (Half.NOTHING, Half.NOTHING): ConnectionState.START,
    (Half.NOTHING, Half.HEADER): ConnectionState.HDR_RCVD,
    (Half.HEADER, Half.NOTHING): ConnectionState.HDR_SENT,
    (Half.HEADER, Half.HEADER): ConnectionState.HDR_EXCH,
    (Half.OPEN, Half.NOTHING): ConnectionState.OPEN_PIPE,
    (Half.CLOSE, Half.NOTHING): ConnectionState.OC_PIPE,
    (Half.HEADER, Half.OPEN): ConnectionState.OPEN_RCVD,
    (Half.OPEN, Half.HEADER): ConnectionState.OPEN_SENT,
    (Half.CLOSE, Half.HEADER): ConnectionState.CLOSE_PIPE,
    (Half.OPEN, Half.OPEN): ConnectionState.OPENED,
    (Half.HEADER, Half.CLOSE): ConnectionState.CLOSE_RCVD,
    (Half.OPEN, Half.CLOSE): ConnectionState.CLOSE_RCVD,
    (Half.CLOSE, Half.OPEN): ConnectionState.CLOSE_SENT,
    (Half.CLOSE, Half.CLOSE): ConnectionState.END,
}


class SessionState(Enum):
    """The states of §2.5.5 that a session has which the peer began."""

    BEGIN_RECEIVED = "begin received"
    MAPPED = "mapped"
    END_SENT = "end sent"
    END_RECEIVED = "end received"
    DISCARDING = "discarding"
    UNMAPPED = "unmapped"


class LinkState(Enum):
    ATTACH_RECEIVED = "attach received"
    ATTACHED = "attached"
    DETACH_SENT = "detach sent"
    DETACH_RECEIVED = "detach received"
    FAILED = "failed"
    DETACHED = "detached"
