"""The words of MQTT: versions, packet types, reason codes and identifiers."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NewType

PacketId = NewType("PacketId", int)  # 1–65535; 0 stands for 'none' in a QoS 0 PUBLISH
TopicName = NewType("TopicName", bytes)  # UTF-8, without wildcards
TopicFilter = NewType("TopicFilter", bytes)  # UTF-8, wildcards and `$share/` allowed
ClientId = NewType("ClientId", str)
SubscriptionId = NewType("SubscriptionId", int)  # 1–268,435,455

# Qualities of service are plain integers: they are compared and added in hot loops.
AT_MOST_ONCE: Final = 0
AT_LEAST_ONCE: Final = 1
EXACTLY_ONCE: Final = 2

PACKET_ID_MAX: Final = 0xFFFF
FIELD_BYTES_MAX: Final = 0xFFFF  # any string or binary field (§1.5.4, §1.5.6)
REMAINING_LENGTH_MAX: Final = 268_435_455  # four bytes of seven bits (§1.5.5)


class ProtocolVersion(IntEnum):
    """The protocol level that a CONNECT carries."""

    V31 = 3
    V311 = 4
    V5 = 5


class Direction(IntEnum):
    """Who a packet was sent to. A peer may send only what its side of the table allows."""

    TO_SERVER = 0
    TO_CLIENT = 1


class PacketType(IntEnum):
    """The high half of a packet's first byte (§2.1.2)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class RetainHandling(IntEnum):
    """Whether a new subscription is sent the retained messages (§3.8.3.1)."""

    SEND = 0
    SEND_IF_NEW = 1
    DO_NOT_SEND = 2


class ReasonCode(IntEnum):
    """Every reason code of MQTT 5 (§2.4); below 0x80 is success.

    The standard has three names for 0x00; the other two are aliases of SUCCESS here.
    """

    SUCCESS = 0x00
    NORMAL_DISCONNECTION = 0x00
    GRANTED_QOS_0 = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL_MESSAGE = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2

    @property
    def is_failure(self) -> bool:
        return self >= 0x80
