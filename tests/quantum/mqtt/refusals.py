"""What the two standards forbid in one packet, by the number of the statement.

A case without a number carries its section. Notation and vectors are as in `vectors.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from quantum.protocols.mqtt.codec import (
    Direction,
    MalformedPacket,
    PeerFault,
    ProtocolVersion,
    ProtocolViolation,
)
from tests.quantum.mqtt.vectors import V5, V311, wire

MALFORMED, VIOLATION = MalformedPacket, ProtocolViolation
CLIENT = Direction.TO_CLIENT


class Refused(NamedTuple):
    version: ProtocolVersion
    first_byte: int
    notation: str
    fault: type[PeerFault] = MalformedPacket
    code: int = 0x81
    direction: Direction = Direction.TO_SERVER


def malformed(version: ProtocolVersion, first_byte: int, notation: str) -> Refused:
    return Refused(version, first_byte, notation)


def violation(
    version: ProtocolVersion, first_byte: int, notation: str, code: int = 0x82
) -> Refused:
    return Refused(version, first_byte, notation, ProtocolViolation, code)


HEAD_4 = "0004 'MQTT' 04"
HEAD_5 = "0004 'MQTT' 05"
ILL_FORMED = {
    "a surrogate": "0003 eda080",
    "the last surrogate": "0003 edbfbf",
    "an overlong slash": "0002 c0af",
    "a lone continuation": "0001 80",
    "a cut sequence": "0002 e282",
    "beyond Unicode": "0004 f4908080",
    "U+0000": "0003 610062",
    "an overlong U+0000": "0002 c080",
}

REFUSED_BY_BOTH = {
    f"{standard} {ids} {what} is {label}": malformed(version, first, notation.format(text))
    for label, text in ILL_FORMED.items()
    for standard, version, ids, what, first, notation in (
        ("3.1.1", V311, "[MQTT-1.5.3-1] [MQTT-1.5.3-2] [MQTT-3.3.2-1]", "topic", 0x30, "{}"),
        ("3.1.1", V311, "[MQTT-3.8.3-1]", "filter", 0x82, "0001 {} 00"),
        ("3.1.1", V311, "[MQTT-3.10.3-1]", "filter", 0xA2, "0001 {}"),
        ("3.1.1", V311, "[MQTT-3.1.3-4]", "client", 0x10, HEAD_4 + " 02 0000 {}"),
        ("3.1.1", V311, "[MQTT-3.1.3-10]", "will", 0x10, HEAD_4 + " 06 0000 0001 'c' {} 0000"),
        ("3.1.1", V311, "[MQTT-3.1.3-11]", "user", 0x10, HEAD_4 + " 82 0000 0001 'c' {}"),
        ("5.0", V5, "[MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT-3.3.2-1]", "topic", 0x30, "{} 00"),
        ("5.0", V5, "[MQTT-3.8.3-1]", "filter", 0x82, "0001 00 {} 00"),
        ("5.0", V5, "[MQTT-3.10.3-1]", "filter", 0xA2, "0001 00 {}"),
        ("5.0", V5, "[MQTT-3.1.3-4]", "client", 0x10, HEAD_5 + " 02 0000 00 {}"),
        ("5.0", V5, "[MQTT-3.1.3-11]", "will", 0x10, HEAD_5 + " 06 0000 00 0001 'c' 00 {} 0000"),
        ("5.0", V5, "[MQTT-3.1.3-12]", "user", 0x10, HEAD_5 + " 82 0000 00 0001 'c' {}"),
    )
} | {
    f"5.0 {ids} is {label}": malformed(
        V5, 0x30, f"0001 't' {len(wire(text)) + 1 + extra:02x} {before} {text} {after}"
    )
    for label, text in ILL_FORMED.items()
    for ids, extra, before, after in (
        ("[MQTT-3.3.2-13] response topic", 0, "08", ""),
        ("[MQTT-3.3.2-19] content type", 0, "03", ""),
        ("[MQTT-1.5.7-1] name of a pair", 3, "26", "0001 'v'"),
        ("[MQTT-1.5.7-1] value of a pair", 3, "26 0001 'k'", ""),
    )
}

CONNECTS_3_1_1 = {
    "[MQTT-3.1.2-3] reserved flag": malformed(V311, 0x10, HEAD_4 + " 03 0000 0001 'c'"),
    "[MQTT-3.1.2-9] will without topic": malformed(V311, 0x10, HEAD_4 + " 06 0000 0001 'c'"),
    "[MQTT-3.1.2-9] will without message": malformed(
        V311, 0x10, HEAD_4 + " 06 0000 0001 'c' 0001 'w'"
    ),
    "[MQTT-3.1.2-11] fields of no will": malformed(
        V311, 0x10, HEAD_4 + " 02 0000 0001 'c' 0001 'w' 0000"
    ),
    "[MQTT-3.1.2-13] QoS 1 of no will": malformed(V311, 0x10, HEAD_4 + " 0a 0000 0001 'c'"),
    "[MQTT-3.1.2-13] QoS 2 of no will": malformed(V311, 0x10, HEAD_4 + " 12 0000 0001 'c'"),
    "[MQTT-3.1.2-14] will of QoS 3": malformed(
        V311, 0x10, HEAD_4 + " 1e 0000 0001 'c' 0001 'w' 0000"
    ),
    "[MQTT-3.1.2-15] retain of no will": malformed(V311, 0x10, HEAD_4 + " 22 0000 0001 'c'"),
    "[MQTT-3.1.2-18] user name without flag": malformed(
        V311, 0x10, HEAD_4 + " 02 0000 0001 'c' 0001 'u'"
    ),
    "[MQTT-3.1.2-19] flag without user name": malformed(V311, 0x10, HEAD_4 + " 82 0000 0001 'c'"),
    "[MQTT-3.1.2-20] password without flag": malformed(
        V311, 0x10, HEAD_4 + " 82 0000 0001 'c' 0001 'u' 0001 'p'"
    ),
    "[MQTT-3.1.2-21] flag without password": malformed(
        V311, 0x10, HEAD_4 + " c2 0000 0001 'c' 0001 'u'"
    ),
    "[MQTT-3.1.2-22] password flag alone": malformed(
        V311, 0x10, HEAD_4 + " 42 0000 0001 'c' 0001 'p'"
    ),
    "[MQTT-3.1.3-1] fields out of order": malformed(
        V311, 0x10, HEAD_4 + " 86 0000 0001 'c' 0001 '#' 0001 'w' 0000"
    ),
    "[MQTT-3.1.3-3] no client identifier": malformed(V311, 0x10, HEAD_4 + " 02 0000"),
    "[MQTT-3.1.4-1] surplus byte": malformed(V311, 0x10, HEAD_4 + " 02 0000 0001 'c' 00"),
    "[MQTT-4.7.1-1] will topic with a wildcard": malformed(
        V311, 0x10, HEAD_4 + " 06 0000 0001 'c' 0001 '+' 0000"
    ),
    "§1.5.3 control character in a client identifier": malformed(
        V311, 0x10, HEAD_4 + " 02 0000 0001 1f"
    ),
}

CONNECTS_5 = {
    "[MQTT-2.2.2-1] no property length": malformed(V5, 0x10, HEAD_5 + " 02 0000"),
    "[MQTT-3.1.2-3] reserved flag": malformed(V5, 0x10, HEAD_5 + " 03 0000 00 0001 'c'"),
    "[MQTT-3.1.2-9] will without properties": malformed(V5, 0x10, HEAD_5 + " 06 0000 00 0001 'c'"),
    "[MQTT-3.1.2-9] will without topic": malformed(V5, 0x10, HEAD_5 + " 06 0000 00 0001 'c' 00"),
    "[MQTT-3.1.2-9] will without payload": malformed(
        V5, 0x10, HEAD_5 + " 06 0000 00 0001 'c' 00 0001 'w'"
    ),
    "[MQTT-3.1.2-11] QoS 1 of no will": malformed(V5, 0x10, HEAD_5 + " 0a 0000 00 0001 'c'"),
    "[MQTT-3.1.2-12] will of QoS 3": malformed(
        V5, 0x10, HEAD_5 + " 1e 0000 00 0001 'c' 00 0001 'w' 0000"
    ),
    "[MQTT-3.1.2-13] retain of no will": malformed(V5, 0x10, HEAD_5 + " 22 0000 00 0001 'c'"),
    "[MQTT-3.1.2-16] user name without flag": malformed(
        V5, 0x10, HEAD_5 + " 02 0000 00 0001 'c' 0001 'u'"
    ),
    "[MQTT-3.1.2-17] flag without user name": malformed(V5, 0x10, HEAD_5 + " 82 0000 00 0001 'c'"),
    "[MQTT-3.1.2-18] password without flag": malformed(
        V5, 0x10, HEAD_5 + " 82 0000 00 0001 'c' 0001 'u' 0001 'p'"
    ),
    "[MQTT-3.1.2-19] flag without password": malformed(
        V5, 0x10, HEAD_5 + " c2 0000 00 0001 'c' 0001 'u'"
    ),
    "[MQTT-3.1.3-1] fields out of order": malformed(
        V5, 0x10, HEAD_5 + " 06 0000 00 0001 'c' 0001 'w' 0000 00"
    ),
    "[MQTT-3.1.3-3] no client identifier": malformed(V5, 0x10, HEAD_5 + " 02 0000 00"),
    "§3.2.2.2 control character in a client identifier": Refused(
        V5, 0x10, HEAD_5 + " 02 0000 00 0001 1f", code=0x85
    ),
    "[MQTT-3.1.4-1] surplus byte": malformed(V5, 0x10, HEAD_5 + " 02 0000 00 0001 'c' 00"),
    "§3.1.2.11.3 receive maximum 0": violation(V5, 0x10, HEAD_5 + " 02 0000 03 21 0000 0001 'c'"),
    "§3.1.2.11.4 maximum packet size 0": violation(
        V5, 0x10, HEAD_5 + " 02 0000 05 27 00000000 0001 'c'"
    ),
    "§3.1.2.11.6 request response information 2": violation(
        V5, 0x10, HEAD_5 + " 02 0000 02 19 02 0001 'c'"
    ),
    "§3.1.2.11.7 request problem information 2": violation(
        V5, 0x10, HEAD_5 + " 02 0000 02 17 02 0001 'c'"
    ),
    "§3.1.2.11.10 authentication data without method": violation(
        V5, 0x10, HEAD_5 + " 02 0000 04 16 0001 'd' 0001 'c'"
    ),
    "§3.1.3.2.3 will payload format 2": violation(
        V5, 0x10, HEAD_5 + " 06 0000 00 0001 'c' 02 01 02 0001 'w' 0000"
    ),
    "§3.1.3.2.6 will response topic empty": violation(
        V5, 0x10, HEAD_5 + " 06 0000 00 0001 'c' 03 08 0000 0001 'w' 0000"
    ),
}

PUBLISHES_3_1_1 = {
    "[MQTT-2.3.1-1] QoS 1 with identifier 0": violation(V311, 0x32, "0001 't' 0000"),
    "[MQTT-2.3.1-1] QoS 2 with identifier 0": violation(V311, 0x34, "0001 't' 0000"),
    "[MQTT-2.3.1-1] QoS 1 without identifier": malformed(V311, 0x32, "0001 't'"),
    "[MQTT-3.3.1-2] duplicate of QoS 0": malformed(V311, 0x38, "0001 't'"),
    "[MQTT-3.3.1-4] QoS 3": malformed(V311, 0x36, "0001 't' 0001"),
    "[MQTT-3.3.2-1] no topic": malformed(V311, 0x30, ""),
    "[MQTT-3.3.2-1] half a topic": malformed(V311, 0x30, "0002 't'"),
    "[MQTT-3.3.2-2] topic with +": malformed(V311, 0x30, "0003 'a/+'"),
    "[MQTT-3.3.2-2] topic with #": malformed(V311, 0x30, "0001 '#'"),
    "[MQTT-4.7.3-1] empty topic": malformed(V311, 0x30, "0000"),
    "§1.5.3 control character in a topic": malformed(V311, 0x30, "0001 7f"),
    "§1.5.3 late control character in a topic": malformed(V311, 0x30, "0002 c29f"),
    "§1.5.3 non-character in a topic": malformed(V311, 0x30, "0003 efbfbf"),
}

PUBLISHES_5 = {
    "[MQTT-1.5.5-1] property length not minimal": malformed(V5, 0x30, "0001 't' 80 00"),
    "[MQTT-1.5.5-1] property identifier not minimal": malformed(V5, 0x30, "0001 't' 03 81 00 01"),
    "§1.5.5 property length of five bytes": malformed(V5, 0x30, "0001 't' 80 80 80 80 01"),
    "[MQTT-2.2.1-3] QoS 1 with identifier 0": violation(V5, 0x32, "0001 't' 0000 00"),
    "[MQTT-2.2.1-3] QoS 2 with identifier 0": violation(V5, 0x34, "0001 't' 0000 00"),
    "[MQTT-2.2.2-1] no property length": malformed(V5, 0x30, "0001 't'"),
    "§2.2.2.1 properties longer than the packet": malformed(V5, 0x30, "0001 't' 03 01 00"),
    "§2.2.2.2 property cut short": malformed(V5, 0x30, "0001 't' 02 02 00 000000"),
    "[MQTT-3.3.1-2] duplicate of QoS 0": malformed(V5, 0x38, "0001 't' 00"),
    "[MQTT-3.3.1-4] QoS 3": malformed(V5, 0x36, "0001 't' 0001 00"),
    "[MQTT-3.3.2-1] half a topic": malformed(V5, 0x30, "0002 't'"),
    "[MQTT-3.3.2-2] topic with +": malformed(V5, 0x30, "0003 'a/+' 00"),
    "[MQTT-3.3.2-2] topic with #": malformed(V5, 0x30, "0001 '#' 00"),
    "§3.3.2.1 neither topic nor alias": violation(V5, 0x30, "0000 00 'p'"),
    "§3.3.2.3.2 payload format 2": violation(V5, 0x30, "0001 't' 02 01 02"),
    "[MQTT-3.3.2-8] topic alias 0": violation(V5, 0x30, "0001 't' 03 23 0000", 0x94),
    "[MQTT-3.3.2-14] response topic with a wildcard": violation(
        V5, 0x30, "0001 't' 06 08 0003 'a/#'"
    ),
    "[MQTT-4.7.3-1] response topic empty": violation(V5, 0x30, "0001 't' 03 08 0000"),
    "[MQTT-3.3.4-6] subscription identifier of a client": violation(V5, 0x30, "0001 't' 02 0b 01"),
    "§3.3.2.3.8 subscription identifier 0": violation(V5, 0x30, "0001 't' 02 0b 00"),
}

FILTERS_3_1_1 = {
    "[MQTT-2.3.1-1] SUBSCRIBE with identifier 0": violation(V311, 0x82, "0000 0001 'a' 00"),
    "[MQTT-2.3.1-1] UNSUBSCRIBE with identifier 0": violation(V311, 0xA2, "0000 0001 'a'"),
    "[MQTT-3.8.3-3] SUBSCRIBE to nothing": violation(V311, 0x82, "0001"),
    "[MQTT-3.8.3-3] SUBSCRIBE without QoS": malformed(V311, 0x82, "0001 0001 'a'"),
    "[MQTT-3-8.3-4] QoS 3": malformed(V311, 0x82, "0001 0001 'a' 03"),
    "[MQTT-3-8.3-4] reserved bit 2": malformed(V311, 0x82, "0001 0001 'a' 04"),
    "[MQTT-3-8.3-4] reserved bit 7": malformed(V311, 0x82, "0001 0001 'a' 80"),
    "[MQTT-3-8.3-4] second QoS": malformed(V311, 0x82, "0001 0001 'a' 00 0001 'b' 03"),
    "[MQTT-3.10.3-2] UNSUBSCRIBE from nothing": violation(V311, 0xA2, "0001"),
    "[MQTT-4.7.1-2] # before the end": malformed(V311, 0x82, "0001 0003 '#/a' 00"),
    "[MQTT-4.7.1-2] # beside a character": malformed(V311, 0x82, "0001 0002 'a#' 00"),
    "[MQTT-4.7.1-3] + beside a character": malformed(V311, 0xA2, "0001 0004 'a/+b'"),
    "[MQTT-4.7.3-1] empty filter": malformed(V311, 0x82, "0001 0000 00"),
    "[MQTT-4.7.3-1] empty filter to end": malformed(V311, 0xA2, "0001 0001 'a' 0000"),
}

FILTERS_5 = {
    "[MQTT-2.2.1-3] SUBSCRIBE with identifier 0": violation(V5, 0x82, "0000 00 0001 'a' 00"),
    "[MQTT-2.2.1-3] UNSUBSCRIBE with identifier 0": violation(V5, 0xA2, "0000 00 0001 'a'"),
    "[MQTT-2.2.2-1] SUBSCRIBE without property length": malformed(V5, 0x82, "0001"),
    "[MQTT-2.2.2-1] UNSUBSCRIBE without property length": malformed(V5, 0xA2, "0001"),
    "[MQTT-3.8.3-2] SUBSCRIBE to nothing": violation(V5, 0x82, "0001 00"),
    "[MQTT-3.8.3-2] SUBSCRIBE without options": malformed(V5, 0x82, "0001 00 0001 'a'"),
    "§3.8.2.1.2 subscription identifier 0": violation(V5, 0x82, "0001 02 0b 00 0001 'a' 00"),
    "§3.8.2.1.2 subscription identifier twice": violation(
        V5, 0x82, "0001 04 0b 01 0b 02 0001 'a' 00"
    ),
    "[MQTT-1.5.5-1] subscription identifier not minimal": malformed(
        V5, 0x82, "0001 03 0b 80 00 0001 'a' 00"
    ),
    "§3.8.3.1 maximum QoS 3": violation(V5, 0x82, "0001 00 0001 'a' 03"),
    "§3.8.3.1 retain handling 3": violation(V5, 0x82, "0001 00 0001 'a' 30"),
    "[MQTT-3.8.3-4] no local on a shared subscription": violation(
        V5, 0x82, "0001 00 000a '$share/g/a' 04"
    ),
    "[MQTT-3.8.3-5] reserved bit 6": malformed(V5, 0x82, "0001 00 0001 'a' 40"),
    "[MQTT-3.8.3-5] reserved bit 7": malformed(V5, 0x82, "0001 00 0001 'a' 80"),
    "[MQTT-3.10.3-2] UNSUBSCRIBE from nothing": violation(V5, 0xA2, "0001 00"),
    "[MQTT-4.7.1-1] # before the end": malformed(V5, 0x82, "0001 00 0003 '#/a' 00"),
    "[MQTT-4.7.1-2] + beside a character": malformed(V5, 0x82, "0001 00 0002 '+a' 00"),
    "[MQTT-4.7.3-1] empty filter": malformed(V5, 0x82, "0001 00 0000 00"),
    "[MQTT-4.8.2-1] empty share name": malformed(V5, 0x82, "0001 00 0009 '$share//a' 00"),
    "[MQTT-4.8.2-2] share name with a wildcard": malformed(
        V5, 0x82, "0001 00 000a '$share/+/a' 00"
    ),
    "[MQTT-4.8.2-2] share name without a filter": malformed(V5, 0xA2, "0001 00 0008 '$share/g'"),
}

REST = {
    "3.1.1 [MQTT-2.2.2-2] PINGREQ with a body": malformed(V311, 0xC0, "00"),
    "3.1.1 [MQTT-2.2.2-2] DISCONNECT with a body": malformed(V311, 0xE0, "00"),
    "3.1.1 §2.2.1 packet type 0": malformed(V311, 0x00, ""),
    "3.1.1 §2.2.1 packet type 15": malformed(V311, 0xF0, ""),
    "3.1.1 §2.2.1 CONNACK of a client": violation(V311, 0x20, "00 00"),
    "3.1.1 §2.2.1 SUBACK of a client": violation(V311, 0x90, "0001 00"),
    "3.1.1 §2.2.1 UNSUBACK of a client": violation(V311, 0xB0, "0001"),
    "3.1.1 §2.2.1 PINGRESP of a client": violation(V311, 0xD0, ""),
    "5.0 §2.1.2 packet type 0": malformed(V5, 0x00, ""),
    "5.0 §2.1.2 CONNACK of a client": violation(V5, 0x20, "00 00 00"),
    "5.0 §2.1.2 SUBACK of a client": violation(V5, 0x90, "0001 00 00"),
    "5.0 §2.1.2 UNSUBACK of a client": violation(V5, 0xB0, "0001 00 00"),
    "5.0 §2.1.2 PINGRESP of a client": violation(V5, 0xD0, ""),
    "5.0 §3.12 PINGREQ with a body": malformed(V5, 0xC0, "00"),
    "5.0 [MQTT-3.15.2-1] AUTH success of a client": violation(V5, 0xF0, ""),
    "5.0 [MQTT-3.15.2-1] AUTH success of a client, said": violation(V5, 0xF0, "00 04 15 0001 'm'"),
    "5.0 §3.15.2.2.2 AUTH without method": violation(V5, 0xF0, "18 00"),
    "5.0 §3.15.2.2.3 AUTH data without method": violation(V5, 0xF0, "18 04 16 0001 'd'"),
}

PACKET_IDENTIFIERS = {
    f"{standard} {ids} {packet} with identifier 0": violation(version, first, "0000")
    for standard, version, ids in (("3.1.1", V311, "[MQTT-2.3.1-6]"), ("5.0", V5, "[MQTT-2.2.1-5]"))
    for packet, first in (("PUBACK", 0x40), ("PUBREC", 0x50), ("PUBREL", 0x62), ("PUBCOMP", 0x70))
}

BODIES = {
    V311: {
        0x40: "0001", 0x50: "0001", 0x62: "0001", 0x70: "0001", 0x82: "0001 0001 'a' 00",
        0xA2: "0001 0001 'a'", 0xC0: "", 0xE0: "", 0x10: HEAD_4 + " 02 0000 0001 'c'",
    },
    V5: {
        0x40: "0001", 0x50: "0001", 0x62: "0001", 0x70: "0001", 0x82: "0001 00 0001 'a' 00",
        0xA2: "0001 00 0001 'a'", 0xC0: "", 0xE0: "", 0x10: HEAD_5 + " 02 0000 00 0001 'c'",
        0xF0: "18 04 15 0001 'm'",
    },
}  # fmt: skip
STATEMENTS = {0x62: " [MQTT-3.6.1-1]", 0x82: " [MQTT-3.8.1-1]", 0xA2: " [MQTT-3.10.1-1]",
              0xE0: " [MQTT-3.14.1-1]", 0xF0: " [MQTT-3.15.1-1]"}  # fmt: skip

FLAGS = {
    f"{standard} {ids}{STATEMENTS.get(first, '')} first byte {first & 0xF0 | flags:02x}": malformed(
        version, first & 0xF0 | flags, body
    )
    for standard, version, ids in (("3.1.1", V311, "[MQTT-2.2.2-1]"), ("5.0", V5, "[MQTT-2.1.3-1]"))
    for first, body in BODIES[version].items()
    for flags in range(16)
    if flags != first & 0x0F
}

ALLOWED_CODES = {
    "[MQTT-3.4.2-1]": (0x40, "0001", {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    "[MQTT-3.5.2-1]": (0x50, "0001", {0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}),
    "[MQTT-3.6.2-1]": (0x62, "0001", {0, 0x92}),
    "[MQTT-3.7.2-1]": (0x70, "0001", {0, 0x92}),
    "[MQTT-3.14.2-1]": (
        0xE0,
        "",
        {0, 4, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A)},
    ),
}

REFUSED = {
    **REFUSED_BY_BOTH,
    **{f"3.1.1 {key}": case for key, case in CONNECTS_3_1_1.items()},
    **{f"5.0 {key}": case for key, case in CONNECTS_5.items()},
    **{f"3.1.1 {key}": case for key, case in PUBLISHES_3_1_1.items()},
    **{f"5.0 {key}": case for key, case in PUBLISHES_5.items()},
    **{f"3.1.1 {key}": case for key, case in FILTERS_3_1_1.items()},
    **{f"5.0 {key}": case for key, case in FILTERS_5.items()},
    **REST,
    **PACKET_IDENTIFIERS,
    **FLAGS,
}

FROM_A_SERVER = {
    "[MQTT-3.2.2-1] reserved flags": Refused(V5, 0x20, "02 00 00", MALFORMED, 0x81, CLIENT),
    "3.1.1 reserved flags": Refused(V311, 0x20, "02 00", MALFORMED, 0x81, CLIENT),
    "[MQTT-3.2.2-6] present and refused": Refused(V5, 0x20, "01 87 00", VIOLATION, 0x82, CLIENT),
    "3.1.1 [MQTT-3.2.2-4]": Refused(V311, 0x20, "01 05", VIOLATION, 0x82, CLIENT),
    "[MQTT-3.2.2-8] reason": Refused(V5, 0x20, "00 8e 00", VIOLATION, 0x82, CLIENT),
    "3.1.1 return code 6": Refused(V311, 0x20, "00 06", MALFORMED, 0x81, CLIENT),
    "§3.2.2.3.4 maximum QoS 2": Refused(V5, 0x20, "00 00 02 24 02", VIOLATION, 0x82, CLIENT),
    "§3.2.2.3.5 retain 2": Refused(V5, 0x20, "00 00 02 25 02", VIOLATION, 0x82, CLIENT),
    "[MQTT-3.9.3-2] reason": Refused(V5, 0x90, "0001 00 8a", VIOLATION, 0x82, CLIENT),
    "3.1.1 [MQTT-3.9.3-2] code 3": Refused(V311, 0x90, "0001 03", VIOLATION, 0x82, CLIENT),
    "3.1.1 [MQTT-3.9.3-2] code 0x87": Refused(V311, 0x90, "0001 87", MALFORMED, 0x81, CLIENT),
    "SUBACK without codes": Refused(V311, 0x90, "0001", MALFORMED, 0x81, CLIENT),
    "UNSUBACK without codes": Refused(V5, 0xB0, "0001 00", MALFORMED, 0x81, CLIENT),
    "[MQTT-3.11.3-2] reason": Refused(V5, 0xB0, "0001 00 02", VIOLATION, 0x82, CLIENT),
    "[MQTT-3.14.2-1] will": Refused(V5, 0xE0, "04", VIOLATION, 0x82, CLIENT),
    "[MQTT-3.14.2-2] session expiry": Refused(
        V5, 0xE0, "00 05 11 00000001", VIOLATION, 0x82, CLIENT
    ),
    "3.1.1 DISCONNECT of a server": Refused(V311, 0xE0, "", VIOLATION, 0x82, CLIENT),
    "CONNECT of a server": Refused(V5, 0x10, "", VIOLATION, 0x82, CLIENT),
    "SUBSCRIBE of a server": Refused(V5, 0x82, "", VIOLATION, 0x82, CLIENT),
    "[MQTT-3.15.2-1] re-authenticate": Refused(
        V5, 0xF0, "19 04 15 0001 'm'", VIOLATION, 0x82, CLIENT
    ),
}
