"""The hot path against its naive twin: the reader, the decoders and the encoders."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantum.protocols.mqtt.codec import (
    NO_PROPERTIES,
    Acknowledgement,
    Direction,
    Disconnect,
    Packet,
    PacketReader,
    PeerFault,
    Pingreq,
    ProtocolVersion,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    decode_packet,
    encode_packet,
    encode_properties,
    hot,
    is_topic_name,
)
from quantum.protocols.mqtt.codec.properties import PropertyScope
from tests.quantum.mqtt.strategies import BINARY, TOPICS, packets_to_server, properties_in
from tests.quantum.mqtt.vectors import BOTH_WAYS, ONE, V5, V31, V311, identified, name, wire

ACKS: dict[int, type[Acknowledgement]] = {
    hot.PUBACK: Puback,
    hot.PUBREC: Pubrec,
    hot.PUBREL: Pubrel,
    hot.PUBCOMP: Pubcomp,
}
LIMIT = 1 << 20
Outcome = Packet | tuple[type[PeerFault], int]


def scan(buffer: bytes, *, is_v5: bool, limit: int = LIMIT) -> tuple[list[hot.Row], int]:
    """Walk on to the end, wherever a walk ends before it."""
    rows, end, _ = found = hot.scan(buffer, 0, limit, is_v5, hot.UNBOUNDED)
    while found[0]:
        found = hot.scan(buffer, end, limit, is_v5, hot.UNBOUNDED)
        rows, end = rows + found[0], found[1]
    return rows, end


def packet_of(row: hot.Row, buffer: bytes, version: ProtocolVersion) -> Outcome:
    """Turn a row into the packet it stands for, as a session would use it."""
    first, packet_id, start, topic_start, topic_end, payload_start, end = row
    if first == hot.SLOW:
        return decoded(buffer[start], buffer[payload_start:end], version)
    if first >> 4 == 3:
        topic = buffer[topic_start:topic_end]
        if not is_topic_name(topic):
            return decoded(buffer[start], body_of(buffer, start, end), version)
        packet = Publish(
            name(topic.decode()), buffer[payload_start:end], first >> 1 & 3, bool(first & 1)
        )
        packet.dup, packet.packet_id = bool(first & 8), identified(packet_id)
        return packet
    if first == hot.PINGREQ:
        return Pingreq()
    return ACKS[first](identified(packet_id))


def body_of(buffer: bytes, start: int, end: int) -> bytes:
    reader = PacketReader(LIMIT)
    reader.receive(buffer[start:end])
    found = reader.next_packet()
    assert found is not None
    return found[1]


def decoded(first_byte: int, body: bytes, version: ProtocolVersion) -> Outcome:
    try:
        return decode_packet(first_byte, body, version, direction=Direction.TO_SERVER)
    except PeerFault as fault:
        return type(fault), fault.reason_code


def naive(buffer: bytes, version: ProtocolVersion, limit: int) -> tuple[list[Outcome], int]:
    reader = PacketReader(limit)
    reader.receive(buffer)
    outcomes: list[Outcome] = []
    try:
        while (found := reader.next_packet()) is not None:
            outcomes.append(decoded(*found, version))
    except PeerFault:
        pass
    return outcomes, len(buffer) - reader.buffered_bytes


def check_against_naive(buffer: bytes, version: ProtocolVersion, limit: int = LIMIT) -> None:
    rows, end = scan(buffer, is_v5=version is V5, limit=limit)
    outcomes, naive_end = naive(buffer, version, limit)
    assert end == naive_end
    assert [packet_of(row, buffer, version) for row in rows] == outcomes


@pytest.mark.parametrize("version", ProtocolVersion, ids=lambda version: version.name)
def test_the_vectors_in_a_row_are_found_in_order(version: ProtocolVersion) -> None:
    wires = [vector.wire for vector in BOTH_WAYS.values() if vector.version is version]
    check_against_naive(b"".join(wires), version)
    assert len(scan(b"".join(wires), is_v5=version is V5)[0]) == len(wires)


@given(
    st.sampled_from((V311, V5)).flatmap(
        lambda v: st.tuples(st.just(v), st.lists(packets_to_server(v), max_size=6))
    ),
    st.integers(0, 20),
)
def test_a_conversation_scans_as_it_decodes(
    drawn: tuple[ProtocolVersion, list[Packet]], cut: int
) -> None:
    version, packets = drawn
    buffer = b"".join(encode_packet(packet, version) for packet in packets)
    check_against_naive(buffer[: len(buffer) - cut], version)


@pytest.mark.parametrize("seed", range(40))
def test_mutated_bytes_scan_as_they_decode(seed: int) -> None:
    rng = random.Random(seed)
    wires = [vector.wire for vector in BOTH_WAYS.values()]
    for _ in range(50):
        buffer = bytearray(b"".join(rng.choices(wires, k=rng.randint(1, 4))))
        for _ in range(rng.randint(1, 4)):
            buffer[rng.randrange(len(buffer))] = rng.choice((0, 1, 2, 127, 128, 255, 0x32, 0x40))
        limit = rng.choice((LIMIT, 20))
        for version in ProtocolVersion:
            check_against_naive(bytes(buffer), version, limit)


FREQUENT = {
    "PUBLISH QoS 0": (V311, "30 04 0001 't' 'p'", (0x30, 0, 0, 4, 5, 5, 6)),
    "PUBLISH QoS 1": (V311, "3b 06 0001 't' 0102 'p'", (0x3B, 0x0102, 0, 4, 5, 7, 8)),
    "PUBLISH QoS 2, empty": (V311, "34 05 0001 't' ffff", (0x34, 0xFFFF, 0, 4, 5, 7, 7)),
    "PUBLISH 5 QoS 0": (V5, "31 05 0001 't' 00 'p'", (0x31, 0, 0, 4, 5, 6, 7)),
    "PUBLISH 5 QoS 1": (V5, "32 07 0001 't' 0001 00 'p'", (0x32, 1, 0, 4, 5, 8, 9)),
    "PUBLISH 5 empty": (V5, "30 04 0001 't' 00", (0x30, 0, 0, 4, 5, 6, 6)),
    "PUBACK": (V311, "40 02 0001", (0x40, 1, 0, 4, 4, 4, 4)),
    "PUBREC": (V311, "50 02 0100", (0x50, 256, 0, 4, 4, 4, 4)),
    "PUBREL": (V5, "62 02 0001", (0x62, 1, 0, 4, 4, 4, 4)),
    "PUBCOMP": (V5, "70 02 ffff", (0x70, 65535, 0, 4, 4, 4, 4)),
    "PUBACK 5 with its success": (V5, "40 03 0001 00", (0x40, 1, 0, 5, 5, 5, 5)),
    "PUBACK 5 with empty properties": (V5, "40 04 0001 00 00", (0x40, 1, 0, 6, 6, 6, 6)),
    "PINGREQ": (V311, "c0 00", (0xC0, 0, 0, 2, 2, 2, 2)),
}
LEFT = {
    "CONNECT": (V311, "10 0d 0004 'MQTT' 04 02 0000 0001 'c'"),
    "SUBSCRIBE": (V311, "82 06 0001 0001 'a' 00"),
    "PUBLISH with properties": (V5, "30 06 0001 't' 02 01 01"),
    "PUBLISH by alias": (V5, "30 06 0000 03 23 0001"),
    "PUBLISH empty topic": (V311, "30 02 0000"),
    "PUBLISH empty topic with payload": (V311, "30 03 0000 'p'"),
    "PUBLISH QoS 3": (V311, "36 05 0001 't' 0001"),
    "PUBLISH QoS 3 again": (V311, "3e 05 0001 't' 0001"),
    "PUBLISH duplicate of QoS 0": (V311, "38 03 0001 't'"),
    "PUBLISH identifier 0": (V311, "32 05 0001 't' 0000"),
    "PUBLISH without identifier": (V311, "32 04 0001 't' 01"),
    "PUBLISH topic too long": (V311, "30 03 0002 't'"),
    "PUBLISH without property length": (V5, "30 03 0001 't'"),
    "PUBLISH bodiless": (V311, "30 00"),
    "PUBACK identifier 0": (V311, "40 02 0000"),
    "PUBACK flags": (V311, "41 02 0001"),
    "PUBREL flags": (V311, "60 02 0001"),
    "PUBACK short": (V311, "40 01 01"),
    "PUBACK long": (V311, "40 03 0001 00"),
    "PUBACK 5 refusal": (V5, "40 03 0001 87"),
    "PUBACK 5 with properties": (V5, "40 08 0001 00 04 1f 0001 'r'"),
    "PUBACK 5 long": (V5, "40 05 0001 00 00 00"),
    "PINGREQ with a body": (V311, "c0 01 00"),
    "type 0": (V311, "00 00"),
    "type 15": (V311, "ff 00"),
}


@pytest.mark.parametrize(("version", "notation", "row"), FREQUENT.values(), ids=FREQUENT.keys())
def test_frequent_packets_have_their_positions(
    version: ProtocolVersion, notation: str, row: hot.Row
) -> None:
    buffer = wire(notation)
    assert scan(buffer, is_v5=version is V5) == ([row], len(buffer))
    shifted = (row[0], row[1], *(position + 3 for position in row[2:]))
    padded = b"\xff\xff\xff" + buffer + b"\x30"
    rows, end, _ = hot.scan(padded, 3, LIMIT, version is V5, hot.UNBOUNDED)
    assert (rows, end) == ([shifted], len(buffer) + 3)


@pytest.mark.parametrize(("version", "notation"), LEFT.values(), ids=LEFT.keys())
def test_everything_else_is_left_in_its_place(version: ProtocolVersion, notation: str) -> None:
    buffer = b"\xc0\x00" + wire(notation) + b"\xc0\x00"
    rows, end = scan(buffer, is_v5=version is V5)
    assert end == len(buffer)
    assert [row[0] for row in rows] == [hot.PINGREQ, hot.SLOW, hot.PINGREQ]
    _, _, start, _, _, body_start, stop = rows[1]
    assert buffer[start] == wire(notation)[0]
    assert buffer[body_start:stop] == wire(notation)[2:]


@pytest.mark.parametrize("payload_bytes", [0, 124, 125, 16_380, 16_381, 2_097_148, 2_097_149])
def test_every_size_of_remaining_length_is_scanned(payload_bytes: int) -> None:
    packet = encode_packet(Publish(name("t"), bytes(payload_bytes)), V311)
    rows, end = scan(packet + b"\xc0\x00", is_v5=False, limit=1 << 28)
    assert end == len(packet) + 2
    assert rows[0][6] - rows[0][5] == payload_bytes
    for cut in (1, 2, 3, 4, 5, len(packet) - 1):
        assert scan(packet[: min(cut, len(packet) - 1)], is_v5=False, limit=1 << 28) == ([], 0)


@pytest.mark.parametrize(
    "header", ["30 80 00", "30 80 80 00", "30 80 80 80 00", "30 80 80 80 80 01", "30 ff ff ff ff"]
)
def test_an_ill_formed_length_ends_the_walk(header: str) -> None:
    buffer = b"\xc0\x00" + wire(header) + bytes(300)
    rows, end = scan(buffer, is_v5=False)
    assert ([row[0] for row in rows], end) == ([hot.PINGREQ], 2)


def test_a_packet_above_the_limit_ends_the_walk() -> None:
    packet = encode_packet(Publish(name("t"), bytes(95)), V311)
    assert len(packet) == 100
    assert scan(packet, is_v5=False, limit=100)[1] == 100
    assert scan(packet, is_v5=False, limit=99) == ([], 0)


@pytest.mark.parametrize(
    ("packet", "cost"),
    [
        (b"\xc0\x00", hot.PACKET_COST),
        (encode_packet(Publish(name("t"), bytes(995)), V311), 1_001),
        (encode_packet(Publish(name("t"), bytes(1)), V311), hot.PUBLISH_COST),
        (encode_packet(Publish(name("t"), bytes(70)), V311), hot.PUBLISH_COST),
        (encode_packet(Disconnect(), V311), hot.PACKET_COST + hot.SLOW_COST),
        (wire("82 06 0001 0001 74 00"), hot.PACKET_COST + hot.SLOW_COST + 8 * hot.FILTER_COST),
    ],
    ids=["small", "large", "small publish", "publish", "slow", "filter"],
)
def test_the_walk_ends_behind_the_packet_that_reaches_the_bound(packet: bytes, cost: int) -> None:
    buffer = 10 * packet
    for bound, found in ((1, 1), (cost, 1), (cost + 1, 2), (3 * cost, 3), (99 * cost, 10)):
        rows, end, spent = hot.scan(buffer, 0, LIMIT, False, bound)  # noqa: FBT003
        assert (len(rows), end, spent) == (found, found * len(packet), found * cost)


@pytest.mark.parametrize("first", [0x82, 0xA2])
def test_many_filters_end_the_walk(first: int) -> None:
    """They are carried out in parts, and what follows must wait for the last of them."""
    many = encode_packet(Publish(name("t"), bytes(hot.FILTERS_ALONE_BYTES)), V311)
    many = bytes((first,)) + many[1:]
    rows, end, _ = hot.scan(b"\xc0\x00" + many + b"\xc0\x00", 0, LIMIT, False, hot.UNBOUNDED)  # noqa: FBT003
    assert [row[0] for row in rows] == [hot.PINGREQ, hot.SLOW]
    assert end == 2 + len(many)


def test_a_publish_behind_a_subscribe_is_for_the_next_walk() -> None:
    subscribe, publish = wire("82 06 0001 0001 74 00"), wire("30 03 0001 74")
    buffer = subscribe + b"\xc0\x00" + publish
    rows, end, _ = hot.scan(buffer, 0, LIMIT, False, hot.UNBOUNDED)  # noqa: FBT003
    assert ([row[0] for row in rows], end) == ([hot.SLOW, hot.PINGREQ], len(buffer) - len(publish))
    rest = hot.scan(buffer, end, LIMIT, False, hot.UNBOUNDED, True)  # noqa: FBT003
    assert rest == ([], end, 0), "while that one has no answer"
    assert len(hot.scan(buffer, end, LIMIT, False, hot.UNBOUNDED)[0]) == 1  # noqa: FBT003


def test_a_reader_and_a_scan_share_the_work() -> None:
    """The loop of an edge: window, scan, consume, and a fault only when its turn has come."""
    stream = b"".join(vector.wire for vector in BOTH_WAYS.values() if vector.version is V5) * 20
    reader = PacketReader(LIMIT)
    rng = random.Random(7)
    rows_found, position = 0, 0
    while position < len(stream):
        size = rng.randint(1, 100)
        reader.receive(stream[position : position + size])
        position += size
        if (window := reader.window()) is not None:
            buffer, start = window
            rows, end, _ = hot.scan(buffer, start, LIMIT, True, hot.UNBOUNDED)  # noqa: FBT003
            rows_found += len(rows)
            reader.consume(end)
    while (window := reader.window()) is not None:
        buffer, start = window
        rows, end, _ = hot.scan(buffer, start, LIMIT, True, hot.UNBOUNDED)  # noqa: FBT003
        rows_found += len(rows)
        reader.consume(end)
    assert reader.buffered_bytes == 0
    assert rows_found == 20 * sum(vector.version is V5 for vector in BOTH_WAYS.values())


@given(
    TOPICS,
    BINARY | st.just(bytes(200)) | st.just(bytes(20_000)),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(1, 65535),
)
def test_publishes_are_encoded_as_by_the_encoder(
    topic: bytes, payload: bytes, qos: int, retain: bool, dup: bool, packet_id: int
) -> None:
    dup = dup and qos > 0
    packet = Publish(name(topic.decode()), payload, qos, retain, dup)
    packet.packet_id = identified(packet_id if qos else 0)
    first = hot.publish_first_byte(qos, retain, dup)
    for version, properties in ((V311, None), (V5, b"\0")):
        wanted = encode_packet(packet, version)
        assert hot.encode_publish(topic, payload, first, packet_id, properties) == wanted


@given(TOPICS, BINARY, properties_in(PropertyScope.PUBLISH))
def test_a_shared_message_is_the_same_for_everyone(
    topic: bytes, payload: bytes, properties: object
) -> None:
    assert isinstance(properties, type(NO_PROPERTIES))
    block = encode_properties(properties, PropertyScope.PUBLISH)
    shared = hot.SharedPublish(topic, payload, block)
    for qos, retain, dup, packet_id in (
        (1, False, False, 1),
        (1, False, False, 65535),
        (0, False, False, 0),
        (2, True, True, 256),
        (1, False, False, 2),
        (0, True, False, 0),
    ):
        first = hot.publish_first_byte(qos, retain, dup)
        packet = Publish(name(topic.decode()), payload, qos, retain, dup)
        packet.packet_id, packet.properties = identified(packet_id), properties
        wanted = encode_packet(packet, V5)
        assert shared.encode(first, packet_id) == wanted
        pieces: list[bytes] = []
        shared.append_to(pieces, first, packet_id)
        assert b"".join(pieces) == wanted


@pytest.mark.parametrize("payload_bytes", [0, 123, 124, 16_379, 16_380, 2_097_147, 2_097_148])
def test_lengths_are_encoded_at_their_borders(payload_bytes: int) -> None:
    packet = Publish(name("t"), bytes(payload_bytes), qos=1, packet_id=ONE)
    assert hot.encode_publish(b"t", packet.payload, 0x32, 1, None) == encode_packet(packet, V311)


@pytest.mark.parametrize("first", ACKS)
def test_acknowledgements_are_encoded_as_by_the_encoder(first: int) -> None:
    ids = [1, 2, 255, 256, 65535]
    wires = [encode_packet(ACKS[first](identified(number)), V31) for number in ids]
    assert [hot.encode_ack(first, number) for number in ids] == wires
    assert hot.encode_acks(first, ids) == b"".join(wires)
    assert hot.encode_acks(first, []) == b""
