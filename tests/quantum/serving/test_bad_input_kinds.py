"""Each kind of bad input, in each version: ended in time, counted, audited, and nobody notices.

Truncated, oversized, slow-drip and never-ending packets, invalid UTF-8, reserved bits and a wrong
first packet. What the standard says to each of many faults is in `test_bad_input`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import pytest

from clustor.runtime.audit.log import AuditLog
from quantum.node.telemetry import BrokerTelemetry
from quantum.protocols.mqtt.codec import ProtocolVersion, ReasonCode
from quantum.protocols.mqtt.session.large_packets import whole_within_ms
from quantum.protocols.mqtt.session.limits import MqttLimits
from tests.quantum.serving.client import V5, V31, V311, Client, connect, dial
from tests.quantum.serving.lab import TENANT, Lab, LabLine
from tests.quantum.serving.test_refusals_audited import Desk

VERSIONS = [V31, V311, V5]
HELD_BYTES_MAX = 20_000


def publish(version: ProtocolVersion, topic: bytes, rest: bytes = b"") -> bytes:
    """A PUBLISH whose topic, with its length, is these bytes."""
    body = topic + (b"\0" if version is V5 else b"") + rest
    return bytes((0x30, len(body))) + body


@dataclass(frozen=True)
class Kind:
    """What a client does, and how it ends."""

    do: Callable[[Lab, Client], None]
    reason: ReasonCode | None
    """The reason that MQTT 5 tells; None: the connection closes without a word in each version."""
    is_live: bool = True


def send(say: Callable[[ProtocolVersion], bytes]) -> Callable[[Lab, Client], None]:
    return lambda _lab, client: client.send(say(client.version))


def drip_a_publish(lab: Lab, client: Client) -> None:
    """One byte in five seconds, which keep-alive allows for ever."""
    client.send(b"\x30\xff\x7f\x00")
    for _ in range(whole_within_ms(16_384) // 5_000 + 2):
        client.send(b"x")
        lab.advance(5)


def drip_a_connect(lab: Lab, client: Client) -> None:
    for byte in b"\x10\x7f\x00\x04MQTT":
        client.send(bytes((byte,)))
        lab.advance(1)


def never_end_a_publish(_lab: Lab, client: Client) -> None:
    """As large as may be, and then on and on."""
    client.send(b"\x30\x9c\x9c\x01")  # 19,996 bytes follow, it says
    for _ in range(100):
        if line_of(client).is_closed:
            return
        client.send(b"\xff" * 1000)
        assert line_of(client).handler.reader.buffered_bytes <= HELD_BYTES_MAX


MALFORMED, PROTOCOL = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
KINDS = {
    "truncated": Kind(send(lambda version: publish(version, b"\xff\xfft")), MALFORMED),
    "truncated CONNECT": Kind(send(lambda _: b"\x10\x08\0\x04MQTT\x04\x02"), None, is_live=False),
    "oversized": Kind(send(lambda _: b"\x30\xff\xff\xff\x7f"), ReasonCode.PACKET_TOO_LARGE),
    "oversized CONNECT": Kind(send(lambda _: b"\x10\xff\xff\xff\x7f"), None, is_live=False),
    "slow drip": Kind(drip_a_publish, ReasonCode.QUOTA_EXCEEDED),
    "slow drip of a CONNECT": Kind(drip_a_connect, None, is_live=False),
    "never-ending": Kind(never_end_a_publish, MALFORMED),
    "never-ending length": Kind(send(lambda _: b"\x30\xff\xff\xff\xff\xff\xff"), MALFORMED),
    "invalid UTF-8": Kind(send(lambda each: publish(each, b"\0\x03\xed\xa0\x80")), MALFORMED),
    "reserved bits": Kind(send(lambda _: b"\x36\x06\0\1t\0\1\0"), MALFORMED),  # QoS 3
    "reserved type": Kind(send(lambda _: b"\x00\x00"), MALFORMED),
    "wrong first packet": Kind(send(lambda each: publish(each, b"\0\1t")), None, is_live=False),
    "no MQTT at all": Kind(send(lambda _: b"GET / HTTP/1.1\r\n\r\n"), None, is_live=False),
}


def line_of(client: Client) -> LabLine:
    return cast("LabLine", client.line)


@pytest.fixture
def lab() -> Lab:
    lab = Lab(MqttLimits(packet_bytes_max=HELD_BYTES_MAX))
    lab.service.audit = cast("AuditLog", Desk())
    return lab


@pytest.mark.parametrize("version", VERSIONS, ids=["3.1", "3.1.1", "5"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_it_ends_counted_and_audited_and_nobody_notices(
    lab: Lab, kind: Kind, version: ProtocolVersion
) -> None:
    """[MQTT-4.13.1-1] [MQTT-4.13.2-1], 3.1.1 [MQTT-4.8.0-1]"""
    other = connect(lab, client_id="other")
    other.subscribe(b"canary", 1)
    client = connect(lab, version, client_id="bad") if kind.is_live else dial(lab, version)
    kind.do(lab, client)
    if version is V5 and kind.reason is not None:
        client.expect_disconnect(kind.reason)
    client.expect_end()
    assert_counted_and_audited(lab, is_live=kind.is_live)
    assert lab.service.mqtt.connections == 1 and lab.service.mqtt.large.bytes == 0
    other.publish(b"canary", b"sings", 1)
    assert other.take().payload == b"sings"
    other.expect_quiet()


@pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
def test_reserved_flags_are_no_business_of_3_1(lab: Lab, version: ProtocolVersion) -> None:
    """[MQTT-2.1.3-1]; to MQTT 3.1 they are not used, and nothing else."""
    connect(lab, V31).send(b"\xc1\x00")
    assert not lab.service.mqtt.faults
    client = connect(lab, version, client_id="bad")
    client.send(b"\xc1\x00")
    if version is V5:
        client.expect_disconnect(MALFORMED)
    client.expect_end()
    assert_counted_and_audited(lab, is_live=True)


def assert_counted_and_audited(lab: Lab, *, is_live: bool) -> None:
    ((why, count),) = lab.service.mqtt.faults.items()
    assert count == 1
    (told,) = cast("Desk", lab.service.audit).told
    assert (told["what"], told["why"]) == ("MalformedPacket", why)
    assert (told["who"], told["tenant"]) == (("- bad", TENANT) if is_live else ("lab", ""))


def test_the_count_is_a_metric(lab: Lab) -> None:
    connect(lab).send(b"\xc1\x00")
    families = (each for each in BrokerTelemetry(lab.service).families() if each is not None)
    found = next(each for each in families if each.name == "quantum.faults_total")
    assert [value for _, value in found.series] == [1]


def test_a_steady_sender_of_large_packets_is_no_drip(lab: Lab) -> None:
    """At every look a packet of it is not whole, and each time it is another one."""
    client = connect(lab)
    packet = publish(V5, b"\0\1t", b"x" * 100)
    client.send(packet[:50])
    for _ in range(whole_within_ms(len(packet)) // 5_000 + 5):
        client.send(packet[50:] + packet[:50])
        lab.advance(5)
    client.send(packet[50:])
    client.expect_quiet()


def test_who_is_held_is_not_blamed_for_our_silence(lab: Lab) -> None:
    client = connect(lab)
    packet = publish(V5, b"\0\1t", b"x" * 100)
    client.send(packet[:50])
    line_of(client).handler.hold()
    for _ in range(30):
        lab.advance(5)
    line_of(client).handler.let_go()
    lab.advance(5)
    client.send(packet[50:])
    client.expect_quiet()


def test_a_refusal_of_the_session_is_no_fault(lab: Lab) -> None:
    """What is well-formed and not allowed is counted elsewhere."""
    client = dial(lab, V5)
    client.send(b"\x10\x1b\0\x04MQTT\x05\x02\0\0\x08\x15\0\x05hello\0\x06nobody")
    client.expect_refusal(ReasonCode.BAD_AUTHENTICATION_METHOD)
    assert not lab.service.mqtt.faults
