"""Packets and batches: which message, on which route, and many groups in one frame."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor import wire as w
from clustor.wire.stream import LONG_ENTRIES_BYTES
from clustor.wire.table import BATCH_ID
from tests.clustor.wire.strategies import messages_of, sample_of
from tests.clustor.wire.vectors import APPEND

ROUTE = w.PacketRoute(
    w.PartitionId(1), w.ReplicaId(2), w.ReplicaId(3), w.Term(42), w.DurabilityModeEpoch(5)
)
ROUTE_HEX = "0100000000000000020000000000000003000000000000002a0000000000000005000000"
VOTE = w.Packet(ROUTE, w.PreVoteResponseBody(w.Term(42), True, True))  # noqa: FBT003
VOTE_HEX = "11" + ROUTE_HEX + "2a00000000000000010101"
ACK = w.Packet(
    ROUTE,
    w.DurabilityAckBody(
        w.PartitionId(1),
        w.ReplicaId(2),
        w.LogIndex(3),
        w.SegmentSeq(4),
        w.IoWriterMode.BLOCKING,
    ),
)
SMALL = w.Dialect(body_bytes_max=200)


def append(size: int) -> w.Packet:
    return w.Packet(ROUTE, w.AppendEntriesRequest(*APPEND, [bytes(size)]))


def explain(size: int) -> w.Packet:
    header = (1, w.UnixMs(0), w.PartitionId(1), w.RoutingEpoch(0), w.DurabilityModeEpoch(0))
    why = (w.TraceId("x" * size), list[w.GuardrailDelta](), w.IdPageBody())
    return w.Packet(
        ROUTE,
        w.WhyQuarantinedEnvelope(*header, *why, w.QuarantineReasonCode.INTEGRITY, w.UnixMs(0)),
    )


def routed(message: Any) -> w.Packet:
    """Put a message on a route that says what the message says of itself."""
    partition_id = getattr(message, "partition_id", ROUTE.partition_id)
    sender = getattr(message, "replica_id", ROUTE.source_replica_id)
    return w.Packet(replace(ROUTE, partition_id=partition_id, source_replica_id=sender), message)


def test_packet_and_bytes_agree_and_the_body_is_that_of_c1() -> None:
    assert w.encode_packet(VOTE).hex() == VOTE_HEX
    assert w.decode_packet(bytes.fromhex(VOTE_HEX)) == VOTE
    assert list(w.decode_packets(bytes.fromhex(VOTE_HEX))) == [VOTE]


def test_batch_and_bytes_agree() -> None:
    packet = bytes.fromhex(VOTE_HEX)
    prefixed = len(packet).to_bytes(4, "little") + packet
    narrow = b"\x0f\x02\x00" + 2 * prefixed
    wide = b"\x0f\x02\x00\x00\x00" + 2 * prefixed
    assert list(w.encode_batches([VOTE, VOTE])) == [narrow]
    assert list(w.decode_packets(narrow)) == [VOTE, VOTE]
    counted_wide = w.Dialect(wide_count=True)
    assert list(w.encode_batches([VOTE, VOTE], counted_wide)) == [wide]
    assert list(w.decode_packets(wide, counted_wide)) == [VOTE, VOTE]


def test_nothing_and_one_need_no_batch() -> None:
    assert list(w.encode_batches([])) == []
    assert list(w.encode_batches([VOTE])) == [bytes.fromhex(VOTE_HEX)]


PACKETS = st.sampled_from(
    [
        row
        for row in w.TABLE
        if row.family in {w.MessageFamily.RAFT, w.MessageFamily.ENVELOPE, w.MessageFamily.EXPLAIN}
    ]
).flatmap(lambda row: messages_of(row.message).map(routed))


@settings(deadline=None)
@given(packets=st.lists(PACKETS, max_size=8), cap=st.sampled_from([2_000, 4_000, 1 << 20]))
def test_batches_keep_order_and_cap(packets: list[w.Packet], cap: int) -> None:
    dialect = w.Dialect(body_bytes_max=cap)
    bodies = list(w.encode_batches(packets, dialect))
    assert all(len(body) <= cap for body in bodies)
    assert [packet for body in bodies for packet in w.decode_packets(body, dialect)] == packets


def test_batches_are_as_few_as_the_cap_allows() -> None:
    sizes = [len(body) for body in w.encode_batches([ACK] * 6, SMALL)]
    one = len(w.encode_packet(ACK))
    assert sizes == [1 + 2 + 2 * (4 + one)] * 3


def test_a_batch_holds_as_many_packets_as_its_count_can_say() -> None:
    bodies = list(w.encode_batches([w.Packet(ROUTE, w.TimeoutNowBody())] * 65_537))
    assert [int.from_bytes(body[1:3], "little") for body in bodies] == [65_535, 2]


def test_slices_of_a_batch_are_views_of_the_frame() -> None:
    (body,) = w.encode_batches([append(9), ACK])
    first = next(w.decode_packets(body)).message
    assert isinstance(first, w.AppendEntriesRequest)
    (entry,) = first.entries
    assert isinstance(entry, memoryview)
    assert entry.obj is body


def test_what_stands_before_a_bad_packet_is_delivered() -> None:
    good = bytes.fromhex(VOTE_HEX)
    prefixed = len(good).to_bytes(4, "little") + good
    packets = w.decode_packets(b"\x0f\x02\x00" + prefixed + b"\x01\x00\x00\x00\xf0")
    assert next(packets) == VOTE
    with pytest.raises(w.WireUnknownField):
        next(packets)


def off_the_stream(message_id: int) -> bytes:
    """Write a packet that is whole in every way, but whose message does not travel so."""
    (row,) = [row for row in w.TABLE if row.message_id == message_id]
    body = w.encode_body(sample_of(row.message))
    return bytes([message_id]) + bytes.fromhex(ROUTE_HEX) + body


BAD_BODIES: dict[str, tuple[bytes, type[w.WireError]]] = {
    "empty": (b"", w.WireBodyTooShort),
    "unassigned id": (b"\x7f" + bytes(60), w.WireUnknownField),
    "experimental id": (b"\xf0" + bytes(60), w.WireUnknownField),
    "a log entry is no message": (off_the_stream(0x03), w.WireUnknownField),
    "a second handshake": (off_the_stream(0x08), w.WireUnknownField),
    "route cut": (bytes.fromhex(VOTE_HEX)[:36], w.WireBodyTooShort),
    "body cut": (bytes.fromhex(VOTE_HEX)[:40], w.WireBodyTooShort),
    "tail": (bytes.fromhex(VOTE_HEX) + b"\0", w.WireUnknownField),
    "batch without count": (bytes([BATCH_ID]), w.WireBodyTooShort),
    "batch cut": (bytes([BATCH_ID]) + b"\x02\x00", w.WireBodyTooShort),
    "batch with a tail": (bytes([BATCH_ID]) + b"\x00\x00\x00", w.WireUnknownField),
    "batch in a batch": (b"\x0f\x01\x00\x03\x00\x00\x00\x0f\x00\x00", w.WireUnknownField),
}


@pytest.mark.parametrize(("body", "error"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_bodies_that_mean_nothing(body: bytes, error: type[w.WireError]) -> None:
    with pytest.raises(error):
        list(w.decode_packets(body))


def test_only_messages_of_the_stream_are_packed() -> None:
    with pytest.raises(w.WireMisuse):
        w.encode_packet(w.Packet(ROUTE, cast(Any, w.local_handshake())))
    with pytest.raises(w.WireMisuse):
        w.encode_packet(w.Packet(ROUTE, cast(Any, "text")))


OTHER_ROUTES = {
    "another group": replace(ROUTE, partition_id=w.PartitionId(9)),
    "another sender": replace(ROUTE, source_replica_id=w.ReplicaId(9)),
}


@pytest.mark.parametrize("route", OTHER_ROUTES.values(), ids=OTHER_ROUTES.keys())
def test_an_ack_counts_for_no_other_group_or_sender_than_its_route_says(
    route: w.PacketRoute,
) -> None:
    """§7.1: an attestation is bound to the stream it came on."""
    with pytest.raises(w.WireMisuse):
        w.encode_packet(w.Packet(route, ACK.message))
    vote_on_route = w.encode_packet(w.Packet(route, VOTE.message))
    forged = b"\x18" + vote_on_route[1:37] + w.encode_body(ACK.message)
    with pytest.raises(w.WireUnknownField):
        w.decode_packet(forged)


@pytest.mark.parametrize("message_id", range(1, 6))
def test_system_entries_go_by_id_and_payload(message_id: int) -> None:
    (row,) = [row for row in w.TABLE if row.message_id == message_id]
    entry = sample_of(row.message)
    assert w.encode_system_entry(entry) == (message_id, w.encode_body(entry))
    assert w.decode_system_entry(message_id, w.encode_body(entry)) == entry


@pytest.mark.parametrize("message_id", [0x00, 0x06, 0x10, 0x18, 0xF0])
def test_other_ids_are_no_system_entries(message_id: int) -> None:
    with pytest.raises(w.WireUnknownField):
        w.decode_system_entry(message_id, bytes(100))


WIDE = w.Dialect(wide_frame=True, body_bytes_max=w.WIDE_BODY_BYTES_MAX)
EMPTY_APPEND = len(w.encode_packet(append(0)))
EMPTY_EXPLAIN_BODY = len(w.encode_body(explain(0).message))


@pytest.mark.parametrize("dialect", [w.BASELINE, WIDE], ids=["baseline", "WideFrame"])
def test_a_packet_fits_its_frame_or_is_refused(dialect: w.Dialect) -> None:
    """§8.1, §8.3: 4 MiB, or 32 MiB once both peers advertise WideFrame."""
    room = dialect.body_bytes_max - EMPTY_APPEND
    assert len(w.encode_packet(append(room), dialect)) == dialect.body_bytes_max
    with pytest.raises(w.WireBodyTooLarge):
        w.encode_packet(append(room + 1), dialect)


@pytest.mark.parametrize("dialect", [w.BASELINE, WIDE], ids=["baseline", "WideFrame"])
def test_explanations_stay_within_32_kib_whatever_was_negotiated(dialect: w.Dialect) -> None:
    """§8.1: the Explain caps remain in force even when WideFrame is negotiated."""
    room = w.EXPLAIN_BODY_BYTES_MAX - EMPTY_EXPLAIN_BODY
    fits = explain(room)
    assert w.decode_packet(w.encode_packet(fits, dialect), dialect) == fits
    over = explain(room + 1)
    with pytest.raises(w.WireBodyTooLarge):
        w.encode_packet(over, dialect)
    smuggled = w.encode_packet(fits, dialect) + b"\0"
    with pytest.raises(w.WireBodyTooLarge):
        w.decode_packet(smuggled, dialect)
    with pytest.raises(w.WireBodyTooLarge):
        w.decode_body(w.WhyQuarantinedEnvelope, bytes(w.EXPLAIN_BODY_BYTES_MAX + 1), dialect)


LONG = append(LONG_ENTRIES_BYTES)
SHORT = append(LONG_ENTRIES_BYTES - 1)


@pytest.mark.parametrize(
    "packets", [[LONG], [ACK, VOTE, LONG, ACK], [LONG, LONG, SHORT, ACK], [SHORT, ACK], [SHORT], []]
)
def test_pieces_of_bodies_are_the_same_packets_and_long_entries_are_not_copied(
    packets: list[w.Packet],
) -> None:
    bodies = list(w.encode_bodies(packets, w.BASELINE))
    decoded = [each for body in bodies for each in w.decode_packets(b"".join(body))]
    assert [w.encode_packet(each) for each in decoded] == [
        w.encode_packet(each) for each in packets
    ]
    entries = [entry for packet in packets if w.is_long(packet) for entry in _entries(packet)]
    pieces = {id(piece) for body in bodies for piece in body}
    assert all(id(entry) in pieces for entry in entries)
    assert [w.is_long(each) for each in packets].count(True) == len(entries)


def test_a_long_packet_beyond_the_peers_cap_is_refused_as_any_other() -> None:
    dialect = replace(w.BASELINE, body_bytes_max=LONG_ENTRIES_BYTES)
    with pytest.raises(w.WireBodyTooLarge):
        list(w.encode_bodies([LONG], dialect))


def _entries(packet: w.Packet) -> list[w.Buffer]:
    assert isinstance(packet.message, w.AppendEntriesRequest)
    return packet.message.entries
