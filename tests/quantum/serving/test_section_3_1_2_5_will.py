"""MQTT 3.1.1 and 5.0, sections 3.1.2.5 to 3.1.2.7, 3.1.3.2 and 3.14.4: wills."""

from __future__ import annotations

import pytest

from quantum.protocols.mqtt.codec import (
    Connect,
    Pingresp,
    Properties,
    ProtocolVersion,
    ReasonCode,
    encode_packet,
)
from quantum.protocols.mqtt.codec.types import ClientId
from tests.quantum.serving.client import (
    V5,
    V31,
    V311,
    Client,
    Dialer,
    connect,
    dial,
    topic,
    unique,
    will,
)
from tests.quantum.serving.lab import Lab

ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])


def watching(broker: Dialer, name: bytes, qos: int = 2) -> Client:
    client = connect(broker)
    client.subscribe(name, qos, as_published=True)
    return client


@ALL
def test_mqtt_3_1_2_8_a_will_is_said_when_the_connection_breaks(
    broker: Dialer, version: ProtocolVersion
) -> None:
    """[MQTT-3.1.2-7] [MQTT-3.1.2-8]; 3.1.1 [MQTT-3.1.2-8]"""
    watcher = watching(broker, last := topic("will"))
    connect(broker, version, will=will(last, b"gone", 1)).cut()
    message = watcher.take()
    assert (message.topic, message.payload, message.qos) == (last, b"gone", 1)
    watcher.expect_quiet()


@ALL
def test_mqtt_3_1_2_8_a_will_is_said_when_the_server_closes_for_an_error(
    broker: Dialer, version: ProtocolVersion
) -> None:
    """[MQTT-3.1.2-8]: the server closes because of a protocol error"""
    watcher = watching(broker, last := topic("will"))
    client = connect(broker, version, will=will(last))
    client.send(encode_packet(Pingresp(), version))
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)
    assert watcher.take().payload == b"gone"


@ALL
def test_mqtt_3_1_2_10_a_goodbye_deletes_the_will(lab: Lab, version: ProtocolVersion) -> None:
    """[MQTT-3.1.2-10] [MQTT-3.14.4-3]; 3.1.1 [MQTT-3.1.2-10] [MQTT-3.14.4-3]"""
    watcher = watching(lab, last := topic("will"))
    connect(lab, version, will=will(last)).leave()
    lab.advance(10)
    watcher.expect_quiet()


@ALL
def test_who_has_no_will_has_none_said(lab: Lab, version: ProtocolVersion) -> None:
    """3.1.1 [MQTT-3.1.2-12]"""
    watcher = watching(lab, b"#")
    connect(lab, version).cut()
    lab.advance(10)
    watcher.expect_quiet()


def test_a_deleted_will_stays_deleted(lab: Lab) -> None:
    """[MQTT-3.1.2-10]: the next connection of the session has the will that it brings"""
    watcher = watching(lab, last := topic("will"))
    name = unique("client")
    connect(lab, client_id=name, will=will(last), session_expiry_interval=60).leave()
    connect(lab, client_id=name, clean=False, session_expiry_interval=60).cut()
    lab.advance(100)
    watcher.expect_quiet()


def test_reason_0x04_keeps_the_will(broker: Dialer) -> None:
    """§3.14.2.1, [MQTT-3.1.2-8]"""
    watcher = watching(broker, last := topic("will"))
    client = connect(broker, will=will(last))
    client.leave(ReasonCode.DISCONNECT_WITH_WILL_MESSAGE)
    assert watcher.take().payload == b"gone"


@pytest.mark.parametrize(
    "reason",
    [ReasonCode.UNSPECIFIED_ERROR, ReasonCode.PROTOCOL_ERROR, ReasonCode.ADMINISTRATIVE_ACTION],
)
def test_only_reason_0x00_deletes_the_will(broker: Dialer, reason: ReasonCode) -> None:
    """[MQTT-3.1.2-8] [MQTT-3.14.4-3]: deleted on receipt of DISCONNECT with reason code 0x00"""
    watcher = watching(broker, last := topic("will"))
    connect(broker, will=will(last)).leave(reason)
    assert watcher.take().payload == b"gone"


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_1_2_12_to_15_qos_and_retain(broker: Dialer, qos: int, retain: bool) -> None:
    """[MQTT-3.1.2-12] [MQTT-3.1.2-14] [MQTT-3.1.2-15]; 3.1.1 [MQTT-3.1.2-16] [MQTT-3.1.2-17]"""
    watcher = watching(broker, last := topic("will"))
    connect(broker, will=will(last, b"gone", qos, retain=retain)).cut()
    message = watcher.take()
    assert (message.qos, message.retain) == (qos, retain)
    late = connect(broker)
    late.subscribe(last, 2)
    if retain:
        kept = late.take()
        assert (kept.payload, kept.retain, kept.qos) == (b"gone", True, qos)
    else:
        late.expect_quiet()


def test_will_properties_go_with_the_will(broker: Dialer) -> None:
    """[MQTT-3.1.3-10] §3.1.3.2: user properties in order; the delay is not for subscribers"""
    watcher = watching(broker, last := topic("will"))
    properties = Properties(
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic=b"answers",  # type: ignore[arg-type]
        correlation_data=b"\0\1",
        user_properties=(("b", "1"), ("a", "2"), ("b", "1")),
    )
    plain = will(last)
    plain.properties = properties
    connect(broker, will=plain).cut()
    assert watcher.take().properties == properties


def test_a_will_that_expires_counts_from_when_it_is_said(lab: Lab) -> None:
    """§3.1.3.2.4"""
    watcher = watching(lab, last := topic("will"))
    said = will(last, message_expiry_interval=10, will_delay_interval=30)
    connect(lab, will=said, session_expiry_interval=100).cut()
    lab.advance(31)
    assert watcher.take().properties.message_expiry_interval == 10


@pytest.mark.parametrize(("version", "code"), [(V311, 5), (V5, 0x87)])
def test_a_will_for_the_servers_own_topics_is_refused(
    broker: Dialer, version: ProtocolVersion, code: int
) -> None:
    client = dial(broker, version)
    client.send(Connect(version, ClientId(unique("client")), will=will(b"$SYS/broker/version")))
    first, body = client.receive_raw() or (0, b"")
    assert (first, body[1]) == (0x20, code)
    client.expect_end()


def test_a_will_that_is_not_the_utf_8_it_claims_is_refused(broker: Dialer) -> None:
    """§3.1.3.2.3, 0x99"""
    client = dial(broker)
    bad = will(topic(), b"\xff", payload_format_indicator=1)
    client.send(Connect(V5, ClientId(unique("client")), will=bad))
    client.expect_refusal(ReasonCode.PAYLOAD_FORMAT_INVALID)


class TestDelay:
    """[MQTT-3.1.3-9] §3.1.3.2.2"""

    def test_a_will_waits_for_its_delay(self, lab: Lab) -> None:
        watcher = watching(lab, last := topic("will"))
        patient = will(last, will_delay_interval=10)
        connect(lab, will=patient, session_expiry_interval=100).cut()
        lab.advance(9)
        watcher.expect_quiet()
        lab.advance(2)
        assert watcher.take().payload == b"gone"

    def test_a_will_is_said_no_later_than_the_session_ends(self, lab: Lab) -> None:
        watcher = watching(lab, last := topic("will"))
        patient = will(last, will_delay_interval=1000)
        connect(lab, will=patient, session_expiry_interval=10).cut()
        lab.advance(9)
        watcher.expect_quiet()
        lab.advance(2)
        assert watcher.take().payload == b"gone"

    def test_a_will_of_a_session_without_expiry_does_not_wait(self, broker: Dialer) -> None:
        watcher = watching(broker, last := topic("will"))
        connect(broker, will=will(last, will_delay_interval=1000)).cut()
        assert watcher.take().payload == b"gone"

    def test_mqtt_3_1_3_9_who_returns_in_time_has_no_will_said(self, lab: Lab) -> None:
        """[MQTT-3.1.3-9]"""
        watcher = watching(lab, last := topic("will"))
        name, patient = unique("client"), will(last, will_delay_interval=10)
        connect(lab, client_id=name, will=patient, session_expiry_interval=100).cut()
        lab.advance(5)
        connect(lab, client_id=name, clean=False, session_expiry_interval=100)
        lab.advance(100)
        watcher.expect_quiet()

    def test_mqtt_3_1_4_3_a_takeover_by_nobody_proven_says_the_will(self, lab: Lab) -> None:
        """C23: quantumqtt §10.3 suppresses it for a proven identity only."""
        watcher = watching(lab, last := topic("will"))
        name = unique("client")
        connect(lab, client_id=name, will=will(last), session_expiry_interval=100)
        connect(lab, client_id=name, clean=False, session_expiry_interval=100)
        assert watcher.take().payload == b"gone"
        lab.advance(100)
        watcher.expect_quiet()

    def test_the_new_connections_will_stands(self, lab: Lab) -> None:
        watcher = watching(lab, last := topic("will"))
        name = unique("client")
        connect(lab, client_id=name, will=will(last, b"old"))
        connect(lab, client_id=name, will=will(last, b"new")).cut()
        assert [watcher.take().payload for _ in range(2)] == [b"old", b"new"]
        watcher.expect_quiet()
