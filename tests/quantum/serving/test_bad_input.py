"""What is wrong gets what the standard says, is counted, and disturbs nobody (MQTT 5, 4.13)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from quantum.protocols.mqtt.codec import ProtocolVersion, Puback, ReasonCode
from quantum.protocols.mqtt.session.limits import MqttLimits
from tests.quantum.serving.client import V5, V31, V311, Client, Dialer, connect, dial, topic
from tests.quantum.serving.lab import Lab, LabLine

MALFORMED, PROTOCOL = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR


@pytest.fixture(autouse=True)
def _canary(request: pytest.FixtureRequest) -> Iterator[None]:
    """Another client is live before and after, and its messages still come."""
    name = next((each for each in ("broker", "lab") if each in request.fixturenames), None)
    if name is None:
        yield
        return
    broker: Dialer = request.getfixturevalue(name)
    canary = connect(broker, client_id="canary")
    canary.subscribe(b"canary", 1)
    yield
    canary.publish(b"canary", b"sings", 1)
    assert canary.take().payload == b"sings"
    canary.expect_quiet()


# what is sent on a live connection of MQTT 5, and the reason that comes back
LIVE = {
    "[MQTT-2.1.3-1] reserved flags of PINGREQ": ("c100", MALFORMED),
    "[MQTT-2.1.3-1] reserved flags of DISCONNECT": ("e100", MALFORMED),
    "[MQTT-3.6.1-1] flags of PUBREL": ("60020001", MALFORMED),
    "[MQTT-3.8.1-1] flags of SUBSCRIBE": ("800700010000017400", MALFORMED),
    "[MQTT-3.10.1-1] flags of UNSUBSCRIBE": ("a006000100000174", MALFORMED),
    "[MQTT-3.1.0-2] a CONNECT of another version": ("100d00044d5154540302003c000161", PROTOCOL),
    "§2.1.2 packet type 0": ("0000", MALFORMED),
    "a CONNACK from a client": ("20020000", PROTOCOL),
    "a SUBACK from a client": ("9003000100", PROTOCOL),
    "an UNSUBACK from a client": ("b003000100", PROTOCOL),
    "a PINGRESP from a client": ("d000", PROTOCOL),
    "[MQTT-3.3.1-4] QoS 3": ("3605000174000100", MALFORMED),
    "[MQTT-3.3.1-2] DUP of QoS 0": ("380400017400", MALFORMED),
    "[MQTT-2.2.1-2] packet id 0": ("320600017400000000", PROTOCOL),
    "[MQTT-1.5.4-1] ill-formed topic": ("30060003eda08000", MALFORMED),
    "[MQTT-1.5.4-2] U+0000": ("3004000100" + "00", MALFORMED),
    "§2.2.2.2 unknown property": ("3007000174" + "03" + "7f0001", MALFORMED),
    "§2.2.2.2 property of another packet": ("3007000174" + "03" + "130001", MALFORMED),
    "§3.3.2.3 property twice": ("300a000174" + "0601010101" + "0101", PROTOCOL),
    "a property length beyond the packet": ("3004000174" + "ff", MALFORMED),
    "a topic length beyond the packet": ("3004ffff7400", MALFORMED),
    "[MQTT-3.8.3-2] SUBSCRIBE to nothing": ("8203000100", PROTOCOL),
    "[MQTT-3.8.3-5] reserved options": ("8207000100000174" + "40", MALFORMED),
    "§3.8.3.1 QoS 3": ("8207000100000174" + "03", PROTOCOL),
    "[MQTT-3.10.3-2] UNSUBSCRIBE from nothing": ("a203000100", PROTOCOL),
    "§3.8.2.1.2 identifier 0": ("820900010" + "20b00000174" + "00", PROTOCOL),
    "[MQTT-1.5.5-1] a length in five bytes": ("30ffffffff7f", MALFORMED),
    "[MQTT-1.5.5-1] a length with a byte too many": ("c08000", MALFORMED),
    "a packet beyond every limit": ("30ffffff7f", ReasonCode.PACKET_TOO_LARGE),
    "bytes after the end": ("c00100", MALFORMED),
    "a reason code that is none": ("400400010300", PROTOCOL),
    "PUBACK without a packet id": ("400100", MALFORMED),
}


@pytest.mark.parametrize(("sent", "reason"), LIVE.values(), ids=LIVE.keys())
def test_mqtt_4_13_a_fault_is_told_and_the_connection_closed(
    broker: Dialer, sent: str, reason: ReasonCode
) -> None:
    """[MQTT-4.13.1-1] [MQTT-4.13.2-1]"""
    client = connect(broker)
    client.send(bytes.fromhex(sent))
    client.expect_disconnect(reason)


# the same for MQTT 3.1.1: closed without a word (3.1.1 [MQTT-4.8.0-1])
OLD = [
    "c100",
    "60020001",
    "8006000100017400",
    "0000",
    "20020000",
    "d000",
    "3605000174000100",
    "380300017400",
    "3205000174000000",
    "30050003eda080",
    "30ffffffff7f",
    "82020001",
    "8206000100017403",
    "a2020001",
    "f000",
]


@pytest.mark.parametrize("sent", OLD)
def test_3_1_1_mqtt_4_8_0_1_a_fault_closes(broker: Dialer, sent: str) -> None:
    """3.1.1 [MQTT-4.8.0-1] [MQTT-2.2.2-2] [MQTT-3.3.1-4] [MQTT-3.8.3-3] [MQTT-3.8.3-4]"""
    client = connect(broker, V311)
    client.send(bytes.fromhex(sent))
    client.expect_end()


HEAD = "00044d515454"
# a CONNECT that is wrong, and its answer: (return code or reason code), or None for silence
FIRST = {
    "no MQTT at all": ("474554202f20485454502f312e310d0a0d0a", None),
    "PUBLISH first": ("300300017401", None),
    "CONNACK first": ("20020000", None),
    "an ill-formed length": ("10ffffffffff", None),
    "a CONNECT beyond its limit": ("10ffffff7f", None),
    "an unknown name": ("100d" + "00044d515455" + "0502003c000161", None),
    "level 6": ("100d" + HEAD + "0602003c000161", 0x84),
    "level 2": ("100d" + HEAD + "0202003c000161", 0x01),
    "3.1.1 reserved flag": ("100d" + HEAD + "0403003c000161", None),
    "3.1.1 truncated": ("100a" + HEAD + "0402003c", None),
    "5 reserved flag": ("100e" + HEAD + "0503003c00000161", None),
    "5 no keep alive": ("1008" + HEAD + "0502", None),
    "5 a property that cannot be there": ("1010" + HEAD + "0502003c020100000161", 0x81),
    "5 a property twice": ("1012" + HEAD + "0502003c0417011701000161", 0x82),
    "5 receive maximum 0": ("1011" + HEAD + "0502003c03210000000161", 0x82),
    "5 an ill-formed client id": ("1010" + HEAD + "0502003c000003eda080", 0x81),
    "5 a control character in it": ("100e" + HEAD + "0502003c0000017f", 0x85),
    "5 surplus": ("100f" + HEAD + "0502003c0000016100", 0x81),
    "5 an ill-formed user": ("1013" + HEAD + "0582003c000001610003eda080", None),
    "5 a will without its topic": ("100e" + HEAD + "0506003c00000161", 0x81),
}


@pytest.mark.parametrize(("sent", "code"), FIRST.values(), ids=FIRST.keys())
def test_a_wrong_first_packet(broker: Dialer, sent: str, code: int | None) -> None:
    """[MQTT-3.1.0-1] [MQTT-3.1.2-1] [MQTT-3.1.2-2] [MQTT-3.1.4-1] [MQTT-3.1.4-2]"""
    client = dial(broker)
    client.send(bytes.fromhex(sent))
    if code is not None:
        first, body = client.receive_raw() or (0, b"")
        assert (first, body[0], body[1]) == (0x20, 0, code)
    client.expect_end()


class TestCounting:
    def test_every_fault_is_counted(self, lab: Lab) -> None:
        sent = [(sent, True) for sent, _ in LIVE.values()]
        sent += [(sent, False) for sent, _ in FIRST.values()]
        for number, (data, is_live) in enumerate(sent, 1):
            client = connect(lab) if is_live else dial(lab)
            client.send(bytes.fromhex(data))
            assert sum(lab.service.mqtt.faults.values()) == number, (data, lab.service.mqtt.faults)
        assert lab.service.mqtt.connections == 1  # the canary

    def test_their_names_are_few(self, lab: Lab) -> None:
        """What is counted is named by us: a peer cannot make the table grow."""
        for number in range(100):
            client = connect(lab)
            client.send(bytes((0x10 | number % 16, 0)))
        assert len(lab.service.mqtt.faults) < 10


class TestDrip:
    """Byte by byte, or never all of it: bounded in time and memory"""

    @pytest.mark.parametrize("version", [V31, V311, V5])
    def test_a_client_may_be_slow(self, lab: Lab, version: ProtocolVersion) -> None:
        name = topic()
        reader = connect(lab)
        reader.subscribe(name, 1)
        tail = b"\0" if version is V5 else b""
        packet = b"\0" + bytes((len(name),)) + name + b"\0\1" + tail + b"payload"
        client = connect(lab, version)
        for byte in bytes((0x32, len(packet))) + packet:
            client.send(bytes((byte,)))
        assert client.expect(Puback).packet_id == 1
        assert reader.take().payload == b"payload"

    def test_a_packet_that_never_ends_holds_no_more_than_one(self) -> None:
        lab = Lab(MqttLimits(packet_bytes_max=10_000))
        client = connect(lab)
        client.send(b"\x30\x8c\x4e")  # 9,996 bytes follow, it says
        for _ in range(9):
            client.send(b"x" * 1000)
        assert held(client) <= 10_000
        client.send(b"x" * 996)
        assert held(client) == 0  # it is whole, and was no packet
        client.expect_disconnect(MALFORMED)

    def test_a_connect_that_drips_is_dropped_in_time(self, lab: Lab) -> None:
        client = dial(lab)
        for byte in bytes.fromhex("100d" + HEAD):
            client.send(bytes((byte,)))
            lab.advance(1)
        client.expect_end()

    def test_keep_alive_ends_a_drip_that_stops(self, lab: Lab) -> None:
        client = connect(lab, keep_alive=10)
        client.send(b"\x30\x7f\0")
        lab.advance(16)
        client.expect_disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT)


def held(client: Client) -> int:
    """How many bytes of a client's the broker holds."""
    line = client.line
    assert isinstance(line, LabLine)
    return line.handler.reader.buffered_bytes


@pytest.mark.parametrize("seed", range(40))
def test_noise_harms_nobody(lab: Lab, seed: int) -> None:
    """Bytes by chance, and true packets with bytes changed: an answer, a close, or silence."""
    chance = random.Random(seed)
    for _ in range(20):
        version = chance.choice([V31, V311, V5])
        is_live = chance.random() < 0.7
        client = connect(lab, version) if is_live else dial(lab, version)
        data = bytearray(bytes.fromhex(chance.choice([sent for sent, _ in LIVE.values()])))
        data += chance.randbytes(chance.randrange(20))
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        client.send(bytes(data))
        if isinstance(client.line, LabLine) and not client.line.is_closed:
            client.cut()
    lab.advance(1)
    assert lab.service.mqtt.connections == 1
