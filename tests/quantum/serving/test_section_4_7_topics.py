"""MQTT 3.1.1 and 5.0, sections 4.7 and 4.8: topic names and filters, shared subscriptions."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Pingreq,
    Pingresp,
    ProtocolVersion,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
)
from tests.quantum.serving.client import V5, V31, V311, Client, Dialer, connect, topic, unique
from tests.quantum.serving.lab import Lab

# filter, topics that it matches, topics that it does not match
MATCHES = [
    ("sport/tennis/player1/#", "sport/tennis/player1 sport/tennis/player1/ranking", "sport/tennis"),
    ("sport/#", "sport sport/ sport/a/b/c", "sports /sport"),
    ("#", "a a/b /a / a//b", "$a $a/b $"),
    ("+", "a", "/a a/ a/b $a"),
    ("+/+", "/a a/ a/b /", "a a/b/c $a/b"),
    ("/+", "/a /", "a a/b /a/b"),
    ("sport/+", "sport/ sport/a", "sport sport/a/b"),
    ("sport/+/player", "sport/a/player sport//player", "sport/player sport/a/b/player"),
    ("+/tennis/#", "a/tennis a/tennis/b", "tennis $a/tennis"),
    ("$a/#", "$a $a/b", "a a/b"),
    ("$a/+", "$a/b", "$a $a/b/c"),
    ("A", "A", "a"),
    ("/a", "/a", "a"),
    ("a/", "a/", "a a//"),
    ("a b", "a\u00a0b".replace("\u00a0", " "), "ab"),
    ("\ufeffa", "\ufeffa", "a"),
    ("\u00e9", "\u00e9", "e\u0301"),
]


@pytest.mark.parametrize(("topic_filter", "yes", "no"), MATCHES, ids=[each[0] for each in MATCHES])
def test_mqtt_4_7_filters_match_as_the_standard_says(
    lab: Lab, topic_filter: str, yes: str, no: str
) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1] [MQTT-4.7.3-4] [MQTT-3.3.2-3]

    3.1.1 [MQTT-4.7.1-1] to [MQTT-4.7.1-3], 3.1.1 [MQTT-4.7.2-1] [MQTT-4.7.3-4]

    Subscribed before and after: as messages, and as retained ones.
    """
    wanted = [yes] if topic_filter == "a b" else yes.split()
    early = connect(lab)
    early.subscribe(topic_filter.encode(), 1)
    writer = connect(lab)
    for name in wanted + no.split():
        writer.publish(name.encode(), b"x", 1, retain=True)
    late = connect(lab)
    late.subscribe(topic_filter.encode(), 1)
    for client in (early, late):
        found = sorted(client.take().topic.decode() for _ in wanted)
        assert found == sorted(wanted)
        client.expect_quiet()


def test_mqtt_4_7_3_3_the_longest_topic(broker: Dialer) -> None:
    """[MQTT-4.7.3-3]; 3.1.1 [MQTT-4.7.3-3]"""
    name = topic().ljust(65_535, b"x")
    client = connect(broker)
    client.subscribe(name, 1)
    client.publish(name, b"x", 1)
    assert client.take().topic == name


BAD = [b"", b"a#", b"a/#/b", b"#/a", b"a+", b"+a/b", b"\0", b"\xff", b"a/\xed\xa0\x80"]


@pytest.mark.parametrize("topic_filter", BAD)
def test_mqtt_4_7_ill_formed_filters_are_malformed(broker: Dialer, topic_filter: bytes) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.3-1] [MQTT-4.7.3-2]; 3.1.1 [MQTT-4.7.3-2]"""
    size = len(topic_filter).to_bytes(2, "big")
    for first, rest in ((0x82, b"\0"), (0xA2, b"")):
        body = b"\0\1\0" + size + topic_filter + rest
        client = connect(broker)
        client.send(bytes((first, len(body))) + body)
        client.expect_disconnect(ReasonCode.MALFORMED_PACKET)


@pytest.mark.parametrize("name", [b"+", b"a/#", b"\0", b"\xff", b"a/\xed\xa0\x80"])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_3_2_2_ill_formed_names_are_malformed(broker: Dialer, name: bytes, qos: int) -> None:
    """[MQTT-3.3.2-1] [MQTT-3.3.2-2] [MQTT-4.7.0-1]"""
    client = connect(broker)
    body = len(name).to_bytes(2, "big") + name + (b"\0\1" if qos else b"") + b"\0x"
    client.send(bytes((0x30 | qos << 1, len(body))) + body)
    client.expect_disconnect(ReasonCode.MALFORMED_PACKET)


# Shared subscriptions.


def share(name: bytes, topic_filter: bytes) -> bytes:
    return b"$share/" + name + b"/" + topic_filter


def subscribe_bytes(topic_filter: bytes, options: int = 0) -> bytes:
    """Encode a SUBSCRIBE, right or wrong."""
    size = len(topic_filter).to_bytes(2, "big")
    body = b"\0\1\0" + size + topic_filter + bytes((options,))
    return bytes((0x82, len(body))) + body


def drained(client: Client) -> list[Publish]:
    """Take all that is there, acknowledging it."""
    found: list[Publish] = []
    client.send(Pingreq())
    while isinstance(packet := client.receive(), Publish):
        found.append(packet)
    assert isinstance(packet, Pingresp)
    for each in found:
        client.acknowledge(each)
    return found


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V311, V5])
def test_each_message_goes_to_one_member_in_turn(
    lab: Lab, qos: int, version: ProtocolVersion
) -> None:
    """[MQTT-4.8.2-4] C12"""
    news, group = topic(), topic("group")
    members = [connect(lab, version) for _ in range(3)]
    for member in members:
        member.subscribe(share(group, news), 2)
    writer = connect(lab)
    for number in range(12):
        writer.publish(news, b"%d" % number, qos)
    shares = [[int(each.payload) for each in drained(member)] for member in members]
    assert sorted(each for some in shares for each in some) == list(range(12))
    assert [len(each) for each in shares] == [4, 4, 4]


def test_ordinary_and_shared_subscriptions_at_once(broker: Dialer) -> None:
    """Both in one piece, before anything about the session is known: both are there"""
    plain, shared, client = topic(), topic(), connect(broker)
    client.send(subscribe_bytes(plain, 1), subscribe_bytes(share(b"g", shared), 1))
    for _ in range(2):
        assert client.expect_answer(Suback).reason_codes == (1,)
    writer = connect(broker)
    for name in (plain, shared):
        writer.publish(name, name, 1)
    assert {client.take().topic for _ in range(2)} == {plain, shared}


def test_groups_and_ordinary_subscriptions_do_not_share(broker: Dialer) -> None:
    """§4.8.2: a copy for each group and each ordinary subscription"""
    news = topic()
    one, two, plain = connect(broker), connect(broker), connect(broker)
    one.subscribe(share(topic("g"), news), 1)
    two.subscribe(share(topic("g"), news), 1)
    plain.subscribe(news, 1)
    connect(broker).publish(news, b"x", 1)
    for client in (one, two, plain):
        assert client.take().payload == b"x"
        client.expect_quiet()


def test_mqtt_4_8_2_3_each_member_has_its_own_qos(broker: Dialer) -> None:
    """[MQTT-4.8.2-3]"""
    news, group = topic(), topic("group")
    members = [connect(broker) for _ in range(3)]
    for qos, member in enumerate(members):
        member.subscribe(share(group, news), qos, identifier=qos + 1)
    writer = connect(broker)
    for _ in range(3):
        writer.publish(news, b"x", 2)
    for qos, member in enumerate(members):
        message = member.take()
        assert message.qos == qos
        assert message.properties.subscription_identifiers == (qos + 1,)


def test_retained_messages_are_not_sent_to_groups(broker: Dialer) -> None:
    """§4.8.2, §3.8.4"""
    connect(broker).publish(news := topic(), b"kept", 1, retain=True)
    member = connect(broker)
    member.subscribe(share(topic("group"), news), 1)
    member.expect_quiet()


@pytest.mark.parametrize("durable", [False, True])
def test_what_a_member_does_not_acknowledge_is_anothers(broker: Dialer, durable: bool) -> None:
    """§4.8.2: QoS 1 goes to another member as soon as the connection is lost"""
    news, group = topic(), topic("group")
    expiry = 100 if durable else 0
    first = connect(broker, session_expiry_interval=expiry)
    first.subscribe(share(group, news), 1)
    writer = connect(broker)
    for number in range(4):
        writer.publish(news, b"%d" % number, 1)
    assert first.take().payload == b"0"
    second = connect(broker)
    second.subscribe(share(group, news), 1)
    first.cut()
    assert sorted(second.take().payload for _ in range(3)) == [b"1", b"2", b"3"]
    second.expect_quiet()


def test_mqtt_4_8_2_4_a_qos_2_message_that_was_sent_is_completed_with_the_same_member(
    broker: Dialer,
) -> None:
    """[MQTT-4.8.2-4]"""
    news, group, name = topic(), topic("group"), unique("member")
    first = connect(broker, client_id=name, session_expiry_interval=100)
    first.subscribe(share(group, news), 2)
    connect(broker).publish(news, b"x", 2)
    sent = first.expect(Publish)
    second = connect(broker)
    second.subscribe(share(group, news), 2)
    first.cut()
    again = connect(broker, client_id=name, clean=False, session_expiry_interval=100)
    found = again.take()
    assert (found.packet_id, found.payload, found.dup) == (sent.packet_id, b"x", True)
    second.expect_quiet()


def test_mqtt_4_8_2_5_a_qos_2_message_that_was_sent_is_nobody_elses(lab: Lab) -> None:
    """[MQTT-4.8.2-5]; what was never sent is"""
    news, group = topic(), topic("group")
    first = connect(lab, receive_maximum=2)
    first.subscribe(share(group, news), 2)
    writer = connect(lab)
    for number in range(5):
        writer.publish(news, b"%d" % number, 2)
    assert [first.expect(Publish).payload for _ in range(2)] == [b"0", b"1"]
    second = connect(lab)
    second.subscribe(share(group, news), 2)
    first.cut()
    assert [each.payload for each in drained(second)] == [b"2", b"3", b"4"]


def test_what_waited_for_a_slot_was_never_sent(lab: Lab) -> None:
    """The machine lets more leave than the slots do (C13): that much is not lost."""
    news, group = topic(), topic("group")
    first = connect(lab)
    first.subscribe(share(group, news), 2)
    writer = connect(lab)
    for number in range(15):
        writer.publish(news, b"%d" % number, 2)
    second = connect(lab)
    second.subscribe(share(group, news), 2)
    first.cut()
    assert [int(each.payload) for each in drained(second)] == [10, 11, 12, 13, 14]


def test_a_qos_2_message_that_a_member_has_stays_its(broker: Dialer) -> None:
    """[MQTT-4.8.2-4]: after PUBREC it is completed with the same client"""
    news, group, name = topic(), topic("group"), unique("member")
    first = connect(broker, client_id=name, session_expiry_interval=100)
    first.subscribe(share(group, news), 2)
    connect(broker).publish(news, b"x", 2)
    found = first.expect(Publish)
    first.send(Pubrec(found.packet_id))
    first.expect(Pubrel)
    second = connect(broker)
    second.subscribe(share(group, news), 2)
    first.cut()
    again = connect(broker, client_id=name, clean=False, session_expiry_interval=100)
    assert again.expect(Pubrel).packet_id == found.packet_id
    second.expect_quiet()


def test_mqtt_4_8_2_6_what_a_member_refuses_is_discarded(lab: Lab) -> None:
    """[MQTT-4.8.2-6]"""
    news, group = topic(), topic("group")
    members = [connect(lab) for _ in range(2)]
    for member in members:
        member.subscribe(share(group, news), 1)
    connect(lab).publish(news, b"x", 1)
    for member in members:
        member.send(Pingreq())
        packet = member.receive()
        if isinstance(packet, Publish):
            member.send(Puback(packet.packet_id, ReasonCode.NOT_AUTHORIZED))
    for member in members:
        assert not drained(member)


def test_who_left_the_group_gets_nothing(broker: Dialer) -> None:
    news, group = topic(), topic("group")
    stays, leaves = connect(broker), connect(broker)
    for member in (stays, leaves):
        member.subscribe(share(group, news), 1)
    assert leaves.unsubscribe(share(group, news)) == (ReasonCode.SUCCESS,)
    assert leaves.unsubscribe(news) == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)
    writer = connect(broker)
    for number in range(4):
        writer.publish(news, b"%d" % number, 1)
    assert [stays.take().payload for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    leaves.expect_quiet()


def test_mqtt_3_8_3_4_no_local_in_a_group_is_a_protocol_error(broker: Dialer) -> None:
    """[MQTT-3.8.3-4]"""
    client = connect(broker)
    client.send(subscribe_bytes(share(b"g", b"t"), options=4))
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("topic_filter", [b"$share/", b"$share/g", b"$share/g/", b"$share//t"])
def test_mqtt_4_8_2_1_a_share_name_and_a_filter_must_be_there(
    broker: Dialer, topic_filter: bytes
) -> None:
    """[MQTT-4.8.2-1]"""
    client = connect(broker)
    client.send(subscribe_bytes(topic_filter))
    client.expect_disconnect(ReasonCode.MALFORMED_PACKET)


@pytest.mark.parametrize("name", [b"+", b"a+", b"#"])
def test_mqtt_4_8_2_2_a_share_name_has_no_wildcard(broker: Dialer, name: bytes) -> None:
    """[MQTT-4.8.2-2]"""
    client = connect(broker)
    client.send(subscribe_bytes(share(name, b"t")))
    client.expect_disconnect(ReasonCode.MALFORMED_PACKET)


def test_3_1_knows_no_groups(broker: Dialer) -> None:
    """A filter with `$share` is there a filter like any other."""
    news = topic()
    old, other = connect(broker, V31), connect(broker, V31)
    for client in (old, other):
        client.subscribe(share(b"g", news), 1)
    connect(broker).publish(news, b"x", 1)
    old.expect_quiet()
