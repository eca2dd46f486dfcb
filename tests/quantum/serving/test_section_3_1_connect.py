"""MQTT 3.1.1 and 5.0, sections 3.1 and 3.2: CONNECT and CONNACK."""

from __future__ import annotations

import string

import pytest

from quantum.protocols.mqtt.codec import (
    Connack,
    Connect,
    Pingreq,
    Pingresp,
    Properties,
    ProtocolVersion,
    Publish,
    ReasonCode,
    SubscribePacket,
    Subscription,
)
from quantum.protocols.mqtt.codec.types import ClientId, PacketId, TopicFilter
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
    will,
)
from tests.quantum.serving.lab import Lab

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])


@ALL
def test_mqtt_3_1_0_1_the_first_packet_is_connect(broker: Dialer, version: ProtocolVersion) -> None:
    """[MQTT-3.1.0-1]; 3.1.1 [MQTT-3.1.0-1]"""
    client = dial(broker, version)
    client.send(Pingreq())
    client.expect_end()


@ALL
def test_mqtt_3_1_0_2_a_second_connect_is_a_protocol_error(
    broker: Dialer, version: ProtocolVersion
) -> None:
    """[MQTT-3.1.0-2]; 3.1.1 [MQTT-3.1.0-2]"""
    client = connect(broker, version)
    client.send(Connect(version, ClientId("again")))
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)


def test_mqtt_3_1_2_2_an_unknown_level_is_told_so(broker: Dialer) -> None:
    """[MQTT-3.1.2-2]"""
    for level, code in ((2, 0x01), (6, 0x84)):
        client = dial(broker, V5 if level > 4 else V311)
        client.send(bytes.fromhex(f"100d00044d515454{level:02x}02003c000161"))
        first, body = client.receive_raw() or (0, b"")
        assert (first, body[1]) == (0x20, code)
        client.expect_end()


def test_mqtt_3_1_2_1_another_protocol_learns_nothing(broker: Dialer) -> None:
    """[MQTT-3.1.2-1]"""
    client = dial(broker)
    client.send(bytes.fromhex("100d00044d51545505" + "02003c000161"))
    client.expect_end()


class TestSessions:
    """[MQTT-3.1.2-4] to [MQTT-3.1.2-6], [MQTT-3.2.2-2], [MQTT-3.2.2-3]: state and its flag."""

    def test_clean_start_discards_what_was(self, broker: Dialer) -> None:
        """[MQTT-3.1.2-4] [MQTT-3.1.4-4] [MQTT-3.2.2-2]"""
        name = unique("session")
        first = connect(broker, client_id=name, session_expiry_interval=100)
        assert not first.connack.session_present
        first.subscribe(news := topic(), 1)
        first.leave()
        second = connect(broker, client_id=name, session_expiry_interval=100)
        assert not second.connack.session_present
        second.publish(news, b"x", 1)
        second.expect_quiet()

    def test_a_session_that_is_there_is_resumed(self, broker: Dialer) -> None:
        """[MQTT-3.1.2-5] [MQTT-3.2.2-3]"""
        name = unique("session")
        first = connect(broker, client_id=name, session_expiry_interval=100)
        first.subscribe(news := topic(), 1)
        first.cut()
        connect(broker).publish(news, b"kept", 1)
        second = connect(broker, client_id=name, clean=False, session_expiry_interval=100)
        assert second.connack.session_present
        assert second.take().payload == b"kept"

    def test_a_session_that_is_not_there_is_new(self, broker: Dialer) -> None:
        """[MQTT-3.1.2-6] [MQTT-3.2.2-3]"""
        client = connect(broker, clean=False, session_expiry_interval=100)
        assert not client.connack.session_present

    def test_before_mqtt_5_clean_session_decides_both(self, broker: Dialer) -> None:
        """3.1.1 [MQTT-3.1.2-4] to [MQTT-3.1.2-6], 3.1.1 [MQTT-3.2.2-1] to [MQTT-3.2.2-3]

        3.1.1 [MQTT-3.1.3-2] [MQTT-3.1.4-3] [MQTT-4.1.0-1]
        """
        name = unique("session")
        assert not connect(broker, V311, client_id=name, clean=False).connack.session_present
        assert connect(broker, V311, client_id=name, clean=False).connack.session_present
        assert not connect(broker, V311, client_id=name, clean=True).connack.session_present
        assert not connect(broker, V311, client_id=name, clean=False).connack.session_present

    def test_3_1_has_no_session_present(self, broker: Dialer) -> None:
        name = unique("session")
        connect(broker, V31, client_id=name, clean=False).leave()
        client = dial(broker, V31)
        client.send(Connect(V31, ClientId(name), clean_start=False))
        assert client.receive_raw() == (0x20, b"\0\0")

    def test_without_an_expiry_interval_a_session_ends_with_its_connection(
        self, broker: Dialer
    ) -> None:
        """§3.1.2.11.2"""
        name = unique("session")
        first = connect(broker, client_id=name)
        first.subscribe(topic(), 1)
        first.leave()
        assert not connect(broker, client_id=name, clean=False).connack.session_present

    def test_a_session_ends_when_its_expiry_interval_has_passed(self, lab: Lab) -> None:
        """[MQTT-3.1.2-23] [MQTT-4.1.0-2]"""
        for seconds, present in ((59, True), (61, False)):
            name = unique("session")
            connect(lab, client_id=name, session_expiry_interval=60).cut()
            lab.advance(seconds)
            again = connect(lab, client_id=name, clean=False)
            assert again.connack.session_present is present

    def test_time_counts_from_the_end_of_the_connection(self, lab: Lab) -> None:
        """[MQTT-4.1.0-1]; 3.1.1 [MQTT-4.1.0-2]"""
        name = unique("session")
        client = connect(lab, client_id=name, session_expiry_interval=60)
        lab.advance(1000)
        client.cut()
        lab.advance(59)
        assert connect(lab, client_id=name, clean=False).connack.session_present

    def test_an_interval_above_the_servers_is_lowered_and_announced(self) -> None:
        """§3.2.2.3.2"""
        lab = Lab(MqttLimits(session_expiry_seconds_max=3_600))
        client = connect(lab, session_expiry_interval=0xFFFF_FFFF)
        assert client.connack.properties.session_expiry_interval == 3_600
        kept = connect(lab, session_expiry_interval=60)
        assert kept.connack.properties.session_expiry_interval is None

    def test_by_default_no_interval_is_lowered(self, broker: Dialer) -> None:
        for asked in (60, 0xFFFF_FFFF):
            client = connect(broker, session_expiry_interval=asked)
            assert client.connack.properties.session_expiry_interval is None


class TestClientIds:
    """[MQTT-3.1.3-2] to [MQTT-3.1.3-9]"""

    def test_mqtt_5_assigns_an_id(self, broker: Dialer) -> None:
        """[MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16]"""
        clients = [connect(broker, client_id="", clean=clean) for clean in (True, False)]
        names = {each.connack.properties.assigned_client_identifier for each in clients}
        assert len(names) == 2 and None not in names

    def test_an_assigned_id_is_a_client_id(self, broker: Dialer) -> None:
        """[MQTT-3.1.3-6]: treated as if the client had sent it"""
        first = connect(broker, client_id="", session_expiry_interval=60)
        name = first.connack.properties.assigned_client_identifier
        first.cut()
        again = connect(broker, client_id=name, clean=False)
        assert again.connack.session_present
        assert again.connack.properties.assigned_client_identifier is None

    def test_3_1_1_assigns_an_id_to_a_clean_session(self, broker: Dialer) -> None:
        """3.1.1 [MQTT-3.1.3-6]"""
        connect(broker, V311, client_id="").expect_quiet()

    @pytest.mark.parametrize(("version", "clean"), [(V311, False), (V31, True), (V31, False)])
    def test_no_id_and_a_session_to_keep_is_refused(
        self, broker: Dialer, version: ProtocolVersion, clean: bool
    ) -> None:
        """3.1.1 [MQTT-3.1.3-7] [MQTT-3.1.3-8] [MQTT-3.1.3-9]"""
        client = dial(broker, version)
        client.send(Connect(version, ClientId(""), clean))
        client.expect_refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)

    @ALL
    def test_every_letter_and_digit_and_length_is_allowed(
        self, broker: Dialer, version: ProtocolVersion
    ) -> None:
        """[MQTT-3.1.3-5]; 3.1.1 [MQTT-3.1.3-5]"""
        letters = string.digits + string.ascii_letters
        for start in range(0, len(letters), 20):
            name = letters[start : start + 20]
            connect(broker, version, client_id=name).expect_quiet()
            connect(broker, version, client_id=name[0]).expect_quiet()

    def test_a_control_character_is_refused_with_its_reason(self, broker: Dialer) -> None:
        """[MQTT-3.1.3-8]"""
        client = dial(broker)
        client.send(bytes.fromhex("101000044d5154540502003c000003617f62"))
        client.expect_refusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)


@ALL
def test_mqtt_3_1_4_3_a_second_connection_takes_the_session_over(
    broker: Dialer, version: ProtocolVersion
) -> None:
    """[MQTT-3.1.4-3]; 3.1.1 [MQTT-3.1.4-2]"""
    name = unique("client")
    old = connect(broker, version, client_id=name)
    new = connect(broker, version, client_id=name)
    old.expect_disconnect(ReasonCode.SESSION_TAKEN_OVER)
    new.expect_quiet()


def test_takeover_keeps_a_session_and_its_messages(broker: Dialer) -> None:
    name = unique("client")
    old = connect(broker, client_id=name, session_expiry_interval=60)
    old.subscribe(news := topic(), 1)
    connect(broker).publish(news, b"seen", 1)
    assert old.expect(Publish).payload == b"seen"
    new = connect(broker, client_id=name, clean=False, session_expiry_interval=60)
    assert new.connack.session_present
    again = new.take()
    assert (again.payload, again.dup) == (b"seen", True)


@ALL
def test_mqtt_3_1_4_5_packets_behind_connect_are_processed(
    broker: Dialer, version: ProtocolVersion
) -> None:
    """[MQTT-3.1.4-5] [MQTT-3.2.0-1] [MQTT-3.2.0-2]: CONNACK comes first, and once

    3.1.1 [MQTT-3.1.4-4] [MQTT-3.2.0-1]
    """
    client = dial(broker, version)
    line = Subscription(TopicFilter(topic()))
    client.send(
        Connect(version, ClientId(unique("client"))),
        SubscribePacket(PacketId(1), (line,)),
        Pingreq(),
    )
    client.expect(Connack)
    kinds = {type(client.receive()).__name__ for _ in range(2)}
    assert kinds == {"Suback", "Pingresp"}


@ALL
def test_mqtt_3_1_4_6_nothing_behind_a_refused_connect_is_processed(
    broker: Dialer, version: ProtocolVersion
) -> None:
    """[MQTT-3.1.4-6] [MQTT-3.2.2-7] [MQTT-3.14.0-1]; 3.1.1 [MQTT-3.1.4-5] [MQTT-3.2.2-5]"""
    client = dial(broker, version)
    refused = will(b"$SYS/mine")
    client.send(Connect(version, ClientId(unique("client")), will=refused), Pingreq())
    client.expect_refusal(ReasonCode.NOT_AUTHORIZED)


class TestKeepAlive:
    """[MQTT-3.1.2-22], §3.1.2.10; 3.1.1 [MQTT-3.1.2-24]"""

    @ALL
    def test_silence_for_one_and_a_half_times_the_interval_ends(
        self, lab: Lab, version: ProtocolVersion
    ) -> None:
        client = connect(lab, version, keep_alive=10)
        lab.advance(15)
        client.expect_quiet()
        lab.advance(14.9)
        client.send(Pingreq())
        client.expect(Pingresp)
        lab.advance(15.1)
        client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)

    @ALL
    def test_an_interval_of_zero_is_no_interval(self, lab: Lab, version: ProtocolVersion) -> None:
        client = connect(lab, version, keep_alive=0)
        lab.advance(1_000_000)
        client.expect_quiet()

    @pytest.mark.parametrize(
        ("asked", "announced"), [(0, 60), (61, 60), (600, 60), (60, None), (5, None)]
    )
    def test_the_servers_cap_is_announced_and_holds(
        self, asked: int, announced: int | None
    ) -> None:
        """[MQTT-3.1.2-21] [MQTT-3.2.2-21] [MQTT-3.2.2-22]"""
        lab = Lab(MqttLimits(keep_alive_seconds_max=60))
        client = connect(lab, keep_alive=asked)
        assert client.connack.properties.server_keep_alive == announced
        held = announced or asked
        lab.advance(1.5 * held - 0.5)
        client.expect_quiet()
        lab.advance(1.5 * held + 0.5)
        client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)

    def test_the_will_is_said_at_the_timeout(self, lab: Lab) -> None:
        """[MQTT-3.1.2-8]"""
        last = topic("will")
        watcher = connect(lab)
        watcher.subscribe(last)
        connect(lab, keep_alive=10, will=will(last))
        lab.advance(16)
        assert watcher.take().payload == b"gone"

    def test_who_connects_and_says_nothing_is_dropped(self, lab: Lab) -> None:
        """§3.1.4, §4.13: no CONNECT within a reasonable time"""
        client = dial(lab)
        client.send(b"\x10")
        lab.advance(4)
        assert not client.line.is_closed  # type: ignore[attr-defined]
        lab.advance(2)
        client.expect_end()


class TestAnnouncements:
    """§3.2.2.3"""

    def test_limits_are_announced(self, broker: Dialer) -> None:
        limits = MqttLimits()
        found = connect(broker).connack.properties
        assert found == Properties(
            receive_maximum=limits.receive_maximum,
            topic_alias_maximum=limits.topic_alias_maximum,
            maximum_packet_size=limits.packet_bytes_max,
        )

    @pytest.mark.parametrize("version", [V31, V311])
    def test_before_mqtt_5_there_are_two_bytes(
        self, broker: Dialer, version: ProtocolVersion
    ) -> None:
        """3.1.1 [MQTT-3.2.2-4] §3.2.2"""
        client = dial(broker, version)
        client.send(Connect(version, ClientId(unique("client"))))
        assert client.receive_raw() == (0x20, b"\0\0")

    @pytest.mark.parametrize("asks", [None, False])
    def test_response_information_only_if_asked(self, broker: Dialer, asks: bool | None) -> None:
        """[MQTT-3.1.2-28]"""
        properties = {} if asks is None else {"request_response_information": asks}
        found = connect(broker, **properties).connack.properties  # type: ignore[arg-type]
        assert found.response_information is None

    def test_response_information_is_a_topic_for_answers(self, broker: Dialer) -> None:
        """§3.2.2.3.15, §4.10"""
        name = unique("client")
        asking = connect(broker, client_id=name, request_response_information=True)
        base = asking.connack.properties.response_information
        assert base == f"response/{name}"
        asking.subscribe(base.encode() + b"/#", 1)
        connect(broker).publish(base.encode() + b"/1", b"answer", 1)
        assert asking.take().payload == b"answer"

    def test_an_id_that_cannot_stand_in_a_topic_gets_none(self, broker: Dialer) -> None:
        for letter in "/+#":
            client = connect(
                broker, client_id=unique(f"a{letter}"), request_response_information=True
            )
            assert client.connack.properties.response_information is None

    def test_a_connack_that_does_not_fit_is_not_sent(self, broker: Dialer) -> None:
        """[MQTT-3.1.2-24] [MQTT-3.2.2-19] [MQTT-3.2.2-20]"""
        client = dial(broker)
        small = Properties(maximum_packet_size=5)
        client.send(Connect(V5, ClientId(unique("client")), properties=small))
        client.expect_end()

    def test_a_refusal_leaves_its_reason_string_out_to_fit(self, broker: Dialer) -> None:
        """[MQTT-3.2.2-19]"""
        client = dial(broker)
        small = Properties(maximum_packet_size=8, authentication_method="x")
        client.send(Connect(V5, ClientId(unique("client")), properties=small))
        refusal = client.expect_refusal(ReasonCode.BAD_AUTHENTICATION_METHOD)
        assert refusal.properties.reason_string is None
