"""One encoder per control packet: its body, as the version has it."""

from __future__ import annotations

from typing import Final

from quantum.protocols.mqtt.codec.errors import MqttMisuse, PeerFault
from quantum.protocols.mqtt.codec.packets import (
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
from quantum.protocols.mqtt.codec.primitives import encode_binary, encode_number, encode_text
from quantum.protocols.mqtt.codec.properties import (
    NO_PROPERTIES,
    Properties,
    PropertyScope,
    encode_properties,
)
from quantum.protocols.mqtt.codec.reasons import ALLOWED_REASONS, connect_return_code
from quantum.protocols.mqtt.codec.topics import check_topic_filter, check_topic_name, parse_shared
from quantum.protocols.mqtt.codec.types import (
    PACKET_ID_MAX,
    Direction,
    PacketType,
    ProtocolVersion,
    ReasonCode,
)

_V5: Final = ProtocolVersion.V5
_SUBACK_FAILURE: Final = 0x80


def encode_connect(packet: Connect) -> bytes:
    """Encode the body of a CONNECT (§3.1.2, §3.1.3)."""
    version = packet.version
    if packet.password is not None and packet.user_name is None and version is not _V5:
        raise MqttMisuse("password without a user name")
    parts = [
        encode_binary(b"MQIsdp" if version is ProtocolVersion.V31 else b"MQTT"),
        bytes((version, _connect_flags(packet))),
        encode_number(packet.keep_alive, 2),
        _encode_properties(packet.properties, PropertyScope.CONNECT, version),
        encode_text(packet.client_id),
    ]
    if packet.will is not None:
        parts += _encode_will(packet.will, version)
    if packet.user_name is not None:
        parts.append(encode_text(packet.user_name))
    if packet.password is not None:
        parts.append(encode_binary(packet.password))
    return b"".join(parts)


def _connect_flags(packet: Connect) -> int:
    flags = packet.clean_start << 1
    if packet.will is not None:
        flags |= 0x04 | _check_qos(packet.will.qos) << 3 | packet.will.retain << 5
    if packet.user_name is not None:
        flags |= 0x80
    if packet.password is not None:
        flags |= 0x40
    return flags


def _encode_will(will: Will, version: ProtocolVersion) -> list[bytes]:
    return [
        _encode_properties(will.properties, PropertyScope.WILL, version),
        _encode_name(will.topic),
        encode_binary(will.payload),
    ]


def encode_connack(packet: Connack, version: ProtocolVersion) -> bytes:
    """Encode the body of a CONNACK (§3.2.2)."""
    reason = packet.reason_code
    if packet.session_present and reason.is_failure:
        raise MqttMisuse("session present in a refusal")
    if version is _V5:
        code = _encode_reason(reason, PacketType.CONNACK)
        properties = encode_properties(packet.properties, PropertyScope.CONNACK)
        return bytes((packet.session_present,)) + code + properties
    return_code = connect_return_code(reason)
    if return_code is None:
        raise MqttMisuse("no return code says this", code=reason.name)
    present = packet.session_present and version is not ProtocolVersion.V31
    return bytes((present, return_code))


def publish_first_byte(packet: Publish) -> int:
    """Return the first byte of a PUBLISH, with its flags (§3.3.1)."""
    if packet.dup and not packet.qos:
        raise MqttMisuse("duplicate of QoS 0")
    return 0x30 | packet.dup << 3 | _check_qos(packet.qos) << 1 | packet.retain


def encode_publish(packet: Publish, version: ProtocolVersion) -> bytes:
    """Encode the body of a PUBLISH (§3.3.2, §3.3.3)."""
    if packet.topic or version is not _V5:
        topic = _encode_name(packet.topic)
    elif packet.properties.topic_alias is None:
        raise MqttMisuse("neither topic nor topic alias")
    else:
        topic = b"\0\0"
    if not packet.qos and packet.packet_id:
        raise MqttMisuse("packet identifier in a QoS 0 message")
    packet_id = _encode_packet_id(packet.packet_id) if packet.qos else b""
    properties = _encode_properties(packet.properties, PropertyScope.PUBLISH, version)
    return b"".join((topic, packet_id, properties, packet.payload))


def encode_acknowledgement(
    packet: Acknowledgement, version: ProtocolVersion, kind: PacketType
) -> bytes:
    """Encode the body of a PUBACK, PUBREC, PUBREL or PUBCOMP (§3.4–§3.7)."""
    packet_id = _encode_packet_id(packet.packet_id)
    if version is not _V5:
        return packet_id
    return packet_id + _encode_ending(packet.reason_code, packet.properties, kind)


def encode_subscribe(packet: SubscribePacket, version: ProtocolVersion) -> bytes:
    """Encode the body of a SUBSCRIBE (§3.8.2, §3.8.3)."""
    if not packet.subscriptions:
        raise MqttMisuse("subscribe to nothing")
    if len(packet.properties.subscription_identifiers) > 1:
        raise MqttMisuse("more than one subscription identifier")
    parts = [
        _encode_packet_id(packet.packet_id),
        _encode_properties(packet.properties, PropertyScope.SUBSCRIBE, version),
    ]
    for subscription in packet.subscriptions:
        parts.append(_encode_filter(subscription.topic_filter, version))
        parts.append(encode_number(_subscription_options(subscription, version), 1))
    return b"".join(parts)


def _subscription_options(subscription: Subscription, version: ProtocolVersion) -> int:
    qos = _check_qos(subscription.qos)
    if version is not _V5:
        return qos
    if subscription.no_local and parse_shared(subscription.topic_filter) is not None:
        raise MqttMisuse("no local on a shared subscription")
    return (
        qos
        | subscription.no_local << 2
        | subscription.retain_as_published << 3
        | subscription.retain_handling << 4
    )


def encode_suback(packet: Suback, version: ProtocolVersion) -> bytes:
    """Encode the body of a SUBACK (§3.9.2, §3.9.3); before MQTT 5 every failure is 0x80."""
    if not packet.reason_codes:
        raise MqttMisuse("no reason code")
    codes = b"".join(_encode_reason(code, PacketType.SUBACK) for code in packet.reason_codes)
    if version is not _V5:
        codes = bytes(min(code, _SUBACK_FAILURE) for code in codes)
    properties = _encode_properties(packet.properties, PropertyScope.SUBACK, version)
    return _encode_packet_id(packet.packet_id) + properties + codes


def encode_unsubscribe(packet: UnsubscribePacket, version: ProtocolVersion) -> bytes:
    """Encode the body of an UNSUBSCRIBE (§3.10.2, §3.10.3)."""
    if not packet.topic_filters:
        raise MqttMisuse("unsubscribe from nothing")
    return b"".join(
        (
            _encode_packet_id(packet.packet_id),
            _encode_properties(packet.properties, PropertyScope.UNSUBSCRIBE, version),
            *(_encode_filter(topic_filter, version) for topic_filter in packet.topic_filters),
        )
    )


def encode_unsuback(packet: Unsuback, version: ProtocolVersion) -> bytes:
    """Encode the body of an UNSUBACK (§3.11.2, §3.11.3)."""
    packet_id = _encode_packet_id(packet.packet_id)
    if version is not _V5:
        return packet_id
    if not packet.reason_codes:
        raise MqttMisuse("no reason code")
    codes = b"".join(_encode_reason(code, PacketType.UNSUBACK) for code in packet.reason_codes)
    return packet_id + encode_properties(packet.properties, PropertyScope.UNSUBACK) + codes


def encode_disconnect(packet: Disconnect, version: ProtocolVersion) -> bytes:
    """Encode the body of a DISCONNECT (§3.14.2)."""
    if version is not _V5:
        return b""
    return _encode_ending(packet.reason_code, packet.properties, PacketType.DISCONNECT)


def encode_auth(packet: Auth, version: ProtocolVersion) -> bytes:
    """Encode the body of an AUTH (§3.15.2)."""
    if version is not _V5:
        raise MqttMisuse("AUTH exists in MQTT 5 only")
    is_bare_success = not packet.reason_code and packet.properties == NO_PROPERTIES
    if not is_bare_success and packet.properties.authentication_method is None:
        raise MqttMisuse("no authentication method")
    return _encode_ending(packet.reason_code, packet.properties, PacketType.AUTH)


def _encode_ending(reason: ReasonCode, properties: Properties, kind: PacketType) -> bytes:
    """Encode a reason code and properties, each left out where the standard allows it."""
    code = _encode_reason(reason, kind)
    block = encode_properties(properties, PropertyScope(kind))
    if block != b"\0":
        return code + block
    return code if reason else b""


def _encode_reason(reason: ReasonCode, kind: PacketType) -> bytes:
    if not any(reason in ALLOWED_REASONS[direction][kind] for direction in Direction):
        raise MqttMisuse("reason code not allowed here", code=int(reason), packet=kind.name)
    return bytes((reason,))


def _encode_properties(
    properties: Properties, scope: PropertyScope, version: ProtocolVersion
) -> bytes:
    return encode_properties(properties, scope) if version is _V5 else b""


def _encode_packet_id(packet_id: int) -> bytes:
    if not 0 < packet_id <= PACKET_ID_MAX:
        raise MqttMisuse("packet identifier out of range", packet_id=packet_id)
    return packet_id.to_bytes(2, "big")


def _encode_name(topic: bytes) -> bytes:
    try:
        check_topic_name(topic)
    except PeerFault as fault:
        raise MqttMisuse(fault.reason, **fault.facts) from None
    return encode_binary(topic)


def _encode_filter(topic_filter: bytes, version: ProtocolVersion) -> bytes:
    try:
        check_topic_filter(topic_filter)
        if version is _V5:
            parse_shared(topic_filter)
    except PeerFault as fault:
        raise MqttMisuse(fault.reason, **fault.facts) from None
    return encode_binary(topic_filter)


def _check_qos(qos: int) -> int:
    if not 0 <= qos <= 2:
        raise MqttMisuse("QoS out of range", qos=qos)
    return qos
