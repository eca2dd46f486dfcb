"""Round trips of whatever can be sent, and the property table against a second one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    Direction,
    MalformedPacket,
    MqttMisuse,
    Packet,
    PacketReader,
    Properties,
    PropertyScope,
    ProtocolVersion,
    ProtocolViolation,
    ReasonCode,
    decode_packet,
    decode_properties,
    encode_packet,
    encode_properties,
)
from quantum.protocols.mqtt.codec.decode import FILTERS_PER_PACKET_MAX
from quantum.protocols.mqtt.codec.primitives import PacketCursor
from quantum.protocols.mqtt.codec.properties import USER_PROPERTIES_MAX
from tests.quantum.mqtt.strategies import properties_in, sent_packets
from tests.quantum.mqtt.vectors import wire

# Identifier: (field, a legal value on the wire, its value, the scopes by their packet type).
# Table 2-4 of the standard, typed a second time; 16 is the will.
TABLE: dict[int, tuple[str, str, Any, set[int]]] = {
    0x01: ("payload_format_indicator", "01", 1, {3, 16}),
    0x02: ("message_expiry_interval", "00000005", 5, {3, 16}),
    0x03: ("content_type", "0001 'p'", "p", {3, 16}),
    0x08: ("response_topic", "0001 'p'", b"p", {3, 16}),
    0x09: ("correlation_data", "0001 00", b"\x00", {3, 16}),
    0x0B: ("subscription_identifiers", "8001", (128,), {3, 8}),
    0x11: ("session_expiry_interval", "00000005", 5, {1, 2, 14}),
    0x12: ("assigned_client_identifier", "0001 'p'", "p", {2}),
    0x13: ("server_keep_alive", "0005", 5, {2}),
    0x15: ("authentication_method", "0001 'p'", "p", {1, 2, 15}),
    0x16: ("authentication_data", "0001 00", b"\x00", {1, 2, 15}),
    0x17: ("request_problem_information", "01", True, {1}),
    0x18: ("will_delay_interval", "00000005", 5, {16}),
    0x19: ("request_response_information", "00", False, {1}),
    0x1A: ("response_information", "0001 'p'", "p", {2}),
    0x1C: ("server_reference", "0001 'p'", "p", {2, 14}),
    0x1F: ("reason_string", "0001 'p'", "p", {2, 4, 5, 6, 7, 9, 11, 14, 15}),
    0x21: ("receive_maximum", "0005", 5, {1, 2}),
    0x22: ("topic_alias_maximum", "0005", 5, {1, 2}),
    0x23: ("topic_alias", "0005", 5, {3}),
    0x24: ("maximum_qos", "01", 1, {2}),
    0x25: ("retain_available", "01", True, {2}),
    0x26: ("user_properties", "0001 'k' 0000", (("k", ""),), set(PropertyScope)),
    0x27: ("maximum_packet_size", "00000005", 5, {1, 2}),
    0x28: ("wildcard_subscription_available", "01", True, {2}),
    0x29: ("subscription_identifier_available", "01", True, {2}),
    0x2A: ("shared_subscription_available", "00", False, {2}),
}
REPEATABLE = {0x0B, 0x26}
METHOD = wire("15 0001 'm'")  # authentication data is nothing without it

ILLEGAL = {
    "payload format 2": (3, "01 02", 0x82),
    "payload format 255": (16, "01 ff", 0x82),
    "subscription identifier 0": (8, "0b 00", 0x82),
    "request problem information 2": (1, "17 02", 0x82),
    "request response information 2": (1, "19 02", 0x82),
    "receive maximum 0": (1, "21 0000", 0x82),
    "receive maximum 0 of a server": (2, "21 0000", 0x82),
    "topic alias 0": (3, "23 0000", 0x94),
    "maximum QoS 2": (2, "24 02", 0x82),
    "retain available 2": (2, "25 02", 0x82),
    "maximum packet size 0": (1, "27 00000000", 0x82),
    "maximum packet size 0 of a server": (2, "27 00000000", 0x82),
    "wildcards available 2": (2, "28 02", 0x82),
    "identifiers available 2": (2, "29 02", 0x82),
    "shared available 2": (2, "2a 02", 0x82),
    "response topic empty": (3, "08 0000", 0x82),
    "response topic wildcard": (3, "08 0001 '+'", 0x82),
    "authentication data without method": (15, "16 0000", 0x82),
}


def block(*properties: bytes) -> PacketCursor:
    body = b"".join(properties)
    return PacketCursor(len(body).to_bytes(1, "big") + body)


def one(identifier: int) -> bytes:
    return bytes((identifier,)) + wire(TABLE[identifier][1])


@pytest.mark.parametrize("scope", PropertyScope, ids=lambda scope: scope.name)
@pytest.mark.parametrize("identifier", TABLE, ids=lambda identifier: f"{identifier:02x}")
def test_a_property_stands_where_table_2_4_lets_it(identifier: int, scope: PropertyScope) -> None:
    field, _, value, scopes = TABLE[identifier]
    method = METHOD if identifier == 0x16 and scope in scopes else b""
    if scope in scopes:
        expected = Properties(**{field: value})
        if method:
            expected = Properties(authentication_method="m", authentication_data=value)
        assert decode_properties(block(method, one(identifier)), scope) == expected
        assert encode_properties(expected, scope) == block(method, one(identifier)).body
        return
    with pytest.raises(MalformedPacket) as caught:
        decode_properties(block(one(identifier)), scope)
    assert caught.value.reason_code == ReasonCode.MALFORMED_PACKET
    with pytest.raises(MqttMisuse):
        encode_properties(Properties(**{field: value}), scope)


@pytest.mark.parametrize("identifier", TABLE, ids=lambda identifier: f"{identifier:02x}")
def test_a_property_stands_once_unless_it_may_repeat(identifier: int) -> None:
    scope = PropertyScope(min(TABLE[identifier][3]))
    method = METHOD if identifier == 0x16 else b""
    twice = block(method, one(identifier), one(identifier))
    if identifier in REPEATABLE:
        field, _, value, _ = TABLE[identifier]
        assert decode_properties(twice, scope) == Properties(**{field: value * 2})
        return
    with pytest.raises(ProtocolViolation, match="property given twice") as caught:
        decode_properties(twice, scope)
    assert caught.value.reason_code == ReasonCode.PROTOCOL_ERROR


@pytest.mark.parametrize("identifier", TABLE, ids=lambda identifier: f"{identifier:02x}")
def test_a_property_cut_short_is_malformed_at_every_byte(identifier: int) -> None:
    whole = one(identifier)
    for cut in range(1, len(whole)):
        for scope in TABLE[identifier][3]:
            with pytest.raises(MalformedPacket):
                decode_properties(block(whole[:cut]), PropertyScope(scope))


def test_every_other_identifier_is_malformed() -> None:
    for identifier in set(range(128)) - TABLE.keys():
        for scope in PropertyScope:
            with pytest.raises(MalformedPacket):
                decode_properties(block(bytes((identifier, 0))), scope)


@pytest.mark.parametrize(("scope", "notation", "code"), ILLEGAL.values(), ids=ILLEGAL.keys())
def test_illegal_values_have_their_reason(scope: int, notation: str, code: int) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        decode_properties(block(wire(notation)), PropertyScope(scope))
    assert caught.value.reason_code == code


def test_a_cursor_stands_behind_the_properties_it_gave() -> None:
    cursor = PacketCursor(wire("02 01 01 'next'"))
    decode_properties(cursor, PropertyScope.PUBLISH)
    assert cursor.take_rest() == b"next"


def test_none_is_one_shared_value_and_one_byte() -> None:
    assert decode_properties(PacketCursor(b"\x00"), PropertyScope.PUBLISH) is NO_PROPERTIES
    assert encode_properties(Properties(), PropertyScope.PUBLISH) == b"\x00"


def test_a_property_value_says_only_what_is_there() -> None:
    assert repr(NO_PROPERTIES) == "Properties()"
    assert repr(Properties(topic_alias=0, retain_available=False)) == (
        "Properties(topic_alias=0, retain_available=False)"
    )


def test_so_many_user_properties_and_no_more() -> None:
    """A million of them fit in 5 MB, and would hold everybody up for seconds."""
    many = Properties(user_properties=(("", ""),) * USER_PROPERTIES_MAX)
    encoded = encode_properties(many, PropertyScope.PUBLISH)
    assert decode_properties(PacketCursor(encoded), PropertyScope.PUBLISH) == many
    more = Properties(user_properties=(("", ""),) * (USER_PROPERTIES_MAX + 1))
    encoded = encode_properties(more, PropertyScope.PUBLISH)
    with pytest.raises(ProtocolViolation) as caught:
        decode_properties(PacketCursor(encoded), PropertyScope.PUBLISH)
    assert caught.value.reason_code is ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize("first_byte", [0x82, 0xA2])
def test_so_many_filters_in_one_packet_and_no_more(first_byte: int) -> None:
    line = b"\0\1a\0" if first_byte == 0x82 else b"\0\1a"
    most = b"\0\1" + line * FILTERS_PER_PACKET_MAX
    decode_packet(first_byte, most, ProtocolVersion.V311, direction=Direction.TO_SERVER)
    with pytest.raises(ProtocolViolation) as caught:
        decode_packet(first_byte, most + line, ProtocolVersion.V311, direction=Direction.TO_SERVER)
    assert caught.value.reason_code is ReasonCode.QUOTA_EXCEEDED


@given(st.sampled_from(PropertyScope).flatmap(lambda s: st.tuples(st.just(s), properties_in(s))))
def test_properties_come_back_as_they_were(drawn: tuple[PropertyScope, Properties]) -> None:
    scope, properties = drawn
    cursor = PacketCursor(encode_properties(properties, scope))
    assert decode_properties(cursor, scope) == properties
    assert cursor.exhausted


@settings(max_examples=400)
@given(sent_packets())
def test_packets_come_back_as_they_were(sent: tuple[ProtocolVersion, Direction, Packet]) -> None:
    version, direction, packet = sent
    reader = PacketReader(1 << 28)
    reader.receive(encode_packet(packet, version))
    found = reader.next_packet()
    assert found is not None and reader.buffered_bytes == 0
    decoded = decode_packet(*found, version, direction=direction)
    assert decoded == packet
    assert type(decoded) is type(packet)
