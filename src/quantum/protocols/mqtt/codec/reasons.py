"""Which reason codes a packet may carry, and what they are called before MQTT 5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quantum.protocols.mqtt.codec.types import Direction, PacketType, ReasonCode

_PUBLISH_ANSWERS: Final = frozenset(
    {
        ReasonCode.SUCCESS,
        ReasonCode.NO_MATCHING_SUBSCRIBERS,
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PACKET_IDENTIFIER_IN_USE,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    }
)
_RELEASE_ANSWERS: Final = frozenset({ReasonCode.SUCCESS, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND})
_CONNECT_ANSWERS: Final = frozenset(
    {
        ReasonCode.SUCCESS,
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.MALFORMED_PACKET,
        ReasonCode.PROTOCOL_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.SERVER_UNAVAILABLE,
        ReasonCode.SERVER_BUSY,
        ReasonCode.BANNED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
        ReasonCode.RETAIN_NOT_SUPPORTED,
        ReasonCode.QOS_NOT_SUPPORTED,
        ReasonCode.USE_ANOTHER_SERVER,
        ReasonCode.SERVER_MOVED,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
    }
)
_UNSUBSCRIBE_ANSWERS: Final = frozenset(
    {
        ReasonCode.SUCCESS,
        ReasonCode.NO_SUBSCRIPTION_EXISTED,
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.TOPIC_FILTER_INVALID,
        ReasonCode.PACKET_IDENTIFIER_IN_USE,
    }
)
_SUBSCRIBE_ANSWERS: Final = (_UNSUBSCRIBE_ANSWERS - {ReasonCode.NO_SUBSCRIPTION_EXISTED}) | {
    ReasonCode.GRANTED_QOS_1,
    ReasonCode.GRANTED_QOS_2,
    ReasonCode.QUOTA_EXCEEDED,
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
    ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
}
_DISCONNECTS_OF_BOTH: Final = frozenset(
    {
        # The standard gives 'normal' to clients only, yet servers send it; it says no harm.
        ReasonCode.SUCCESS,
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.MALFORMED_PACKET,
        ReasonCode.PROTOCOL_ERROR,
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        ReasonCode.TOPIC_NAME_INVALID,
        ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
        ReasonCode.TOPIC_ALIAS_INVALID,
        ReasonCode.PACKET_TOO_LARGE,
        ReasonCode.MESSAGE_RATE_TOO_HIGH,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.ADMINISTRATIVE_ACTION,
        ReasonCode.PAYLOAD_FORMAT_INVALID,
    }
)
_DISCONNECTS_OF_A_CLIENT: Final = _DISCONNECTS_OF_BOTH | {ReasonCode.DISCONNECT_WITH_WILL_MESSAGE}
_DISCONNECTS_OF_A_SERVER: Final = _DISCONNECTS_OF_BOTH | {
    ReasonCode.NOT_AUTHORIZED,
    ReasonCode.SERVER_BUSY,
    ReasonCode.SERVER_SHUTTING_DOWN,
    ReasonCode.KEEP_ALIVE_TIMEOUT,
    ReasonCode.SESSION_TAKEN_OVER,
    ReasonCode.TOPIC_FILTER_INVALID,
    ReasonCode.RETAIN_NOT_SUPPORTED,
    ReasonCode.QOS_NOT_SUPPORTED,
    ReasonCode.USE_ANOTHER_SERVER,
    ReasonCode.SERVER_MOVED,
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    ReasonCode.CONNECTION_RATE_EXCEEDED,
    ReasonCode.MAXIMUM_CONNECT_TIME,
    ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
    ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
}
_AUTHENTICATIONS_OF_A_CLIENT: Final = frozenset(
    {ReasonCode.CONTINUE_AUTHENTICATION, ReasonCode.RE_AUTHENTICATE}
)
_AUTHENTICATIONS_OF_A_SERVER: Final = frozenset(
    {ReasonCode.SUCCESS, ReasonCode.CONTINUE_AUTHENTICATION}
)

_FROM_EITHER: Final[Mapping[PacketType, frozenset[ReasonCode]]] = {
    PacketType.CONNACK: _CONNECT_ANSWERS,
    PacketType.PUBACK: _PUBLISH_ANSWERS,
    PacketType.PUBREC: _PUBLISH_ANSWERS,
    PacketType.PUBREL: _RELEASE_ANSWERS,
    PacketType.PUBCOMP: _RELEASE_ANSWERS,
    PacketType.SUBACK: _SUBSCRIBE_ANSWERS,
    PacketType.UNSUBACK: _UNSUBSCRIBE_ANSWERS,
}

ALLOWED_REASONS: Final[Mapping[Direction, Mapping[PacketType, frozenset[ReasonCode]]]] = {
    Direction.TO_SERVER: {
        **_FROM_EITHER,
        PacketType.DISCONNECT: _DISCONNECTS_OF_A_CLIENT,
        PacketType.AUTH: _AUTHENTICATIONS_OF_A_CLIENT,
    },
    Direction.TO_CLIENT: {
        **_FROM_EITHER,
        PacketType.DISCONNECT: _DISCONNECTS_OF_A_SERVER,
        PacketType.AUTH: _AUTHENTICATIONS_OF_A_SERVER,
    },
}

# The six return codes of a CONNACK before MQTT 5 (3.1.1 §3.2.2.3), by the reason they stand for.
_RETURN_CODES: Final[Mapping[ReasonCode, int]] = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.USE_ANOTHER_SERVER: 3,
    ReasonCode.SERVER_MOVED: 3,
    ReasonCode.QUOTA_EXCEEDED: 3,
    ReasonCode.CONNECTION_RATE_EXCEEDED: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
    ReasonCode.BANNED: 5,
}

RETURN_CODE_REASONS: Final[tuple[ReasonCode, ...]] = (
    ReasonCode.SUCCESS,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ReasonCode.SERVER_UNAVAILABLE,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
)


def connect_return_code(reason: ReasonCode) -> int | None:
    """Say a reason in the return codes before MQTT 5; None where none of the six fits.

    Where none fits the server closes without a CONNACK (3.1.1 [MQTT-3.2.2-6]).
    """
    return _RETURN_CODES.get(reason)
