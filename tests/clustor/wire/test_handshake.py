"""The handshake (§8.3): what two peers agree on, and when the transport closes instead."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.wire import (
    CATALOG_VERSION,
    RPC_BODY_BYTES_MAX,
    WIDE_BODY_BYTES_MAX,
    CatalogVersion,
    Handshake,
    NegotiationOutcome,
    UnixMs,
    WireBodyTooLarge,
    WireBodyTooShort,
    WireCatalogMismatch,
    WireExtension,
    WireUnknownField,
    decode_handshake,
    decode_json,
    encode_handshake,
    encode_json,
    extension_mask,
    local_handshake,
    negotiate,
    record_negotiation,
)
from clustor.wire.handshake import NegotiationRecord

WIDE_FRAME, WIDE_COUNT, FORWARD = WireExtension


def offer(
    *extensions: WireExtension,
    major: int = 0,
    minor: int = 1,
    parse_max: int | None = None,
    cap: int = RPC_BODY_BYTES_MAX,
) -> Handshake:
    if FORWARD in extensions and parse_max is None:
        parse_max = minor + 1
    return Handshake(CatalogVersion(major, minor), cap, extension_mask(*extensions), parse_max)


def test_the_extension_ids_are_those_of_the_specification() -> None:
    assert [int(each) for each in WireExtension] == [0x10, 0x11, 0x20]


def test_no_extension_advertises_another() -> None:
    """The id is the number of the bit: as bit patterns 0x11 would contain 0x10."""
    for each in WireExtension:
        alone = offer(each)
        assert [other for other in WireExtension if alone.advertises(other)] == [each]


def test_handshake_and_bytes_agree() -> None:
    wire = bytes.fromhex("08" + "0001" + "00000002" + "0000030001000000" + "0102")
    assert encode_handshake(local_handshake()) == wire
    assert decode_handshake(wire) == local_handshake()
    assert local_handshake().catalog_version == CATALOG_VERSION


@pytest.mark.parametrize(
    ("body", "error"),
    {
        "empty": (b"", WireBodyTooShort),
        "cut": (encode_handshake(local_handshake())[:-1], WireBodyTooShort),
        "tail": (encode_handshake(local_handshake()) + b"\0", WireUnknownField),
        "another message": (b"\x1c" + bytes(8), WireUnknownField),
        "no message": (b"\xf0" + bytes(8), WireUnknownField),
        "huge": (b"\x08" + bytes(32 * 1024), WireBodyTooLarge),
    }.values(),
)
def test_a_connection_that_begins_with_anything_else(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        decode_handshake(body)


AGREED: dict[str, tuple[Handshake, Handshake, set[WireExtension], int, int]] = {
    "same catalog, no extension": (offer(), offer(), set(), 1, RPC_BODY_BYTES_MAX),
    "the smaller cap": (offer(), offer(cap=1 << 20), set(), 1, 1 << 20),
    "one side wide": (
        offer(WIDE_FRAME, WIDE_COUNT, cap=WIDE_BODY_BYTES_MAX),
        offer(),
        set(),
        1,
        RPC_BODY_BYTES_MAX,
    ),
    "both wide": (
        offer(WIDE_FRAME, cap=WIDE_BODY_BYTES_MAX),
        offer(WIDE_FRAME, cap=WIDE_BODY_BYTES_MAX),
        {WIDE_FRAME},
        1,
        WIDE_BODY_BYTES_MAX,
    ),
    "both wide, one of them smaller": (
        offer(WIDE_FRAME, cap=WIDE_BODY_BYTES_MAX),
        offer(WIDE_FRAME, cap=8 << 20),
        {WIDE_FRAME},
        1,
        8 << 20,
    ),
    "both count wide": (
        offer(WIDE_COUNT),
        offer(WIDE_COUNT),
        {WIDE_COUNT},
        1,
        RPC_BODY_BYTES_MAX,
    ),
    "one minor ahead, both parse it": (
        offer(FORWARD),
        offer(FORWARD, minor=2),
        {FORWARD},
        1,
        RPC_BODY_BYTES_MAX,
    ),
    "one minor ahead, the older parses it": (
        offer(FORWARD, minor=1),
        offer(minor=2),
        set(),
        1,
        RPC_BODY_BYTES_MAX,
    ),
}


@pytest.mark.parametrize(
    ("local", "remote", "extensions", "minor", "cap"), AGREED.values(), ids=AGREED.keys()
)
def test_peers_that_agree(
    local: Handshake, remote: Handshake, extensions: set[WireExtension], minor: int, cap: int
) -> None:
    outcome = negotiate(local, remote)
    assert outcome.extensions == extensions
    assert outcome.dialect.minor == minor
    assert outcome.dialect.body_bytes_max == cap
    assert outcome.dialect.wide_frame is (WIDE_FRAME in extensions)
    assert outcome.dialect.wide_count is (WIDE_COUNT in extensions)
    assert outcome.dialect.forward_compat is (FORWARD in extensions)


REFUSED: dict[str, tuple[Handshake, Handshake]] = {
    "majors differ": (offer(), offer(major=1)),
    "majors differ, ForwardCompat or not": (offer(FORWARD), offer(FORWARD, major=1)),
    "minors differ, nobody skips tails": (offer(), offer(minor=2)),
    "remote_minor over local_forward_parse_max_minor": (offer(FORWARD), offer(FORWARD, minor=3)),
    "local_minor over remote_forward_parse_max_minor": (offer(FORWARD, minor=3), offer(FORWARD)),
    "the newer peer alone skips tails": (offer(), offer(FORWARD, minor=2)),
    "ForwardCompat without forward_parse_max_minor": (
        offer(),
        Handshake(CatalogVersion(0, 1), RPC_BODY_BYTES_MAX, extension_mask(FORWARD), None),
    ),
    "forward_parse_max_minor without ForwardCompat": (offer(), offer(parse_max=2)),
    "cannot parse its own minor": (offer(), offer(FORWARD, minor=1, parse_max=0)),
    "cannot parse its own minor, though the other could": (
        offer(FORWARD),
        offer(FORWARD, minor=2, parse_max=1),
    ),
    "over 4 MiB without WideFrame": (offer(), offer(cap=RPC_BODY_BYTES_MAX + 1)),
    "over 32 MiB": (offer(), offer(WIDE_FRAME, cap=WIDE_BODY_BYTES_MAX + 1)),
    "too small for a chunk": (offer(), offer(cap=1024)),
}


@pytest.mark.parametrize(("local", "remote"), REFUSED.values(), ids=REFUSED.keys())
def test_peers_that_part_before_log_traffic(local: Handshake, remote: Handshake) -> None:
    for one, other in ((local, remote), (remote, local)):
        with pytest.raises(WireCatalogMismatch) as refusal:
            negotiate(one, other)
        assert refusal.value.code == 1010


OFFERS = st.builds(
    lambda extensions, major, minor, ahead, cap: offer(
        *extensions,
        major=major,
        minor=minor,
        parse_max=minor + ahead if FORWARD in extensions else None,
        cap=cap,
    ),
    st.sets(st.sampled_from(list(WireExtension))),
    st.integers(0, 1),
    st.integers(0, 3),
    st.integers(0, 2),
    st.sampled_from([128 << 10, 1 << 20, RPC_BODY_BYTES_MAX, WIDE_BODY_BYTES_MAX]),
)


@given(local=OFFERS, remote=OFFERS)
def test_both_sides_come_to_the_same_outcome(local: Handshake, remote: Handshake) -> None:
    ours = record_negotiation(local, remote, peer="them", recorded_at=UnixMs(1))
    theirs = record_negotiation(remote, local, peer="us", recorded_at=UnixMs(1))
    assert ours.outcome is theirs.outcome
    if ours.outcome is NegotiationOutcome.AGREED:
        assert negotiate(local, remote) == negotiate(remote, local)


def test_extensions_that_we_do_not_know_are_not_negotiated() -> None:
    """§8.3: unknown extensions require explicit negotiation."""
    stranger = replace(offer(), extensions=1 << 0x30)
    outcome = negotiate(offer(), stranger)
    assert outcome.extensions == frozenset()
    with pytest.raises(WireCatalogMismatch):
        outcome.require(0x30)


def test_use_of_what_was_not_negotiated_is_a_mismatch() -> None:
    outcome = negotiate(offer(WIDE_COUNT), offer(WIDE_COUNT))
    outcome.require(WIDE_COUNT)
    with pytest.raises(WireCatalogMismatch):
        outcome.require(WIDE_FRAME)


@pytest.mark.parametrize(
    ("remote", "outcome", "code"),
    [
        (offer(), NegotiationOutcome.AGREED, None),
        (offer(major=1), NegotiationOutcome.REFUSED, 1010),
    ],
)
def test_the_negotiation_log_keeps_both_tuples(
    remote: Handshake, outcome: NegotiationOutcome, code: int | None
) -> None:
    """§14.2: peers record handshake tuples in bundle_negotiation_log."""
    record = record_negotiation(offer(), remote, peer="node-2", recorded_at=UnixMs(7))
    assert (record.local, record.remote) == (offer(), remote)
    assert (record.outcome, record.error_code) == (outcome, code)
    assert decode_json(NegotiationRecord, encode_json(record)) == record
