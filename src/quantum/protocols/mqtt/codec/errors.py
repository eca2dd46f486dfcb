"""What can go wrong between us and an MQTT peer.

MqttError
├── MqttMisuse             our caller asked for bytes that the standard cannot mean
└── PeerFault              the peer broke the protocol: say why where it can hear, then close
    ├── MalformedPacket        bytes that cannot be read as the standard says (§1.2)
    └── ProtocolViolation      bytes that can be read and must not be there (§1.2)
        └── UnsupportedProtocol    a CONNECT in a protocol or a version that we do not speak
"""

from __future__ import annotations

from quantum.protocols.mqtt.codec.types import ProtocolVersion, ReasonCode


class MqttError(Exception):
    """The root: a sentence for people in `reason`, and `facts` for machines; never a payload."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class MqttMisuse(MqttError, ValueError):
    """Our caller asked for a packet that the standard cannot mean."""


class PeerFault(MqttError):
    """The peer broke the protocol; `reason_code` is what an MQTT 5 peer is told.

    `version` is set on the faults of a CONNECT whose protocol level could be read: only a
    client of MQTT 5 is answered with a reason, an older one finds its connection closed.
    `answerable` is False on those where not even MQTT 5 has a client to answer: what the fixed
    fields promise is not there, or the credentials cannot be read (4.13.1 leaves it open).
    """

    def __init__(self, reason_code: ReasonCode, reason: str, **facts: object) -> None:
        super().__init__(reason, **facts)
        self.reason_code = reason_code
        self.version: ProtocolVersion | None = None
        self.answerable = True


class MalformedPacket(PeerFault):
    """Bytes that cannot be read as the standard says."""


class ProtocolViolation(PeerFault):
    """Bytes that can be read, and that the protocol does not allow there."""


class UnsupportedProtocol(ProtocolViolation):
    """A CONNECT in a protocol or a version that we do not speak.

    An MQTT client of another level may be told so (§3.1.2.2); what does not even carry an
    MQTT name should not learn what we are (§3.1.2.1).
    """

    def __init__(self, protocol_name: bytes, level: int) -> None:
        code = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
        super().__init__(code, "unsupported protocol", level=level)
        self.protocol_name = protocol_name
        self.level = level
