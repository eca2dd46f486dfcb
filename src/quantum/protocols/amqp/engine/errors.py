"""What can go wrong between us and an AMQP peer.

AmqpError
├── AmqpMisuse             our caller asked for what the standard does not allow us to send
└── PeerFault              the peer broke the protocol: `condition` is what it is told
    ├── MalformedData          bytes that cannot be read as the standard's types (part 1)
    ├── FramingFault           a frame that cannot be one (§2.3, §2.7.1)
    └── ProtocolFault          readable, and not allowed there
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class FaultScope(Enum):
    """How much of the connection a fault ends."""

    CONNECTION = "connection"
    SESSION = "session"
    LINK = "link"


class Condition:
    """The symbols of §2.8.14 to §2.8.18 and §4.5.8 that we send."""

    INTERNAL_ERROR: Final = "amqp:internal-error"
    NOT_FOUND: Final = "amqp:not-found"
    UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"
    DECODE_ERROR: Final = "amqp:decode-error"
    RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
    NOT_ALLOWED: Final = "amqp:not-allowed"
    INVALID_FIELD: Final = "amqp:invalid-field"
    NOT_IMPLEMENTED: Final = "amqp:not-implemented"
    RESOURCE_LOCKED: Final = "amqp:resource-locked"
    PRECONDITION_FAILED: Final = "amqp:precondition-failed"
    RESOURCE_DELETED: Final = "amqp:resource-deleted"
    ILLEGAL_STATE: Final = "amqp:illegal-state"
    FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"
    CONNECTION_FORCED: Final = "amqp:connection:forced"
    FRAMING_ERROR: Final = "amqp:connection:framing-error"
    WINDOW_VIOLATION: Final = "amqp:session:window-violation"
    ERRANT_LINK: Final = "amqp:session:errant-link"
    HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"
    DETACH_FORCED: Final = "amqp:link:detach-forced"
    TRANSFER_LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
    STOLEN: Final = "amqp:link:stolen"
    UNKNOWN_TRANSACTION: Final = "amqp:transaction:unknown-id"
    TRANSACTION_ROLLBACK: Final = "amqp:transaction:rollback"
    TRANSACTION_TIMEOUT: Final = "amqp:transaction:timeout"


class AmqpError(Exception):
    """The root: a sentence for people in `reason`, and `facts` for machines; never a payload."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class AmqpMisuse(AmqpError, ValueError):
    """Our caller asked for what the standard does not allow us to send now."""


class AmqpPeerFault(AmqpError):
    """The peer broke the protocol; what `scope` names is ended with `condition`."""

    def __init__(
        self,
        condition: str,
        reason: str,
        scope: FaultScope = FaultScope.CONNECTION,
        **facts: object,
    ) -> None:
        super().__init__(reason, **facts)
        self.condition = condition
        self.scope = scope


class MalformedData(AmqpPeerFault):
    """Bytes that cannot be read as the standard's types."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(Condition.DECODE_ERROR, reason, FaultScope.CONNECTION, **facts)


class FramingFault(AmqpPeerFault):
    """A frame that cannot be one: its header, its size or its channel (§2.3.1, §2.7.1)."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(Condition.FRAMING_ERROR, reason, FaultScope.CONNECTION, **facts)


class ProtocolFault(AmqpPeerFault):
    """Bytes that can be read, and that the protocol does not allow there."""
