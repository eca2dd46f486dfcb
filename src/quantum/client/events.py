"""What a session tells its owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from quantum.protocols.mqtt.codec import Properties, Publish, ReasonCode

Token = NewType("Token", int)
"""What an owner knows a publish or a request by; it survives reconnects, a packet id does not."""


@dataclass(slots=True)
class Connected:
    """The broker let us in."""

    session_present: bool
    properties: Properties


@dataclass(slots=True)
class Rejected:
    """The broker does not let us in."""

    reason_code: ReasonCode
    reason_string: str | None


@dataclass(slots=True)
class Received:
    """A message came; one of QoS 2 comes once."""

    message: Publish


@dataclass(slots=True)
class Acknowledged:
    """A publish has ended: for QoS 1 and 2 the broker has it, unless the code is a failure."""

    token: Token
    reason_code: ReasonCode
    reason_string: str | None = None


@dataclass(slots=True)
class SubscribeAnswered:
    """A SUBSCRIBE or an UNSUBSCRIBE was answered, one code per filter."""

    token: Token
    reason_codes: tuple[ReasonCode, ...]
    reason_string: str | None = None


@dataclass(slots=True)
class ConnectionEnded:
    """The broker ended the connection and said why."""

    reason_code: ReasonCode
    reason_string: str | None


@dataclass(slots=True)
class Silent:
    """The broker did not answer a ping in time."""


Event = (
    Connected | Rejected | Received | Acknowledged | SubscribeAnswered | ConnectionEnded | Silent
)
