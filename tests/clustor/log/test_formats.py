"""Every byte the log puts on disk: tables in both directions, and round trips."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.errors import ChecksumMismatch, LogError, UnsupportedFormat
from clustor.log.frame import FRAME_BODY_BYTES_MAX, decode_frames, encode_frames
from clustor.log.image import read_identity
from clustor.log.ledger import (
    AbandonReason,
    DurabilityRecord,
    DurabilityTransition,
    LedgerBody,
    LedgerHead,
    LedgerIdentity,
    LedgerRecord,
    LogBase,
    NonceReservationAbandon,
    NonceReservationRange,
    Truncation,
    decode_record,
    encode_record,
    scan_ledger,
)
from clustor.log.metadata import METADATA_FILE, LogMetadata, read_document
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
from clustor.log.steps import Create, FileName, Write
from clustor.log.types import (
    BlockCounter,
    DekEpoch,
    DurabilityMode,
    DurabilityModeEpoch,
    Entry,
    EntryKind,
    IoWriterMode,
    LogId,
    LogIndex,
    MacEpoch,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.sim.disk import SimDisk
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


# The ledger

# kind, io_writer_mode, nth_in_write, durability_mode_epoch, record_seq, body
HEAD = "03 0200 04030201 0900000000000000"
RECORDS: dict[str, tuple[LedgerBody, str]] = {
    "identity": (
        LedgerHead(LedgerIdentity(PartitionId(7), LogId(bytes(range(16)))), 5),
        f"01 {HEAD} 01000000 0700000000000000 000102030405060708090a0b0c0d0e0f 05" + "00" * 15,
    ),
    "durability": (
        DurabilityRecord(Term(5), LogIndex(6), SegmentSeq(7)),
        f"02 {HEAD} 0500000000000000 0600000000000000 0700000000000000" + "00" * 20,
    ),
    "nonce range": (
        NonceReservationRange(SegmentSeq(8), BlockCounter(9), 10),
        f"03 {HEAD} 0800000000000000 0900000000000000 0a00000000000000" + "00" * 20,
    ),
    "nonce abandon at restart": (
        NonceReservationAbandon(SegmentSeq(11), BlockCounter(12), AbandonReason.RESTART),
        f"04 {HEAD} 0b00000000000000 0c00000000000000 01" + "00" * 27,
    ),
    "nonce abandon at a seal": (
        NonceReservationAbandon(SegmentSeq(11), BlockCounter(12), AbandonReason.SEALED),
        f"04 {HEAD} 0b00000000000000 0c00000000000000 02" + "00" * 27,
    ),
    "transition": (
        DurabilityTransition(
            Term(13), LogIndex(14), DurabilityMode.STRICT, DurabilityMode.GROUP_FSYNC
        ),
        f"05 {HEAD} 0d00000000000000 0e00000000000000 01 02" + "00" * 26,
    ),
    "truncation": (
        Truncation(LogIndex(15), SegmentSeq(16), BlockCounter(17)),
        f"06 {HEAD} 0f00000000000000 1000000000000000 1100000000000000" + "00" * 20,
    ),
    "base": (
        LogBase(Term(2), LogIndex(3), SegmentSeq(4)),
        f"07 {HEAD} 0200000000000000 0300000000000000 0400000000000000" + "00" * 20,
    ),
}


@pytest.mark.parametrize(("body", "wire"), RECORDS.values(), ids=RECORDS.keys())
def test_ledger_record_and_bytes_agree(body: LedgerBody, wire: str) -> None:
    record = LedgerRecord(9, 2, IoWriterMode.BLOCKING, DurabilityModeEpoch(0x01020304), body)
    assert encode_record(record) == with_crc(wire)
    assert len(with_crc(wire)) == 64
    assert decode_record(with_crc(wire)) == record


BAD_RECORDS = {
    "kind 0": "00" + RECORDS["base"][1][2:],
    "kind 8": "08" + RECORDS["base"][1][2:],
    "writer mode 9": "07 09" + RECORDS["base"][1][5:],
    "abandon reason 3": f"04 {HEAD} 0b00000000000000 0c00000000000000 03" + "00" * 27,
    "mode 3": f"05 {HEAD} 0d00000000000000 0e00000000000000 01 03" + "00" * 26,
    "later format": f"01 {HEAD} 02000000 0700000000000000" + "00" * 32,
}


@pytest.mark.parametrize("wire", BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_a_record_of_a_later_release_is_not_taken_for_damage(wire: str) -> None:
    """Its CRC is right: nobody may cut it off as torn, so the whole ledger is refused."""
    with pytest.raises(UnsupportedFormat):
        decode_record(with_crc(wire))
    with pytest.raises(UnsupportedFormat):
        scan_ledger(with_crc(wire))


BODIES = st.one_of(
    st.builds(
        LedgerHead,
        st.builds(LedgerIdentity, U64, st.binary(min_size=16, max_size=16)),
        st.integers(0, 2**32 - 1),
    ),
    st.builds(DurabilityRecord, U64, U64, U64),
    st.builds(NonceReservationRange, U64, U64, U64),
    st.builds(NonceReservationAbandon, U64, U64, st.sampled_from(AbandonReason)),
    st.builds(
        DurabilityTransition,
        U64,
        U64,
        st.sampled_from(DurabilityMode),
        st.sampled_from(DurabilityMode),
    ),
    st.builds(Truncation, U64, U64, U64),
    st.builds(LogBase, U64, U64, U64),
)
HEADS = st.tuples(U64, st.integers(0, 2**16 - 1), st.sampled_from(IoWriterMode), U32)


@given(HEADS, BODIES)
def test_ledger_records_round_trip(
    head: tuple[int, int, IoWriterMode, int], body: LedgerBody
) -> None:
    seq, nth, mode, epoch = head
    record = LedgerRecord(seq, nth, mode, DurabilityModeEpoch(epoch), body)
    assert decode_record(encode_record(record)) == record


def _ledger(*nth_in_write: int) -> list[bytes]:
    """A head that came by a rename with one more record, then records as they are numbered."""
    head = LedgerHead(LedgerIdentity(PartitionId(7), LogId(bytes(16))), 2)
    body = DurabilityRecord(Term(1), LogIndex(1), SegmentSeq(1))
    return [
        encode_record(
            LedgerRecord(
                seq, nth, IoWriterMode.BLOCKING, DurabilityModeEpoch(0), body if seq else head
            )
        )
        for seq, nth in enumerate(nth_in_write)
    ]


ZEROS = bytes(64)
NOISE = b"x" * 64
THREE, FOUR = _ledger(0, 1, 0), _ledger(0, 1, 0, 1)
# What stands in the file, then: believed records, where they end, torn, offset of damage.
SCANS: dict[str, tuple[list[bytes], int, int, bool, int | None]] = {
    "nothing": ([], 0, 0, True, 0),
    "whole, zeros behind": ([*THREE, ZEROS], 3, 192, False, None),
    "whole, cut where the zeros were": (THREE, 3, 192, True, None),
    "last record missing its end": ([*THREE[:2], THREE[2][:63]], 2, 128, True, None),
    "last write unreadable": ([*THREE[:2], NOISE], 2, 128, True, None),
    "torn, then zeros": ([*THREE[:2], NOISE, ZEROS], 2, 128, True, None),
    "first of a write of two lost": ([*FOUR[:2], ZEROS, FOUR[3], ZEROS], 3, 256, True, None),
    "second of a write of two lost": ([*FOUR[:3], NOISE, ZEROS], 3, 192, True, None),
    "later write behind zeros": (
        [*THREE[:2], ZEROS, _ledger(0, 1, 0, 0)[3], ZEROS],
        2,
        128,
        True,
        128,
    ),
    "later write behind noise": ([NOISE, *THREE[1:], ZEROS], 0, 0, True, 0),
    "head record lost": ([THREE[0], NOISE, ZEROS], 1, 64, True, 64),
    "head cut off": ([THREE[0], ZEROS], 1, 64, False, 64),
    "a record twice": ([*THREE, THREE[2], ZEROS], 3, 192, True, None),
    "a record skipped": ([*THREE[:2], FOUR[3], ZEROS], 2, 128, True, None),
}


@pytest.mark.parametrize(
    ("rows", "believed", "good_bytes", "torn", "damaged"), SCANS.values(), ids=SCANS.keys()
)
def test_a_torn_write_is_told_from_damage(
    rows: list[bytes], believed: int, good_bytes: int, torn: bool, damaged: int | None
) -> None:
    scan = scan_ledger(b"".join(rows))
    assert (len(scan.records), scan.good_bytes) == (believed, good_bytes)
    assert (scan.torn, scan.damaged_at) == (torn, damaged)


# metadata.json

METADATA = (
    b'{"format_version":1,"log_id":"000102030405060708090a0b0c0d0e0f","partition_id":"7",'
    b'"sha256":"%s"}\n'
)


def document(**members: object) -> bytes:
    """Write a document with the digest of whatever its members are."""
    canonical = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    members["sha256"] = hashlib.sha256(canonical).hexdigest()
    return json.dumps(members).encode()


def storage_with(file: FileName, data: bytes) -> SimDisk:
    disk = SimDisk()
    disk.execute((Create(file), Write(file, 0, data)))
    return disk


LATER = "000102030405060708090a0b0c0d0e0f"
BAD_DOCUMENTS = {
    "empty": b"",
    "no object": b"[]",
    "no digest": b'{"partition_id":"7","log_id":"%s","format_version":1}' % LATER.encode(),
    "not utf-8": METADATA.replace(b"log", b"l\xffg"),
    "lone surrogate": b'{"log_id":"\\ud800","sha256":"00"}',
    "nested without end": b'{"log_id":' + b"[" * 200_000,
    "nested deep, and closed": b'{"log_id":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "number too large": b'{"format_version":1' + b"0" * 400 + b',"sha256":"00"}',
    "float": b'{"format_version":1e400,"sha256":"00"}',
    "longer than any document": b" " * (1 << 20) + METADATA,
    "member missing": document(partition_id="7", format_version=1),
    "member unknown": document(partition_id="7", log_id=LATER, format_version=1, more=1),
    "member of another type": document(partition_id=7, log_id=LATER, format_version=1),
    "partition not a number": document(partition_id="x", log_id=LATER, format_version=1),
    "partition too large": document(partition_id=str(2**64), log_id=LATER, format_version=1),
    "log id not hex": document(partition_id="7", log_id="zz" * 16, format_version=1),
    "log id too short": document(partition_id="7", log_id="00", format_version=1),
    "later release": document(partition_id="7", log_id=LATER, format_version=2),
}


@pytest.mark.parametrize("data", BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS.keys())
def test_a_bad_metadata_file_is_refused_with_a_typed_error(data: bytes) -> None:
    with pytest.raises(LogError):
        read_identity(storage_with(METADATA_FILE, data))


def test_metadata_is_canonical_json_with_its_digest() -> None:
    unsigned = METADATA.replace(b',"sha256":"%s"}\n', b"}")
    data = METADATA % hashlib.sha256(unsigned).hexdigest().encode()
    disk = storage_with(METADATA_FILE, data)
    found = read_document(disk, METADATA_FILE, LogMetadata)
    assert found == LogMetadata.of(PartitionId(7), LogId(bytes(range(16))))
    assert read_identity(disk) == LedgerIdentity(PartitionId(7), LogId(bytes(range(16))))
