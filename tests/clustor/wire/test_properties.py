"""Round trips of every message, and arbitrary bytes: a typed error or a message, never more."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor import wire as w
from clustor.wire.fields import fields_of
from clustor.wire.table import BATCH_ID
from tests.clustor.wire.strategies import messages_of, sample_of

DIALECTS = [
    w.BASELINE,
    w.Dialect(minor=0),
    w.Dialect(wide_count=True),
    w.Dialect(forward_compat=True),
    w.Dialect(
        wide_count=True,
        forward_compat=True,
        wide_frame=True,
        body_bytes_max=w.WIDE_BODY_BYTES_MAX,
    ),
]
ROWS = pytest.mark.parametrize("row", w.TABLE, ids=lambda row: row.name)
ROWS_WITH_FIELDS = pytest.mark.parametrize(
    "row", [row for row in w.TABLE if fields_of(row.message)], ids=lambda row: row.name
)
MIRRORED = [
    row
    for row in w.TABLE
    if row.family in {w.MessageFamily.ENVELOPE, w.MessageFamily.EXPLAIN, w.MessageFamily.RECORD}
]
Decoder: TypeAlias = Callable[[bytes, w.Dialect], Any]
ROUTE = w.PacketRoute(
    w.PartitionId(7), w.ReplicaId(7), w.ReplicaId(3), w.Term(4), w.DurabilityModeEpoch(5)
)


def without_tails(message: Any, dialect: w.Dialect) -> Any:
    """Return what a peer of this dialect can be told."""
    if dialect.minor == 0 and isinstance(message, w.PreVoteResponseBody):
        message.high_rtt = None
    if dialect.minor == 0 and isinstance(message, w.RequestVoteResponse):
        message.vote_annotation = None
    return message


@ROWS
@settings(max_examples=60, deadline=None)
@given(data=st.data(), dialect=st.sampled_from(DIALECTS))
def test_every_message_survives_the_wire(
    row: w.WireRow, data: st.DataObject, dialect: w.Dialect
) -> None:
    message = data.draw(messages_of(row.message))
    body = w.encode_body(message, dialect)
    decoded = w.decode_body(row.message, body, dialect)
    assert decoded == without_tails(message, dialect)
    assert w.encode_body(decoded, dialect) == body


@pytest.mark.parametrize("row", MIRRORED, ids=lambda row: row.name)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_envelope_survives_json(row: w.WireRow, data: st.DataObject) -> None:
    message = data.draw(messages_of(row.message))
    mirrored = w.encode_json(message)
    assert w.decode_json(row.message, mirrored) == message
    assert w.encode_json(w.decode_json(row.message, mirrored)) == mirrored


@ROWS_WITH_FIELDS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_unknown_discriminants_and_flags_are_refused_everywhere(
    row: w.WireRow, data: st.DataObject
) -> None:
    """Any single changed byte gives another message or a typed error, never the same message."""
    body = bytearray(w.encode_body(data.draw(messages_of(row.message))))
    before = w.decode_body(row.message, bytes(body))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] = (body[place] + data.draw(st.integers(1, 255))) % 256
    try:
        after = w.decode_body(row.message, bytes(body))
    except w.WireError:
        return
    assert after != before


@ROWS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_neighbouring_bytes_are_neither_read_nor_touched(
    row: w.WireRow, data: st.DataObject
) -> None:
    message = data.draw(messages_of(row.message))
    body = w.encode_body(message)
    held = bytearray(b"before" + body + b"after")
    view = memoryview(held)[6 : 6 + len(body)].toreadonly()
    assert w.decode_body(row.message, view) == message
    assert held == b"before" + body + b"after"


def body_decoder(row: w.WireRow) -> Decoder:
    return lambda data, dialect: w.decode_body(row.message, data, dialect)


def decode_json_as(message: type[Any]) -> Decoder:
    return lambda data, _dialect: w.decode_json(message, data)


def reassemble(data: bytes, _dialect: w.Dialect) -> Any:
    reassembly = w.Reassembly()
    half = len(data) // 2
    reassembly.add(data[:half])
    reassembly.add(data[half:])
    return reassembly.finish()


def stream_frames(data: bytes, _dialect: w.Dialect) -> Any:
    stream = w.FrameStream(body_bytes_max=w.EXPLAIN_BODY_BYTES_MAX)
    stream.receive_data(data)
    events = []
    while (event := stream.next_event()) is not None:
        events.append(event)
    stream.end()
    return events


DECODERS: dict[str, Decoder] = {
    "packets": lambda data, dialect: list(w.decode_packets(data, dialect)),
    "batch": lambda data, dialect: list(w.decode_packets(bytes([BATCH_ID]) + data, dialect)),
    "handshake": lambda data, _dialect: w.decode_handshake(b"\x08" + data),
    "chunk": lambda data, _dialect: w.decode_chunk(data),
    "reassembly": reassemble,
    "frames": stream_frames,
    **{f"json {row.name}": decode_json_as(row.message) for row in MIRRORED},
}


def survives(decode: Decoder, data: bytes, dialect: w.Dialect) -> int | None:
    """Return the code of the refusal, if any; anything but a WireError fails the test."""
    try:
        decode(data, dialect)
    except w.WireError as refusal:
        return refusal.code
    return None


@ROWS
@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=300), dialect=st.sampled_from(DIALECTS))
def test_every_message_decoder_survives_arbitrary_bytes(
    row: w.WireRow, data: bytes, dialect: w.Dialect
) -> None:
    survives(body_decoder(row), data, dialect)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300), dialect=st.sampled_from(DIALECTS))
def test_every_other_decoder_survives_arbitrary_bytes(
    name: str, data: bytes, dialect: w.Dialect
) -> None:
    survives(DECODERS[name], data, dialect)


HUGE_COUNTS = {
    "entries": (w.AppendEntriesRequest, bytes(80) + b"\xff\xff\xff\x7f"),
    "members": (w.MembershipChange, b"\xff\xff\xff\x7f"),
    "text": (w.FenceCommit, b"\xff\xff\xff\x7f"),
}


@pytest.mark.parametrize(("message", "head"), HUGE_COUNTS.values(), ids=HUGE_COUNTS.keys())
def test_memory_is_bounded_by_the_body_not_by_what_it_claims(
    message: type[Any], head: bytes
) -> None:
    body = head + bytes(64 * 1024)
    tracemalloc.start()
    try:
        with pytest.raises(w.WireBodyTooShort):
            w.decode_body(message, body, w.Dialect(wide_count=True))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * len(body)


def mutated(seed: random.Random, body: bytes) -> bytes:
    """Damage a valid body the way a bad peer or a bad link would."""
    damaged = bytearray(body)
    for _ in range(seed.randint(0, 3)):
        place = seed.randrange(len(damaged) + 1)
        match seed.randrange(4):
            case 0:
                damaged[place:place] = seed.randbytes(seed.randint(1, 8))
            case 1:
                del damaged[place : place + seed.randint(1, 8)]
            case 2 if place < len(damaged):
                damaged[place] ^= 1 << seed.randrange(8)
            case _:
                damaged[place : place + 4] = b"\xff\xff\xff\xff"
    return bytes(damaged)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_a_million_damaged_or_arbitrary_inputs(seed: int) -> None:
    """Twenty seeds of 100,000 inputs: valid bodies, damaged or not, and noise."""
    rng = random.Random(seed)
    corpus = corpus_of_valid_bodies()
    outcomes: set[int | None] = set()
    for _ in range(100_000):
        decode, body = rng.choice(corpus)
        data = mutated(rng, body) if rng.random() < 0.9 else rng.randbytes(rng.randint(0, 200))
        outcomes.add(survives(decode, data, rng.choice(DIALECTS)))
    # A fuzzer that only ever met one kind of refusal would have tested nothing.
    assert outcomes >= {None, 1001, 1002, 1003, 1006, 1007, 1009}


def corpus_of_valid_bodies() -> list[tuple[Decoder, bytes]]:
    """Return one body per message, bare, packed, batched and mirrored, with its decoder."""
    corpus: list[tuple[Decoder, bytes]] = []
    for row in w.TABLE:
        message = sample_of(row.message)
        corpus.append((body_decoder(row), w.encode_body(message)))
        if row in MIRRORED:
            corpus.append((decode_json_as(row.message), w.encode_json(message)))
        if row.family in {w.MessageFamily.RAFT, w.MessageFamily.ENVELOPE, w.MessageFamily.EXPLAIN}:
            packet = w.Packet(ROUTE, message)  # samples name partition 7 and replica 7
            corpus.append((DECODERS["packets"], w.encode_packet(packet)))
            corpus.extend((DECODERS["packets"], each) for each in w.encode_batches([packet] * 3))
    frame = w.encode_frame(b"frame", body_bytes_max=5)
    (chunk,) = w.encode_chunks([b"a", b"b", b"c"])
    return [
        *corpus,
        (DECODERS["handshake"], w.encode_handshake(w.local_handshake())[1:]),
        *[(DECODERS["frames"], frame * 3)] * 5,
        *[(DECODERS["chunk"], chunk)] * 5,
        *[(DECODERS["reassembly"], chunk * 2)] * 5,
    ]
