"""The packet reader: any split, bounded memory, limits refused on the header."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantum.protocols.mqtt.codec import MalformedPacket, PacketReader, ReasonCode, encode_packet
from quantum.protocols.mqtt.codec.framing import PACKET_BYTES_MAX, read_header
from quantum.protocols.mqtt.codec.primitives import encode_variable
from tests.quantum.mqtt.strategies import VERSIONS, packets_to_server

Split = tuple[int, bytes]


def frame(first_byte: int, body: bytes) -> bytes:
    return bytes((first_byte,)) + encode_variable(len(body)) + body


def drain(reader: PacketReader) -> list[Split]:
    found: list[Split] = []
    while (packet := reader.next_packet()) is not None:
        found.append(packet)
    return found


@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=12),
    st.lists(st.integers(1, 400), min_size=1),
    st.integers(1, 5),
)
def test_packets_come_out_however_the_bytes_come_in(
    packets: list[Split], sizes: list[int], pulls_every: int
) -> None:
    """Whatever the chunks, and whether the reader is pulled after each or only now and then."""
    stream = b"".join(frame(first, body) for first, body in packets)
    reader = PacketReader(1000)
    found: list[Split] = []
    position = turn = 0
    while position < len(stream):
        size = sizes[turn % len(sizes)]
        reader.receive(stream[position : position + size])
        position += size
        turn += 1
        if turn % pulls_every == 0:
            found += drain(reader)
    found += drain(reader)
    assert found == packets
    assert reader.buffered_bytes == 0


@given(VERSIONS.flatmap(lambda v: st.tuples(st.just(v), packets_to_server(v))))
def test_every_prefix_of_a_packet_is_incomplete(drawn: tuple[object, object]) -> None:
    version, packet = drawn
    wire = encode_packet(packet, version)  # type: ignore[arg-type]
    for cut in range(len(wire)):
        reader = PacketReader(1 << 20)
        reader.receive(wire[:cut])
        assert reader.next_packet() is None
        assert reader.buffered_bytes == cut


def test_what_was_whole_before_a_bad_header_is_still_delivered() -> None:
    reader = PacketReader(100)
    reader.receive(frame(0xC0, b"") + frame(0x30, b"\0\1t") + b"\x30\xff\xff\xff\xff")
    assert reader.next_packet() == (0xC0, b"")
    assert reader.next_packet() == (0x30, b"\0\1t")
    for _ in range(2):
        with pytest.raises(MalformedPacket, match="ill-formed remaining length"):
            reader.next_packet()


@pytest.mark.parametrize("limit", [2, 127, 128, 129, 130, 131, 16_383, 16_387])
def test_the_limit_counts_the_whole_packet(limit: int) -> None:
    largest = next(size for size in range(limit, -1, -1) if len(frame(0x30, bytes(size))) <= limit)
    reader = PacketReader(limit)
    reader.receive(frame(0x30, bytes(largest)))
    assert reader.next_packet() == (0x30, bytes(largest))
    reader.receive(frame(0x30, bytes(largest + 1)))
    with pytest.raises(MalformedPacket) as caught:
        reader.next_packet()
    assert caught.value.reason_code == ReasonCode.PACKET_TOO_LARGE
    assert caught.value.facts["limit"] == limit


def test_a_packet_too_large_is_refused_before_its_body_comes() -> None:
    reader = PacketReader(1000)
    reader.receive(b"\x30\xe9")
    assert reader.next_packet() is None
    reader.receive(b"\x07")
    with pytest.raises(MalformedPacket) as caught:
        reader.next_packet()
    assert caught.value.reason_code == ReasonCode.PACKET_TOO_LARGE
    assert caught.value.facts == {"length": 1004, "limit": 1000}
    assert reader.buffered_bytes == 3


def test_a_stranger_has_a_smaller_limit_until_its_first_packet() -> None:
    reader = PacketReader(1000, first_packet_bytes_max=20)
    assert reader.packet_bytes_max == 20
    reader.receive(b"\x10\x13")
    with pytest.raises(MalformedPacket):
        reader.next_packet()
    reader = PacketReader(1000, first_packet_bytes_max=20)
    reader.receive(frame(0x10, bytes(18)) + frame(0x30, bytes(500)))
    assert drain(reader) == [(0x10, bytes(18)), (0x30, bytes(500))]
    assert reader.packet_bytes_max == 1000


def test_the_limit_can_be_set_for_whom_the_peer_turned_out_to_be() -> None:
    reader = PacketReader(1000, first_packet_bytes_max=20)
    reader.receive(frame(0x10, bytes(18)))
    assert reader.next_packet() is not None
    reader.packet_bytes_max = 50
    reader.receive(frame(0x30, bytes(49)))
    with pytest.raises(MalformedPacket):
        reader.next_packet()


def test_the_largest_packet_of_the_standard_is_accepted_on_its_header() -> None:
    reader = PacketReader(PACKET_BYTES_MAX)
    reader.receive(b"\x30\xff\xff\xff\x7f")
    assert reader.next_packet() is None
    assert read_header(b"\x30\xff\xff\xff\x7f", 0, 5) == (5, PACKET_BYTES_MAX)


def test_a_packet_that_drips_in_is_copied_once() -> None:
    """A mebibyte, two bytes at a time: joining at each would move 256 GiB.

    What is held is what was sent, and not an object for each piece of it.
    """
    body = random.Random(1).randbytes(1 << 20)
    stream = frame(0x30, body)
    reader = PacketReader(4 << 20)
    tracemalloc.start()
    for start in range(0, len(stream), 2):
        assert reader.next_packet() is None
        reader.receive(stream[start : start + 2])
    held_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reader.buffered_bytes == len(stream)
    assert held_bytes < 2 << 20
    assert reader.next_packet() == (0x30, body)


def test_a_reader_lets_go_of_what_was_taken() -> None:
    """An idle connection holds no buffer, and one with half a packet holds that half."""
    reader = PacketReader(1000)
    reader.receive(frame(0x30, bytes(900)) + b"\x30\x10half")
    assert reader.next_packet() is not None
    assert reader.next_packet() is None
    assert reader.window() is None
    assert reader._buffer == b"\x30\x10half"
    reader.receive(bytes(12))
    assert reader.next_packet() == (0x30, b"half" + bytes(12))
    assert reader._buffer == b""


def test_a_window_is_taken_piece_by_piece() -> None:
    reader = PacketReader(1000)
    assert reader.window() is None
    reader.receive(frame(0xC0, b"") * 3 + b"\x30")
    for start in (0, 2, 4):
        window = reader.window()
        assert window is not None and window[1] == start
        assert reader.window() == window
        reader.consume(start + 2)
    assert reader.window() is None
    assert reader.buffered_bytes == 1
    reader.receive(b"\x00")
    assert reader.window() == (b"\x30\x00", 0)


def test_a_window_raises_what_a_packet_would() -> None:
    reader = PacketReader(10)
    reader.receive(b"\xc0\x00\x30\x10")
    assert reader.window() == (b"\xc0\x00\x30\x10", 0)
    reader.consume(2)
    with pytest.raises(MalformedPacket):
        reader.window()


def test_empty_reads_change_nothing() -> None:
    reader = PacketReader(10)
    reader.receive(b"")
    assert reader.next_packet() is None
    reader.receive(b"\xc0")
    reader.receive(b"")
    assert reader.next_packet() is None
    reader.receive(b"\x00")
    assert reader.next_packet() == (0xC0, b"")
