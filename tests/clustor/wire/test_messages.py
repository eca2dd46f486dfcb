"""Every message against bytes written by hand, in both directions; and the vectors of C1."""

from __future__ import annotations

from typing import Any

import pytest

from clustor import wire as w
from clustor.wire import BASELINE, Dialect, WireBodyTooShort, WireMisuse, WireUnknownField
from tests.clustor.wire.vectors import (
    APPEND,
    BOTH_WAYS,
    DIGEST,
    EPOCH,
    HEADER,
    INDEX,
    LEGACY,
    PAGE_BYTES,
    ROUTING,
    WIDE_COUNT,
    P,
    R,
    T,
    text,
    u16,
    u32,
    u64,
)

FORWARD = Dialect(forward_compat=True)


def test_every_message_of_the_table_has_a_case() -> None:
    assert {type(message) for message, _, _ in BOTH_WAYS.values()} == {
        row.message for row in w.TABLE
    }


@pytest.mark.parametrize(("message", "dialect", "body"), BOTH_WAYS.values(), ids=BOTH_WAYS.keys())
def test_message_and_bytes_agree(message: Any, dialect: Dialect, body: bytes) -> None:
    assert w.encode_body(message, dialect).hex() == body.hex()
    assert w.decode_body(type(message), body, dialect) == message
    assert w.decode_body(type(message), memoryview(body), dialect) == message


@pytest.mark.parametrize(("message", "dialect", "body"), BOTH_WAYS.values(), ids=BOTH_WAYS.keys())
def test_a_body_cut_anywhere_is_too_short(message: Any, dialect: Dialect, body: bytes) -> None:
    """§8.1: shorter than the mandatory minimum is WireBodyTooShort, except before a tail."""
    tail_starts = {"PreVoteResponseBody": 9, "RequestVoteResponse": 9}.get(type(message).__name__)
    for length in range(len(body)):
        if length == tail_starts:
            continue
        with pytest.raises(WireBodyTooShort):
            w.decode_body(type(message), body[:length], dialect)


@pytest.mark.parametrize(("message", "dialect", "body"), BOTH_WAYS.values(), ids=BOTH_WAYS.keys())
def test_unknown_tails_are_refused_or_skipped_unread(
    message: Any, dialect: Dialect, body: bytes
) -> None:
    """§8.1: trailing bytes may be skipped only with ForwardCompat, else WireUnknownField."""
    known = body
    if dialect is LEGACY:  # the tail would be read as the extension that follows
        known += b"\x00"
    with pytest.raises(WireUnknownField):
        w.decode_body(type(message), known + b"\xff", dialect)
    if dialect is BASELINE:
        assert w.decode_body(type(message), known + b"\xff\xfe", FORWARD) == message


FULL = w.PreVoteResponseBody(T(42), True, True)  # noqa: FBT003
BARE = w.PreVoteResponseBody(T(42), True)  # noqa: FBT003
C1_BOTH_WAYS = {
    "full": (FULL, BASELINE, "0b0000002a00000000000000010101"),
    "legacy": (BARE, LEGACY, "090000002a0000000000000001"),
}


@pytest.mark.parametrize(
    ("message", "dialect", "frame"), C1_BOTH_WAYS.values(), ids=C1_BOTH_WAYS.keys()
)
def test_c1_prevote_response_frames(
    message: w.PreVoteResponseBody, dialect: Dialect, frame: str
) -> None:
    body = w.encode_body(message, dialect)
    assert w.encode_frame(body, body_bytes_max=w.RPC_BODY_BYTES_MAX).hex() == frame
    buffer = bytearray.fromhex(frame) + b"next"
    taken = w.take_frame(buffer, body_bytes_max=w.RPC_BODY_BYTES_MAX)
    assert taken is not None
    assert w.decode_body(w.PreVoteResponseBody, taken) == message
    assert buffer == b"next"


@pytest.mark.parametrize("carried", ["2a00000000000000010101", "2a0000000000000001"])
def test_c1_a_frame_that_promises_twelve_and_carries_fewer_is_too_short(carried: str) -> None:
    buffer = bytearray.fromhex("0c000000" + carried)
    assert w.take_frame(buffer, body_bytes_max=w.RPC_BODY_BYTES_MAX) is None
    with pytest.raises(WireBodyTooShort) as refusal:
        w.check_stream_end(buffer)
    assert refusal.value.code == 1001
    assert refusal.value.facts == {"promised": 12, "held": len(carried) // 2}


@pytest.mark.parametrize(
    ("body", "error"),
    {
        "vote_granted is a boolean": ("2a0000000000000002", WireUnknownField),
        "has_high_rtt is 0 or 1": ("2a0000000000000001ff", WireUnknownField),
        "high_rtt is promised and missing": ("2a000000000000000101", WireBodyTooShort),
        "high_rtt is a boolean": ("2a00000000000000010102", WireUnknownField),
        "the term alone": ("2a00000000000000", WireBodyTooShort),
    }.values(),
)
def test_prevote_responses_that_mean_nothing(body: str, error: type[w.WireError]) -> None:
    with pytest.raises(error):
        w.decode_body(w.PreVoteResponseBody, bytes.fromhex(body))


@pytest.mark.parametrize(
    "message",
    [
        w.RepairRequestBody(INDEX(-1), INDEX(1)),
        w.RepairRequestBody(INDEX(1), INDEX(2**64)),
        w.DurabilityAckBody(P(1), R(2), INDEX(3), w.SegmentSeq(4), 9),  # type: ignore[arg-type]  # on purpose
        w.DurabilityTransitionBody(w.DurabilityMode.STRICT, 3, EPOCH(1), INDEX(1)),  # type: ignore[arg-type]  # on purpose
        w.MembershipChange([], [], ROUTING(1), bytes(31)),
        w.MembershipChange([], [], ROUTING(1), bytes(33)),
        w.MembershipChange([R(2**64)], [], ROUTING(1), DIGEST),
        w.MembershipChange([R(1)] * 65_536, [], ROUTING(1), DIGEST),
        w.FenceCommit("\ud800", T(3), INDEX(99), ROUTING(6), EPOCH(4), DIGEST),
        w.WhyQuarantinedEnvelope(
            *HEADER,
            w.TraceId(""),
            [],
            w.IdPageBody(["b", "a"]),
            w.QuarantineReasonCode.INTEGRITY,
            w.UnixMs(1),
        ),
        w.Packet,
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_has_no_bytes_is_a_misuse_and_never_sent(message: object) -> None:
    with pytest.raises(WireMisuse):
        w.encode_body(message)


def test_long_lists_need_wide_count_on_both_sides() -> None:
    """§8.3: counts are u16 unless WideCount was negotiated."""
    many = w.MembershipChange([R(1)] * 65_536, [], ROUTING(1), DIGEST)
    body = w.encode_body(many, WIDE_COUNT)
    assert body[:4] == u32(65_536)
    assert w.decode_body(w.MembershipChange, body, WIDE_COUNT) == many


def throttled_page(page: bytes) -> bytes:
    _, _, body = BOTH_WAYS["ThrottleEnvelope"]
    return body.removesuffix(PAGE_BYTES) + page


BAD_PAGES: dict[str, tuple[bytes, type[w.WireError]]] = {
    "33 ids": (
        u16(33) + b"".join(text(f"{n:02}") for n in range(33)) + u32(0) + b"\0",
        w.WireBodyTooLarge,
    ),
    "out of order": (u16(2) + text("b") + text("a") + u32(0) + b"\0", WireUnknownField),
    "an id twice": (u16(2) + text("a") + text("a") + u32(0) + b"\0", WireUnknownField),
    "not UTF-8": (u16(1) + u32(1) + b"\xff" + u32(0) + b"\0", WireUnknownField),
}


@pytest.mark.parametrize(("page", "error"), BAD_PAGES.values(), ids=BAD_PAGES.keys())
def test_a_peer_cannot_send_a_page_that_we_would_not(page: bytes, error: type[w.WireError]) -> None:
    """§13.2: at most 32 ids, sorted lexicographically."""
    with pytest.raises(error):
        w.decode_body(w.ThrottleEnvelopeBody, throttled_page(page))


def test_wide_count_widens_only_the_lists_that_are_marked() -> None:
    """§8.3: u32 counts for fields explicitly marked wide count capable."""
    message, _, body = BOTH_WAYS["ThrottleEnvelope"]
    assert w.encode_body(message, WIDE_COUNT) == body
    assert w.decode_body(w.ThrottleEnvelopeBody, body, WIDE_COUNT) == message


def test_entries_are_slices_of_the_body_not_copies() -> None:
    body = w.encode_body(w.AppendEntriesRequest(*APPEND, [b"a" * 9]))
    view = memoryview(body)
    (entry,) = w.decode_body(w.AppendEntriesRequest, view).entries
    assert isinstance(entry, memoryview)
    assert entry.obj is body
    (copied,) = w.decode_body(w.AppendEntriesRequest, body).entries
    assert isinstance(copied, bytes)


def test_a_count_beyond_the_body_costs_nothing() -> None:
    head = u64(1) * 10
    with pytest.raises(WireBodyTooShort):
        w.decode_body(w.AppendEntriesRequest, head + u32(2**32 - 1), WIDE_COUNT)
    with pytest.raises(WireBodyTooShort):
        w.decode_body(w.MembershipChange, u32(2**32 - 1), WIDE_COUNT)


@pytest.mark.parametrize("length", [1, 5, 2**32 - 1])
def test_the_last_entry_cannot_reach_past_the_body(length: int) -> None:
    """The neighbour's bytes stay the neighbour's, whatever the length says."""
    body = u64(1) * 10 + u16(1) + u32(length)
    with pytest.raises(WireBodyTooShort):
        w.decode_body(w.AppendEntriesRequest, body)
    inside = memoryview(body + b"neighbour")[: len(body)]
    with pytest.raises(WireBodyTooShort):
        w.decode_body(w.AppendEntriesRequest, inside)
