"""MQTT 3.1.1 and 5.0, sections 3.8 to 3.12: SUBSCRIBE, UNSUBSCRIBE, PINGREQ; and `$SYS`."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Pingreq,
    Pingresp,
    ProtocolVersion,
    Publish,
    ReasonCode,
    RetainHandling,
    Suback,
    SubscribePacket,
    Subscription,
    Unsuback,
    UnsubscribePacket,
)
from quantum.protocols.mqtt.codec.types import PacketId, TopicFilter, TopicName
from tests.quantum.serving.client import V5, V31, V311, Client, Dialer, connect, topic
from tests.quantum.serving.lab import Lab

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])


def line(topic_filter: bytes, qos: int = 0) -> Subscription:
    return Subscription(TopicFilter(topic_filter), qos)


class TestSubscribe:
    @ALL
    def test_mqtt_3_8_4_suback_answers_each_line_in_order(
        self, broker: Dialer, version: ProtocolVersion
    ) -> None:
        """[MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] to [MQTT-3.8.4-7] [MQTT-3.9.3-1]

        3.1.1 [MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.9.3-1]
        """
        client = connect(broker, version)
        base = topic()
        lines = [line(base + b"/%d" % qos, qos) for qos in (2, 0, 1)]
        client.send(SubscribePacket(PacketId(0xABCD), tuple(lines)))
        suback = client.expect_answer(Suback)
        assert suback.packet_id == 0xABCD
        assert suback.reason_codes == (2, 0, 1)

    def test_mqtt_3_8_4_5_many_filters_are_as_many_packets(self, broker: Dialer) -> None:
        """[MQTT-3.8.4-5]; 3.1.1 [MQTT-3.8.4-4]"""
        reader, base = connect(broker), topic()
        reader.subscribe_all([line(base + b"/a"), line(base + b"/b", 1)])
        writer = connect(broker)
        for name in (b"/a", b"/b"):
            writer.publish(base + name, name, 1)
        assert sorted(reader.take().payload for _ in range(2)) == [b"/a", b"/b"]

    def test_a_line_that_is_too_deep_is_refused_alone(self, broker: Dialer) -> None:
        """[MQTT-3.9.3-2]: 0x8F, and the others are granted"""
        client = connect(broker)
        deep = b"/".join([b"a"] * 129)
        found = client.subscribe_all([line(topic(), 1), line(deep, 1), line(topic(), 2)])
        assert found == (1, ReasonCode.TOPIC_FILTER_INVALID, 2)

    def test_before_mqtt_5_a_refused_line_is_0x80(self, broker: Dialer) -> None:
        """3.1.1 [MQTT-3.9.3-2]"""
        client = connect(broker, V311)
        client.send(SubscribePacket(PacketId(1), (line(b"/".join([b"a"] * 129)), line(topic(), 1))))
        assert client.receive_raw() == (0x90, b"\0\1\x80\1")

    def test_too_many_subscriptions_are_refused(self, lab: Lab) -> None:
        client = connect(lab)
        base = topic()
        for start in range(0, 10_000, 1_000):
            client.subscribe_all([line(base + b"/%d" % n) for n in range(start, start + 1_000)])
        assert client.subscribe(base + b"/more") is ReasonCode.QUOTA_EXCEEDED
        assert client.subscribe(base + b"/0", 1) is ReasonCode.GRANTED_QOS_1

    @pytest.mark.parametrize("expiry", [0, 60])
    def test_mqtt_3_8_4_3_the_same_filter_replaces(self, broker: Dialer, expiry: int) -> None:
        """[MQTT-3.8.4-3]: one subscription, with the new options"""
        reader = connect(broker, session_expiry_interval=expiry)
        news = topic()
        for qos in (2, 0):
            reader.subscribe(news, qos, identifier=qos + 1)
        connect(broker).publish(news, b"x", 2)
        message = reader.take()
        assert message.qos == 0
        assert message.properties.subscription_identifiers == (1,)
        reader.expect_quiet()

    def test_mqtt_3_8_4_4_replacing_sends_what_is_retained_again(self, broker: Dialer) -> None:
        """[MQTT-3.8.4-4]; 3.1.1 [MQTT-3.8.4-3]"""
        connect(broker).publish(news := topic(), b"kept", 1, retain=True)
        reader = connect(broker)
        for _ in range(2):
            reader.subscribe(news, 1)
            assert reader.take().retain

    def test_a_subscription_is_there_when_suback_is(self, broker: Dialer) -> None:
        """§3.8.4: whichever partition owns the topic"""
        writer = connect(broker)
        for number in range(12):
            reader = connect(broker)
            reader.subscribe(news := topic(f"at-once{number}-"), 1)
            writer.publish(news, b"x", 1)
            assert reader.take().payload == b"x"

    def test_a_publish_behind_subscribe_is_delivered_or_not_but_never_twice(
        self, broker: Dialer
    ) -> None:
        client, news = connect(broker), topic()
        client.send(
            SubscribePacket(PacketId(1), (line(news, 1),)),
            Publish(TopicName(news), b"x", 1, packet_id=PacketId(2)),
        )
        kinds: list[str] = []
        while {"Suback", "Puback"} - set(kinds):
            kinds.append(type(client.receive()).__name__)
        client.send(Pingreq())
        while not isinstance(packet := client.receive(), Pingresp):
            kinds.append(type(packet).__name__)
        assert kinds.count("Publish") <= 1


class TestUnsubscribe:
    @ALL
    def test_mqtt_3_10_4_unsuback_answers(self, broker: Dialer, version: ProtocolVersion) -> None:
        """[MQTT-3.10.4-4] to [MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT-3.11.3-2]

        3.1.1 [MQTT-3.10.4-4] to [MQTT-3.10.4-6]
        """
        client, mine = connect(broker, version), topic()
        client.subscribe(mine)
        client.send(UnsubscribePacket(PacketId(77), (TopicFilter(topic()), TopicFilter(mine))))
        unsuback = client.expect(Unsuback)
        assert unsuback.packet_id == 77
        expected = (ReasonCode.NO_SUBSCRIPTION_EXISTED, ReasonCode.SUCCESS)
        assert unsuback.reason_codes == (expected if version is V5 else ())

    def test_who_never_subscribed_is_answered_too(self, broker: Dialer) -> None:
        """[MQTT-3.10.4-5]"""
        found = connect(broker).unsubscribe(topic(), topic())
        assert found == (ReasonCode.NO_SUBSCRIPTION_EXISTED,) * 2

    @pytest.mark.parametrize("expiry", [0, 60])
    def test_mqtt_3_10_4_1_and_2_filters_are_compared_letter_by_letter(
        self, broker: Dialer, expiry: int
    ) -> None:
        """[MQTT-3.10.4-1] [MQTT-3.10.4-2]; 3.1.1 [MQTT-3.10.4-1] [MQTT-3.10.4-2]"""
        client, base = connect(broker, session_expiry_interval=expiry), topic()
        client.subscribe(base + b"/+", 1)
        for other in (base + b"/a", base + b"/#", base.upper() + b"/+"):
            assert client.unsubscribe(other) == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)
        writer = connect(broker)
        writer.publish(base + b"/a", b"still", 1)
        assert client.take().payload == b"still"
        assert client.unsubscribe(base + b"/+") == (ReasonCode.SUCCESS,)
        assert writer.publish(base + b"/a", b"gone", 1) is ReasonCode.NO_MATCHING_SUBSCRIBERS
        client.expect_quiet()

    @pytest.mark.parametrize("expiry", [0, 60])
    def test_mqtt_3_10_4_3_what_was_begun_is_completed(self, broker: Dialer, expiry: int) -> None:
        """[MQTT-3.10.4-3]; 3.1.1 [MQTT-3.10.4-3]"""
        client = connect(broker, session_expiry_interval=expiry)
        client.subscribe(news := topic(), 2)
        connect(broker).publish(news, b"x", 2)
        message = client.expect(Publish)
        client.unsubscribe(news)
        client.acknowledge(message)
        client.expect_quiet()

    def test_one_behind_the_other_in_one_piece(self, broker: Dialer) -> None:
        """SUBSCRIBE and UNSUBSCRIBE at once, before anything about the session is known"""
        client, news = connect(broker), topic()
        client.send(
            SubscribePacket(PacketId(1), (line(news, 1),)),
            UnsubscribePacket(PacketId(2), (TopicFilter(news),)),
        )
        client.expect(Suback)
        assert client.expect(Unsuback).reason_codes == (ReasonCode.SUCCESS,)
        writer = connect(broker)
        assert writer.publish(news, b"x", 1) is ReasonCode.NO_MATCHING_SUBSCRIBERS
        client.expect_quiet()


@ALL
def test_mqtt_3_12_4_1_pingreq_is_answered(broker: Dialer, version: ProtocolVersion) -> None:
    """[MQTT-3.12.4-1]; 3.1.1 [MQTT-3.12.4-1]"""
    client = connect(broker, version)
    client.send(Pingreq(), Pingreq())
    client.expect(Pingresp)
    client.expect(Pingresp)


class TestSystemTopics:
    """`$SYS`: answered as if retained"""

    def test_a_topic_is_answered(self, broker: Dialer) -> None:
        client = connect(broker)
        client.subscribe(b"$SYS/broker/version", 1, identifier=9)
        message = client.take()
        assert message.topic == b"$SYS/broker/version"
        assert message.payload.startswith(b"quantum")
        assert (message.retain, message.qos) == (True, 0)
        assert message.properties.subscription_identifiers == (9,)

    def test_a_wildcard_finds_all(self, lab: Lab) -> None:
        lab.advance(90)
        clients = [connect(lab, version) for version in (V31, V311, V5)]
        for client in clients:
            client.subscribe(b"$SYS/#")
            found = {bytes(each.topic): each.payload for each in _all(client)}
            assert found[b"$SYS/broker/clients/connected"] == b"3"
            assert found[b"$SYS/broker/uptime"] == b"90 seconds"
            assert set(found) >= {b"$SYS/broker/version", b"$SYS/broker/messages/dropped"}

    def test_other_wildcards_do_not_see_it(self, broker: Dialer) -> None:
        """[MQTT-4.7.2-1]"""
        client = connect(broker)
        client.subscribe(b"+/broker/version")
        client.expect_quiet()

    def test_retain_handling_2_is_heard(self, broker: Dialer) -> None:
        client = connect(broker)
        client.subscribe(b"$SYS/broker/#", handling=RetainHandling.DO_NOT_SEND)
        client.expect_quiet()


def _all(client: Client) -> list[Publish]:
    client.send(Pingreq())
    found = []
    while isinstance(packet := client.receive(), Publish):
        found.append(packet)
    return found
