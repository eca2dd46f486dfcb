"""The normative statements of MQTT 3.1.1 and 5.0 that the bytes of one packet decide.

Each case carries the statement's number, or the section where a statement has none. What a
session decides (a second CONNECT, an unknown alias, a quota) is tested with the sessions.
"""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Connack,
    Connect,
    Direction,
    Disconnect,
    MalformedPacket,
    MqttMisuse,
    Packet,
    PacketReader,
    PeerFault,
    ProtocolVersion,
    Puback,
    Publish,
    ReasonCode,
    Suback,
    SubscribePacket,
    Unsuback,
    UnsupportedProtocol,
    decode_packet,
    encode_packet,
)
from tests.quantum.mqtt.refusals import (
    ALLOWED_CODES,
    FROM_A_SERVER,
    HEAD_4,
    REFUSED,
    Refused,
    malformed,
    violation,
)
from tests.quantum.mqtt.vectors import ONE, V5, V31, V311, wire

SERVER = Direction.TO_SERVER


def decode(version: ProtocolVersion, first_byte: int, notation: str) -> Packet:
    return decode_packet(first_byte, wire(notation), version, direction=SERVER)


def check(case: Refused) -> PeerFault:
    with pytest.raises(case.fault) as caught:
        decode_packet(case.first_byte, wire(case.notation), case.version, direction=case.direction)
    assert type(caught.value) is case.fault
    assert caught.value.reason_code == case.code, caught.value
    return caught.value


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_standard_forbids_is_refused_with_its_reason(case: Refused) -> None:
    fault = check(case)
    if case.first_byte >> 4 == 1:
        assert fault.version is case.version


@pytest.mark.parametrize("statement", ALLOWED_CODES)
def test_only_the_listed_reason_codes_may_be_sent(statement: str) -> None:
    first, before, allowed = ALLOWED_CODES[statement]
    for code in range(256):
        notation = f"{before} {code:02x}"
        if code in allowed:
            decoded = decode(V5, first, notation)
            assert getattr(decoded, "reason_code", None) == code
        else:
            check(violation(V5, first, notation))


@pytest.mark.parametrize(
    ("protocol", "level"),
    [("MQTT", 3), ("MQTT", 6), ("MQTT", 0x85), ("MQIsdp", 4), ("MQIsdp", 5), ("MQTU", 4), ("", 4)],
)
def test_mqtt_3_1_2_1_and_2_other_protocols_and_levels_are_unsupported(
    protocol: str, level: int
) -> None:
    """3.1.1 and 5.0 [MQTT-3.1.2-1] [MQTT-3.1.2-2]: told 0x84, and told apart by their name."""
    body = len(protocol).to_bytes(2, "big") + protocol.encode() + bytes((level, 2, 0, 0, 0, 0))
    with pytest.raises(UnsupportedProtocol) as caught:
        decode_packet(0x10, body, V311, direction=SERVER)
    assert caught.value.reason_code == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert (caught.value.protocol_name, caught.value.level) == (protocol.encode(), level)
    assert caught.value.version is None


def test_mqtt_3_1_2_1_a_cut_protocol_name_is_malformed() -> None:
    for notation in ("", "00", "0004", "0004 'MQT'", "0004 'MQTT'"):
        assert check(malformed(V311, 0x10, notation)).version is None


def test_mqtt_1_5_4_3_a_byte_order_mark_is_kept() -> None:
    """3.1.1 [MQTT-1.5.3-3] and 5.0 [MQTT-1.5.4-3]."""
    connect = decode(V311, 0x10, HEAD_4 + " 02 0000 0004 efbbbf 'c'")
    assert isinstance(connect, Connect) and connect.client_id == "\ufeffc"
    publish = decode(V5, 0x30, "0004 efbbbf 't' 00")
    assert isinstance(publish, Publish) and publish.topic == b"\xef\xbb\xbft"


def test_mqtt_2_2_1_2_a_qos_0_message_has_no_packet_identifier() -> None:
    """3.1.1 [MQTT-2.3.1-5] and 5.0 [MQTT-2.2.1-2]: what follows the topic is not one."""
    assert decode(V311, 0x30, "0001 't' 0001 'p'") == Publish(b"t", b"\x00\x01p")  # type: ignore[arg-type]
    assert decode(V5, 0x30, "0001 't' 00 0001 'p'") == Publish(b"t", b"\x00\x01p")  # type: ignore[arg-type]


def test_mqtt_3_1_3_5_client_identifiers_of_1_to_23_letters_and_digits_are_allowed() -> None:
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for text in (letters[:23], letters[23:46], letters[46:], "0", "x" * 65535):
        body = wire(HEAD_4 + " 02 0000") + len(text).to_bytes(2, "big") + text.encode()
        connect = decode_packet(0x10, body, V311, direction=SERVER)
        assert isinstance(connect, Connect) and connect.client_id == text


def test_mqtt_3_3_2_18_user_properties_keep_their_order_through_decode_and_encode() -> None:
    """[MQTT-3.3.2-17] [MQTT-3.3.2-18], as far as the codec carries them."""
    data = wire("30 13 0001 't' 0f 26 0001 'b' 0001 '1' 26 0001 'a' 0002 '2' 0a")
    assert decode_and_encode(data) == data
    twice = wire("30 12 0001 't' 0e 26 0001 'k' 0001 'v' 26 0001 'k' 0001 'v'")
    assert decode_and_encode(twice) == twice


def decode_and_encode(data: bytes) -> bytes:
    reader = PacketReader(1000)
    reader.receive(data)
    found = reader.next_packet()
    assert found is not None
    return encode_packet(decode_packet(*found, V5, direction=SERVER), V5)


def test_mqtt_3_3_2_12_every_topic_alias_above_0_is_accepted_by_the_codec() -> None:
    for alias in (1, 2, 255, 256, 65535):
        packet = decode(V5, 0x30, f"0000 03 23 {alias:04x} 'p'")
        assert isinstance(packet, Publish) and packet.properties.topic_alias == alias


def test_mqtt_3_8_3_1_control_characters_stay_where_they_are_text_for_people() -> None:
    """§1.5.4 lets a receiver refuse them; a user property may hold a line break."""
    packet = decode(V5, 0x30, "0001 't' 07 26 0001 0a 0001 09")
    assert isinstance(packet, Publish) and packet.properties.user_properties == (("\n", "\t"),)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_remaining_length_of_five_bytes_or_not_minimal_is_malformed(size: int) -> None:
    """3.1.1 §2.2.3 and 5.0 [MQTT-1.5.5-1], on the first byte that shows it."""
    reader = PacketReader(1 << 28)
    reader.receive(b"\x30" + b"\x80" * size)
    if size < 4:
        assert reader.next_packet() is None
        reader.receive(b"\x00")
    with pytest.raises(MalformedPacket) as caught:
        reader.next_packet()
    assert caught.value.reason_code == ReasonCode.MALFORMED_PACKET


def test_mqtt_3_2_2_what_a_server_must_not_send_in_a_connack_is_not_encoded() -> None:
    """5.0 [MQTT-3.2.2-6] [MQTT-3.2.2-8]; 3.1.1 [MQTT-3.2.2-4] [MQTT-3.2.2-6]."""
    refusal = Connack(session_present=True, reason_code=ReasonCode.NOT_AUTHORIZED)
    for version in (V311, V5):
        with pytest.raises(MqttMisuse):
            encode_packet(refusal, version)
    with pytest.raises(MqttMisuse):
        encode_packet(Connack(reason_code=ReasonCode.SESSION_TAKEN_OVER), V5)
    with pytest.raises(MqttMisuse):
        encode_packet(Connack(reason_code=ReasonCode.UNSPECIFIED_ERROR), V311)


def test_what_a_server_must_not_send_as_a_reason_is_not_encoded() -> None:
    """[MQTT-3.4.2-1] [MQTT-3.9.3-2] [MQTT-3.11.3-2] [MQTT-3.14.2-1]; 3.1.1 [MQTT-3.9.3-2]."""
    wrong = ReasonCode.KEEP_ALIVE_TIMEOUT
    packets = (Puback(ONE, wrong), Suback(ONE, (wrong,)), Unsuback(ONE, (wrong,)))
    for packet in (*packets, Disconnect(ReasonCode.BANNED)):
        with pytest.raises(MqttMisuse):
            encode_packet(packet, V5)


@pytest.mark.parametrize("case", FROM_A_SERVER.values(), ids=FROM_A_SERVER.keys())
def test_our_client_refuses_what_a_server_must_not_send(case: Refused) -> None:
    check(case)


def test_a_subscribe_keeps_the_order_of_its_filters() -> None:
    """[MQTT-3.9.3-1] rests on it."""
    packet = decode(V5, 0x82, "0001 00 0001 'b' 00 0001 'a' 01 0001 'b' 02")
    assert isinstance(packet, SubscribePacket)
    assert [line.topic_filter for line in packet.subscriptions] == [b"b", b"a", b"b"]


def test_3_1_connects_carry_their_version_too() -> None:
    fault = check(malformed(V31, 0x10, "0006 'MQIsdp' 03 02 000a"))
    assert fault.version is V31
