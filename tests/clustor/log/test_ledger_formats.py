"""Every byte of the ledger and of metadata.json: tables in both directions, and round trips."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.errors import LogError, UnsupportedFormat
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
    encode_proof,
    encode_record,
    scan_ledger,
)
from clustor.log.metadata import METADATA_FILE, LogMetadata, read_document
from clustor.log.steps import Create, FileName, WriteFile
from clustor.log.types import (
    BlockCounter,
    DurabilityMode,
    DurabilityModeEpoch,
    IoWriterMode,
    LogId,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.sim.disk import SimDisk
from tests.clustor.log.test_vectors import bitwise_crc32c

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def with_crc(wire: str) -> bytes:
    """Close bytes with their CRC32C, little-endian."""
    body = bytes.fromhex(wire)
    return body + bitwise_crc32c(body).to_bytes(4, "little")


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


@given(HEADS, st.builds(DurabilityRecord, U64, U64, U64))
def test_a_proof_has_the_bytes_of_any_record(
    head: tuple[int, int, IoWriterMode, int], proof: DurabilityRecord
) -> None:
    seq, nth, mode, epoch = head
    record = LedgerRecord(seq, nth, mode, DurabilityModeEpoch(epoch), proof)
    assert encode_proof(seq, nth, mode, epoch, proof) == encode_record(record)


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
    disk.execute((Create(file), WriteFile(file, 0, data)))
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
