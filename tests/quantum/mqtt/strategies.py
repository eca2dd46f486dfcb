"""Strategies for every packet that can be sent, and for the bytes of a conversation."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    Acknowledgement,
    Auth,
    ClientId,
    Connack,
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketId,
    PacketType,
    Pingreq,
    Pingresp,
    Properties,
    PropertyScope,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    RetainHandling,
    Suback,
    SubscribePacket,
    Subscription,
    TopicFilter,
    TopicName,
    Unsuback,
    UnsubscribePacket,
    Will,
)
from quantum.protocols.mqtt.codec.properties import PROPERTY_RULES, PropertyKind
from quantum.protocols.mqtt.codec.reasons import ALLOWED_REASONS, RETURN_CODE_REASONS

V5 = ProtocolVersion.V5
VERSIONS = st.sampled_from(ProtocolVersion)
# A small alphabet with one character of every length, and the ones that tempt: a whole
# Unicode table costs seconds to build and finds nothing that these do not.
LETTERS = "abcXYZ019 -_.~é߿ࠀΩ≈\ufeff\uffee\U0002a6d4\U0010fffd"
TEXTS = st.text(LETTERS + "\n\t\x01\x7f/+#$", max_size=20)
NAMES = st.text(LETTERS + "/+#$", max_size=20)
LEVELS = st.text(LETTERS, max_size=5)
PACKET_IDS = st.integers(1, 65535).map(PacketId)
QOS = st.integers(0, 2)
BINARY = st.binary(max_size=40)


def _joined(levels: list[str]) -> bytes:
    return "/".join(levels).encode()


TOPICS = st.lists(LEVELS, min_size=1, max_size=6).map(_joined).filter(bool).map(TopicName)
PLAIN_FILTERS = (
    st.tuples(st.lists(LEVELS | st.just("+"), min_size=1, max_size=6), st.sampled_from(([], ["#"])))
    .map(lambda parts: _joined(parts[0] + parts[1]))
    .filter(bool)
)
SHARED_FILTERS = st.tuples(LEVELS.filter(bool), PLAIN_FILTERS).map(
    lambda parts: b"$share/" + parts[0].encode() + b"/" + parts[1]
)
FILTERS = (PLAIN_FILTERS | SHARED_FILTERS).map(TopicFilter)

_VALUES: dict[PropertyKind, st.SearchStrategy[Any]] = {
    PropertyKind.BOOLEAN: st.booleans(),
    PropertyKind.BYTE: st.integers(0, 1),
    PropertyKind.TWO_BYTES: st.integers(1, 0xFFFF),
    PropertyKind.FOUR_BYTES: st.integers(1, 0xFFFF_FFFF),
    PropertyKind.VARIABLE: st.integers(1, 268_435_455),
    PropertyKind.TEXT: TEXTS,
    PropertyKind.TOPIC: TOPICS,
    PropertyKind.BINARY: BINARY,
    PropertyKind.TEXT_PAIR: st.tuples(TEXTS, TEXTS),
}


@st.composite
def properties_in(
    draw: st.DrawFn, scope: PropertyScope, direction: Direction = Direction.TO_SERVER
) -> Properties:
    """Draw properties that may stand in `scope` when sent in `direction`."""
    if draw(st.booleans()):
        return NO_PROPERTIES
    values: dict[str, Any] = {}
    for rule in PROPERTY_RULES:
        if scope in rule.scopes and draw(st.booleans()):
            value = _VALUES[rule.kind]
            most = 1 if scope is PropertyScope.SUBSCRIBE and rule.identifier == 0x0B else 4
            values[rule.field] = draw(
                st.lists(value, max_size=most).map(tuple) if rule.repeatable else value
            )
    if "authentication_data" in values:
        values.setdefault("authentication_method", "m")
    if scope is PropertyScope.PUBLISH and direction is Direction.TO_SERVER:
        values.pop("subscription_identifiers", None)
    if scope is PropertyScope.DISCONNECT and direction is Direction.TO_CLIENT:
        values.pop("session_expiry_interval", None)
    return Properties(**values)


def _reasons(kind: PacketType, direction: Direction) -> st.SearchStrategy[ReasonCode]:
    return st.sampled_from(sorted(ALLOWED_REASONS[direction][kind]))


def _for(
    version: ProtocolVersion, scope: PropertyScope, direction: Direction = Direction.TO_SERVER
) -> st.SearchStrategy[Properties]:
    return properties_in(scope, direction) if version is V5 else st.just(NO_PROPERTIES)


@st.composite
def connects(draw: st.DrawFn, version: ProtocolVersion) -> Connect:
    will = draw(
        st.none()
        | st.builds(Will, TOPICS, BINARY, QOS, st.booleans(), _for(version, PropertyScope.WILL))
    )
    user_name = draw(st.none() | NAMES)
    has_password = user_name is not None or version is V5
    return Connect(
        version,
        ClientId(draw(NAMES)),
        draw(st.booleans()),
        draw(st.integers(0, 65535)),
        will,
        user_name,
        draw(st.none() | BINARY) if has_password else None,
        draw(_for(version, PropertyScope.CONNECT)),
    )


@st.composite
def connacks(draw: st.DrawFn, version: ProtocolVersion) -> Connack:
    codes = _reasons(PacketType.CONNACK, Direction.TO_CLIENT)
    reason = draw(codes if version is V5 else st.sampled_from(RETURN_CODE_REASONS))
    may_be_present = not reason and version is not ProtocolVersion.V31
    present = draw(st.booleans()) if may_be_present else False
    return Connack(present, reason, draw(_for(version, PropertyScope.CONNACK)))


@st.composite
def publishes(draw: st.DrawFn, version: ProtocolVersion, direction: Direction) -> Publish:
    qos = draw(QOS)
    properties = draw(_for(version, PropertyScope.PUBLISH, direction))
    by_alias = properties.topic_alias is not None and draw(st.booleans())
    return Publish(
        TopicName(b"") if by_alias else draw(TOPICS),
        draw(BINARY),
        qos,
        draw(st.booleans()),
        draw(st.booleans()) if qos else False,
        draw(PACKET_IDS) if qos else PacketId(0),
        properties,
    )


@st.composite
def acknowledgements(draw: st.DrawFn, version: ProtocolVersion) -> Acknowledgement:
    kinds: tuple[type[Acknowledgement], ...] = (Puback, Pubrec, Pubrel, Pubcomp)
    number = draw(st.integers(4, 7))
    kind = kinds[number - 4]
    if version is not V5:
        return kind(draw(PACKET_IDS))
    reason = draw(_reasons(PacketType(number), Direction.TO_SERVER))
    return kind(draw(PACKET_IDS), reason, draw(properties_in(PropertyScope(number))))


@st.composite
def subscriptions(draw: st.DrawFn, version: ProtocolVersion) -> Subscription:
    topic_filter = draw(FILTERS)
    if version is not V5:
        return Subscription(topic_filter, draw(QOS))
    no_local = draw(st.booleans()) and not topic_filter.startswith(b"$share/")
    handling = draw(st.sampled_from(RetainHandling))
    return Subscription(topic_filter, draw(QOS), no_local, draw(st.booleans()), handling)


def _tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(items, min_size=1, max_size=4).map(tuple)


def packets_to_server(version: ProtocolVersion) -> st.SearchStrategy[Packet]:
    """Give every packet that a client may send after its CONNECT, and CONNECT itself."""
    every: list[st.SearchStrategy[Packet]] = [
        connects(version),
        publishes(version, Direction.TO_SERVER),
        acknowledgements(version),
        st.builds(
            SubscribePacket,
            PACKET_IDS,
            _tuples(subscriptions(version)),
            _for(version, PropertyScope.SUBSCRIBE),
        ),
        st.builds(
            UnsubscribePacket,
            PACKET_IDS,
            _tuples(FILTERS),
            _for(version, PropertyScope.UNSUBSCRIBE),
        ),
        st.just(Pingreq()),
        _disconnects(version, Direction.TO_SERVER),
    ]
    if version is V5:
        every.append(auths(Direction.TO_SERVER))
    return st.one_of(every)


def packets_to_client(version: ProtocolVersion) -> st.SearchStrategy[Packet]:
    """Give every packet that a server may send."""
    failures = st.sampled_from(
        (ReasonCode.SUCCESS, ReasonCode.GRANTED_QOS_2, ReasonCode.UNSPECIFIED_ERROR)
    )
    suback = _reasons(PacketType.SUBACK, Direction.TO_CLIENT) if version is V5 else failures
    unsuback = _tuples(_reasons(PacketType.UNSUBACK, Direction.TO_CLIENT))
    every: list[st.SearchStrategy[Packet]] = [
        connacks(version),
        publishes(version, Direction.TO_CLIENT),
        acknowledgements(version),
        st.builds(Suback, PACKET_IDS, _tuples(suback), _for(version, PropertyScope.SUBACK)),
        st.builds(
            Unsuback,
            PACKET_IDS,
            unsuback if version is V5 else st.just(()),
            _for(version, PropertyScope.UNSUBACK),
        ),
        st.just(Pingresp()),
    ]
    if version is V5:
        every += [_disconnects(version, Direction.TO_CLIENT), auths(Direction.TO_CLIENT)]
    return st.one_of(every)


def _disconnects(version: ProtocolVersion, direction: Direction) -> st.SearchStrategy[Disconnect]:
    if version is not V5:
        return st.just(Disconnect())
    reasons = _reasons(PacketType.DISCONNECT, direction)
    return st.builds(Disconnect, reasons, properties_in(PropertyScope.DISCONNECT, direction))


@st.composite
def auths(draw: st.DrawFn, direction: Direction) -> Auth:
    reason = draw(_reasons(PacketType.AUTH, direction))
    properties = draw(properties_in(PropertyScope.AUTH))
    if properties.authentication_method is None:
        values = {field.name: getattr(properties, field.name) for field in fields(properties)}
        properties = Properties(**{**values, "authentication_method": draw(TEXTS)})
    return Auth(reason, properties)


@st.composite
def sent_packets(draw: st.DrawFn) -> tuple[ProtocolVersion, Direction, Packet]:
    """Draw a version, a direction, and a packet that may be sent so."""
    version, direction = draw(VERSIONS), draw(st.sampled_from(Direction))
    give = packets_to_server if direction is Direction.TO_SERVER else packets_to_client
    return version, direction, draw(give(version))
