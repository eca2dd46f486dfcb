"""MQTT 3.1.1 and 5.0, section 3.3: PUBLISH from both sides."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Connect,
    Packet,
    Properties,
    ProtocolVersion,
    Puback,
    Publish,
    Pubrec,
    ReasonCode,
    RetainHandling,
    Subscription,
    UnsubscribePacket,
)
from quantum.protocols.mqtt.codec.types import ClientId, PacketId, TopicFilter, TopicName
from quantum.protocols.mqtt.session.limits import MqttLimits
from tests.quantum.serving.client import (
    V5,
    V31,
    V311,
    Dialer,
    connect,
    dial,
    topic,
    unique,
)
from tests.quantum.serving.lab import Lab

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])
QOS = pytest.mark.parametrize("qos", [0, 1, 2])


@ALL
@pytest.mark.parametrize("granted", [0, 1, 2])
@QOS
def test_mqtt_3_8_4_8_a_message_comes_with_the_lower_qos(
    broker: Dialer, version: ProtocolVersion, qos: int, granted: int
) -> None:
    """[MQTT-3.8.4-8] [MQTT-3.3.4-1] [MQTT-4.3.1-1] [MQTT-3.3.2-3]

    3.1.1 [MQTT-3.8.4-6] [MQTT-3.3.5-1] [MQTT-4.3.1-1] [MQTT-3.3.2-3] [MQTT-4.5.0-1]
    """
    reader = connect(broker, version)
    news = topic()
    assert reader.subscribe(news, granted) == granted
    connect(broker, version).publish(news, b"payload", qos)
    message = reader.take()
    assert (message.topic, message.payload) == (news, b"payload")
    assert message.qos == min(qos, granted)
    assert not message.dup and not message.retain
    reader.expect_quiet()


@pytest.mark.parametrize("publisher", [V31, V311, V5])
@pytest.mark.parametrize("subscriber", [V31, V311, V5])
def test_versions_meet(
    broker: Dialer, publisher: ProtocolVersion, subscriber: ProtocolVersion
) -> None:
    reader = connect(broker, subscriber)
    reader.subscribe(news := topic(), 1)
    connect(broker, publisher).publish(news, b"payload", 1)
    assert reader.take().payload == b"payload"


@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_3_1_3_dup_is_not_passed_on(broker: Dialer, qos: int) -> None:
    """[MQTT-3.3.1-3]; 3.1.1 [MQTT-3.3.1-3]"""
    reader = connect(broker)
    reader.subscribe(news := topic(), 2)
    writer = connect(broker)
    writer.send(Publish(TopicName(news), b"x", qos, dup=True, packet_id=PacketId(9)))
    assert writer.receive() == (Puback if qos == 1 else Pubrec)(PacketId(9))
    assert not reader.take().dup


class TestRetained:
    """[MQTT-3.3.1-5] to [MQTT-3.3.1-13]"""

    @QOS
    @ALL
    def test_a_retained_message_meets_later_subscribers(
        self, broker: Dialer, qos: int, version: ProtocolVersion
    ) -> None:
        """[MQTT-3.3.1-5] [MQTT-3.3.1-9]; 3.1.1 [MQTT-3.3.1-5] to [MQTT-3.3.1-8]"""
        connect(broker, version).publish(news := topic(), b"kept", qos, retain=True)
        if qos == 0:
            settle(broker, news)
        reader = connect(broker, version)
        reader.subscribe(news, 2)
        message = reader.take()
        assert (message.payload, message.retain, message.qos) == (b"kept", True, qos)
        reader.expect_quiet()

    @ALL
    def test_it_stays_when_its_publishers_session_ends(
        self, broker: Dialer, version: ProtocolVersion
    ) -> None:
        """3.1.1 [MQTT-3.1.2-7]: retained messages are no part of a session"""
        writer = connect(broker, version)
        writer.publish(news := topic(), b"kept", 1, retain=True)
        writer.leave()
        reader = connect(broker, version)
        reader.subscribe(news, 1)
        assert reader.take().payload == b"kept"

    def test_a_newer_one_replaces_it(self, broker: Dialer) -> None:
        """[MQTT-3.3.1-5]"""
        writer = connect(broker)
        for payload in (b"old", b"new"):
            news = topic()
            writer.publish(news, payload, 1, retain=True)
            writer.publish(news, payload + b"er", 1, retain=True)
            reader = connect(broker)
            reader.subscribe(news, 1)
            assert reader.take().payload == payload + b"er"
            reader.expect_quiet()

    @QOS
    def test_an_empty_one_removes_it_and_is_still_a_message(self, broker: Dialer, qos: int) -> None:
        """[MQTT-3.3.1-6] [MQTT-3.3.1-7]; 3.1.1 [MQTT-3.3.1-10] [MQTT-3.3.1-11]"""
        writer, watcher = connect(broker), connect(broker)
        writer.publish(news := topic(), b"kept", 1, retain=True)
        watcher.subscribe(news, 2)
        assert watcher.take().retain
        writer.publish(news, b"", qos, retain=True)
        message = watcher.take()
        assert (message.payload, message.retain) == (b"", False)
        late = connect(broker)
        late.subscribe(news, 2)
        late.expect_quiet()

    def test_an_empty_one_is_not_kept(self, broker: Dialer) -> None:
        """[MQTT-3.3.1-7]"""
        connect(broker).publish(news := topic(), b"", 1, retain=True)
        late = connect(broker)
        late.subscribe(news, 2)
        late.expect_quiet()

    def test_one_without_the_flag_neither_sets_nor_removes(self, broker: Dialer) -> None:
        """[MQTT-3.3.1-8]; 3.1.1 [MQTT-3.3.1-12]"""
        writer = connect(broker)
        writer.publish(news := topic(), b"kept", 1, retain=True)
        writer.publish(news, b"live", 1)
        writer.publish(news, b"", 1)
        late = connect(broker)
        late.subscribe(news, 1)
        assert late.take().payload == b"kept"
        late.expect_quiet()

    def test_who_is_subscribed_gets_it_as_any_message(self, broker: Dialer) -> None:
        """[MQTT-3.3.1-12]; 3.1.1 [MQTT-3.3.1-9]"""
        reader = connect(broker)
        reader.subscribe(news := topic(), 1)
        connect(broker).publish(news, b"x", 1, retain=True)
        assert not reader.take().retain

    @pytest.mark.parametrize("retain", [False, True])
    def test_retain_as_published_keeps_the_flag(self, broker: Dialer, retain: bool) -> None:
        """[MQTT-3.3.1-13]"""
        reader = connect(broker)
        reader.subscribe(news := topic(), 1, as_published=True)
        connect(broker).publish(news, b"x", 1, retain=retain)
        assert reader.take().retain is retain

    @pytest.mark.parametrize(
        ("handling", "counts"),
        [
            (RetainHandling.SEND, [1, 1]),
            (RetainHandling.SEND_IF_NEW, [1, 0]),
            (RetainHandling.DO_NOT_SEND, [0, 0]),
        ],
    )
    def test_retain_handling(
        self, broker: Dialer, handling: RetainHandling, counts: list[int]
    ) -> None:
        """[MQTT-3.3.1-9] [MQTT-3.3.1-10] [MQTT-3.3.1-11]"""
        connect(broker).publish(news := topic(), b"kept", 1, retain=True)
        reader = connect(broker)
        for count in counts:
            reader.subscribe(news, 1, handling=handling)
            for _ in range(count):
                assert reader.take().retain
            reader.expect_quiet()

    def test_a_subscription_that_ended_is_new_again(self, broker: Dialer) -> None:
        """[MQTT-3.3.1-10]"""
        connect(broker).publish(news := topic(), b"kept", 1, retain=True)
        reader = connect(broker)
        for _ in range(2):
            reader.subscribe(news, 1, handling=RetainHandling.SEND_IF_NEW)
            assert reader.take().retain
            reader.unsubscribe(news)

    def test_each_matching_topic_has_its_own(self, broker: Dialer) -> None:
        """[MQTT-3.3.1-9], §3.8.4: wildcards find all, the server's partitions do not show"""
        base, writer = topic(), connect(broker)
        topics = [base + b"/%d" % number for number in range(12)]
        for name in topics:
            writer.publish(name, name, 1, retain=True)
        reader = connect(broker)
        reader.subscribe(base + b"/+", 1)
        assert {reader.take().topic for _ in topics} == set(topics)
        reader.expect_quiet()

    def test_a_retained_message_of_a_session_in_the_log(self, broker: Dialer) -> None:
        connect(broker).publish(news := topic(), b"kept", 2, retain=True)
        reader = connect(broker, session_expiry_interval=60)
        reader.subscribe(news, 2, identifier=7)
        message = reader.take()
        assert (message.retain, message.qos) == (True, 2)
        assert message.properties.subscription_identifiers == (7,)

    def test_a_retained_message_expires(self, lab: Lab) -> None:
        """[MQTT-3.3.2-5] [MQTT-3.3.2-6]"""
        expiring = Properties(message_expiry_interval=10)
        connect(lab).publish(news := topic(), b"kept", 1, retain=True, properties=expiring)
        lab.advance(4)
        reader = connect(lab)
        reader.subscribe(news, 1)
        assert reader.take().properties.message_expiry_interval == 6
        lab.advance(7)
        late = connect(lab)
        late.subscribe(news, 1)
        late.expect_quiet()


def settle(broker: Dialer, name: bytes) -> None:
    """Wait until a QoS 0 message that is retained has been taken: it is logged in order."""
    client = connect(broker)
    client.publish(name + b"/other", b"", 1)
    while True:
        reader = connect(broker)
        reader.subscribe(name, 0)
        reader.send(b"\xc0\0")
        if isinstance(reader.receive(), Publish):
            return


class TestAliases:
    """§3.3.2.3.4: [MQTT-3.3.2-8] to [MQTT-3.3.2-12]"""

    def test_an_alias_stands_for_its_topic_until_it_is_given_anew(self, broker: Dialer) -> None:
        """[MQTT-3.3.2-10] [MQTT-3.3.2-12]"""
        base, reader, writer = topic(), connect(broker), connect(broker)
        reader.subscribe(base + b"/#", 1)
        alias = Properties(topic_alias=1)
        for name in (base + b"/a", b"", base + b"/b", b""):
            writer.publish(name, b"x", 1, properties=alias)
        found = [reader.take() for _ in range(4)]
        assert [each.topic[-1:] for each in found] == [b"a", b"a", b"b", b"b"]
        assert all(each.properties.topic_alias is None for each in found)

    @pytest.mark.parametrize(
        ("alias", "reason"),
        [
            (0, ReasonCode.TOPIC_ALIAS_INVALID),
            (MqttLimits().topic_alias_maximum + 1, ReasonCode.TOPIC_ALIAS_INVALID),
            (65_535, ReasonCode.TOPIC_ALIAS_INVALID),
        ],
    )
    def test_an_alias_out_of_range_ends(
        self, broker: Dialer, alias: int, reason: ReasonCode
    ) -> None:
        """[MQTT-3.3.2-8] [MQTT-3.3.2-9] [MQTT-3.2.2-17]"""
        client = connect(broker)
        client.send(b"\x30\x08\0\1t\3\x23" + alias.to_bytes(2, "big") + b"x")
        client.expect_disconnect(reason)

    def test_an_alias_that_was_never_given_ends(self, broker: Dialer) -> None:
        """§3.3.4, §3.3.2.3.4"""
        client = connect(broker)
        client.send(Publish(TopicName(b""), b"x", properties=Properties(topic_alias=1)))
        client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)

    def test_an_alias_ends_with_its_connection(self, broker: Dialer) -> None:
        """[MQTT-3.3.2-7]"""
        name, alias = unique("client"), Properties(topic_alias=1)
        first = connect(broker, client_id=name, session_expiry_interval=60)
        first.publish(topic(), b"x", 1, properties=alias)
        first.cut()
        second = connect(broker, client_id=name, clean=False, session_expiry_interval=60)
        second.send(Publish(TopicName(b""), b"x", properties=alias))
        second.expect_disconnect(ReasonCode.PROTOCOL_ERROR)

    def test_the_server_uses_aliases_that_the_client_allows(self, broker: Dialer) -> None:
        """[MQTT-3.3.2-11] [MQTT-3.1.2-26]: at most so many, the topic first"""
        base, reader, writer = topic(), connect(broker, topic_alias_maximum=2), connect(broker)
        reader.subscribe(base + b"/#", 1)
        for name in b"abcab":
            writer.publish(base + b"/%c" % name, b"x", 1)
        found = [reader.take() for _ in range(5)]
        aliases = [each.properties.topic_alias for each in found]
        assert aliases == [1, 2, None, 1, 2]
        assert [each.topic for each in found[3:]] == [b"", b""]
        assert found[2].topic == base + b"/c"

    def test_the_server_uses_none_unasked(self, broker: Dialer) -> None:
        """[MQTT-3.1.2-27]"""
        reader = connect(broker)
        reader.subscribe(news := topic(), 1)
        writer = connect(broker)
        for _ in range(2):
            writer.publish(news, b"x", 1)
            message = reader.take()
            assert message.topic == news and message.properties.topic_alias is None


class TestProperties:
    """§3.3.2.3: what travels with a message"""

    ALL = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic=TopicName(b"answers/here"),
        correlation_data=b"\0\xff",
        user_properties=(("z", "1"), ("a", "2"), ("z", "1"), ("", "")),
    )

    @QOS
    def test_properties_are_passed_on_unaltered(self, broker: Dialer, qos: int) -> None:
        """[MQTT-3.3.2-4] [MQTT-3.3.2-15] to [MQTT-3.3.2-20]"""
        reader = connect(broker)
        reader.subscribe(news := topic(), 2)
        connect(broker).publish(news, b"x", qos, properties=self.ALL)
        assert reader.take().properties == self.ALL

    def test_a_queue_keeps_them(self, broker: Dialer) -> None:
        name = unique("client")
        reader = connect(broker, client_id=name, session_expiry_interval=60)
        reader.subscribe(news := topic(), 2, identifier=3)
        reader.cut()
        connect(broker).publish(news, b"x", 2, properties=self.ALL)
        again = connect(broker, client_id=name, clean=False, session_expiry_interval=60)
        found = again.take().properties
        assert found.user_properties == self.ALL.user_properties
        assert found.subscription_identifiers == (3,)

    def test_the_expiry_interval_is_what_is_left(self, lab: Lab) -> None:
        """[MQTT-3.3.2-6]"""
        name, expiring = unique("client"), Properties(message_expiry_interval=10)
        reader = connect(lab, client_id=name, session_expiry_interval=60)
        reader.subscribe(news := topic(), 1)
        reader.cut()
        connect(lab).publish(news, b"x", 1, properties=expiring)
        lab.advance(4)
        again = connect(lab, client_id=name, clean=False, session_expiry_interval=60)
        assert again.take().properties.message_expiry_interval == 6

    def test_what_has_expired_is_not_delivered(self, lab: Lab) -> None:
        """[MQTT-3.3.2-5]"""
        name, expiring = unique("client"), Properties(message_expiry_interval=10)
        reader = connect(lab, client_id=name, session_expiry_interval=60)
        reader.subscribe(news := topic(), 1)
        reader.cut()
        writer = connect(lab)
        writer.publish(news, b"old", 1, properties=expiring)
        writer.publish(news, b"young", 1)
        lab.advance(11)
        again = connect(lab, client_id=name, clean=False, session_expiry_interval=60)
        assert again.take().payload == b"young"
        again.expect_quiet()

    @pytest.mark.parametrize("qos", [1, 2])
    def test_a_payload_that_is_no_utf_8_is_refused(self, broker: Dialer, qos: int) -> None:
        """§3.3.2.3.2: 0x99"""
        reader = connect(broker)
        reader.subscribe(news := topic(), 2)
        client, claim = connect(broker), Properties(payload_format_indicator=1)
        reason = client.publish(news, b"\xff", qos, properties=claim)
        assert reason is ReasonCode.PAYLOAD_FORMAT_INVALID
        client.expect_quiet()
        reader.expect_quiet()

    def test_at_qos_0_such_a_payload_ends(self, broker: Dialer) -> None:
        client, claim = connect(broker), Properties(payload_format_indicator=1)
        client.publish(topic(), b"\xff", properties=claim)
        client.expect_disconnect(ReasonCode.PAYLOAD_FORMAT_INVALID)

    def test_a_client_sends_no_subscription_identifier(self, broker: Dialer) -> None:
        """[MQTT-3.3.4-6]"""
        client = connect(broker)
        client.send(b"\x30\x06\0\1t\2\x0b\1")
        client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)


class TestOverlaps:
    """§3.3.4: one copy, the highest QoS, every identifier"""

    @pytest.mark.parametrize("expiry", [0, 60])
    def test_overlapping_subscriptions_give_one_copy(self, broker: Dialer, expiry: int) -> None:
        """[MQTT-3.3.4-2] to [MQTT-3.3.4-5]; 3.1.1 [MQTT-3.3.5-1]"""
        base, reader = topic(), connect(broker, session_expiry_interval=expiry)
        reader.subscribe(base + b"/#", 0, identifier=1)
        reader.subscribe(base + b"/+", 2, identifier=2)
        reader.subscribe(base + b"/a", 1)
        reader.subscribe(base + b"/b", 1, identifier=4)
        connect(broker).publish(base + b"/a", b"x", 2)
        message = reader.take()
        assert message.qos == 2
        assert sorted(message.properties.subscription_identifiers) == [1, 2]
        reader.expect_quiet()

    def test_a_second_subscription_gives_a_new_identifier(self, broker: Dialer) -> None:
        """[MQTT-3.3.4-3], §3.8.4"""
        reader, news = connect(broker), topic()
        for identifier in (5, 268_435_455):
            reader.subscribe(news, 1, identifier=identifier)
        connect(broker).publish(news, b"x", 1)
        assert reader.take().properties.subscription_identifiers == (268_435_455,)


class TestNoLocal:
    """[MQTT-3.8.3-3]"""

    @pytest.mark.parametrize("expiry", [0, 60])
    def test_own_messages_do_not_come_back(self, broker: Dialer, expiry: int) -> None:
        client = connect(broker, session_expiry_interval=expiry)
        client.subscribe(news := topic(), 2, no_local=True)
        for qos in (0, 1, 2):
            client.publish(news, b"own", qos)
        connect(broker).publish(news, b"other", 1)
        assert client.take().payload == b"other"
        client.expect_quiet()

    def test_without_the_option_they_do(self, broker: Dialer) -> None:
        client = connect(broker)
        client.subscribe(news := topic(), 0)
        client.publish(news, b"own", 0)
        assert client.take().payload == b"own"

    def test_another_subscription_without_it_still_counts(self, broker: Dialer) -> None:
        base, client = topic(), connect(broker)
        client.subscribe(base + b"/a", 1, no_local=True, identifier=1)
        client.subscribe(base + b"/+", 0, identifier=2)
        client.publish(base + b"/a", b"own", 0)
        message = client.take()
        assert message.properties.subscription_identifiers == (2,)
        client.expect_quiet()


class TestAnswers:
    """§3.4.2.1, §3.5.2.1"""

    def test_nobody_is_there(self, broker: Dialer) -> None:
        reader, writer, news = connect(broker), connect(broker), topic()
        assert writer.publish(news, b"", 1) is ReasonCode.NO_MATCHING_SUBSCRIBERS
        reader.subscribe(news, 0)
        assert writer.publish(news, b"", 1) is ReasonCode.SUCCESS
        reader.unsubscribe(news)
        assert writer.publish(news, b"", 1) is ReasonCode.NO_MATCHING_SUBSCRIBERS

    @pytest.mark.parametrize("number", range(6))
    def test_who_was_cut_off_is_not_there(self, broker: Dialer, number: int) -> None:
        """Even before any log knows, wherever topic and session live."""
        reader = connect(broker)
        reader.subscribe(news := topic(f"cut{number}"), 0)
        writer = connect(broker)
        assert writer.publish(news, b"", 1) is ReasonCode.SUCCESS
        reader.cut()
        assert connect(broker).publish(news, b"", 1) is ReasonCode.NO_MATCHING_SUBSCRIBERS

    def test_each_publish_of_a_bunch_has_its_own_answer(self, broker: Dialer) -> None:
        base, reader, writer = topic(), connect(broker), connect(broker)
        topics = [base + b"/%d" % number for number in range(20)]
        for name in topics[::2]:
            reader.subscribe(name, 0)
        writer.send(*(_qos_1(name, number) for number, name in enumerate(topics, 1)))
        answers = [writer.expect(Puback) for _ in topics]
        assert [each.packet_id for each in answers] == list(range(1, 21))
        assert [each.reason_code for each in answers] == [0x00, 0x10] * 10

    @pytest.mark.parametrize("name", [b"$SYS/broker/version", b"$share/g/t"])
    @pytest.mark.parametrize("qos", [1, 2])
    def test_the_servers_own_topics_are_refused(
        self, broker: Dialer, name: bytes, qos: int
    ) -> None:
        """[MQTT-4.7.2-1] and C14: 0x87, and the connection stays"""
        client = connect(broker)
        assert client.publish(name, b"x", qos) is ReasonCode.NOT_AUTHORIZED
        client.expect_quiet()

    @pytest.mark.parametrize("version", [V31, V311])
    def test_before_mqtt_5_a_refused_publish_is_acknowledged(
        self, broker: Dialer, version: ProtocolVersion
    ) -> None:
        """3.1.1 [MQTT-3.3.5-2], C14"""
        client = connect(broker, version)
        for qos in (0, 1, 2):
            client.publish(b"$SYS/broker/version", b"x", qos)
        client.expect_quiet()

    def test_a_topic_that_is_too_deep_is_refused(self, broker: Dialer) -> None:
        client = connect(broker)
        deep = b"/".join([b"a"] * 129)
        assert client.publish(deep, b"x", 1) is ReasonCode.TOPIC_NAME_INVALID
        client.expect_quiet()


def _qos_1(name: bytes, number: int) -> Packet:
    return Publish(TopicName(name), b"", 1, packet_id=PacketId(number))


class TestFullQueues:
    """quantumqtt §7.2, §13.4: a queue that is full is told to who publishes, not lost"""

    def test_mqtt_5_tells_it_and_goes_on(self, lab: Lab) -> None:
        """C11: 0x97 is legal in PUBACK and PUBREC"""
        news, name = topic(), unique("reader")
        reader = connect(lab, client_id=name, session_expiry_interval=100)
        reader.subscribe(news, 1)
        reader.cut()
        writer = connect(lab)
        answers = [writer.publish(news, b"%d" % n, 1) for n in range(1002)]
        assert answers[:1000] == [ReasonCode.SUCCESS] * 1000
        assert answers[1000:] == [ReasonCode.QUOTA_EXCEEDED] * 2
        writer.expect_quiet()
        again = connect(lab, client_id=name, clean=False, session_expiry_interval=100)
        assert [int(again.take().payload) for _ in range(1000)] == list(range(1000))

    def test_before_mqtt_5_the_connection_ends(self, lab: Lab) -> None:
        """3.1.1 [MQTT-4.8.0-2]: unacknowledged, so the client will send it again"""
        news = topic()
        reader = connect(lab, session_expiry_interval=100)
        reader.subscribe(news, 1)
        reader.cut()
        writer = connect(lab, V311)
        for _ in range(1000):
            writer.publish(news, b"x", 1)
        writer.send(_qos_1(news, 1001))
        writer.expect_end()


class TestSizes:
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25] [MQTT-3.2.2-15]"""

    @pytest.mark.parametrize("expiry", [0, 60])
    def test_what_is_too_large_for_a_client_is_left_out(self, broker: Dialer, expiry: int) -> None:
        """[MQTT-3.1.2-25]: as if it had been sent, and the next one comes"""
        reader = connect(
            broker, maximum_packet_size=100, session_expiry_interval=expiry, receive_maximum=2
        )
        reader.subscribe(news := topic(), 2)
        writer = connect(broker)
        for qos in (0, 1, 2):
            for payload in (b"x" * 200, b"%d" % qos, b"y" * 95):
                writer.publish(news, payload, qos)
        assert [reader.take().payload for _ in range(3)] == [b"0", b"1", b"2"]
        reader.expect_quiet()

    @pytest.mark.parametrize("expiry", [0, 60])
    def test_what_waits_behind_it_is_not_held_up(self, lab: Lab, expiry: int) -> None:
        reader = connect(
            lab, maximum_packet_size=100, session_expiry_interval=expiry, receive_maximum=1
        )
        reader.subscribe(news := topic(), 1)
        writer = connect(lab)
        for payload in (b"first", b"x" * 200, b"x" * 200, b"last"):
            writer.publish(news, payload, 1)
        assert [reader.take().payload for _ in range(2)] == [b"first", b"last"]

    def test_others_get_it(self, broker: Dialer) -> None:
        small, large = connect(broker, maximum_packet_size=100), connect(broker)
        news = topic()
        for reader in (small, large):
            reader.subscribe(news, 1)
        connect(broker).publish(news, b"x" * 200, 1)
        assert len(large.take().payload) == 200
        small.expect_quiet()

    def test_an_answer_that_is_too_large_ends(self, broker: Dialer) -> None:
        """[MQTT-3.1.2-24]"""
        client = connect(broker, maximum_packet_size=30)
        lines = [Subscription(TopicFilter(topic())) for _ in range(40)]
        client.send(UnsubscribePacket(PacketId(1), tuple(line.topic_filter for line in lines)))
        client.expect_end()

    def test_the_reason_string_is_left_out_to_fit(self, broker: Dialer) -> None:
        """[MQTT-3.14.2-3] [MQTT-3.14.2-4]"""
        client = connect(broker, maximum_packet_size=20)
        client.send(Connect(V5, ClientId("again")))
        found = client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)
        assert found.properties.reason_string is None

    def test_a_packet_above_the_servers_maximum_ends(self, lab: Lab) -> None:
        """[MQTT-3.2.2-15]"""
        lab = Lab(MqttLimits(packet_bytes_max=1000))
        client = connect(lab)
        client.publish(topic(), b"x" * 900)
        client.expect_quiet()
        client.send(b"\x30\xe8\x07")
        client.expect_disconnect(ReasonCode.PACKET_TOO_LARGE)

    def test_the_first_packet_may_be_smaller_only(self) -> None:
        lab = Lab(MqttLimits(connect_bytes_max=100))
        client = dial(lab)
        client.send(b"\x10\x80\x01")
        client.expect_end()
