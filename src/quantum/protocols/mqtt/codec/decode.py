"""One decoder per control packet. Each takes exactly the body it is given, or raises PeerFault."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from quantum.protocols.mqtt.codec.errors import (
    MalformedPacket,
    PeerFault,
    ProtocolViolation,
    UnsupportedProtocol,
)
from quantum.protocols.mqtt.codec.packets import (
    NO_PACKET_ID,
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Publish,
    Suback,
    SubscribePacket,
    Subscription,
    Unsuback,
    UnsubscribePacket,
    Will,
)
from quantum.protocols.mqtt.codec.primitives import PacketCursor, check_identifier
from quantum.protocols.mqtt.codec.properties import (
    NO_PROPERTIES,
    Properties,
    PropertyScope,
    decode_properties,
)
from quantum.protocols.mqtt.codec.reasons import ALLOWED_REASONS, RETURN_CODE_REASONS
from quantum.protocols.mqtt.codec.topics import check_topic_filter, check_topic_name, parse_shared
from quantum.protocols.mqtt.codec.types import (
    ClientId,
    Direction,
    PacketId,
    PacketType,
    ProtocolVersion,
    ReasonCode,
    RetainHandling,
    TopicFilter,
    TopicName,
)

_V31: Final = ProtocolVersion.V31
_V5: Final = ProtocolVersion.V5
_PROTOCOLS: Final = {
    (b"MQIsdp", 3): ProtocolVersion.V31,
    (b"MQTT", 4): ProtocolVersion.V311,
    (b"MQTT", 5): ProtocolVersion.V5,
}
_BRIDGE: Final = 0x80
"""In the protocol level of 3.1 and 3.1.1: another broker speaks. No standard has it, and bridges
of brokers that are everywhere try it first."""
_REASONS: Final = {int(code): code for code in ReasonCode}
_SUBACK_FAILURE: Final = 0x80
FILTERS_PER_PACKET_MAX: Final = 4_096
"""A filter takes three bytes on the wire and many microseconds here: while one packet is read
nobody else is served."""

_AcknowledgementT = TypeVar("_AcknowledgementT", bound=Acknowledgement)


def _malformed(reason: str, **facts: object) -> MalformedPacket:
    return MalformedPacket(ReasonCode.MALFORMED_PACKET, reason, **facts)


def _violation(reason: str, **facts: object) -> ProtocolViolation:
    return ProtocolViolation(ReasonCode.PROTOCOL_ERROR, reason, **facts)


def decode_connect(cursor: PacketCursor, flags: int) -> Connect:
    """Decode a CONNECT in the version that it names itself (§3.1).

    A fault behind the protocol level carries that version, so that it can be answered.
    """
    name, level = cursor.take_binary(), cursor.take_byte()
    is_bridge = bool(level & _BRIDGE)
    version = _PROTOCOLS.get((name, level & ~_BRIDGE))
    if version is None or (is_bridge and version is _V5):
        raise UnsupportedProtocol(name, level)
    try:
        with _unanswered():
            if flags and version is not _V31:
                raise _malformed("reserved flags are set", flags=flags)
            connect_flags = cursor.take_byte()
            _check_connect_flags(connect_flags, version)
            keep_alive = cursor.take_number(2)
        found = _decode_connect_fields(cursor, version, connect_flags, keep_alive)
        return replace(found, is_bridge=True) if is_bridge else found
    except PeerFault as fault:
        fault.version = version
        raise


@contextmanager
def _unanswered() -> Iterator[None]:
    """Mark faults that nobody is told of."""
    try:
        yield
    except PeerFault as fault:
        fault.answerable = False
        raise


def _decode_connect_fields(
    cursor: PacketCursor, version: ProtocolVersion, flags: int, keep_alive: int
) -> Connect:
    properties = _take_properties(cursor, PropertyScope.CONNECT, version)
    client_id = ClientId(_take_client_id(cursor, version))
    will = _take_will(cursor, flags, version) if flags & 0x04 else None
    with _unanswered():
        user_name, password = _take_credentials(cursor, flags, version)
    cursor.check_exhausted()
    return Connect(
        version, client_id, bool(flags & 0x02), keep_alive, will, user_name, password, properties
    )


def _check_connect_flags(flags: int, version: ProtocolVersion) -> None:
    if flags & 0x04 and flags & 0x18 == 0x18:
        raise _malformed("will of QoS 3")  # [MQTT-3.1.2-12]
    if version is _V31:
        return  # 3.1 calls the others unused
    if flags & 0x01:
        raise _malformed("reserved connect flag is set")  # [MQTT-3.1.2-3]
    if not flags & 0x04 and flags & 0x38:
        raise _malformed("will options without a will")  # [MQTT-3.1.2-11], [MQTT-3.1.2-13]
    if version is not _V5 and flags & 0xC0 == 0x40:
        raise _malformed("password without a user name")  # 3.1.1 [MQTT-3.1.2-22]


def _take_client_id(cursor: PacketCursor, version: ProtocolVersion) -> str:
    """Take the client identifier; MQTT 5 has a word for one that we do not allow (§3.2.2.2)."""
    text = cursor.take_text()
    try:
        check_identifier(text)
    except MalformedPacket as fault:
        if version is _V5:
            fault.reason_code = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        raise
    return text


def _take_credentials(
    cursor: PacketCursor, flags: int, version: ProtocolVersion
) -> tuple[str | None, bytes | None]:
    # In 3.1 the remaining length outranks the two flags: a credential may be promised and absent.
    present = not (version is _V31 and cursor.exhausted)
    user_name = cursor.take_identifier() if flags & 0x80 and present else None
    present = not (version is _V31 and cursor.exhausted)
    password = cursor.take_binary() if flags & 0x40 and present else None
    return user_name, password


def _take_will(cursor: PacketCursor, flags: int, version: ProtocolVersion) -> Will:
    properties = _take_properties(cursor, PropertyScope.WILL, version)
    topic = cursor.take_binary()
    check_topic_name(topic)
    retain, qos = bool(flags & 0x20), flags >> 3 & 3
    return Will(TopicName(topic), cursor.take_binary(), qos, retain, properties)


def decode_connack(cursor: PacketCursor, version: ProtocolVersion) -> Connack:
    """Decode a CONNACK (§3.2)."""
    flags = cursor.take_byte()
    if version is _V31:
        flags = 0  # reserved there, and not used
    if flags > 1:
        raise _malformed("reserved connect acknowledge flags are set")  # [MQTT-3.2.2-1]
    reason = _take_connect_reason(cursor, version)
    if flags and reason.is_failure:
        raise _violation("session present in a refusal")  # [MQTT-3.2.2-6]
    return Connack(bool(flags), reason, _take_properties(cursor, PropertyScope.CONNACK, version))


def _take_connect_reason(cursor: PacketCursor, version: ProtocolVersion) -> ReasonCode:
    if version is _V5:
        return _take_reason(cursor, PacketType.CONNACK, Direction.TO_CLIENT)
    code = cursor.take_byte()
    if code >= len(RETURN_CODE_REASONS):
        raise _malformed("reserved return code", code=code)
    return RETURN_CODE_REASONS[code]


def decode_publish(
    cursor: PacketCursor, flags: int, version: ProtocolVersion, direction: Direction
) -> Publish:
    """Decode a PUBLISH (§3.3)."""
    qos, dup = flags >> 1 & 3, bool(flags & 0x08)
    if qos == 3:
        raise _malformed("message of QoS 3")  # [MQTT-3.3.1-4]
    if dup and not qos and version is not _V31:
        raise _malformed("duplicate of QoS 0")  # [MQTT-3.3.1-2]
    topic = cursor.take_binary()
    if topic or version is not _V5:
        check_topic_name(topic)
    packet_id = _take_packet_id(cursor) if qos else NO_PACKET_ID
    properties = _take_properties(cursor, PropertyScope.PUBLISH, version)
    if not topic and properties.topic_alias is None:
        raise _violation("neither topic nor topic alias")
    if properties.subscription_identifiers and direction is Direction.TO_SERVER:
        raise _violation("subscription identifier from a client")  # [MQTT-3.3.4-6]
    retain = bool(flags & 0x01)
    return Publish(TopicName(topic), cursor.take_rest(), qos, retain, dup, packet_id, properties)


def _too_many_filters() -> PeerFault:
    why = "too many filters in one packet"
    return ProtocolViolation(ReasonCode.QUOTA_EXCEEDED, why, limit=FILTERS_PER_PACKET_MAX)


def decode_acknowledgement(
    cursor: PacketCursor,
    version: ProtocolVersion,
    packet: type[_AcknowledgementT],
    kind: PacketType,
) -> _AcknowledgementT:
    """Decode a PUBACK, PUBREC, PUBREL or PUBCOMP (§3.4–§3.7)."""
    packet_id = _take_packet_id(cursor)
    if version is not _V5 or cursor.exhausted:
        return packet(packet_id)
    reason = _take_reason(cursor, kind, Direction.TO_SERVER)
    return packet(packet_id, reason, _take_trailing_properties(cursor, kind))


def decode_subscribe(cursor: PacketCursor, version: ProtocolVersion) -> SubscribePacket:
    """Decode a SUBSCRIBE (§3.8)."""
    packet_id = _take_packet_id(cursor)
    properties = _take_properties(cursor, PropertyScope.SUBSCRIBE, version)
    if len(properties.subscription_identifiers) > 1:
        raise _violation("property given twice", property="subscription_identifiers")
    subscriptions: list[Subscription] = []
    while not cursor.exhausted:
        if len(subscriptions) == FILTERS_PER_PACKET_MAX:
            raise _too_many_filters()
        subscriptions.append(_take_subscription(cursor, version))
    if not subscriptions:
        raise _violation("subscribe to nothing")  # [MQTT-3.8.3-2]
    return SubscribePacket(packet_id, tuple(subscriptions), properties)


def _take_subscription(cursor: PacketCursor, version: ProtocolVersion) -> Subscription:
    topic_filter = _take_filter(cursor, version)
    options = cursor.take_byte()
    if version is not _V5:
        return Subscription(topic_filter, _check_requested_qos(options, version))
    if options & 0xC0:
        raise _malformed("reserved subscription options are set")  # [MQTT-3.8.3-5]
    if options & 0x03 == 3 or options & 0x30 == 0x30:
        raise _violation("subscription option out of range", options=options)
    no_local = bool(options & 0x04)
    if no_local and parse_shared(topic_filter) is not None:
        raise _violation("no local on a shared subscription")  # [MQTT-3.8.3-4]
    handling = RetainHandling(options >> 4)
    return Subscription(topic_filter, options & 0x03, no_local, bool(options & 0x08), handling)


def _check_requested_qos(options: int, version: ProtocolVersion) -> int:
    qos = options & 0x03 if version is _V31 else options
    if qos > 2:
        raise _malformed("requested QoS out of range", options=options)  # 3.1.1 [MQTT-3.8.3-4]
    return qos


def decode_suback(cursor: PacketCursor, version: ProtocolVersion) -> Suback:
    """Decode a SUBACK (§3.9)."""
    packet_id = _take_packet_id(cursor)
    properties = _take_properties(cursor, PropertyScope.SUBACK, version)
    codes: list[ReasonCode] = []
    while not cursor.exhausted:
        codes.append(_take_reason(cursor, PacketType.SUBACK, Direction.TO_CLIENT))
    if not codes:
        raise _malformed("no reason code")
    if version is not _V5 and any(code > _SUBACK_FAILURE for code in codes):
        raise _malformed("reserved return code")  # 3.1.1 [MQTT-3.9.3-2]
    return Suback(packet_id, tuple(codes), properties)


def decode_unsubscribe(cursor: PacketCursor, version: ProtocolVersion) -> UnsubscribePacket:
    """Decode an UNSUBSCRIBE (§3.10)."""
    packet_id = _take_packet_id(cursor)
    properties = _take_properties(cursor, PropertyScope.UNSUBSCRIBE, version)
    filters: list[TopicFilter] = []
    while not cursor.exhausted:
        if len(filters) == FILTERS_PER_PACKET_MAX:
            raise _too_many_filters()
        filters.append(_take_filter(cursor, version))
    if not filters:
        raise _violation("unsubscribe from nothing")  # [MQTT-3.10.3-2]
    return UnsubscribePacket(packet_id, tuple(filters), properties)


def decode_unsuback(cursor: PacketCursor, version: ProtocolVersion) -> Unsuback:
    """Decode an UNSUBACK (§3.11)."""
    packet_id = _take_packet_id(cursor)
    if version is not _V5:
        return Unsuback(packet_id)
    properties = decode_properties(cursor, PropertyScope.UNSUBACK)
    codes: list[ReasonCode] = []
    while not cursor.exhausted:
        codes.append(_take_reason(cursor, PacketType.UNSUBACK, Direction.TO_CLIENT))
    if not codes:
        raise _malformed("no reason code")
    return Unsuback(packet_id, tuple(codes), properties)


def decode_disconnect(
    cursor: PacketCursor, version: ProtocolVersion, direction: Direction
) -> Disconnect:
    """Decode a DISCONNECT (§3.14)."""
    if version is not _V5 or cursor.exhausted:
        return Disconnect()
    reason = _take_reason(cursor, PacketType.DISCONNECT, direction)
    properties = _take_trailing_properties(cursor, PacketType.DISCONNECT)
    if properties.session_expiry_interval is not None and direction is Direction.TO_CLIENT:
        raise _violation("session expiry interval from a server")  # [MQTT-3.14.2-2]
    return Disconnect(reason, properties)


def decode_auth(cursor: PacketCursor, direction: Direction) -> Auth:
    """Decode an AUTH (§3.15); only a server's success may leave the method out."""
    if cursor.exhausted and direction is Direction.TO_CLIENT:
        return Auth()
    if cursor.exhausted:
        raise _violation("client claims success")  # success is the server's to tell (table 3-15)
    reason = _take_reason(cursor, PacketType.AUTH, direction)
    properties = _take_trailing_properties(cursor, PacketType.AUTH)
    if properties.authentication_method is None:
        raise _violation("no authentication method")  # §3.15.2.2.2
    return Auth(reason, properties)


def _take_packet_id(cursor: PacketCursor) -> PacketId:
    packet_id = cursor.take_number(2)
    if not packet_id:
        raise _violation("packet identifier 0")  # [MQTT-2.2.1-3]
    return PacketId(packet_id)


def _take_filter(cursor: PacketCursor, version: ProtocolVersion) -> TopicFilter:
    topic_filter = cursor.take_binary()
    check_topic_filter(topic_filter)
    if version is _V5:
        parse_shared(topic_filter)
    return TopicFilter(topic_filter)


def _take_reason(cursor: PacketCursor, kind: PacketType, direction: Direction) -> ReasonCode:
    code = cursor.take_byte()
    reason = _REASONS.get(code)
    if reason is None or reason not in ALLOWED_REASONS[direction][kind]:
        raise _violation("reason code not allowed here", code=code, packet=kind.name)
    return reason


def _take_properties(
    cursor: PacketCursor, scope: PropertyScope, version: ProtocolVersion
) -> Properties:
    return decode_properties(cursor, scope) if version is _V5 else NO_PROPERTIES


def _take_trailing_properties(cursor: PacketCursor, kind: PacketType) -> Properties:
    """Take properties that may be left out where they are empty, length and all."""
    return NO_PROPERTIES if cursor.exhausted else decode_properties(cursor, PropertyScope(kind))
