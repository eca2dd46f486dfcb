"""1,356 packet sequences that nobody here wrote, as an oracle for the codec.

They are read where they stand, beside the project; without them these tests are skipped.
What a broker is expected to accept must decode. What it is expected to close on must be
refused, save for the cases that no single packet decides, which are named here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from quantum.protocols.mqtt.codec import (
    Connect,
    Direction,
    Disconnect,
    Packet,
    PacketReader,
    PeerFault,
    ProtocolVersion,
    UnsupportedProtocol,
    decode_packet,
)
from quantum.protocols.mqtt.codec.primitives import encode_variable


def _find() -> Path | None:
    """Find `shared/suites/mqtt-sequences` beside the project or beside one of its parents."""
    for parent in Path(__file__).resolve().parents:
        folder = parent / "shared" / "suites" / "mqtt-sequences"
        if folder.is_dir():
            return folder
    return None


SUITE = _find()
pytestmark = pytest.mark.skipif(SUITE is None, reason="no ../shared/suites/mqtt-sequences here")

_SIZES = {"i": 1, "H": 2, "k": 2, "m": 2, "s": 2, "L": 4}

# What only a session can decide, by what stands in the sequence's name.
BY_SESSION = {
    "[MQTT-3.1.0-1]": "a first packet other than CONNECT",
    "[MQTT-3.1.0-2]": "a second CONNECT",
    "duplicate CONNECT": "a second CONNECT",
    "empty client ID": "an empty client identifier where the server assigns none",
    "unsupported authentication method": "which methods there are",
    "tiny max packet": "a CONNACK that does not fit",
    "Dup flow*3": "a packet identifier in use",
    "topic alias > max topic alias": "the alias maximum that was granted",
    "topic-alias (two byte integer) no topic": "an alias that was never set",
    "non-zero session expiry": "an expiry that was zero at CONNECT",
    "Will topic with $CONTROL": "who may publish there",
}


class Sequence(NamedTuple):
    version: ProtocolVersion
    closes: bool
    sent: list[bytes]
    code: int | None  # what the broker is expected to say before it closes


def read_payload(text: str) -> bytes:
    """Read the suite's notation: numbers by their type letter, quoted text, or hexadecimal."""
    parts: list[bytes] = []
    for token in text.split():
        kind, rest = token[0], token[1:]
        if kind == "'":
            parts.append(rest.removesuffix("'").encode())
        elif kind in _SIZES:
            parts.append(int(rest).to_bytes(_SIZES[kind], "big"))
        elif kind in "vr":
            # 268435456 stands for 'one more than four bytes can say', in five of them.
            number = int(rest)
            parts.append(b"\x80\x80\x80\x80\x01" if number >> 28 else encode_variable(number))
        else:
            parts.append(bytes.fromhex(token))
    return b"".join(parts)


def sequences() -> Iterator[tuple[str, Sequence]]:
    for path in sorted(SUITE.glob("*.json")) if SUITE else ():
        for group in json.loads(path.read_text()):
            for test in group["tests"]:
                settings: dict[str, Any] = {**group, **test}
                messages = [
                    (message["type"], read_payload(message["payload"]))
                    for message in test["msgs"]
                    if message["type"] in ("send", "recv")
                ]
                yield (
                    f"{group['group']} {test['name']}",
                    Sequence(
                        ProtocolVersion(settings.get("ver", 4)),
                        settings.get("expect_disconnect", True),
                        [payload for kind, payload in messages if kind == "send"],
                        refusal_in([payload for kind, payload in messages if kind == "recv"]),
                    ),
                )


def refusal_in(received: list[bytes]) -> int | None:
    last = received[-1] if received else b""
    if last[:1] == b"\xe0":
        return last[2]
    return last[3] if last[:1] == b"\x20" and last[3] else None


def feed(sequence: Sequence) -> tuple[list[Packet], PeerFault | None, int]:
    """Decode all that is sent: the packets, the fault that ended them, and the bytes left."""
    version = sequence.version
    reader = PacketReader(1 << 20)
    packets: list[Packet] = []
    for payload in sequence.sent:
        reader.receive(payload)
    try:
        while (found := reader.next_packet()) is not None:
            packet = decode_packet(*found, version, direction=Direction.TO_SERVER)
            version = packet.version if isinstance(packet, Connect) else version
            packets.append(packet)
    except PeerFault as fault:
        return packets, fault, reader.buffered_bytes
    return packets, None, reader.buffered_bytes


CASES = list(sequences())


def of_session(label: str) -> bool:
    return any(part in label for part in BY_SESSION)


def test_the_suite_is_whole() -> None:
    assert len(CASES) >= 1_356


@pytest.mark.parametrize(
    "sequence",
    [pytest.param(sequence, id=label) for label, sequence in CASES if not sequence.closes],
)
def test_what_a_broker_accepts_decodes(sequence: Sequence) -> None:
    packets, fault, left = feed(sequence)
    assert fault is None
    assert left == 0 and packets


@pytest.mark.parametrize(
    "sequence",
    [
        pytest.param(sequence, id=label)
        for label, sequence in CASES
        if sequence.closes and not of_session(label)
    ],
)
def test_what_a_broker_closes_on_is_refused(sequence: Sequence) -> None:
    packets, fault, left = feed(sequence)
    if fault is not None:
        return
    # No fault: then the client said goodbye, or its packet is not whole yet.
    assert left or isinstance(packets[-1], Disconnect)


def test_reasons_differ_only_where_the_standard_says_so() -> None:
    """The suite tells what one broker answers; these are the places where the text says other.

    §2.2.2.2: a property that its packet cannot hold is malformed (the suite: protocol error).
    [MQTT-2.1.3-1]: reserved flags are malformed. §1.5.4: a client identifier that is ill-formed is
    malformed, not 'not valid'. §3.3.2.1, [MQTT-3.8.3-2], §3.8.3.1, [MQTT-3.10.3-2]: protocol
    errors (the suite: malformed). A packet identifier 0 is read and not allowed: a protocol
    error everywhere (the suite: malformed in SUBSCRIBE and UNSUBSCRIBE only).
    """
    differences: dict[tuple[int, int, str], int] = {}
    agreed = 0
    for label, sequence in CASES:
        _, fault, _ = feed(sequence)
        if fault is None or sequence.code is None or sequence.code < 0x80 or of_session(label):
            continue
        if fault.reason_code == sequence.code:
            agreed += 1
        else:
            key = (sequence.code, int(fault.reason_code), fault.reason)
            differences[key] = differences.get(key, 0) + 1
    assert set(differences) == {
        (0x82, 0x81, "property not allowed here"),
        (0x82, 0x81, "reserved flags are set"),
        (0x85, 0x81, "U+0000 in a string"),
        (0x85, 0x81, "ill-formed UTF-8"),
        (0x81, 0x82, "neither topic nor topic alias"),
        (0x81, 0x82, "subscribe to nothing"),
        (0x81, 0x82, "subscription option out of range"),
        (0x81, 0x82, "unsubscribe from nothing"),
        (0x81, 0x82, "packet identifier 0"),
    }
    assert agreed > 300


def test_unsupported_versions_are_told_so() -> None:
    levels = [
        fault.level
        for _, sequence in CASES
        if isinstance(fault := feed(sequence)[1], UnsupportedProtocol)
    ]
    assert {2, 3, 4, 6} <= set(levels)
