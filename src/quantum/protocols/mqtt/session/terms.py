"""What a client asked for in CONNECT and what it gets: decided once, announced, kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quantum.broker import WillSpec, encode_record
from quantum.broker.message import RETAIN
from quantum.protocols.mqtt.codec import (
    Connect,
    PeerFault,
    Properties,
    ProtocolVersion,
    ReasonCode,
    Will,
    has_too_many_levels,
    is_text,
)
from quantum.protocols.mqtt.session.delivery import forwardable
from quantum.protocols.mqtt.session.limits import MqttLimits

_V5: Final = ProtocolVersion.V5
_KEEP_ALIVE_UNCAPPED: Final = 65_535
_RECEIVE_MAXIMUM_DEFAULT: Final = 65_535
_PATIENCE_SECONDS_MIN: Final = 5
_PATIENCE_SECONDS_UNKNOWN: Final = 60
RESPONSE_PREFIX: Final = "response/"


@dataclass(frozen=True, slots=True)
class ConnectionTerms:
    """One connection's terms. Sizes and counts of 0 are 'no limit' and 'none'."""

    expiry_seconds: int
    keep_alive_seconds: int
    receive_maximum: int  # what the client takes at once; the broker's own bound comes on top
    aliases_max: int  # topic aliases that the client takes
    packet_bytes_max: int  # what the client takes in one packet
    wants_reasons: bool  # whether it may be sent reason strings (§3.1.2.11.7)
    is_bridge: bool = False  # whether another broker speaks, in MQTT 3.1.1 or 3.1


def agree(connect: Connect, limits: MqttLimits) -> ConnectionTerms:
    """Work out the terms of a connection."""
    properties = connect.properties
    return ConnectionTerms(
        _expiry_seconds(connect, limits),
        _keep_alive_seconds(connect.keep_alive, limits.keep_alive_seconds_max),
        properties.receive_maximum or _RECEIVE_MAXIMUM_DEFAULT,
        properties.topic_alias_maximum or 0,
        properties.maximum_packet_size or 0,
        properties.request_problem_information is not False,
        connect.is_bridge,
    )


def _expiry_seconds(connect: Connect, limits: MqttLimits) -> int:
    if connect.version is _V5:
        wanted = connect.properties.session_expiry_interval or 0
        return min(wanted, limits.session_expiry_seconds_max)
    return 0 if connect.clean_start else limits.session_expiry_seconds_default


def _keep_alive_seconds(wanted: int, cap: int) -> int:
    """A client that wants no keep alive gets the cap, if there is one ([MQTT-3.1.2-21])."""
    if cap < _KEEP_ALIVE_UNCAPPED and (wanted == 0 or wanted > cap):
        return cap
    return wanted


def announce(
    connect: Connect, terms: ConnectionTerms, limits: MqttLimits, client_id: bytes
) -> Properties:
    """Make the properties of CONNACK: the server's limits, and what is not as it was asked."""
    asked = connect.properties.session_expiry_interval or 0
    keeps, expires = terms.keep_alive_seconds, terms.expiry_seconds
    return Properties(
        receive_maximum=limits.receive_maximum,
        topic_alias_maximum=limits.topic_alias_maximum,
        maximum_packet_size=limits.packet_bytes_max,
        session_expiry_interval=expires if asked != expires else None,
        server_keep_alive=keeps if keeps != connect.keep_alive else None,
        assigned_client_identifier=None if connect.client_id else client_id.decode("ascii"),
        response_information=_response_information(connect, client_id),
    )


def _response_information(connect: Connect, client_id: bytes) -> str | None:
    """Name a topic for answers to this client, if it asks and its id can stand in a topic.

    Nothing reserves that topic; access rules may (§3.2.2.3.15 leaves the meaning open).
    """
    if not connect.properties.request_response_information:
        return None
    if any(letter in client_id for letter in b"/+#"):
        return None
    return RESPONSE_PREFIX + client_id.decode()


def is_bridge_state(topic: bytes) -> bool:
    """Say whether a bridge reports on itself there: it may, and nobody listens."""
    return topic.startswith(b"$SYS/broker/connection/") and topic.endswith(b"/state")


def refuse_will(will: Will, levels_max: int) -> ReasonCode | None:
    """Say why a will is not accepted, or None where it is."""
    if will.topic.startswith((b"$SYS", b"$share")):
        return ReasonCode.NOT_AUTHORIZED
    if has_too_many_levels(will.topic, levels_max):
        return ReasonCode.TOPIC_NAME_INVALID
    if will.properties.payload_format_indicator == 1 and not is_text(will.payload):
        return ReasonCode.PAYLOAD_FORMAT_INVALID
    try:
        forwardable(will.properties)
    except PeerFault as fault:
        return fault.reason_code
    return None


def patience_seconds(keep_alive_seconds: int) -> int:
    """Return how long a client may be away after a connection that we broke (C23).

    It is one and a half of its keep-alive, as for a silent client; a new leader and a client that
    looks for it need some seconds, and who sends no keep-alive has a minute.
    """
    if keep_alive_seconds == 0:
        return _PATIENCE_SECONDS_UNKNOWN
    return max(_PATIENCE_SECONDS_MIN, (3 * keep_alive_seconds + 1) // 2)


def will_spec(will: Will | None, client_id: bytes, keep_alive_seconds: int) -> WillSpec | None:
    """Make the will as the log keeps it."""
    if will is None:
        return None
    properties = will.properties
    record = encode_record(
        will.topic,
        will.payload,
        will.qos | (RETAIN if will.retain else 0),
        forwardable(properties),
        1000 * (properties.message_expiry_interval or 0),  # counts from when it is said
        client_id,
        0,
        0,
    )
    patience = patience_seconds(keep_alive_seconds)
    return WillSpec(record, properties.will_delay_interval or 0, patience)
