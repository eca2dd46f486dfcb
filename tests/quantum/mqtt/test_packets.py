"""Every packet of every version, both ways, byte by byte."""

from __future__ import annotations

import dataclasses

import pytest

from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    Acknowledgement,
    Auth,
    Connack,
    Connect,
    Direction,
    Disconnect,
    MqttMisuse,
    Packet,
    PacketId,
    PacketReader,
    PacketType,
    PeerFault,
    Properties,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    SubscribePacket,
    Subscription,
    SubscriptionId,
    TopicName,
    Unsuback,
    UnsubscribePacket,
    Will,
    connect_return_code,
    decode_packet,
    encode_packet,
)
from tests.quantum.mqtt.vectors import (
    BOTH_WAYS,
    CLIENT,
    ONE,
    V5,
    V31,
    V311,
    Vector,
    filtered,
    name,
    wire,
)


def decode(version: ProtocolVersion, direction: Direction, data: bytes) -> Packet:
    """Decode the one packet that `data` is."""
    reader = PacketReader(1 << 20)
    reader.receive(data)
    found = reader.next_packet()
    assert found is not None and reader.buffered_bytes == 0
    return decode_packet(*found, version, direction=direction)


vectors = pytest.mark.parametrize("vector", BOTH_WAYS.values(), ids=BOTH_WAYS.keys())


@vectors
def test_packet_and_bytes_agree_both_ways(vector: Vector) -> None:
    assert encode_packet(vector.packet, vector.version) == vector.wire
    assert decode(vector.version, vector.direction, vector.wire) == vector.packet


@vectors
def test_every_prefix_is_incomplete_and_the_neighbour_is_untouched(vector: Vector) -> None:
    reader = PacketReader(1 << 20)
    for byte in vector.wire:
        assert reader.next_packet() is None
        reader.receive(bytes((byte,)))
    reader.receive(b"\xc0\x00")
    assert reader.next_packet() == (vector.wire[0], vector.wire[2:])
    assert reader.buffered_bytes == 2
    assert reader.next_packet() == (0xC0, b"")


@vectors
def test_no_body_cut_short_or_drawn_out_decodes_to_the_same_packet(vector: Vector) -> None:
    first, body = vector.wire[0], vector.wire[2:]
    for other in (*(body[:cut] for cut in range(len(body))), body + bytes(3)):
        try:
            decoded = decode_packet(first, other, vector.version, direction=vector.direction)
        except PeerFault:
            continue
        assert decoded != vector.packet


def test_the_vectors_name_every_packet_type_in_every_version_that_has_it() -> None:
    seen = {(vector.wire[0] >> 4, vector.version) for vector in BOTH_WAYS.values()}
    wanted = {(kind, version) for kind in PacketType for version in ProtocolVersion}
    wanted -= {(PacketType.AUTH, V31), (PacketType.AUTH, V311)}
    assert seen == wanted


def test_a_packet_without_properties_shares_the_one_value_for_none() -> None:
    for vector in BOTH_WAYS.values():
        packet = decode(vector.version, vector.direction, vector.wire)
        properties = getattr(packet, "properties", NO_PROPERTIES)
        assert (properties == NO_PROPERTIES) is (properties is NO_PROPERTIES)


ALLOWED: list[tuple[type[Acknowledgement], int, list[int]]] = [
    (Puback, 0x40, [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]),
    (Pubrec, 0x50, [0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]),
    (Pubrel, 0x62, [0, 0x92]),
    (Pubcomp, 0x70, [0, 0x92]),
]


@pytest.mark.parametrize(("packet", "first", "codes"), ALLOWED)
def test_acknowledgements_decode_in_their_three_forms(
    packet: type[Acknowledgement], first: int, codes: list[int]
) -> None:
    for code in codes:
        for tail in (b"", b"\x00"):
            decoded = decode_packet(
                first, b"\x00\x01" + bytes((code,)) + tail, V5, direction=Direction.TO_CLIENT
            )
            assert decoded == packet(ONE, ReasonCode(code))
    assert decode_packet(first, b"\x00\x01", V5, direction=Direction.TO_CLIENT) == packet(ONE)


@pytest.mark.parametrize("version", [V31, V311])
def test_versions_before_5_leave_out_what_they_do_not_have(version: ProtocolVersion) -> None:
    """One value serves subscribers of every version."""
    rich = Properties(message_expiry_interval=1, user_properties=(("k", "v"),))
    publish = Publish(name("t"), b"p", properties=rich)
    assert encode_packet(publish, version) == wire("30 04 0001 't' 'p'")
    assert encode_packet(Puback(ONE, ReasonCode.NOT_AUTHORIZED), version) == wire("40 02 0001")
    refused = Suback(ONE, (ReasonCode.NOT_AUTHORIZED, ReasonCode.GRANTED_QOS_1))
    assert encode_packet(refused, version) == wire("90 04 0001 80 01")
    unsubscribed = Unsuback(ONE, (ReasonCode.NO_SUBSCRIPTION_EXISTED,))
    assert encode_packet(unsubscribed, version) == wire("b0 02 0001")
    gone = Disconnect(ReasonCode.SERVER_MOVED, Properties(server_reference="x"))
    assert encode_packet(gone, version) == wire("e0 00")


def test_a_session_is_never_present_in_3_1() -> None:
    assert encode_packet(Connack(session_present=True), V31) == wire("20 02 00 00")
    assert decode(V31, Direction.TO_CLIENT, wire("20 02 01 00")) == Connack()


def test_refusals_before_5_use_the_six_return_codes() -> None:
    assert connect_return_code(ReasonCode.SERVER_BUSY) == 3
    assert connect_return_code(ReasonCode.BANNED) == 5
    assert connect_return_code(ReasonCode.MALFORMED_PACKET) is None
    with pytest.raises(MqttMisuse):
        encode_packet(Connack(reason_code=ReasonCode.MALFORMED_PACKET), V311)


def publish(**changes: object) -> Publish:
    return dataclasses.replace(Publish(name("t"), b""), **changes)  # type: ignore[arg-type]


MISUSES: dict[str, tuple[Packet, ProtocolVersion]] = {
    "AUTH before 5": (Auth(), V311),
    "AUTH without method": (Auth(ReasonCode.CONTINUE_AUTHENTICATION), V5),
    "CONNECT of another version": (Connect(V5, CLIENT), V311),
    "CONNECT keep alive": (Connect(V5, CLIENT, keep_alive=65536), V5),
    "CONNECT password alone": (Connect(V311, CLIENT, password=b""), V311),
    "CONNECT long user name": (Connect(V5, CLIENT, user_name="u" * 65536), V5),
    "CONNECT surrogate": (Connect(V5, CLIENT, user_name="\ud800"), V5),
    "CONNECT null": (Connect(V5, CLIENT, user_name="\0"), V5),
    "CONNECT will of QoS 3": (Connect(V5, CLIENT, will=Will(name("w"), b"", qos=3)), V5),
    "CONNECT will wildcard": (Connect(V5, CLIENT, will=Will(name("#"), b"")), V5),
    "CONNACK present and refused": (
        Connack(session_present=True, reason_code=ReasonCode.BANNED),
        V5,
    ),
    "CONNACK wrong reason": (Connack(reason_code=ReasonCode.KEEP_ALIVE_TIMEOUT), V5),
    "PUBLISH QoS 3": (publish(qos=3, packet_id=ONE), V5),
    "PUBLISH duplicate of QoS 0": (publish(dup=True), V311),
    "PUBLISH QoS 1 without identifier": (publish(qos=1), V311),
    "PUBLISH QoS 0 with identifier": (publish(packet_id=ONE), V311),
    "PUBLISH wildcard": (publish(topic=TopicName(b"a/+")), V311),
    "PUBLISH ill-formed topic": (publish(topic=TopicName(b"\xff")), V311),
    "PUBLISH long topic": (publish(topic=TopicName(b"t" * 65536)), V311),
    "PUBLISH empty topic": (publish(topic=TopicName(b"")), V5),
    "PUBLISH empty topic before 5": (publish(topic=TopicName(b"")), V311),
    "PUBLISH alias 0": (publish(properties=Properties(topic_alias=0)), V5),
    "PUBLISH property of a CONNECT": (publish(properties=Properties(receive_maximum=1)), V5),
    "PUBLISH response wildcard": (publish(properties=Properties(response_topic=name("#"))), V5),
    "PUBACK identifier 0": (Puback(PacketId(0)), V311),
    "PUBACK identifier 65536": (Puback(PacketId(65536)), V311),
    "PUBREL wrong reason": (Pubrel(ONE, ReasonCode.QUOTA_EXCEEDED), V5),
    "SUBSCRIBE to nothing": (SubscribePacket(ONE, ()), V5),
    "SUBSCRIBE ill-formed filter": (SubscribePacket(ONE, (Subscription(filtered("a#")),)), V311),
    "SUBSCRIBE ill-formed share": (SubscribePacket(ONE, (Subscription(filtered("$share/a")),)), V5),
    "SUBSCRIBE shared no local": (
        SubscribePacket(ONE, (Subscription(filtered("$share/g/a"), no_local=True),)),
        V5,
    ),
    "SUBSCRIBE two identifiers": (
        SubscribePacket(
            ONE,
            (Subscription(filtered("a")),),
            Properties(subscription_identifiers=(SubscriptionId(1), SubscriptionId(2))),
        ),
        V5,
    ),
    "SUBSCRIBE identifier 0": (
        SubscribePacket(
            ONE,
            (Subscription(filtered("a")),),
            Properties(subscription_identifiers=(SubscriptionId(0),)),
        ),
        V5,
    ),
    "SUBACK without codes": (Suback(ONE, ()), V311),
    "SUBACK wrong reason": (Suback(ONE, (ReasonCode.BANNED,)), V5),
    "UNSUBSCRIBE from nothing": (UnsubscribePacket(ONE, ()), V311),
    "UNSUBACK without codes": (Unsuback(ONE), V5),
    "DISCONNECT wrong reason": (Disconnect(ReasonCode.BANNED), V5),
}


@pytest.mark.parametrize(("packet", "version"), MISUSES.values(), ids=MISUSES.keys())
def test_what_no_peer_would_accept_is_not_encoded(packet: Packet, version: ProtocolVersion) -> None:
    with pytest.raises(MqttMisuse):
        encode_packet(packet, version)


def test_a_packet_that_no_length_can_say_is_not_encoded() -> None:
    with pytest.raises(MqttMisuse, match="packet too large"):
        encode_packet(Publish(name("t"), bytes(268_435_455 - 2)), V311)


@pytest.mark.parametrize(
    ("payload_bytes", "header"),
    [
        (124, "30 7f"),
        (125, "30 80 01"),
        (16_380, "30 ff 7f"),
        (16_381, "30 80 80 01"),
        (2_097_148, "30 ff ff 7f"),
        (2_097_149, "30 80 80 80 01"),
    ],
)
def test_remaining_lengths_at_their_borders(payload_bytes: int, header: str) -> None:
    """The eight borders of the standard's table of remaining lengths, as far as memory is cheap."""
    packet = Publish(name("t"), bytes(payload_bytes))
    encoded = encode_packet(packet, V311)
    assert encoded.startswith(wire(header) + b"\x00\x01t\x00")
    reader = PacketReader(1 << 28)
    reader.receive(encoded)
    found = reader.next_packet()
    assert found is not None
    assert decode_packet(*found, V311, direction=Direction.TO_SERVER) == packet


def test_3_1_lets_promised_credentials_be_absent() -> None:
    """3.1: the remaining length takes precedence over the user name and password flags."""
    body = wire("0006 'MQIsdp' 03 c2 000a 0001 'c'")
    assert decode_packet(0x10, body, V31, direction=Direction.TO_SERVER) == Connect(
        V31, CLIENT, keep_alive=10
    )
    with_name = decode_packet(0x10, body + wire("0001 'u'"), V31, direction=Direction.TO_SERVER)
    assert with_name == Connect(V31, CLIENT, keep_alive=10, user_name="u")


def test_3_1_ignores_the_flags_that_it_calls_unused() -> None:
    connect = wire("0006 'MQIsdp' 03 03 000a 0001 'c'")
    decoded = decode_packet(0x14, connect, V31, direction=Direction.TO_SERVER)
    assert decoded == Connect(V31, CLIENT, keep_alive=10)
    again = decode_packet(0x6A, b"\x00\x01", V31, direction=Direction.TO_SERVER)
    assert again == Pubrel(ONE)
    subscribe = decode_packet(0x8A, wire("0001 0001 'a' fd"), V31, direction=Direction.TO_SERVER)
    assert subscribe == SubscribePacket(ONE, (Subscription(filtered("a"), 1),))
