"""What clients of other brokers are used to, where the standard leaves it open or is broken."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Direction,
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
    UnsupportedProtocol,
    decode_packet,
)
from quantum.protocols.mqtt.codec.types import PacketId, TopicFilter, TopicName
from quantum.protocols.mqtt.session.limits import MqttLimits
from tests.quantum.serving.client import V5, V31, V311, Client, Dialer, connect, topic
from tests.quantum.serving.lab import Lab

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])


@ALL
@pytest.mark.parametrize("clean", [True, False])
def test_suback_comes_before_what_is_retained(
    broker: Dialer, version: ProtocolVersion, clean: bool
) -> None:
    base = topic()
    writer = connect(broker)
    for number in range(20):  # of every partition
        writer.publish(base + b"/%d" % number, b"kept", 1, retain=True)
    reader = connect(broker, version, client_id=f"reader-{clean}-{version}", clean=clean)
    wish = Subscription(TopicFilter(base + b"/#"), 1)
    reader.send(SubscribePacket(PacketId(9), (wish,)))
    assert isinstance(reader.receive(), Suback)
    assert {reader.take().topic for _ in range(20)} == {base + b"/%d" % n for n in range(20)}


def kept(broker: Dialer, version: ProtocolVersion) -> Client:
    """A client whose session is in the log."""
    expiry = 600 if version is V5 else None
    who = f"kept-{version}"
    client = connect(broker, version, client_id=who, clean=False, session_expiry_interval=expiry)
    client.subscribe(topic())
    return client


@ALL
@pytest.mark.parametrize("durable", [True, False])
def test_a_publish_and_its_release_may_come_together(
    broker: Dialer, version: ProtocolVersion, durable: bool
) -> None:
    client = kept(broker, version) if durable else connect(broker, version)
    news = topic()
    reader = connect(broker)
    reader.subscribe(news, 2)
    first, second = (
        Publish(TopicName(news), each, 2, packet_id=PacketId(number))
        for number, each in ((7, b"one"), (8, b"two"))
    )
    after = Publish(TopicName(news), b"three", 1, packet_id=PacketId(9))
    client.send(first, Pubrel(PacketId(7)), second, Pubrel(PacketId(8)), after)
    answers = [client.receive() for _ in range(5)]
    for number in (7, 8):
        mine = [
            type(each)
            for each in answers
            if isinstance(each, Pubrec | Pubcomp) and each.packet_id == number
        ]
        assert mine == [Pubrec, Pubcomp]
    assert sum(isinstance(each, Puback) for each in answers) == 1
    assert sorted(reader.take().payload for _ in range(3)) == [b"one", b"three", b"two"]
    reader.expect_quiet()
    client.send(Publish(TopicName(news), b"again", 2, packet_id=PacketId(7)))
    assert isinstance(client.expect_answer(Pubrec), Pubrec)
    assert reader.take().payload == b"again"


@pytest.mark.parametrize("version", [V31, V311], ids=["3.1", "3.1.1"])
@pytest.mark.parametrize("qos", [1, 2])
def test_an_older_client_is_not_promised_what_is_refused(
    broker: Dialer, version: ProtocolVersion, qos: int
) -> None:
    client = connect(broker, version)
    deep = TopicName(b"/".join([b"a"] * 129))
    client.send(Publish(deep, b"x", qos, packet_id=PacketId(1)))
    client.expect_end()


def test_how_deep_a_topic_may_be_is_a_setting() -> None:
    lab = Lab(MqttLimits(topic_levels_max=3))
    client = connect(lab)
    assert client.subscribe(b"a/b/c", 1) is ReasonCode.GRANTED_QOS_1
    assert client.publish(b"a/b/c", b"x", 1) is ReasonCode.SUCCESS
    assert client.publish(b"a/b/c/d", b"x", 1) is ReasonCode.TOPIC_NAME_INVALID
    assert client.subscribe(b"a/b/c/#", 1) is ReasonCode.TOPIC_FILTER_INVALID


def bridge(broker: Dialer, level: int = 0x84, will_topic: bytes = b"") -> Client:
    """A CONNECT as a stock bridge sends it."""
    name = b"MQTT" if level & 0x7F == 4 else b"MQIsdp"
    flags, will = 0x02, b""
    if will_topic:
        flags |= 0x2C
        will = len(will_topic).to_bytes(2, "big") + will_topic + b"\0\x010"
    who = b"bridge-%d" % level
    body = len(name).to_bytes(2, "big") + name + bytes((level, flags)) + b"\0\x3c"
    body += len(who).to_bytes(2, "big") + who + will
    client = Client(broker.dial(), V311)
    client.send(bytes((0x10, len(body))) + body)
    taken = client.receive_raw()
    assert taken == (0x20, b"\0\0"), taken
    return client


@pytest.mark.parametrize("level", [0x83, 0x84])
def test_a_bridge_gets_in_and_gets_nothing_back_that_it_brought(broker: Dialer, level: int) -> None:
    client = bridge(broker, level, b"$SYS/broker/connection/there.bridge/state")
    news = topic()
    client.subscribe(news + b"/#", 1)
    client.publish(news + b"/own", b"mine", 1)
    client.publish(b"$SYS/broker/connection/there.bridge/state", b"1", 1, retain=True)
    connect(broker).publish(news + b"/theirs", b"kept", 1, retain=True)
    message = client.take()
    assert (message.payload, message.retain) == (b"kept", True)
    client.expect_quiet()


@pytest.mark.parametrize("level", [0x80, 0x82, 0x85, 0x86, 0xFF])
def test_other_levels_are_none(level: int) -> None:
    body = b"\0\4MQTT" + bytes((level,)) + b"\2\0\0\0\0"
    with pytest.raises(UnsupportedProtocol):
        decode_packet(0x10, body, V311, direction=Direction.TO_SERVER)
