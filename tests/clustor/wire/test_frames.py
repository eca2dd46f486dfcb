"""Frames: a length and a body, however the bytes arrive; limits before memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.wire import (
    EXPLAIN_BODY_BYTES_MAX,
    RPC_BODY_BYTES_MAX,
    WIDE_BODY_BYTES_MAX,
    WINDOW_BYTES,
    FramePart,
    FrameStream,
    WholeFrame,
    WireBodyTooLarge,
    WireBodyTooShort,
    WireMisuse,
    check_stream_end,
    encode_frame,
    take_frame,
)

BOTH_WAYS = {
    "empty": (b"", "00000000"),
    "one byte": (b"\x2a", "010000002a"),
    "little-endian length": (bytes(258), "02010000" + "00" * 258),
}


@pytest.mark.parametrize(("body", "frame"), BOTH_WAYS.values(), ids=BOTH_WAYS.keys())
def test_body_and_frame_agree_however_the_bytes_arrive(body: bytes, frame: str) -> None:
    wire = bytes.fromhex(frame)
    assert encode_frame(body, body_bytes_max=1024) == wire
    buffer = bytearray()
    for byte in wire:
        assert take_frame(buffer, body_bytes_max=1024) is None
        buffer.append(byte)
    buffer += b"next"
    assert take_frame(buffer, body_bytes_max=1024) == body
    assert buffer == b"next"


CAPS = [RPC_BODY_BYTES_MAX, EXPLAIN_BODY_BYTES_MAX, WIDE_BODY_BYTES_MAX]


def test_the_caps_are_those_of_the_specification() -> None:
    assert CAPS == [4 * 1024 * 1024, 32 * 1024, 32 * 1024 * 1024]


@pytest.mark.parametrize("cap", CAPS)
def test_a_length_over_the_cap_is_refused_before_any_body_arrives(cap: int) -> None:
    buffer = bytearray((cap + 1).to_bytes(4, "little"))
    with pytest.raises(WireBodyTooLarge) as refusal:
        take_frame(buffer, body_bytes_max=cap)
    assert refusal.value.facts == {"length": cap + 1, "limit": cap}
    at_the_cap = bytearray(cap.to_bytes(4, "little"))
    assert take_frame(at_the_cap, body_bytes_max=cap) is None


def test_a_body_over_the_cap_is_not_encoded() -> None:
    assert len(encode_frame(bytes(8), body_bytes_max=8)) == 12
    with pytest.raises(WireBodyTooLarge):
        encode_frame(bytes(9), body_bytes_max=8)


@pytest.mark.parametrize("left", ["01", "010000", "01000000", "0300000001", "030000000102"])
def test_a_stream_that_ends_inside_a_frame_is_too_short(left: str) -> None:
    with pytest.raises(WireBodyTooShort):
        check_stream_end(bytes.fromhex(left))
    stream = FrameStream(body_bytes_max=1024)
    stream.receive_data(bytes.fromhex(left))
    assert stream.next_event() is None
    with pytest.raises(WireBodyTooShort):
        stream.end()


def test_a_stream_may_end_between_frames() -> None:
    check_stream_end(b"")
    stream = FrameStream(body_bytes_max=1024)
    stream.receive_data(bytes.fromhex("0100000007"))
    assert stream.next_event() == WholeFrame(b"\7")
    assert stream.next_event() is None
    stream.end()


def drain(stream: FrameStream, bodies: list[bytearray]) -> None:
    """Pull every event, and put the parts of a body together as a receiver would."""
    while (event := stream.next_event()) is not None:
        match event:
            case WholeFrame(body):
                bodies.append(bytearray(body))
            case FramePart(body_bytes, offset, data):
                if offset == 0:
                    bodies.append(bytearray())
                assert len(bodies[-1]) == offset
                assert len(data) <= WINDOW_BYTES < body_bytes
                bodies[-1] += data


@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 9, WINDOW_BYTES - 1, WINDOW_BYTES, WINDOW_BYTES + 1, 200_000]),
        max_size=4,
    ),
    step=st.sampled_from([1_000, 4_096, 65_536, 65_541]),
)
def test_a_stream_gives_the_same_bodies_and_holds_one_window(sizes: list[int], step: int) -> None:
    """§8.1: rolling-window buffers for payloads over 64 KiB."""
    sent = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    wire = b"".join(encode_frame(body, body_bytes_max=1 << 20) for body in sent)
    stream = FrameStream(body_bytes_max=1 << 20)
    received: list[bytearray] = []
    for start in range(0, len(wire), step):
        stream.receive_data(wire[start : start + step])
        assert stream.held_bytes <= 4 + WINDOW_BYTES + step
        drain(stream, received)
        assert stream.held_bytes < 4 + WINDOW_BYTES
    stream.end()
    assert received == sent


def test_a_stream_refuses_data_while_a_window_waits() -> None:
    stream = FrameStream(body_bytes_max=1 << 20)
    stream.receive_data(encode_frame(bytes(100_000), body_bytes_max=1 << 20))
    with pytest.raises(WireMisuse):
        stream.receive_data(b"more")
    assert isinstance(stream.next_event(), FramePart)
    stream.receive_data(b"")


def test_a_stream_that_ends_inside_a_large_body_is_too_short() -> None:
    stream = FrameStream(body_bytes_max=1 << 20)
    stream.receive_data(encode_frame(bytes(100_000), body_bytes_max=1 << 20)[:-1])
    drain(stream, [])
    with pytest.raises(WireBodyTooShort) as refusal:
        stream.end()
    assert refusal.value.facts == {"promised": 100_000, "held": 99_999}


def test_a_stream_refuses_a_length_over_its_cap() -> None:
    stream = FrameStream(body_bytes_max=1024)
    stream.receive_data((1025).to_bytes(4, "little"))
    with pytest.raises(WireBodyTooLarge):
        stream.next_event()
