"""MQTT 5.0, sections 3.3.4 and 4.9, and ruling C13: how much may be under way."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
)
from quantum.protocols.mqtt.codec.types import PacketId, TopicName
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.tenancy.credits import START_SLOTS
from tests.quantum.serving.client import V311, Client, Dialer, connect, topic, unique
from tests.quantum.serving.lab import Lab, LabLine

LIVES = pytest.mark.parametrize("expiry", [0, 100], ids=["volatile", "durable"])


def arrived(client: Client) -> list[Publish]:
    """Return what is there, unacknowledged."""
    client.send(Pingreq())
    found: list[Publish] = []
    while not isinstance(packet := client.receive(), Pingresp):
        assert isinstance(packet, Publish), packet
        found.append(packet)
    return found


def flood(broker: Dialer, name: bytes, count: int, qos: int = 1) -> None:
    writer = connect(broker)
    for number in range(count):
        writer.publish(name, b"%d" % number, qos)


class TestTowardsTheClient:
    """[MQTT-3.3.4-9] [MQTT-4.9.0-1] [MQTT-4.9.0-2]"""

    @LIVES
    @pytest.mark.parametrize("qos", [1, 2])
    @pytest.mark.parametrize("most", [1, 2, 7])
    def test_never_more_than_its_receive_maximum(
        self, broker: Dialer, most: int, qos: int, expiry: int
    ) -> None:
        """[MQTT-3.3.4-9] [MQTT-3.3.4-10] [MQTT-4.9.0-3]: other packets go on"""
        reader = connect(broker, receive_maximum=most, session_expiry_interval=expiry)
        reader.subscribe(news := topic(), 2)
        flood(broker, news, 20, qos)
        seen = 0
        while seen < 20:
            found = [reader.expect(Publish), *arrived(reader)]
            assert len(found) <= most
            seen += len(found)
            for each in found:
                reader.acknowledge(each)
        reader.expect_quiet()

    def test_qos_0_does_not_count(self, broker: Dialer) -> None:
        """§4.9"""
        reader = connect(broker, receive_maximum=1)
        reader.subscribe(news := topic(), 1)
        writer = connect(broker)
        writer.publish(news, b"held", 1)
        for _ in range(5):
            writer.publish(news, b"free", 0)
        assert sorted(reader.expect(Publish).qos for _ in range(6)) == [0, 0, 0, 0, 0, 1]

    def test_a_qos_2_exchange_counts_until_pubcomp(self, broker: Dialer) -> None:
        """[MQTT-4.9.0-2]"""
        reader = connect(broker, receive_maximum=1)
        reader.subscribe(news := topic(), 2)
        flood(broker, news, 2, qos=2)
        first = reader.expect(Publish)
        reader.send(Pubrec(first.packet_id))
        reader.expect(Pubrel)
        reader.expect_quiet()
        reader.send(Pubcomp(first.packet_id))
        assert reader.take().payload == b"1"

    def test_what_machine_and_connection_keep_counts_together(self, lab: Lab) -> None:
        """[MQTT-3.3.4-9]: a session whose messages move from the one to the other"""
        reader = connect(lab, receive_maximum=3)
        reader.subscribe(news := topic(), 1)
        flood(lab, news, 5)
        held = arrived(reader)
        assert len(held) == 3
        reader.subscribe(b"$share/g/" + topic(), 1)  # now the machine keeps its messages
        flood(lab, news, 5)
        seen = len(held)
        while held:
            reader.acknowledge(held.pop(0))
            fresh = arrived(reader)
            held += fresh
            seen += len(fresh)
            assert len(held) <= 3
        assert seen == 10

    def test_a_smaller_maximum_at_the_next_connection_holds(self, broker: Dialer) -> None:
        """§4.9: the quota is of the connection"""
        name = unique("reader")
        reader = connect(broker, client_id=name, session_expiry_interval=100)
        reader.subscribe(news := topic(), 1)
        flood(broker, news, 6)
        for _ in range(6):
            reader.expect(Publish)
        reader.cut()
        again = connect(
            broker, client_id=name, clean=False, session_expiry_interval=100, receive_maximum=2
        )
        seen: list[bytes] = []
        while len(seen) < 6:
            found = [again.expect(Publish), *arrived(again)]
            assert len(found) <= 2
            assert all(each.dup for each in found)
            seen += [each.payload for each in found]
            for each in found:
                again.acknowledge(each)
        assert seen == [b"%d" % number for number in range(6)]


class TestSlots:
    """C13, quantumqtt §13.3: ten to begin with, more for a client that keeps up"""

    @LIVES
    def test_ten_at_first_then_twice_as_many(self, expiry: int) -> None:
        lab = Lab(MqttLimits(in_flight_max=50))
        reader = connect(lab, session_expiry_interval=expiry)
        reader.subscribe(news := topic(), 1)
        flood(lab, news, 300)
        windows = []
        for _ in range(5):
            found = arrived(reader)
            windows.append(len(found))
            lab.advance(0.25)
            for each in found:
                reader.send(Puback(each.packet_id))
        assert windows[0] == START_SLOTS
        assert windows[1:] == sorted(windows[1:])
        assert max(windows) <= 50 and windows[-1] > 30

    def test_not_faster_than_every_200_ms(self, lab: Lab) -> None:
        reader = connect(lab)
        reader.subscribe(news := topic(), 1)
        flood(lab, news, 100)
        for _ in range(4):
            found = arrived(reader)
            assert len(found) == START_SLOTS
            reader.send(*(Puback(each.packet_id) for each in found))

    def test_never_above_the_clients_maximum(self, lab: Lab) -> None:
        reader = connect(lab, receive_maximum=12)
        reader.subscribe(news := topic(), 1)
        flood(lab, news, 100)
        for _ in range(6):
            found = arrived(reader)
            assert len(found) <= 12
            lab.advance(1)
            reader.send(*(Puback(each.packet_id) for each in found))

    def test_a_full_queue_halves_them(self) -> None:
        """The formula: ceiling × (0.5 + 0.5 × headroom)"""
        lab = Lab(MqttLimits(in_flight_max=8, queue_bytes_max=200_000))
        reader = connect(lab)
        reader.subscribe(news := topic(), 1)
        writer = connect(lab)
        for _ in range(150):
            writer.publish(news, b"x" * 1000, 1)
        held = arrived(reader)
        assert len(held) == 8
        lab.advance(1)
        for each in held:
            reader.send(Puback(each.packet_id))
        assert len(arrived(reader)) in {4, 5}

    def test_a_client_that_does_not_read_is_sent_no_more(self, lab: Lab) -> None:
        reader = connect(lab)
        reader.subscribe(news := topic(), 1)
        line = reader.line
        assert isinstance(line, LabLine)
        line.writable = False
        flood(lab, news, 5)
        assert not line.received
        line.drain()
        assert [reader.take().payload for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]

    def test_a_client_that_never_reads_loses_messages_before_it_costs_too_much(self) -> None:
        lab = Lab(MqttLimits(queue_bytes_max=10_000))
        reader = connect(lab)
        reader.subscribe(news := topic(), 1)
        writer = connect(lab)
        for _ in range(20):
            writer.publish(news, b"x" * 1000, 1)
        found = [reader.receive() for _ in range(10)]
        assert all(isinstance(each, Publish) for each in found)
        assert reader.receive() is None, "its window is full, and it is still connected"
        assert 0 < lab.service.mqtt.dropped < 10


class TestFromTheClient:
    """[MQTT-3.3.4-7] [MQTT-3.3.4-8]: 0x93"""

    def publishes(self, count: int, qos: int, first: int = 1) -> list[Publish]:
        return [
            Publish(TopicName(b"t"), b"", qos, packet_id=PacketId(number))
            for number in range(first, first + count)
        ]

    def test_more_than_announced_ends(self) -> None:
        lab = Lab(MqttLimits(receive_maximum=5))
        client = connect(lab)
        client.send(*self.publishes(5, 1))
        assert len([client.expect(Puback) for _ in range(5)]) == 5
        client.send(*self.publishes(6, 1))
        client.expect_disconnect(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)

    @LIVES
    def test_a_qos_2_exchange_counts_until_it_is_over(self, expiry: int) -> None:
        lab = Lab(MqttLimits(receive_maximum=5))
        client = connect(lab, session_expiry_interval=expiry)
        client.send(*self.publishes(5, 2))
        for _ in range(5):
            client.expect(Pubrec)
        client.send(Pubrel(PacketId(1)))
        client.expect(Pubcomp)
        client.send(*self.publishes(1, 2, first=6))
        client.expect(Pubrec)
        client.send(*self.publishes(1, 1, first=7))
        client.expect_disconnect(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)

    def test_before_mqtt_5_there_is_no_such_promise(self) -> None:
        lab = Lab(MqttLimits(receive_maximum=5))
        client = connect(lab, V311)
        client.send(*self.publishes(20, 2))
        for _ in range(20):
            client.expect(Pubrec)
        client.expect_quiet()
