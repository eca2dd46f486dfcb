"""The fifteen control packets of MQTT, one value for all three versions.

Topics and payloads are bytes as they stand on the wire. What a version does not have (reason
codes and properties before MQTT 5) keeps its default when decoded and is not encoded.
"""

from __future__ import annotations

from dataclasses import dataclass

from quantum.protocols.mqtt.codec.properties import NO_PROPERTIES, Properties
from quantum.protocols.mqtt.codec.types import (
    ClientId,
    PacketId,
    ProtocolVersion,
    ReasonCode,
    RetainHandling,
    TopicFilter,
    TopicName,
)

NO_PACKET_ID = PacketId(0)


@dataclass(slots=True)
class Will:
    """The message that the server publishes for a client that is gone (§3.1.2.5)."""

    topic: TopicName
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Connect:
    """A client introduces itself; an empty `client_id` asks the server for one.

    `clean_start` is Clean Session before MQTT 5.
    """

    version: ProtocolVersion
    client_id: ClientId
    clean_start: bool = True
    keep_alive: int = 0
    will: Will | None = None
    user_name: str | None = None
    password: bytes | None = None
    properties: Properties = NO_PROPERTIES
    is_bridge: bool = False
    """Whether another broker speaks (0x80 in the protocol level, before MQTT 5)."""


@dataclass(slots=True)
class Connack:
    """The server's answer to CONNECT; a return code before MQTT 5 is the reason it stands for."""

    session_present: bool = False
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Publish:
    """A message. `packet_id` is 0 exactly when `qos` is 0.

    An empty `topic` stands for the one that `properties.topic_alias` names (MQTT 5).
    """

    topic: TopicName
    payload: bytes
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: PacketId = NO_PACKET_ID
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Puback:
    """The answer to a PUBLISH of QoS 1."""

    packet_id: PacketId
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubrec:
    """The answer to a PUBLISH of QoS 2."""

    packet_id: PacketId
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubrel:
    """The answer to a PUBREC."""

    packet_id: PacketId
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pubcomp:
    """The answer to a PUBREL, and the end of a QoS 2 exchange."""

    packet_id: PacketId
    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Subscription:
    """One line of a SUBSCRIBE; only `qos` exists before MQTT 5 (§3.8.3.1)."""

    topic_filter: TopicFilter
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: RetainHandling = RetainHandling.SEND


@dataclass(slots=True)
class SubscribePacket:
    """A client asks for one or more subscriptions."""

    packet_id: PacketId
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Suback:
    """The answer to SUBSCRIBE: one code per subscription, in their order."""

    packet_id: PacketId
    reason_codes: tuple[ReasonCode, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class UnsubscribePacket:
    """A client ends one or more subscriptions."""

    packet_id: PacketId
    topic_filters: tuple[TopicFilter, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Unsuback:
    """The answer to UNSUBSCRIBE: one code per filter in MQTT 5, none before."""

    packet_id: PacketId
    reason_codes: tuple[ReasonCode, ...] = ()
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Pingreq:
    """A client says that it is alive."""


@dataclass(slots=True)
class Pingresp:
    """The answer to PINGREQ."""


@dataclass(slots=True)
class Disconnect:
    """The last packet of a connection; from a server only in MQTT 5."""

    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(slots=True)
class Auth:
    """A step of an enhanced authentication (MQTT 5, §4.12)."""

    reason_code: ReasonCode = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


Acknowledgement = Puback | Pubrec | Pubrel | Pubcomp

Packet = (
    Connect
    | Connack
    | Publish
    | Acknowledgement
    | SubscribePacket
    | Suback
    | UnsubscribePacket
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
