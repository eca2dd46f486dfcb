"""MQTT 3.1.1 and 5.0, sections 4.3 to 4.6: the exchanges, delivery again, order."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Properties,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from quantum.protocols.mqtt.codec.types import PacketId, TopicName
from tests.quantum.serving.client import (
    V5,
    V31,
    V311,
    Client,
    Dialer,
    connect,
    topic,
    unique,
)
from tests.quantum.serving.lab import Lab

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])
LIVES = pytest.mark.parametrize("durable", [False, True], ids=["volatile", "durable"])


def reading(
    broker: Dialer, name: bytes, qos: int, version: ProtocolVersion = V5, *, durable: bool = False
) -> Client:
    client = joined(broker, unique("reader"), version, durable=durable)
    client.subscribe(name, qos)
    return client


def joined(
    broker: Dialer,
    name: str,
    version: ProtocolVersion = V5,
    *,
    durable: bool = True,
    clean: bool | None = None,
) -> Client:
    """Connect with a session that outlives the connection, or with one that does not."""
    clean = not durable if clean is None else clean
    if version is V5:
        expiry = 100 if durable else 0
        return connect(broker, client_id=name, clean=clean, session_expiry_interval=expiry)
    return connect(broker, version, client_id=name, clean=clean)


def message(name: bytes, payload: bytes, qos: int, packet_id: int, *, dup: bool = False) -> Publish:
    return Publish(TopicName(name), payload, qos, dup=dup, packet_id=PacketId(packet_id))


class TestQos2Inward:
    """[MQTT-4.3.3-8] to [MQTT-4.3.3-13]: the server receives"""

    @LIVES
    @ALL
    def test_what_comes_again_before_pubrel_is_one_message(
        self, broker: Dialer, version: ProtocolVersion, durable: bool
    ) -> None:
        """[MQTT-4.3.3-8] [MQTT-4.3.3-10] [MQTT-4.3.3-11]; 3.1.1 [MQTT-4.3.3-2]"""
        news = topic()
        reader = reading(broker, news, 2)
        writer = joined(broker, unique("writer"), version, durable=durable)
        for number in range(3):
            writer.send(message(news, b"once", 2, 7, dup=number > 0))
            assert writer.expect(Pubrec).packet_id == 7
        assert reader.take().payload == b"once"
        writer.send(Pubrel(PacketId(7)))
        assert writer.expect(Pubcomp).packet_id == 7
        reader.expect_quiet()

    @LIVES
    def test_after_pubrel_the_packet_id_is_a_new_message(
        self, broker: Dialer, durable: bool
    ) -> None:
        """[MQTT-4.3.3-12] [MQTT-2.2.1-3]"""
        news = topic()
        reader = reading(broker, news, 2)
        writer = joined(broker, unique("writer"), durable=durable)
        for payload in (b"one", b"two"):
            writer.send(message(news, payload, 2, 7))
            writer.expect(Pubrec)
            writer.send(Pubrel(PacketId(7)))
            writer.expect(Pubcomp)
            assert reader.take().payload == payload

    def test_a_session_remembers_across_connections(self, broker: Dialer) -> None:
        """[MQTT-4.3.3-10] [MQTT-4.4.0-1] §4.1.0: exactly once through a broken connection"""
        news, name = topic(), unique("writer")
        reader = reading(broker, news, 2)
        writer = joined(broker, name)
        writer.send(message(news, b"once", 2, 7))
        writer.expect(Pubrec)
        writer.cut()
        again = joined(broker, name, clean=False)
        assert again.connack.session_present
        again.send(message(news, b"once", 2, 7, dup=True))
        again.expect(Pubrec)
        again.cut()
        third = joined(broker, name, clean=False)
        third.send(Pubrel(PacketId(7)))
        third.expect(Pubcomp)
        assert reader.take().payload == b"once"
        reader.expect_quiet()

    @LIVES
    def test_a_release_of_what_is_unknown_is_answered(self, broker: Dialer, durable: bool) -> None:
        """[MQTT-4.3.3-11]: PUBCOMP with the same packet identifier"""
        writer = joined(broker, unique("writer"), durable=durable)
        writer.send(Pubrel(PacketId(99)))
        assert writer.expect(Pubcomp).packet_id == 99

    def test_mqtt_4_3_3_13_an_exchange_goes_on_when_its_message_expired(self, lab: Lab) -> None:
        """[MQTT-4.3.3-13]"""
        writer = joined(lab, unique("writer"))
        expiring = message(topic(), b"x", 2, 7)
        expiring.properties = Properties(message_expiry_interval=1)
        writer.send(expiring)
        writer.expect(Pubrec)
        lab.advance(10)
        writer.send(Pubrel(PacketId(7)))
        assert writer.expect(Pubcomp).packet_id == 7

    def test_a_refused_one_frees_its_packet_id(self, broker: Dialer) -> None:
        """[MQTT-4.3.3-9]"""
        writer = connect(broker)
        for _ in range(2):
            writer.send(message(b"$SYS/mine", b"x", 2, 7))
            assert writer.expect(Pubrec).reason_code is ReasonCode.NOT_AUTHORIZED


class TestQos1Inward:
    @ALL
    def test_every_publish_is_answered(self, broker: Dialer, version: ProtocolVersion) -> None:
        """[MQTT-4.3.2-4] [MQTT-4.3.2-5]; 3.1.1 [MQTT-4.3.2-2]: then the id is a new message's"""
        news = topic()
        reader = reading(broker, news, 1)
        writer = connect(broker, version)
        for number in range(3):
            writer.send(message(news, b"%d" % number, 1, 5, dup=number == 2))
            assert writer.expect(Puback).packet_id == 5
        assert [reader.take().payload for _ in range(3)] == [b"0", b"1", b"2"]


class TestQos1Outward:
    """[MQTT-4.3.2-1] to [MQTT-4.3.2-3]: the server sends"""

    @LIVES
    @ALL
    def test_packet_ids_are_not_in_use(
        self, broker: Dialer, version: ProtocolVersion, durable: bool
    ) -> None:
        """[MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT-2.2.1-4]; 3.1.1 [MQTT-4.3.2-1]"""
        news = topic()
        reader = reading(broker, news, 2, version, durable=durable)
        writer = connect(broker)
        for number in range(8):
            writer.publish(news, b"x", 1 + number % 2)
        found = [reader.expect(Publish).packet_id for _ in range(8)]
        assert len(set(found)) == 8 and 0 not in found

    @ALL
    def test_what_is_not_acknowledged_comes_again(
        self, broker: Dialer, version: ProtocolVersion
    ) -> None:
        """[MQTT-4.4.0-1] [MQTT-3.3.1-1]; 3.1.1 [MQTT-4.4.0-1] [MQTT-3.3.1-1]"""
        news, name = topic(), unique("reader")
        reader = joined(broker, name, version)
        reader.subscribe(news, 2)
        writer = connect(broker)
        for number in range(4):
            writer.publish(news, b"%d" % number, 1 + number % 2)
        first = [reader.expect(Publish) for _ in range(4)]
        reader.send(Puback(first[0].packet_id))
        reader.expect_quiet()
        reader.cut()
        again = joined(broker, name, version, clean=False)
        second = [again.expect(Publish) for _ in range(3)]
        assert all(each.dup for each in second) and not any(each.dup for each in first)
        assert [each.packet_id for each in second] == [each.packet_id for each in first[1:]]
        assert [each.payload for each in second] == [b"1", b"2", b"3"]
        again.expect_quiet()

    def test_nothing_comes_again_within_a_connection(self, lab: Lab) -> None:
        """[MQTT-4.4.0-1]: not at any other time"""
        news = topic()
        reader = reading(lab, news, 1, durable=True)
        connect(lab).publish(news, b"x", 1)
        reader.expect(Publish)
        lab.advance(1000)
        reader.expect_quiet()

    @LIVES
    @pytest.mark.parametrize("qos", [1, 2])
    def test_a_refusal_ends_the_exchange(self, broker: Dialer, qos: int, durable: bool) -> None:
        """[MQTT-4.4.0-2] [MQTT-4.3.3-4]: no PUBREL, and the message does not come again"""
        news, name = topic(), unique("reader")
        reader = joined(broker, name, durable=durable)
        reader.subscribe(news, 2)
        writer = connect(broker)
        writer.publish(news, b"unwanted", qos)
        found = reader.expect(Publish)
        refusal = Puback if qos == 1 else Pubrec
        reader.send(refusal(found.packet_id, ReasonCode.NOT_AUTHORIZED))
        writer.publish(news, b"wanted", 1)
        assert reader.take().payload == b"wanted"
        reader.expect_quiet()
        if durable:
            reader.cut()
            joined(broker, name, clean=False).expect_quiet()


class TestQos2Outward:
    """[MQTT-4.3.3-1] to [MQTT-4.3.3-7]"""

    def test_mqtt_4_3_3_7_what_was_sent_does_not_expire(self, lab: Lab) -> None:
        """[MQTT-4.3.3-7] [MQTT-4.3.3-3]"""
        news, name = topic(), unique("reader")
        reader = joined(lab, name)
        reader.subscribe(news, 2)
        expiring = Properties(message_expiry_interval=10)
        connect(lab).publish(news, b"x", 2, properties=expiring)
        sent = reader.expect(Publish)
        reader.cut()
        lab.advance(20)
        again = joined(lab, name, clean=False)
        found = again.take()
        assert (found.packet_id, found.payload, found.dup) == (sent.packet_id, b"x", True)
        assert found.properties.message_expiry_interval == 0

    def test_what_waited_and_was_never_sent_is_no_duplicate(self, lab: Lab) -> None:
        """[MQTT-4.3.2-2] [MQTT-4.3.3-2]: DUP is of what was sent"""
        news, name = topic(), unique("reader")
        reader = joined(lab, name)
        reader.subscribe(news, 1)
        writer = connect(lab)
        for number in range(15):
            writer.publish(news, b"%d" % number, 1)
        assert len([reader.expect(Publish) for _ in range(10)]) == 10
        reader.cut()
        again = joined(lab, name, clean=False)
        found = [again.take() for _ in range(15)]
        assert [int(each.payload) for each in found] == list(range(15))
        assert [each.dup for each in found] == [True] * 10 + [False] * 5

    @LIVES
    @ALL
    def test_the_four_packets(
        self, broker: Dialer, version: ProtocolVersion, durable: bool
    ) -> None:
        """[MQTT-4.3.3-1] [MQTT-4.3.3-2] [MQTT-4.3.3-4]; 3.1.1 [MQTT-4.3.3-1]"""
        news = topic()
        reader = reading(broker, news, 2, version, durable=durable)
        connect(broker).publish(news, b"x", 2)
        found = reader.expect(Publish)
        for _ in range(2):  # PUBREC again: PUBREL again
            reader.send(Pubrec(found.packet_id))
            assert reader.expect(Pubrel).packet_id == found.packet_id
        reader.send(Pubcomp(found.packet_id))
        reader.expect_quiet()

    @ALL
    def test_after_pubrec_only_pubrel_comes_again(
        self, broker: Dialer, version: ProtocolVersion
    ) -> None:
        """[MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.4.0-1]"""
        news, name = topic(), unique("reader")
        reader = joined(broker, name, version)
        reader.subscribe(news, 2)
        connect(broker).publish(news, b"x", 2)
        found = reader.expect(Publish)
        reader.send(Pubrec(found.packet_id))
        reader.expect(Pubrel)
        reader.cut()
        again = joined(broker, name, version, clean=False)
        assert again.expect(Pubrel).packet_id == found.packet_id
        again.send(Pubcomp(found.packet_id))
        again.expect_quiet()
        again.cut()
        joined(broker, name, version, clean=False).expect_quiet()

    @LIVES
    def test_a_stray_pubrec_is_released(self, broker: Dialer, durable: bool) -> None:
        """[MQTT-4.3.3-4]: a client that holds what we forgot can let go"""
        for packet_id in (5, 0x8005):
            client = joined(broker, unique("reader"), durable=durable)
            client.send(Pubrec(PacketId(packet_id)))
            assert client.expect(Pubrel).packet_id == packet_id

    def test_other_strays_change_nothing(self, broker: Dialer) -> None:
        for durable in (False, True):
            client = joined(broker, unique("reader"), durable=durable)
            for packet_id in (5, 0x8005):
                client.send(Puback(PacketId(packet_id)), Pubcomp(PacketId(packet_id)))
            client.expect_quiet()


class TestOrder:
    """§4.6"""

    @LIVES
    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_one_publishers_messages_come_in_order(
        self, broker: Dialer, qos: int, durable: bool
    ) -> None:
        """[MQTT-4.6.0-5] [MQTT-4.6.0-6]; 3.1.1 [MQTT-4.6.0-5] [MQTT-4.6.0-6]"""
        news = topic()
        reader = reading(broker, news, qos, durable=durable)
        writer = connect(broker)
        writer.send(*(message(news, b"%d" % n, qos, n if qos else 0) for n in range(1, 101)))
        if qos == 2:
            for n in range(1, 101):
                assert writer.expect(Pubrec).packet_id == n
        found = [int(reader.take().payload) for _ in range(100)]
        assert found == list(range(1, 101))

    def test_answers_come_in_the_order_of_publishes(self, broker: Dialer) -> None:
        """[MQTT-4.6.0-2] [MQTT-4.6.0-3]; 3.1.1 [MQTT-4.6.0-2] [MQTT-4.6.0-3]"""
        base, writer = topic(), connect(broker, V311)
        writer.send(*(message(base + b"/%d" % n, b"", 1, n) for n in range(1, 61)))
        assert [writer.expect(Puback).packet_id for _ in range(60)] == list(range(1, 61))
        writer.send(*(message(base + b"/%d" % n, b"", 2, n) for n in range(1, 61)))
        assert [writer.expect(Pubrec).packet_id for _ in range(60)] == list(range(1, 61))
        writer.send(*(Pubrel(PacketId(n)) for n in range(1, 61)))
        assert [writer.expect(Pubcomp).packet_id for _ in range(60)] == list(range(1, 61))

    def test_pubrels_come_in_the_order_of_pubrecs(self, broker: Dialer) -> None:
        """[MQTT-4.6.0-4]; 3.1.1 [MQTT-4.6.0-4]"""
        for durable in (False, True):
            news = topic()
            reader = reading(broker, news, 2, durable=durable)
            writer = connect(broker)
            for _ in range(5):
                writer.publish(news, b"x", 2)
            found = [reader.expect(Publish).packet_id for _ in range(5)]
            reader.send(*(Pubrec(each) for each in reversed(found)))
            assert [reader.expect(Pubrel).packet_id for _ in range(5)] == found[::-1]

    def test_a_queue_comes_in_order_after_what_was_in_flight(self, broker: Dialer) -> None:
        """[MQTT-4.6.0-1] [MQTT-4.5.0-1]; 3.1.1 [MQTT-4.6.0-1]"""
        news, name = topic(), unique("reader")
        reader = joined(broker, name)
        reader.subscribe(news, 1)
        writer = connect(broker)
        for number in range(3):
            writer.publish(news, b"%d" % number, 1)
        for _ in range(3):
            reader.expect(Publish)
        reader.cut()
        for number in range(3, 40):
            writer.publish(news, b"%d" % number, 1)
        again = joined(broker, name, clean=False)
        found = [again.take() for _ in range(40)]
        assert [int(each.payload) for each in found] == list(range(40))
        assert all(each.dup for each in found[:3])
