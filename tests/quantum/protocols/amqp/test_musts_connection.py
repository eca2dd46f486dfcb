"""The MUSTs of part 2 on headers, frames and connections (§2.2 to §2.4, §2.7.1, §2.7.9)."""

from __future__ import annotations

import pytest

from quantum.protocols.amqp.engine import (
    AmqpConnectionFailed,
    AmqpMisuse,
    AttachFrame,
    BeginFrame,
    CloseFrame,
    CloseReceived,
    Condition,
    EndFrame,
    ErrorValue,
    FlowFrame,
    LinkRole,
    OpenFrame,
    OpenReceived,
    SaslInit,
)
from quantum.protocols.amqp.engine.framing import (
    AMQP_HEADER,
    HEARTBEAT,
    SASL_HEADER,
    TLS_HEADER,
    encode_frame,
)
from tests.quantum.protocols.amqp.peer import Peer, framed, only, state_of, transfer


def closed_with(peer: Peer) -> str:
    """Return the condition of the close that the engine wrote."""
    error = peer.hear().only(CloseFrame).error
    assert error is not None
    return error.condition


def test_must_2_2_a_supported_version_is_answered_with_its_own_header() -> None:
    peer = Peer()
    assert peer.say(AMQP_HEADER) == []
    assert peer.hear().headers == [AMQP_HEADER]
    assert state_of(peer.engine) == "HDR_EXCH"


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x01\x01\x00", b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x0a"]
)
def test_must_2_2_an_unsupported_version_is_answered_with_a_supported_one_and_closed(
    header: bytes,
) -> None:
    peer = Peer()
    only(peer.say(header), AmqpConnectionFailed)
    assert peer.hear().headers == [AMQP_HEADER]
    assert peer.engine.is_over


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n", b"\0\0\0\x08\x02\0\0\0", b"X", b"AMQX"])
def test_must_2_2_a_header_that_cannot_be_parsed_is_answered_with_a_valid_one_and_closed(
    garbage: bytes,
) -> None:
    peer = Peer()
    only(peer.say(garbage), AmqpConnectionFailed)
    assert peer.hear().headers == [AMQP_HEADER]
    assert peer.engine.is_over


def test_must_2_2_a_protocol_id_that_is_not_acceptable_is_answered_with_one_that_is() -> None:
    peer = Peer(mechanisms=("PLAIN",))
    only(peer.say(AMQP_HEADER), AmqpConnectionFailed)
    assert peer.hear().headers == [SASL_HEADER]
    assert peer.engine.is_over


def test_must_2_2_a_header_may_come_byte_by_byte() -> None:
    peer = Peer()
    for each in AMQP_HEADER:
        assert peer.hear().headers == []
        peer.say(bytes((each,)))
    assert peer.hear().headers == [AMQP_HEADER]


@pytest.mark.parametrize("size", [0, 7])
def test_must_2_3_1_a_frame_smaller_than_its_header_is_malformed(size: int) -> None:
    peer = Peer().opened()
    only(peer.say(size.to_bytes(4, "big") + b"\2\0\0\0"), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.FRAMING_ERROR


@pytest.mark.parametrize("doff", [0, 1, 3, 255])
def test_must_2_3_1_a_data_offset_that_is_not_inside_the_frame_is_malformed(doff: int) -> None:
    peer = Peer().opened()
    only(peer.say(b"\0\0\0\x08" + bytes((doff, 0, 0, 0))), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.FRAMING_ERROR


def test_must_2_3_1_an_extended_header_is_skipped() -> None:
    peer = Peer().opened()
    content = encode_frame(0, BeginFrame(None, 0, 1, 1))[8:]
    frame = (len(content) + 12).to_bytes(4, "big") + b"\3\0\0\0\xde\xad\xbe\xef" + content
    assert len(peer.say(frame)) == 1


def test_must_2_3_1_an_unknown_frame_type_ends_the_connection() -> None:
    peer = Peer().opened()
    only(peer.say(b"\0\0\0\x08\x02\x02\0\0"), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.FRAMING_ERROR


def test_must_2_3_2_a_body_that_is_no_performative_ends_the_connection() -> None:
    for body in (SaslInit("PLAIN"), ErrorValue("x")):
        peer = Peer().opened()
        only(peer.say(framed(body)), AmqpConnectionFailed)
        assert closed_with(peer) == Condition.NOT_IMPLEMENTED
    peer = Peer().opened()
    only(peer.say(b"\0\0\0\x0c\x02\0\0\0\0\x53\x99\x45"), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.NOT_IMPLEMENTED


def test_must_2_4_1_the_first_frame_is_an_open() -> None:
    peer = Peer()
    only(peer.say(AMQP_HEADER, BeginFrame(None, 0, 1, 1)), AmqpConnectionFailed)
    answer = peer.hear()
    assert [type(each) for each in answer.bodies] == [OpenFrame, CloseFrame]
    assert peer.engine.is_over


def test_must_2_4_1_before_an_open_there_is_no_channel_but_zero() -> None:
    peer = Peer()
    only(peer.say(AMQP_HEADER, framed(OpenFrame("client"), channel=1)), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.FRAMING_ERROR


def test_must_2_4_1_our_open_fits_the_smallest_frame_while_the_peer_has_not_spoken() -> None:
    peer = Peer()
    with pytest.raises(AmqpMisuse):
        peer.engine.open(properties={"long": "x" * 600})
    peer.engine.open()
    assert peer.hear().sizes[0] <= 512


def test_must_2_4_3_a_close_is_written_before_the_connection_ends() -> None:
    peer = Peer().opened()
    event = only(peer.say(CloseFrame()), CloseReceived)
    assert event.error is None
    assert state_of(peer.engine) == "CLOSE_RCVD"
    peer.engine.close()
    assert peer.hear().only(CloseFrame).error is None
    assert peer.engine.is_over
    assert state_of(peer.engine) == "END"


def test_must_2_4_3_a_close_is_the_last_thing_written_and_on_channel_zero() -> None:
    peer = Peer().opened()
    session = peer.begun(channel=3)
    peer.engine.close(ErrorValue(Condition.CONNECTION_FORCED))
    for act in (session.end, session.send_flow, peer.engine.close, peer.engine.open):
        with pytest.raises(AmqpMisuse):
            act()
    answer = peer.hear()
    assert (answer.channels, len(answer.bodies)) == ([0], 1)
    peer.engine.on_time(1e9)
    assert peer.hear().bodies == []


def test_must_2_4_3_a_close_may_come_on_any_channel() -> None:
    peer = Peer().opened()
    only(peer.say(CloseFrame(), channel=255), CloseReceived)


def test_must_2_4_3_a_pipelined_close_is_on_channel_zero_with_its_open() -> None:
    peer = Peer()
    peer.engine.open()
    assert state_of(peer.engine) == "OPEN_PIPE"
    peer.engine.close()
    assert state_of(peer.engine) == "OC_PIPE"
    assert peer.hear().channels == [0, 0]
    peer.say(AMQP_HEADER)
    assert state_of(peer.engine) == "CLOSE_PIPE"
    peer.say(OpenFrame("client"))
    assert state_of(peer.engine) == "CLOSE_SENT"
    only(peer.say(CloseFrame()), CloseReceived)
    assert state_of(peer.engine) == "END"


def test_must_2_4_5_a_peer_with_a_time_out_hears_from_us_within_half_of_it() -> None:
    peer = Peer(idle_time_out_ms=None).opened(idle_time_out=10_000)
    assert peer.engine.next_deadline(100.0) == 105.0
    peer.engine.on_time(104.9)
    assert peer.hear().heartbeats == 0
    peer.engine.on_time(105.0)
    assert peer.hear().heartbeats == 1
    assert peer.engine.next_deadline(105.1) == 110.1


def test_must_2_4_5_an_empty_frame_on_any_channel_has_no_meaning_but_to_be_heard() -> None:
    peer = Peer(idle_time_out_ms=1_000).opened()
    assert peer.engine.next_deadline(0.0) == 2.0
    assert peer.say(HEARTBEAT[:-1] + b"\x07") == []
    assert peer.engine.next_deadline(1.5) == 3.5


def test_must_2_4_5_a_silent_peer_is_closed_with_an_error_at_twice_what_was_announced() -> None:
    peer = Peer(idle_time_out_ms=1_000)
    peer.say(AMQP_HEADER, OpenFrame("client"))
    peer.engine.open()
    assert peer.hear().only(OpenFrame).idle_time_out == 1_000
    assert peer.engine.next_deadline(10.0) == 12.0
    peer.engine.on_time(11.9)
    assert peer.events() == []
    peer.engine.on_time(12.0)
    only(peer.events(), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.RESOURCE_LIMIT_EXCEEDED
    assert peer.engine.is_over


def test_must_2_4_6_what_comes_while_discarding_is_discarded_until_the_close() -> None:
    peer = Peer().opened()
    only(peer.say(FlowFrame(0, 1, 0, 1)), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.ILLEGAL_STATE
    assert state_of(peer.engine) == "DISCARDING"
    assert peer.say(BeginFrame(None, 0, 1, 1), EndFrame(), framed(transfer(0, 0, b"t"), b"x")) == []
    assert peer.say(b"\0\0\0\x0c\x02\0\0\0\0\x53\x99\x45") == []
    assert peer.hear().bodies == []
    only(peer.say(CloseFrame()), CloseReceived)
    assert state_of(peer.engine) == "END"


def test_must_2_4_6_every_state_has_its_name() -> None:
    """START, HDR_EXCH, OPEN_RCVD, OPENED and so on: each by what was sent and received."""
    peer = Peer()
    seen = [peer.engine.state]
    for act in (
        lambda: peer.say(AMQP_HEADER),
        lambda: peer.say(OpenFrame("client")),
        peer.engine.open,
        lambda: peer.say(CloseFrame()),
        peer.engine.close,
    ):
        act()
        seen.append(peer.engine.state)
    assert [each.value for each in seen] == [
        "START",
        "HDR_EXCH",
        "OPEN_RCVD",
        "OPENED",
        "CLOSE_RCVD",
        "END",
    ]
    early = Peer()
    early.engine.open()
    early.say(AMQP_HEADER)
    assert state_of(early.engine) == "OPEN_SENT"


def test_must_2_7_1_a_frame_beyond_max_frame_size_ends_the_connection() -> None:
    peer = Peer(frame_bytes_max=600).opened()
    # The size alone decides: the frame's body is never waited for.
    only(peer.say((601).to_bytes(4, "big")), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.FRAMING_ERROR
    assert peer.engine.is_over


def test_must_2_7_1_a_frame_of_512_bytes_is_always_accepted() -> None:
    with pytest.raises(AmqpMisuse):
        Peer(frame_bytes_max=511)
    peer = Peer(frame_bytes_max=512).opened()
    peer.begun()
    peer.sender()
    frame = framed(transfer(0, 0, b"t"), b"")
    assert len(peer.say(framed(transfer(0, 0, b"t"), b"x" * (512 - len(frame))))) == 1


def test_must_2_7_1_a_peer_that_accepts_less_than_512_is_refused() -> None:
    peer = Peer()
    only(peer.say(AMQP_HEADER, OpenFrame("client", max_frame_size=511)), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.INVALID_FIELD


def test_must_2_7_1_we_send_no_frame_larger_than_the_peer_accepts() -> None:
    peer = Peer().opened(max_frame_size=512)
    peer.begun()
    link = peer.receiver()
    peer.say(FlowFrame(0, 100, 0, 100, 0, 0, 10))
    link.send(b"t", b"x" * 5_000)
    answer = peer.hear()
    assert max(answer.sizes) <= 512
    assert b"".join(answer.payloads) == b"x" * 5_000
    with pytest.raises(AmqpMisuse):
        link.detach(error=ErrorValue("x", "y" * 600))


def test_must_2_7_1_a_channel_beyond_channel_max_ends_the_connection() -> None:
    peer = Peer(channel_max=3).opened()
    only(peer.say(BeginFrame(None, 0, 1, 1), channel=4), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.FRAMING_ERROR
    peer = Peer(channel_max=3).opened()
    only(peer.say(framed(transfer(0, 0, b"t"), channel=4)), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.FRAMING_ERROR


def test_must_2_7_1_we_use_no_channel_beyond_the_peers_channel_max() -> None:
    peer = Peer().opened(channel_max=0)
    assert peer.begun(channel=7).channel == 0
    only(peer.say(BeginFrame(None, 0, 1, 1), channel=8), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.RESOURCE_LIMIT_EXCEEDED


def test_must_2_7_1_a_second_open_ends_the_connection() -> None:
    peer = Peer().opened()
    only(peer.say(OpenFrame("client")), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.ILLEGAL_STATE


def test_must_2_7_1_a_mandatory_field_must_be_there() -> None:
    peer = Peer()
    only(peer.say(AMQP_HEADER, b"\0\0\0\x0c\x02\0\0\0\0\x53\x10\x45"), AmqpConnectionFailed)
    assert closed_with(peer) == Condition.INVALID_FIELD


def test_must_2_7_9_what_follows_a_close_is_nobodys() -> None:
    peer = Peer().opened()
    peer.begun()
    events = peer.say(CloseFrame(), AttachFrame("x", 0, LinkRole.RECEIVER), CloseFrame())
    assert [type(each) for each in events] == [CloseReceived]


def test_what_was_valid_before_a_bad_frame_is_still_told() -> None:
    peer = Peer()
    events = peer.say(AMQP_HEADER, OpenFrame("client"), b"\0\0\0\x01")
    assert [type(each) for each in events] == [OpenReceived]
    peer.engine.open()
    assert [type(each) for each in peer.events()] == [AmqpConnectionFailed]


def test_bytes_that_trickle_in_are_not_copied_again_and_again() -> None:
    peer = Peer(frame_bytes_max=1 << 20).opened()
    peer.begun()
    peer.sender()
    frame = framed(transfer(0, 0, b"t"), b"x" * 200_000)
    for start in range(0, len(frame), 10):
        peer.engine.receive_data(frame[start : start + 10])
        if start + 10 < len(frame):
            assert peer.engine.next_event() is None
    assert peer.engine.next_event() is not None
    assert peer.engine.held_bytes == 0


def test_a_transport_that_ends_without_a_close_is_told() -> None:
    peer = Peer().opened()
    peer.engine.receive_eof()
    only(peer.events(), AmqpConnectionFailed)
    assert peer.engine.is_over


def test_tls_inside_amqp_is_refused() -> None:
    peer = Peer()
    only(peer.say(TLS_HEADER), AmqpConnectionFailed)
    assert peer.hear().headers == [AMQP_HEADER]
    assert peer.engine.is_over
