"""What can go wrong between this client and a broker.

ClientError
├── Unreachable       nothing listens there, or the way to it is broken
├── Refused           the broker answered, and does not let us in
├── ConnectionLost    it ended, or was ended, while something was still to be done
└── NotAcknowledged   the broker refused a message or a subscription
"""

from __future__ import annotations

from quantum.protocols.mqtt.codec import ReasonCode


class ClientError(Exception):
    """Root of the room's errors: one sentence that a person can act on."""


class Unreachable(ClientError):
    """Nothing listens there, or the way to it is broken."""


class BrokerRefused(ClientError):
    """The broker answered, and does not let us in."""

    def __init__(self, sentence: str, reason_code: ReasonCode | None = None) -> None:
        super().__init__(sentence)
        self.reason_code = reason_code


class ConnectionLost(ClientError):
    """The connection ended while something was still to be done."""

    def __init__(self, sentence: str, reason_code: ReasonCode | None = None) -> None:
        super().__init__(sentence)
        self.reason_code = reason_code


class NotAcknowledged(ClientError):
    """The broker refused a message or a subscription."""

    def __init__(self, sentence: str, reason_code: ReasonCode) -> None:
        super().__init__(sentence)
        self.reason_code = reason_code
