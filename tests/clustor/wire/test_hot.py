"""The quick codec of a round's messages against the general one: the same bytes, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from clustor import wire as w
from clustor.wire import hot, stream

NARROW = w.Dialect()
WIDE = w.Dialect(wide_count=True)
LENIENT = w.Dialect(wide_count=True, forward_compat=True)
DIALECTS = {"narrow": NARROW, "wide": WIDE, "lenient": LENIENT}
U64 = (1 << 64) - 1

ROUTE = w.PacketRoute(
    w.PartitionId(7), w.ReplicaId(2), w.ReplicaId(3), w.Term(5), w.DurabilityModeEpoch(4)
)
APPEND = w.AppendEntriesRequest(
    *(w.LogIndex(9), w.Term(5), w.LogIndex(8), w.LogIndex(7), w.LeaseEpoch(6)),
    *(1, 2, 3, w.LogIndex(4), w.LogIndex(U64)),
    entries=[],
)
RESPONSE = w.AppendEntriesResponse(
    *(True, w.LogIndex(9), w.LogIndex(8), 1, 2, w.LogIndex(3), w.LogIndex(4)),
    *(w.IoWriterMode.FIXED_URING, False, True),
)
ACK = w.DurabilityAckBody(
    *(w.PartitionId(7), w.ReplicaId(2), w.LogIndex(9), w.SegmentSeq(1)),
    w.IoWriterMode.BLOCKING,
)
MESSAGES: dict[str, Any] = {
    "heartbeat": APPEND,
    "one entry": replace(APPEND, entries=[b"x"]),
    "entries": replace(APPEND, entries=[b"", b"a" * 300, b"b"]),
    "answer": RESPONSE,
    "refusal": replace(
        RESPONSE, success=False, conflict_index=w.LogIndex(3), conflict_term=w.Term(2)
    ),
    "ack": ACK,
    "repairing": w.RepairingAck(
        ACK.partition_id,
        ACK.replica_id,
        ACK.last_fsynced_index,
        ACK.segment_seq,
        ACK.io_writer_mode,
    ),
}


def cases() -> Iterator[Any]:
    for (name, message), (dialect_name, dialect) in product(MESSAGES.items(), DIALECTS.items()):
        yield pytest.param(message, dialect, id=f"{name}-{dialect_name}")


@pytest.mark.parametrize(("message", "dialect"), list(cases()))
def test_both_codecs_write_the_same_bytes_and_read_the_same_message(
    message: Any, dialect: w.Dialect
) -> None:
    packet = w.Packet(ROUTE, message)
    encoded = stream.encode_packet(packet, dialect)
    assert encoded == stream.encode_any_packet(packet, dialect)
    assert stream.decode_packet(encoded, dialect) == packet
    assert stream.decode_any_packet(encoded, dialect) == packet


@pytest.mark.parametrize(("message", "dialect"), list(cases()))
def test_both_codecs_judge_bytes_alike_wherever_they_are_cut_or_changed(
    message: Any, dialect: w.Dialect
) -> None:
    encoded = stream.encode_packet(w.Packet(ROUTE, message), dialect)
    wrong = [encoded[:end] for end in range(len(encoded))] + [encoded + b"\0", encoded + b"\1\2"]
    wrong += [encoded[:at] + b"\xff" + encoded[at + 1 :] for at in range(len(encoded))]
    for body in wrong:
        assert _verdict(stream.decode_packet, body, dialect) == _verdict(
            stream.decode_any_packet, body, dialect
        )


def _verdict(decode: Any, body: bytes, dialect: w.Dialect) -> object:
    try:
        return decode(body, dialect)
    except w.WireError as error:
        return type(error), str(error)


@pytest.mark.parametrize("name", ["heartbeat", "one entry", "entries", "answer", "ack"])
def test_an_ordinary_message_takes_the_quick_way(name: str) -> None:
    encoded = stream.encode_packet(w.Packet(ROUTE, MESSAGES[name]), WIDE)
    decoders: dict[int, Any] = {
        hot.APPEND_ID: hot.decode_append,
        hot.RESPONSE_ID: hot.decode_response,
        hot.ACK_ID: hot.decode_ack,
    }
    assert decoders[encoded[0]](encoded, WIDE) is not None
    assert stream._encode_hot(w.Packet(ROUTE, MESSAGES[name]), WIDE) == encoded


def test_what_has_no_bytes_is_refused_in_the_general_codecs_words() -> None:
    too_large = replace(ACK, last_fsynced_index=w.LogIndex(U64 + 1))
    elsewhere = replace(ACK, partition_id=w.PartitionId(8))
    long = replace(APPEND, entries=[b"x" * 100])
    for message in (too_large, elsewhere):
        with pytest.raises(w.WireMisuse):
            stream.encode_packet(w.Packet(ROUTE, message), WIDE)
    with pytest.raises(w.WireBodyTooLarge):
        stream.encode_packet(w.Packet(ROUTE, long), w.Dialect(body_bytes_max=150))
