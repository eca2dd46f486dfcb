"""Packets and their bytes, written by hand from the text of the standards; both ways."""

from __future__ import annotations

from typing import NamedTuple

from quantum.protocols.mqtt.codec import (
    Auth,
    ClientId,
    Connack,
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketId,
    Pingreq,
    Pingresp,
    Properties,
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
    SubscriptionId,
    TopicFilter,
    TopicName,
    Unsuback,
    UnsubscribePacket,
    Will,
)

V31, V311, V5 = ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5
TO_SERVER, TO_CLIENT = Direction.TO_SERVER, Direction.TO_CLIENT


class Vector(NamedTuple):
    version: ProtocolVersion
    direction: Direction
    packet: Packet
    wire: bytes


def wire(notation: str) -> bytes:
    """Read blank-separated tokens: hexadecimal bytes, or 'text' between quotes."""
    return b"".join(
        token[1:-1].encode() if token.startswith("'") else bytes.fromhex(token)
        for token in notation.split()
    )


def up(version: ProtocolVersion, packet: Packet, notation: str) -> Vector:
    return Vector(version, TO_SERVER, packet, wire(notation))


def down(version: ProtocolVersion, packet: Packet, notation: str) -> Vector:
    return Vector(version, TO_CLIENT, packet, wire(notation))


def identified(number: int) -> PacketId:
    return PacketId(number)


def name(topic: str) -> TopicName:
    return TopicName(topic.encode())


def filtered(topic_filter: str) -> TopicFilter:
    return TopicFilter(topic_filter.encode())


ONE = identified(1)
CLIENT = ClientId("c")

CONNECTS = {
    "CONNECT 3.1": up(
        V31,
        Connect(V31, CLIENT, clean_start=True, keep_alive=10),
        "10 0f 0006 'MQIsdp' 03 02 000a 0001 'c'",
    ),
    "CONNECT 3.1.1 minimal": up(
        V311,
        Connect(V311, ClientId(""), clean_start=True, keep_alive=0),
        "10 0c 0004 'MQTT' 04 02 0000 0000",
    ),
    "CONNECT 3.1.1 with everything": up(
        V311,
        Connect(
            V311,
            CLIENT,
            clean_start=False,
            keep_alive=65535,
            will=Will(name("w"), b"\x00\xff", qos=2, retain=True),
            user_name="u",
            password=b"\x00p",
        ),
        "10 1b 0004 'MQTT' 04 f4 ffff 0001 'c' 0001 'w' 0002 00ff 0001 'u' 0002 00 'p'",
    ),
    "CONNECT 5 minimal": up(
        V5,
        Connect(V5, CLIENT, clean_start=True, keep_alive=60),
        "10 0e 0004 'MQTT' 05 02 003c 00 0001 'c'",
    ),
    "CONNECT 5 password without user name": up(
        V5,
        Connect(V5, CLIENT, clean_start=False, password=b"p"),
        "10 11 0004 'MQTT' 05 40 0000 00 0001 'c' 0001 'p'",
    ),
    "CONNECT 5 with every property": up(
        V5,
        Connect(
            V5,
            CLIENT,
            clean_start=True,
            keep_alive=1,
            properties=Properties(
                session_expiry_interval=0xFFFFFFFF,
                authentication_method="m",
                authentication_data=b"\x01",
                request_problem_information=False,
                request_response_information=True,
                receive_maximum=1,
                topic_alias_maximum=0,
                user_properties=(("k", "v"), ("k", "")),
                maximum_packet_size=1,
            ),
        ),
        "10 37 0004 'MQTT' 05 02 0001 29 11 ffffffff 15 0001 'm' 16 0001 01 17 00 19 01 21 0001"
        " 22 0000 26 0001 'k' 0001 'v' 26 0001 'k' 0000 27 00000001 0001 'c'",
    ),
    "CONNECT 5 with a will of every property": up(
        V5,
        Connect(
            V5,
            CLIENT,
            will=Will(
                name("w"),
                b"",
                qos=1,
                properties=Properties(
                    payload_format_indicator=1,
                    message_expiry_interval=2,
                    content_type="t",
                    response_topic=name("r"),
                    correlation_data=b"\x00",
                    will_delay_interval=3,
                    user_properties=(("", ""),),
                ),
            ),
        ),
        "10 31 0004 'MQTT' 05 0e 0000 00 0001 'c' 1d 01 01 02 00000002 03 0001 't' 08 0001 'r'"
        " 09 0001 00 18 00000003 26 0000 0000 0001 'w' 0000",
    ),
}

CONNACKS = {
    "CONNACK 3.1": down(V31, Connack(), "20 02 00 00"),
    "CONNACK 3.1 refused": down(V31, Connack(reason_code=ReasonCode.NOT_AUTHORIZED), "20 02 00 05"),
    "CONNACK 3.1.1 session present": down(V311, Connack(session_present=True), "20 02 01 00"),
    "CONNACK 3.1.1 level": down(
        V311, Connack(reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION), "20 02 00 01"
    ),
    "CONNACK 3.1.1 identifier": down(
        V311, Connack(reason_code=ReasonCode.CLIENT_IDENTIFIER_NOT_VALID), "20 02 00 02"
    ),
    "CONNACK 3.1.1 unavailable": down(
        V311, Connack(reason_code=ReasonCode.SERVER_UNAVAILABLE), "20 02 00 03"
    ),
    "CONNACK 3.1.1 credentials": down(
        V311, Connack(reason_code=ReasonCode.BAD_USER_NAME_OR_PASSWORD), "20 02 00 04"
    ),
    "CONNACK 3.1.1 authorization": down(
        V311, Connack(reason_code=ReasonCode.NOT_AUTHORIZED), "20 02 00 05"
    ),
    "CONNACK 5": down(V5, Connack(), "20 03 00 00 00"),
    "CONNACK 5 refused": down(V5, Connack(reason_code=ReasonCode.BANNED), "20 03 00 8a 00"),
    "CONNACK 5 with every property": down(
        V5,
        Connack(
            session_present=True,
            properties=Properties(
                session_expiry_interval=1,
                assigned_client_identifier="a",
                server_keep_alive=2,
                authentication_method="m",
                authentication_data=b"",
                response_information="i",
                server_reference="s",
                reason_string="r",
                receive_maximum=65535,
                topic_alias_maximum=10,
                maximum_qos=1,
                retain_available=False,
                user_properties=(("a", "b"),),
                maximum_packet_size=0xFFFFFFFF,
                wildcard_subscription_available=True,
                subscription_identifier_available=False,
                shared_subscription_available=True,
            ),
        ),
        "20 3e 01 00 3b 11 00000001 12 0001 'a' 13 0002 15 0001 'm' 16 0000 1a 0001 'i' 1c 0001 's'"
        " 1f 0001 'r' 21 ffff 22 000a 24 01 25 00 26 0001 'a' 0001 'b' 27 ffffffff"
        " 28 01 29 00 2a 01",
    ),
}

PUBLISHES = {
    "PUBLISH 3.1.1 QoS 0": up(V311, Publish(name("a/b"), b"\x00x"), "30 07 0003 'a/b' 00 'x'"),
    "PUBLISH 3.1.1 empty retained": up(
        V311, Publish(name("t"), b"", retain=True), "31 03 0001 't'"
    ),
    "PUBLISH 3.1.1 QoS 1": up(
        V311,
        Publish(name("t"), b"p", qos=1, packet_id=identified(0x0102)),
        "32 06 0001 't' 0102 'p'",
    ),
    "PUBLISH 3.1.1 QoS 2 again": down(
        V311,
        Publish(name("t"), b"p", qos=2, dup=True, retain=True, packet_id=identified(65535)),
        "3d 06 0001 't' ffff 'p'",
    ),
    "PUBLISH 3.1 QoS 1": up(
        V31, Publish(name("t"), b"", qos=1, packet_id=ONE), "32 05 0001 't' 0001"
    ),
    "PUBLISH 5 QoS 0": up(V5, Publish(name("t"), b"p"), "30 05 0001 't' 00 'p'"),
    "PUBLISH 5 QoS 2": up(
        V5, Publish(name("t"), b"", qos=2, packet_id=ONE), "34 06 0001 't' 0001 00"
    ),
    "PUBLISH 5 by alias alone": up(
        V5,
        Publish(name(""), b"p", properties=Properties(topic_alias=65535)),
        "30 07 0000 03 23 ffff 'p'",
    ),
    "PUBLISH 5 with every property of a client": up(
        V5,
        Publish(
            name("t"),
            b"p",
            qos=1,
            packet_id=ONE,
            properties=Properties(
                payload_format_indicator=0,
                message_expiry_interval=0,
                content_type="",
                response_topic=name("r/s"),
                correlation_data=b"\x00\x01",
                topic_alias=1,
                user_properties=(("b", "2"), ("a", "1"), ("b", "2")),
            ),
        ),
        "32 34 0001 't' 0001 2d 01 00 02 00000000 03 0000 08 0003 'r/s' 09 0002 0001 23 0001"
        " 26 0001 'b' 0001 '2' 26 0001 'a' 0001 '1' 26 0001 'b' 0001 '2' 'p'",
    ),
    "PUBLISH 5 with subscription identifiers": down(
        V5,
        Publish(
            name("t"),
            b"",
            properties=Properties(
                subscription_identifiers=(
                    SubscriptionId(268_435_455),
                    SubscriptionId(1),
                    SubscriptionId(128),
                )
            ),
        ),
        "30 0e 0001 't' 0a 0b ffffff7f 0b 01 0b 8001",
    ),
}

ACKNOWLEDGEMENTS = {
    f"{kind.__name__.upper()} {label}": up(version, kind(ONE, *rest), f"{first:02x} {tail}")
    for kind, first in ((Puback, 0x40), (Pubrec, 0x50), (Pubrel, 0x62), (Pubcomp, 0x70))
    for label, version, rest, tail in (
        ("3.1", V31, (), "02 0001"),
        ("3.1.1", V311, (), "02 0001"),
        ("5", V5, (), "02 0001"),
        (
            "5 with properties",
            V5,
            (ReasonCode.SUCCESS, Properties(reason_string="r", user_properties=(("k", "v"),))),
            "0f 0001 00 0b 1f 0001 'r' 26 0001 'k' 0001 'v'",
        ),
    )
} | {
    "PUBACK 5 no subscribers": down(
        V5, Puback(ONE, ReasonCode.NO_MATCHING_SUBSCRIBERS), "40 03 0001 10"
    ),
    "PUBREC 5 quota": down(V5, Pubrec(ONE, ReasonCode.QUOTA_EXCEEDED), "50 03 0001 97"),
    "PUBREL 5 not found": up(
        V5, Pubrel(ONE, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), "62 03 0001 92"
    ),
    "PUBCOMP 5 not found": down(
        V5, Pubcomp(ONE, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), "70 03 0001 92"
    ),
}

SUBSCRIPTIONS = {
    "SUBSCRIBE 3.1": up(
        V31, SubscribePacket(ONE, (Subscription(filtered("a"), 1),)), "82 06 0001 0001 'a' 01"
    ),
    "SUBSCRIBE 3.1.1": up(
        V311,
        SubscribePacket(ONE, (Subscription(filtered("a/+"), 0), Subscription(filtered("#"), 2))),
        "82 0c 0001 0003 'a/+' 00 0001 '#' 02",
    ),
    "SUBSCRIBE 3.1.1 shared": up(
        V311,
        SubscribePacket(ONE, (Subscription(filtered("$share/g/a"), 1),)),
        "82 0f 0001 000a '$share/g/a' 01",
    ),
    "SUBSCRIBE 5": up(
        V5, SubscribePacket(ONE, (Subscription(filtered("a")),)), "82 07 0001 00 0001 'a' 00"
    ),
    "SUBSCRIBE 5 with every option": up(
        V5,
        SubscribePacket(
            ONE,
            (
                Subscription(
                    filtered("a"),
                    1,
                    no_local=True,
                    retain_as_published=True,
                    retain_handling=RetainHandling.SEND_IF_NEW,
                ),
                Subscription(filtered("$share/g/+"), 2, retain_handling=RetainHandling.DO_NOT_SEND),
            ),
            Properties(
                subscription_identifiers=(SubscriptionId(1),), user_properties=(("k", "v"),)
            ),
        ),
        "82 1d 0001 09 0b 01 26 0001 'k' 0001 'v' 0001 'a' 1d 000a '$share/g/+' 22",
    ),
    "SUBACK 3.1.1": down(
        V311,
        Suback(
            ONE,
            (
                ReasonCode.SUCCESS,
                ReasonCode.GRANTED_QOS_1,
                ReasonCode.GRANTED_QOS_2,
                ReasonCode.UNSPECIFIED_ERROR,
            ),
        ),
        "90 06 0001 00 01 02 80",
    ),
    "SUBACK 3.1": down(V31, Suback(ONE, (ReasonCode.GRANTED_QOS_1,)), "90 03 0001 01"),
    "SUBACK 5": down(
        V5,
        Suback(
            ONE,
            (ReasonCode.GRANTED_QOS_2, ReasonCode.NOT_AUTHORIZED),
            Properties(reason_string="r"),
        ),
        "90 09 0001 04 1f 0001 'r' 02 87",
    ),
    "UNSUBSCRIBE 3.1": up(V31, UnsubscribePacket(ONE, (filtered("a"),)), "a2 05 0001 0001 'a'"),
    "UNSUBSCRIBE 3.1.1": up(
        V311,
        UnsubscribePacket(ONE, (filtered("a"), filtered("b/#"))),
        "a2 0a 0001 0001 'a' 0003 'b/#'",
    ),
    "UNSUBSCRIBE 5": up(
        V5,
        UnsubscribePacket(ONE, (filtered("a"),), Properties(user_properties=(("k", "v"),))),
        "a2 0d 0001 07 26 0001 'k' 0001 'v' 0001 'a'",
    ),
    "UNSUBACK 3.1": down(V31, Unsuback(ONE), "b0 02 0001"),
    "UNSUBACK 3.1.1": down(V311, Unsuback(ONE), "b0 02 0001"),
    "UNSUBACK 5": down(
        V5,
        Unsuback(ONE, (ReasonCode.SUCCESS, ReasonCode.NO_SUBSCRIPTION_EXISTED)),
        "b0 05 0001 00 00 11",
    ),
}

REST = {
    **{
        f"{kind.__name__.upper()} {version.name}": Vector(version, direction, kind(), wire(tail))
        for version in ProtocolVersion
        for kind, direction, tail in (
            (Pingreq, TO_SERVER, "c0 00"),
            (Pingresp, TO_CLIENT, "d0 00"),
            (Disconnect, TO_SERVER, "e0 00"),
        )
    },
    "DISCONNECT 5 with a will": up(
        V5, Disconnect(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE), "e0 01 04"
    ),
    "DISCONNECT 5 later expiry": up(
        V5,
        Disconnect(properties=Properties(session_expiry_interval=7)),
        "e0 07 00 05 11 00000007",
    ),
    "DISCONNECT 5 of a server": down(
        V5,
        Disconnect(
            ReasonCode.SERVER_MOVED,
            Properties(server_reference="h:1", reason_string="r", user_properties=(("k", "v"),)),
        ),
        "e0 13 9d 11 1c 0003 'h:1' 1f 0001 'r' 26 0001 'k' 0001 'v'",
    ),
    "AUTH 5 success": down(V5, Auth(), "f0 00"),
    "AUTH 5 continue": up(
        V5,
        Auth(
            ReasonCode.CONTINUE_AUTHENTICATION,
            Properties(authentication_method="m", authentication_data=b"\x00"),
        ),
        "f0 0a 18 08 15 0001 'm' 16 0001 00",
    ),
    "AUTH 5 again": up(
        V5,
        Auth(ReasonCode.RE_AUTHENTICATE, Properties(authentication_method="m")),
        "f0 06 19 04 15 0001 'm'",
    ),
}

BOTH_WAYS: dict[str, Vector] = {
    **CONNECTS,
    **CONNACKS,
    **PUBLISHES,
    **ACKNOWLEDGEMENTS,
    **SUBSCRIPTIONS,
    **REST,
}
