"""The properties of MQTT 5 (§2.2.2): their values, and the one table of what is legal where."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final

from quantum.protocols.mqtt.codec.errors import MalformedPacket, MqttMisuse, ProtocolViolation
from quantum.protocols.mqtt.codec.primitives import (
    PacketCursor,
    check_identifier,
    decode_text,
    encode_binary,
    encode_number,
    encode_text,
    encode_variable,
)
from quantum.protocols.mqtt.codec.topics import is_topic_name
from quantum.protocols.mqtt.codec.types import (
    REMAINING_LENGTH_MAX,
    ReasonCode,
    SubscriptionId,
    TopicName,
)

UserProperty = tuple[str, str]


@dataclass(slots=True, unsafe_hash=True, repr=False)
class Properties:
    """The properties of one packet or will; None or empty is a property that is not there.

    A value: packets share it, so make another one with `dataclasses.replace` and never change
    a field (it is not frozen because that makes a value of 27 fields seven times as dear). What
    is absent has the standard's default, which is not written here.
    """

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: TopicName | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[SubscriptionId, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: bool | None = None
    will_delay_interval: int | None = None
    request_response_information: bool | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: bool | None = None
    user_properties: tuple[UserProperty, ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: bool | None = None
    subscription_identifier_available: bool | None = None
    shared_subscription_available: bool | None = None

    def __repr__(self) -> str:
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        present = (f"{name}={value!r}" for name, value in values if value not in (None, ()))
        return f"Properties({', '.join(present)})"


NO_PROPERTIES: Final = Properties()
"""The one value for 'none', so that a packet without properties costs no object."""


class PropertyScope(IntEnum):
    """Where properties stand; the values of packets are their packet types."""

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
    DISCONNECT = 14
    AUTH = 15
    WILL = 16


class PropertyKind(IntEnum):
    """The data types that a property can have (§2.2.2.2)."""

    BOOLEAN = 0  # a byte that is 0 or 1
    BYTE = 1
    TWO_BYTES = 2
    FOUR_BYTES = 3
    VARIABLE = 4
    TEXT = 5
    TOPIC = 6
    BINARY = 7
    TEXT_PAIR = 8


USER_PROPERTIES_MAX: Final = 4_096
"""Of one packet. A pair takes five bytes on the wire and microseconds here, for everybody."""

_NUMBER_MAX: Final[Mapping[PropertyKind, int]] = {
    PropertyKind.BOOLEAN: 1,
    PropertyKind.BYTE: 1,  # both properties of this kind go no further
    PropertyKind.TWO_BYTES: 0xFFFF,
    PropertyKind.FOUR_BYTES: 0xFFFF_FFFF,
    PropertyKind.VARIABLE: REMAINING_LENGTH_MAX,
}


@dataclass(frozen=True, slots=True)
class PropertyRule:
    """One line of the standard's table 2-4, with the values that its section allows."""

    identifier: int
    field: str
    kind: PropertyKind
    scopes: frozenset[PropertyScope]
    minimum: int = 0
    repeatable: bool = False
    fault: ReasonCode = ReasonCode.PROTOCOL_ERROR  # what a value out of range is told


def _in(*scopes: PropertyScope) -> frozenset[PropertyScope]:
    return frozenset(scopes)


_Scope = PropertyScope
_Kind = PropertyKind
_MESSAGE: Final = _in(_Scope.PUBLISH, _Scope.WILL)
_CONNACK: Final = _in(_Scope.CONNACK)
_BOTH_CONNECTS: Final = _in(_Scope.CONNECT, _Scope.CONNACK)
_AUTHENTICATION: Final = _BOTH_CONNECTS | {_Scope.AUTH}
_EVERYWHERE: Final = frozenset(_Scope)
_ANSWERS: Final = _EVERYWHERE - {
    _Scope.CONNECT,
    _Scope.PUBLISH,
    _Scope.SUBSCRIBE,
    _Scope.UNSUBSCRIBE,
    _Scope.WILL,
}

PROPERTY_RULES: Final[tuple[PropertyRule, ...]] = (
    PropertyRule(0x01, "payload_format_indicator", _Kind.BYTE, _MESSAGE),
    PropertyRule(0x02, "message_expiry_interval", _Kind.FOUR_BYTES, _MESSAGE),
    PropertyRule(0x03, "content_type", _Kind.TEXT, _MESSAGE),
    PropertyRule(0x08, "response_topic", _Kind.TOPIC, _MESSAGE),
    PropertyRule(0x09, "correlation_data", _Kind.BINARY, _MESSAGE),
    PropertyRule(
        0x0B,
        "subscription_identifiers",
        _Kind.VARIABLE,
        _in(_Scope.PUBLISH, _Scope.SUBSCRIBE),
        minimum=1,
        repeatable=True,
    ),
    PropertyRule(
        0x11,
        "session_expiry_interval",
        _Kind.FOUR_BYTES,
        _BOTH_CONNECTS | {_Scope.DISCONNECT},
    ),
    PropertyRule(0x12, "assigned_client_identifier", _Kind.TEXT, _CONNACK),
    PropertyRule(0x13, "server_keep_alive", _Kind.TWO_BYTES, _CONNACK),
    PropertyRule(0x15, "authentication_method", _Kind.TEXT, _AUTHENTICATION),
    PropertyRule(0x16, "authentication_data", _Kind.BINARY, _AUTHENTICATION),
    PropertyRule(0x17, "request_problem_information", _Kind.BOOLEAN, _in(_Scope.CONNECT)),
    PropertyRule(0x18, "will_delay_interval", _Kind.FOUR_BYTES, _in(_Scope.WILL)),
    PropertyRule(0x19, "request_response_information", _Kind.BOOLEAN, _in(_Scope.CONNECT)),
    PropertyRule(0x1A, "response_information", _Kind.TEXT, _CONNACK),
    PropertyRule(0x1C, "server_reference", _Kind.TEXT, _CONNACK | {_Scope.DISCONNECT}),
    PropertyRule(0x1F, "reason_string", _Kind.TEXT, _ANSWERS),
    PropertyRule(0x21, "receive_maximum", _Kind.TWO_BYTES, _BOTH_CONNECTS, minimum=1),
    PropertyRule(0x22, "topic_alias_maximum", _Kind.TWO_BYTES, _BOTH_CONNECTS),
    PropertyRule(
        0x23,
        "topic_alias",
        _Kind.TWO_BYTES,
        _in(_Scope.PUBLISH),
        minimum=1,
        fault=ReasonCode.TOPIC_ALIAS_INVALID,
    ),
    PropertyRule(0x24, "maximum_qos", _Kind.BYTE, _CONNACK),
    PropertyRule(0x25, "retain_available", _Kind.BOOLEAN, _CONNACK),
    PropertyRule(0x26, "user_properties", _Kind.TEXT_PAIR, _EVERYWHERE, repeatable=True),
    PropertyRule(0x27, "maximum_packet_size", _Kind.FOUR_BYTES, _BOTH_CONNECTS, minimum=1),
    PropertyRule(0x28, "wildcard_subscription_available", _Kind.BOOLEAN, _CONNACK),
    PropertyRule(0x29, "subscription_identifier_available", _Kind.BOOLEAN, _CONNACK),
    PropertyRule(0x2A, "shared_subscription_available", _Kind.BOOLEAN, _CONNACK),
)

assert {rule.field for rule in PROPERTY_RULES} == {field.name for field in fields(Properties)}

_RULES_IN: Final[Mapping[PropertyScope, Mapping[int, PropertyRule]]] = {
    scope: {rule.identifier: rule for rule in PROPERTY_RULES if scope in rule.scopes}
    for scope in PropertyScope
}
_REPEATABLE: Final = frozenset(rule.field for rule in PROPERTY_RULES if rule.repeatable)


def decode_properties(cursor: PacketCursor, scope: PropertyScope) -> Properties:
    """Take a property length and its properties from `cursor`; NO_PROPERTIES if there are none.

    Raises MalformedPacket for what cannot stand in `scope` (§2.2.2.2), and ProtocolViolation
    for a value or a repetition that the property's own section forbids.
    """
    length = cursor.take_variable()
    if not length:
        return NO_PROPERTIES
    block = PacketCursor(cursor.take_bytes(length))
    found: dict[str, Any] = {}
    rules = _RULES_IN[scope]
    while not block.exhausted:
        rule = rules.get(identifier := block.take_variable())
        if rule is None:
            raise MalformedPacket(
                ReasonCode.MALFORMED_PACKET,
                "property not allowed here",
                identifier=identifier,
                scope=scope.name,
            )
        _collect(found, rule, _take_value(block, rule))
    if "authentication_data" in found and "authentication_method" not in found:
        code = ReasonCode.PROTOCOL_ERROR
        raise ProtocolViolation(code, "authentication data without a method")
    for name in _REPEATABLE & found.keys():
        found[name] = tuple(found[name])
    return Properties(**found)


def _collect(found: dict[str, Any], rule: PropertyRule, value: object) -> None:
    if rule.repeatable:
        values = found.setdefault(rule.field, [])
        values.append(value)
        if len(values) > USER_PROPERTIES_MAX and rule.kind is PropertyKind.TEXT_PAIR:
            code, why = ReasonCode.QUOTA_EXCEEDED, "too many user properties"
            raise ProtocolViolation(code, why, limit=USER_PROPERTIES_MAX)
    elif rule.field in found:
        code = ReasonCode.PROTOCOL_ERROR
        raise ProtocolViolation(code, "property given twice", property=rule.field)
    else:
        found[rule.field] = value


def _take_value(block: PacketCursor, rule: PropertyRule) -> object:
    value = _TAKE[rule.kind](block)
    if not _is_legal(rule, value):
        raise ProtocolViolation(rule.fault, "illegal property value", property=rule.field)
    return bool(value) if rule.kind is PropertyKind.BOOLEAN else value


def _is_legal(rule: PropertyRule, value: Any) -> bool:
    if rule.kind is PropertyKind.TOPIC:
        return is_topic_name(value)  # [MQTT-3.3.2-14]
    most = _NUMBER_MAX.get(rule.kind)
    return most is None or bool(rule.minimum <= value <= most)


def _take_topic(block: PacketCursor) -> bytes:
    topic = block.take_binary()
    check_identifier(decode_text(topic))  # ill-formed text is malformed before it is illegal
    return topic


_TAKE: Final[Mapping[PropertyKind, Callable[[PacketCursor], object]]] = {
    PropertyKind.BOOLEAN: PacketCursor.take_byte,
    PropertyKind.BYTE: PacketCursor.take_byte,
    PropertyKind.TWO_BYTES: lambda block: block.take_number(2),
    PropertyKind.FOUR_BYTES: lambda block: block.take_number(4),
    PropertyKind.VARIABLE: PacketCursor.take_variable,
    PropertyKind.TEXT: PacketCursor.take_text,
    PropertyKind.TOPIC: _take_topic,
    PropertyKind.BINARY: PacketCursor.take_binary,
    PropertyKind.TEXT_PAIR: lambda block: (block.take_text(), block.take_text()),
}


def encode_properties(properties: Properties, scope: PropertyScope) -> bytes:
    """Encode a property length and its properties, in the order of their identifiers.

    Raises MqttMisuse for a property that `scope` cannot hold or a value that it cannot have.
    """
    if properties is NO_PROPERTIES:
        return b"\0"
    parts: list[bytes] = []
    for rule in PROPERTY_RULES:
        value = getattr(properties, rule.field)
        if value is None or (value == () and rule.repeatable):
            continue
        if scope not in rule.scopes:
            raise MqttMisuse("property not allowed here", property=rule.field, scope=scope.name)
        for item in value if rule.repeatable else (value,):
            parts += (encode_variable(rule.identifier), _encode_value(rule, item))
    block = b"".join(parts)
    return encode_variable(len(block)) + block


def _encode_value(rule: PropertyRule, value: Any) -> bytes:
    if not _is_legal(rule, value):
        raise MqttMisuse("illegal property value", property=rule.field)
    return _ENCODE[rule.kind](value)


_ENCODE: Final[Mapping[PropertyKind, Callable[[Any], bytes]]] = {
    PropertyKind.BOOLEAN: lambda value: encode_number(value, 1),
    PropertyKind.BYTE: lambda value: encode_number(value, 1),
    PropertyKind.TWO_BYTES: lambda value: encode_number(value, 2),
    PropertyKind.FOUR_BYTES: lambda value: encode_number(value, 4),
    PropertyKind.VARIABLE: encode_variable,
    PropertyKind.TEXT: encode_text,
    PropertyKind.TOPIC: encode_binary,
    PropertyKind.BINARY: encode_binary,
    PropertyKind.TEXT_PAIR: lambda pair: encode_text(pair[0]) + encode_text(pair[1]),
}
