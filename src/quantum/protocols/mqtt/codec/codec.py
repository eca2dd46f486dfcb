"""Whole packets to bytes and back: which type goes where, and the checks that all share."""

from __future__ import annotations

from typing import Final, assert_never

from quantum.protocols.mqtt.codec import decode, encode
from quantum.protocols.mqtt.codec.errors import MalformedPacket, MqttMisuse, ProtocolViolation
from quantum.protocols.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    SubscribePacket,
    Unsuback,
    UnsubscribePacket,
)
from quantum.protocols.mqtt.codec.primitives import PacketCursor, encode_variable
from quantum.protocols.mqtt.codec.types import (
    REMAINING_LENGTH_MAX,
    Direction,
    PacketType,
    ProtocolVersion,
    ReasonCode,
)

_V31: Final = ProtocolVersion.V31
_V5: Final = ProtocolVersion.V5
_BOTH: Final = frozenset(
    {
        PacketType.PUBLISH,
        PacketType.PUBACK,
        PacketType.PUBREC,
        PacketType.PUBREL,
        PacketType.PUBCOMP,
        PacketType.DISCONNECT,
        PacketType.AUTH,
    }
)
_SENT: Final = {
    Direction.TO_SERVER: _BOTH
    | {PacketType.CONNECT, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PINGREQ},
    Direction.TO_CLIENT: _BOTH
    | {PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP},
}
_TYPES: Final = {int(kind): kind for kind in PacketType}
_RELIABLE: Final = frozenset({PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE})


def decode_packet(
    first_byte: int, body: bytes, version: ProtocolVersion, *, direction: Direction
) -> Packet:
    """Decode one whole packet from its first byte and its body.

    `version` is what the connection speaks; a CONNECT ignores it and names its own. Raises
    PeerFault, with the reason code that the standard gives, for anything else than a packet
    that the peer may send in this direction.
    """
    kind = _check_type(first_byte >> 4, version, direction)
    cursor = PacketCursor(body)
    if kind is PacketType.CONNECT:
        return decode.decode_connect(cursor, first_byte & 0x0F)
    _check_flags(kind, first_byte & 0x0F, version)
    packet = _decode_body(kind, cursor, first_byte & 0x0F, version, direction)
    cursor.check_exhausted()
    return packet


def _check_type(number: int, version: ProtocolVersion, direction: Direction) -> PacketType:
    kind = _TYPES.get(number)
    if kind is None or (kind is PacketType.AUTH and version is not _V5):
        code = ReasonCode.MALFORMED_PACKET
        raise MalformedPacket(code, "forbidden packet type", type=number)
    of_servers = kind is PacketType.DISCONNECT and direction is Direction.TO_CLIENT
    if kind not in _SENT[direction] or (of_servers and version is not _V5):
        code = ReasonCode.PROTOCOL_ERROR
        raise ProtocolViolation(code, "packet in the wrong direction", packet=kind.name)
    return kind


def _check_flags(kind: PacketType, flags: int, version: ProtocolVersion) -> None:
    """Refuse reserved flags [MQTT-2.1.3-1]; 3.1 calls them unused, and they are ignored there."""
    if kind is PacketType.PUBLISH or version is _V31:
        return
    if flags != (2 if kind in _RELIABLE else 0):
        code = ReasonCode.MALFORMED_PACKET
        raise MalformedPacket(code, "reserved flags are set", packet=kind.name, flags=flags)


def _decode_body(
    kind: PacketType,
    cursor: PacketCursor,
    flags: int,
    version: ProtocolVersion,
    direction: Direction,
) -> Packet:
    match kind:
        case PacketType.PUBLISH:
            return decode.decode_publish(cursor, flags, version, direction)
        case PacketType.PUBACK:
            return decode.decode_acknowledgement(cursor, version, Puback, kind)
        case PacketType.PUBREC:
            return decode.decode_acknowledgement(cursor, version, Pubrec, kind)
        case PacketType.PUBREL:
            return decode.decode_acknowledgement(cursor, version, Pubrel, kind)
        case PacketType.PUBCOMP:
            return decode.decode_acknowledgement(cursor, version, Pubcomp, kind)
        case PacketType.SUBSCRIBE:
            return decode.decode_subscribe(cursor, version)
        case PacketType.UNSUBSCRIBE:
            return decode.decode_unsubscribe(cursor, version)
        case PacketType.PINGREQ:
            return Pingreq()
        case PacketType.DISCONNECT:
            return decode.decode_disconnect(cursor, version, direction)
        case PacketType.AUTH:
            return decode.decode_auth(cursor, direction)
        case PacketType.CONNACK:
            return decode.decode_connack(cursor, version)
        case PacketType.SUBACK:
            return decode.decode_suback(cursor, version)
        case PacketType.UNSUBACK:
            return decode.decode_unsuback(cursor, version)
        case PacketType.PINGRESP:
            return Pingresp()
        case PacketType.CONNECT:
            return decode.decode_connect(cursor, flags)
        case _:
            assert_never(kind)


def encode_packet(packet: Packet, version: ProtocolVersion) -> bytes:
    """Encode one packet, fixed header and all, as `version` has it.

    Properties and reason codes that the version does not have are left out, so that one value
    serves subscribers of every version. Raises MqttMisuse for what no peer would accept.
    """
    first_byte, body = _encode_body(packet, version)
    if len(body) > REMAINING_LENGTH_MAX:
        raise MqttMisuse("packet too large", length=len(body), limit=REMAINING_LENGTH_MAX)
    return b"".join((first_byte.to_bytes(1, "big"), encode_variable(len(body)), body))


def _encode_body(packet: Packet, version: ProtocolVersion) -> tuple[int, bytes]:
    match packet:
        case Publish():
            return encode.publish_first_byte(packet), encode.encode_publish(packet, version)
        case Puback():
            return 0x40, encode.encode_acknowledgement(packet, version, PacketType.PUBACK)
        case Pubrec():
            return 0x50, encode.encode_acknowledgement(packet, version, PacketType.PUBREC)
        case Pubrel():
            return 0x62, encode.encode_acknowledgement(packet, version, PacketType.PUBREL)
        case Pubcomp():
            return 0x70, encode.encode_acknowledgement(packet, version, PacketType.PUBCOMP)
        case Connect():
            if packet.version is not version:
                raise MqttMisuse("two versions for one CONNECT")
            return 0x10, encode.encode_connect(packet)
        case Connack():
            return 0x20, encode.encode_connack(packet, version)
        case SubscribePacket():
            return 0x82, encode.encode_subscribe(packet, version)
        case Suback():
            return 0x90, encode.encode_suback(packet, version)
        case UnsubscribePacket():
            return 0xA2, encode.encode_unsubscribe(packet, version)
        case Unsuback():
            return 0xB0, encode.encode_unsuback(packet, version)
        case Pingreq():
            return 0xC0, b""
        case Pingresp():
            return 0xD0, b""
        case Disconnect():
            return 0xE0, encode.encode_disconnect(packet, version)
        case Auth():
            return 0xF0, encode.encode_auth(packet, version)
        case _:
            assert_never(packet)
