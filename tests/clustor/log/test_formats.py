"""Every byte of a segment and its index: tables in both directions, and round trips."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.errors import ChecksumMismatch, LogError, UnsupportedFormat
from clustor.log.frame import FRAME_BODY_BYTES_MAX, LONG_BYTES, decode_frames, encode_frames
from clustor.log.segment import (
    RUN_PLAINTEXT_BYTES_MAX,
    RunHeader,
    SegmentHeader,
    SegmentTrailer,
    decode_index,
    decode_run_header,
    decode_segment_header,
    decode_trailer,
    encode_index,
    encode_run_header,
    encode_segment_header,
    encode_trailer,
    index_file,
    is_trailer,
    segment_file,
    segment_seq_of,
)
from clustor.log.types import (
    BlockCounter,
    DekEpoch,
    Entry,
    EntryKind,
    LogId,
    LogIndex,
    MacEpoch,
    PartitionId,
    SegmentSeq,
    Term,
)
from tests.clustor.log.fuzz import MAC_KEY
from tests.clustor.log.test_vectors import bitwise_crc32c

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def with_crc(wire: str) -> bytes:
    """Close bytes with their CRC32C, little-endian."""
    body = bytes.fromhex(wire)
    return body + bitwise_crc32c(body).to_bytes(4, "little")


# Entry frames

FRAMES = {
    "empty payload": (
        Entry(Term(1), LogIndex(5), b""),
        "01 00 0000 10000000 04000000 0100000000000000 0500000000000000",
    ),
    "payload": (
        Entry(Term(0x0102030405060708), LogIndex(5), b"\xaa\xbb\xcc"),
        "01 00 0000 13000000 04000000 0807060504030201 0500000000000000 aabbcc",
    ),
    "membership change": (
        Entry(Term(2), LogIndex(5), b"m", EntryKind.MEMBERSHIP_CHANGE),
        "01 01 0000 11000000 04000000 0200000000000000 0500000000000000 6d",
    ),
    "no-op": (
        Entry(Term(2), LogIndex(5), b"", EntryKind.NO_OP),
        "01 10 0000 10000000 04000000 0200000000000000 0500000000000000",
    ),
}


@pytest.mark.parametrize(("entry", "wire"), FRAMES.values(), ids=FRAMES.keys())
def test_frame_and_bytes_agree(entry: Entry, wire: str) -> None:
    encoded = encode_frames([entry])
    assert encoded.plaintext == with_crc(wire)
    assert encoded.covered == [bytes.fromhex(wire)]
    assert encoded.starts == [0]
    decoded = decode_frames(with_crc(wire), 5, 1)
    assert decoded.entries == [entry]
    assert decoded.covered == [bytes.fromhex(wire)]


@pytest.mark.parametrize(("entry", "wire"), FRAMES.values(), ids=FRAMES.keys())
def test_a_merkle_leaf_is_the_digest_of_what_the_crc_covers(entry: Entry, wire: str) -> None:
    body = bytearray(bytes.fromhex(wire))
    body[8] = 36
    leaf = hashlib.sha256(body).digest()
    encoded = encode_frames([entry], merkle=True)
    assert encoded.plaintext == with_crc(body.hex()) + leaf
    assert decode_frames(encoded.plaintext, 5, 1).entries == [entry]


BAD_FRAMES = {
    "another version": ("02 00 0000 10000000 04000000" + "00" * 16, UnsupportedFormat),
    "flags": ("01 00 0100 10000000 04000000" + "00" * 16, UnsupportedFormat),
    "unknown kind": (
        "01 77 0000 10000000 04000000 0100000000000000 0500000000000000",
        UnsupportedFormat,
    ),
    "body shorter than term and index": (
        "01 00 0000 0f000000 04000000" + "00" * 16,
        ChecksumMismatch,
    ),
    "body past the end": ("01 00 0000 ffffffff 04000000" + "00" * 16, ChecksumMismatch),
    "trailer of five": ("01 00 0000 10000000 05000000" + "00" * 17, ChecksumMismatch),
    "trailer past the end": ("01 00 0000 10000000 24000000" + "00" * 16, ChecksumMismatch),
    "another index": (
        "01 00 0000 10000000 04000000 0100000000000000 0600000000000000",
        ChecksumMismatch,
    ),
    "nothing": ("", ChecksumMismatch),
}


@pytest.mark.parametrize(("wire", "error"), BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_bad_frame_is_refused(wire: str, error: type[LogError]) -> None:
    with pytest.raises(error):
        decode_frames(with_crc(wire) if wire else b"", 5, 1)


@pytest.mark.parametrize("count", [0, 1, 3, 2**32 - 1])
def test_a_run_holds_exactly_the_entries_it_names(count: int) -> None:
    frames = encode_frames([Entry(Term(1), LogIndex(5), b"a"), Entry(Term(1), LogIndex(6), b"b")])
    with pytest.raises(ChecksumMismatch):
        decode_frames(frames.plaintext, 5, count)


def test_the_largest_frame() -> None:
    largest = Entry(Term(1), LogIndex(1), bytes(FRAME_BODY_BYTES_MAX - 16))
    assert decode_frames(encode_frames([largest]).plaintext, 1, 1).entries == [largest]


ENTRY_PARTS = st.tuples(U64, st.binary(max_size=60), st.sampled_from(EntryKind))


@given(st.integers(0, 2**63), st.lists(ENTRY_PARTS, min_size=1, max_size=6), st.booleans())
def test_frames_round_trip(
    first: int, parts: list[tuple[int, bytes, EntryKind]], merkle: bool
) -> None:
    entries = [
        Entry(Term(term), LogIndex(first + nth), payload, kind)
        for nth, (term, payload, kind) in enumerate(parts)
    ]
    encoded = encode_frames(entries, merkle)
    decoded = decode_frames(encoded.plaintext, first, len(entries))
    assert decoded.entries == entries
    assert (decoded.covered, decoded.starts) == (encoded.covered, encoded.starts)


@pytest.mark.parametrize("merkle", [False, True])
def test_long_frames_are_the_same_bytes_as_short_ones_would_be(merkle: bool) -> None:
    sizes = (LONG_BYTES - 17, LONG_BYTES - 16, 5, 3 * LONG_BYTES)
    entries = [
        Entry(Term(7), LogIndex(nth), bytes([nth]) * size) for nth, size in enumerate(sizes, 1)
    ]
    encoded = encode_frames(entries, merkle)
    decoded = decode_frames(encoded.plaintext, 1, len(entries))
    assert (decoded.entries, decoded.starts) == (entries, encoded.starts)
    assert b"".join(decoded.covered) == b"".join(encoded.covered)


# Segment header, run header, trailer, index

SEGMENT_HEADERS = {
    "ones": (
        SegmentHeader(
            PartitionId(1),
            LogId(bytes(range(16))),
            SegmentSeq(2),
            DekEpoch(3),
            MacEpoch(4),
            LogIndex(5),
            Term(6),
        ),
        b"CLSTRWAL".hex() + "0100 0000 03000000 04000000 0100000000000000 0200000000000000"
        "0500000000000000 0600000000000000 000102030405060708090a0b0c0d0e0f" + "00" * 56,
    ),
    "every byte its own": (
        SegmentHeader(
            PartitionId(0x0102030405060708),
            LogId(b"\xf0" * 16),
            SegmentSeq(0x1112131415161718),
            DekEpoch(0x21222324),
            MacEpoch(0x31323334),
            LogIndex(0x4142434445464748),
            Term(0x5152535455565758),
        ),
        b"CLSTRWAL".hex() + "0100 0000 24232221 34333231 0807060504030201 1817161514131211"
        "4847464544434241 5857565554535251" + "f0" * 16 + "00" * 56,
    ),
}


@pytest.mark.parametrize(("header", "wire"), SEGMENT_HEADERS.values(), ids=SEGMENT_HEADERS.keys())
def test_segment_header_and_bytes_agree(header: SegmentHeader, wire: str) -> None:
    assert encode_segment_header(header) == with_crc(wire)
    assert len(with_crc(wire)) == 128
    assert decode_segment_header(with_crc(wire) + b"neighbour") == header


RUN_HEADERS = {
    "small": (
        RunHeader(1, BlockCounter(2), LogIndex(3), 4),
        b"CRUN".hex() + "01000000 0200000000000000 0300000000000000 04000000 00000000",
    ),
    "largest": (
        RunHeader(8 << 20, BlockCounter(2**64 - 1), LogIndex(2**64 - 1), 2**32 - 1),
        b"CRUN".hex() + "00008000" + "ff" * 8 + "ff" * 8 + "ff" * 4 + "00000000",
    ),
}


@pytest.mark.parametrize(("header", "wire"), RUN_HEADERS.values(), ids=RUN_HEADERS.keys())
def test_run_header_and_bytes_agree(header: RunHeader, wire: str) -> None:
    assert encode_run_header(header) == with_crc(wire)
    assert len(with_crc(wire)) == 36
    assert decode_run_header(with_crc(wire) + b"neighbour") == header


TAIL = "0200000000000000 0300000000000000 04000000"
BAD_HEADERS = {
    "run: another magic": (decode_run_header, b"CRUM".hex() + "01000000" + TAIL + "00" * 4),
    "run: flags": (decode_run_header, b"CRUN".hex() + "01000000" + TAIL + "01000000"),
    "run: no plaintext": (decode_run_header, b"CRUN".hex() + "00000000" + TAIL + "00" * 4),
    "run: too much of it": (decode_run_header, b"CRUN".hex() + "01008000" + TAIL + "00" * 4),
    "run: cut short": (decode_run_header, b"CRUN".hex() + "01000000" + TAIL),
    "segment: another magic": (decode_segment_header, b"CLSTRWAM".hex() + "0100" + "00" * 114),
    "segment: later version": (decode_segment_header, b"CLSTRWAL".hex() + "0200" + "00" * 114),
    "segment: cut short": (decode_segment_header, b"CLSTRWAL".hex() + "0100" + "00" * 113),
}


@pytest.mark.parametrize(("decode", "wire"), BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
def test_a_bad_header_is_refused_even_with_a_right_crc(decode: Any, wire: str) -> None:
    with pytest.raises((ChecksumMismatch, UnsupportedFormat)):
        decode(with_crc(wire))


@given(U64, st.binary(min_size=16, max_size=16), U64, U32, U32, U64, U64)
def test_segment_headers_round_trip(
    partition: int, log_id: bytes, seq: int, dek: int, mac: int, first: int, term: int
) -> None:
    header = SegmentHeader(
        PartitionId(partition),
        LogId(log_id),
        SegmentSeq(seq),
        DekEpoch(dek),
        MacEpoch(mac),
        LogIndex(first),
        Term(term),
    )
    assert decode_segment_header(encode_segment_header(header)) == header


@given(st.integers(1, RUN_PLAINTEXT_BYTES_MAX), U64, U64, U32)
def test_run_headers_round_trip(length: int, counter: int, first: int, count: int) -> None:
    header = RunHeader(length, BlockCounter(counter), LogIndex(first), count)
    assert decode_run_header(encode_run_header(header)) == header


LANES = st.binary(min_size=16, max_size=16)


@given(U64, U64, U64, U32, LANES, LANES)
def test_trailers_round_trip(
    seq: int, first: int, last: int, count: int, entries: bytes, offsets: bytes
) -> None:
    trailer = SegmentTrailer(
        SegmentSeq(seq), LogIndex(first), LogIndex(last), count, entries, offsets
    )
    wire = encode_trailer(trailer, MAC_KEY)
    assert is_trailer(wire)
    assert len(wire) == 98
    assert decode_trailer(wire, MAC_KEY) == trailer


@pytest.mark.parametrize("length", [0, 4, 97])
def test_a_trailer_cut_short_is_refused(length: int) -> None:
    trailer = SegmentTrailer(SegmentSeq(1), LogIndex(1), LogIndex(1), 1, bytes(16), bytes(16))
    with pytest.raises(ChecksumMismatch):
        decode_trailer(encode_trailer(trailer, MAC_KEY)[:length], MAC_KEY)


def test_index_and_bytes_agree() -> None:
    offsets = bytes.fromhex("a400000000000000 0001000000000000")
    wire = with_crc(
        b"CLSTRIDX".hex() + "0100 0000 00000000 0700000000000000 0200000000000000" + offsets.hex()
    )
    assert encode_index(7, offsets) == wire
    assert struct.unpack("<2Q", decode_index(wire, 7)) == (0xA4, 0x100)


BAD_INDICES = {
    "another magic": b"CLSTRIDY".hex() + "0100 0000 00000000 0700000000000000 0000000000000000",
    "another version": b"CLSTRIDX".hex() + "0200 0000 00000000 0700000000000000 0000000000000000",
    "another segment": b"CLSTRIDX".hex() + "0100 0000 00000000 0800000000000000 0000000000000000",
    "another count": b"CLSTRIDX".hex() + "0100 0000 00000000 0700000000000000 0100000000000000",
    "half an offset": b"CLSTRIDX".hex()
    + "0100 0000 00000000 0700000000000000 0100000000000000 00000000",
    "cut short": b"CLSTRIDX".hex() + "0100",
}


@pytest.mark.parametrize("wire", BAD_INDICES.values(), ids=BAD_INDICES.keys())
def test_a_bad_index_is_refused(wire: str) -> None:
    with pytest.raises(ChecksumMismatch):
        decode_index(with_crc(wire), 7)


@given(U64, st.lists(U64, max_size=20))
def test_indices_round_trip(seq: int, offsets: list[int]) -> None:
    packed = b"".join(offset.to_bytes(8, "little") for offset in offsets)
    assert decode_index(encode_index(seq, packed), seq) == packed


def test_segment_names_both_ways() -> None:
    assert segment_file(7) == "wal/segment-00000000000000000007.log"
    assert index_file(2**64 - 1) == "wal/segment-18446744073709551615.idx"
    assert segment_seq_of("segment-00000000000000000007.log") == 7


@pytest.mark.parametrize(
    "name",
    [
        "segment-7.log",
        "segment-00000000000000000007.idx",
        "segment-00000000000000000007.log.tmp",
        "segment-0000000000000000000x.log",
        "segment-٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٧.log",
        "durability.log",
    ],
)
def test_other_files_are_no_segments(name: str) -> None:
    assert segment_seq_of(name) is None


def test_a_bare_number_is_no_segment() -> None:
    assert segment_seq_of("00000000000000000007") is None
    assert segment_seq_of("segment-00000000000000000007") is None
