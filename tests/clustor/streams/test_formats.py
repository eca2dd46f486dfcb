"""The bytes on disk and in the log: golden vectors, both directions, and any other bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from clustor.log.cipher import TAG_BYTES, wal_block_iv
from clustor.log.errors import AuthenticationFailed, ChecksumMismatch, LogError, UnsupportedFormat
from clustor.log.types import DekEpoch, PartitionId
from clustor.raft.types import ReplicaId
from clustor.streams import (
    Automatic,
    Custom,
    Disabled,
    FixedMaster,
    FixedSet,
    Majority,
    MasterPolicy,
    QuorumPolicy,
    StoreId,
    StreamMisuse,
    StreamPartitionId,
    Threshold,
)
from clustor.streams.index import SparseIndex, decode_index
from clustor.streams.metadata import (
    Definition,
    PartitionChange,
    SegmentMeta,
    StoreRecord,
    decode_store_record,
    encode_batch,
    encode_store_record,
    read_metadata,
)
from clustor.streams.nonces import Sequences
from clustor.streams.runs import (
    FILE_HEADER_BYTES,
    RUN_HEAD_BYTES,
    FileCipher,
    FileHeader,
    RunHead,
    decode_file_header,
    decode_run_head,
    encode_file_header,
    encode_run_head,
)
from clustor.streams.types import FileSeq, WriterSeq
from tests.clustor.streams.golden import GOLDEN

HEADER = FileHeader(
    group=PartitionId(9),
    store_id=StoreId(bytes(range(16))),
    partition=StreamPartitionId(0x1122334455667788),
    file_seq=FileSeq((1 << 32) | 2),
    dek_epoch=DekEpoch(3),
    first_index=40,
)
HEAD = RunHead(
    batch_count=1,
    writer_seq=WriterSeq(1 << 32),
    block_counter=5,
    first_index=40,
    next_index=42,
    max_timestamp=-7,
    payload_bytes=5,
)
ROW = struct.pack("<QIIq", 40, 2, 5, -7)
CHANGE = PartitionChange(
    partition=2**64 - 1,
    start_index=1,
    next_index=9,
    defined_at=8,
    digest=3,
    digest_from=2,
    segments=(SegmentMeta(1 << 32, 1, 9, 500, 77, 3),),
    removed=(7,),
    definition=Definition.of(Threshold(2), FixedMaster(ReplicaId(5)), ReplicaId(5)),
)


def made() -> dict[str, bytes]:
    index = SparseIndex(100, FILE_HEADER_BYTES)
    index.add(40, -7, 72, 150)
    index.add(42, 9, 150, 300)
    index.add(50, 3, 300, 333)
    return {
        "file header": encode_file_header(HEADER),
        "run head": encode_run_head(HEAD),
        "run": FileCipher(b"k" * 32, HEADER).seal(HEAD, ROW + b"hello", 72),
        "index": index.encode(6),
        "store record": encode_store_record(
            StoreRecord(PartitionId(9), StoreId(bytes(range(16))), 4)
        ),
        "metadata": encode_batch(0, 12, [CHANGE]) + encode_batch(1, 13, []),
    }


def opened(cipher: FileCipher, run: bytes, offset: int) -> bytes:
    """Open a run as a reader does: as much of the bytes as its head says."""
    head = decode_run_head(run)
    whole = RUN_HEAD_BYTES + head.sealed_bytes
    if len(run) < whole:
        raise ChecksumMismatch("a run is cut short")
    plaintext = bytearray(head.sealed_bytes - TAG_BYTES)
    cipher.open_into(head, memoryview(run)[:whole], offset, memoryview(plaintext))
    return bytes(plaintext)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_bytes_are_those_that_older_releases_wrote(name: str) -> None:
    assert made()[name].hex() == GOLDEN[name]


def test_golden_bytes_are_read_back() -> None:
    golden = {name: bytes.fromhex(data) for name, data in GOLDEN.items()}
    assert decode_file_header(golden["file header"]) == HEADER
    assert decode_run_head(golden["run"]) == HEAD
    assert opened(FileCipher(b"k" * 32, HEADER), golden["run"], 72) == ROW + b"hello"
    index = decode_index(golden["index"], 6, 333, 100)
    assert [index.offset_of_index(at, 0) for at in (39, 40, 49, 50)] == [0, 72, 72, 300]
    assert [index.offset_of_time(at) for at in (-8, 9, 10)] == [72, 72, None]
    assert decode_store_record(golden["store record"]).incarnation == 4
    image = read_metadata(golden["metadata"])
    assert image.durable_raft_index == 13 and not image.torn
    known = image.partitions[2**64 - 1]
    assert known.ordered() == list(CHANGE.segments) and known.definition == CHANGE.definition


def test_a_run_is_sealed_under_the_logs_own_iv_and_opens_nowhere_else() -> None:
    """An independent second implementation of the layout."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    run = made()["run"]
    bound = encode_file_header(HEADER) + struct.pack("<Q", 72) + run[:RUN_HEAD_BYTES]
    sealed = AESGCM(b"k" * 32).encrypt(wal_block_iv(3, 1 << 32, 5), ROW + b"hello", bound)
    assert run == run[:RUN_HEAD_BYTES] + sealed
    cipher = FileCipher(b"k" * 32, HEADER)
    with pytest.raises(AuthenticationFailed):
        opened(cipher, run, 73)
    other_file = FileHeader(
        HEADER.group, HEADER.store_id, HEADER.partition, FileSeq(1), HEADER.dek_epoch, 40
    )
    with pytest.raises(AuthenticationFailed):
        opened(FileCipher(b"k" * 32, other_file), run, 72)


@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_a_run_is_noticed(bit: int) -> None:
    run = made()["run"]
    for position in range(len(run)):
        bad = bytearray(run)
        bad[position] ^= 1 << bit
        with pytest.raises((ChecksumMismatch, AuthenticationFailed)) as noticed:
            opened(FileCipher(b"k" * 32, HEADER), bytes(bad), 72)
        wanted = ChecksumMismatch if position < RUN_HEAD_BYTES else AuthenticationFailed
        assert noticed.type is wanted


DECODERS: dict[str, Callable[[bytes], object]] = {
    "file header": decode_file_header,
    "run head": decode_run_head,
    "index": lambda data: decode_index(data, 6, 333, 100),
    "store record": decode_store_record,
}


@pytest.mark.parametrize("name", DECODERS)
def test_every_flipped_bit_of_a_head_or_a_small_file_is_noticed(name: str) -> None:
    golden = bytes.fromhex(GOLDEN[name])
    for place in range(len(golden) * 8):
        bad = bytearray(golden)
        bad[place // 8] ^= 1 << place % 8
        with pytest.raises(ChecksumMismatch):
            DECODERS[name](bytes(bad))


def test_a_later_releases_files_are_not_taken_for_damaged_ones() -> None:
    for name, position in (("file header", 8), ("store record", 8)):
        later = bytearray.fromhex(GOLDEN[name])
        later[position] = 2
        later[-4:] = crc32c(bytes(later[:-4])).to_bytes(4, "little")
        with pytest.raises(UnsupportedFormat):
            DECODERS[name](bytes(later))


@pytest.mark.parametrize(
    "quorum",
    [Majority(), Threshold(4), FixedSet(frozenset({ReplicaId(2**64 - 1)})), Custom("both ends")],
)
@pytest.mark.parametrize("master", [Automatic(), FixedMaster(ReplicaId(1)), Disabled()])
def test_policies_survive_the_metadata(quorum: QuorumPolicy, master: MasterPolicy) -> None:
    chosen = ReplicaId(1) if isinstance(master, FixedMaster) else None
    definition = Definition.of(quorum, master, chosen)
    change = PartitionChange(1, definition=definition)
    found = read_metadata(encode_batch(0, 0, [change])).partitions[1].definition
    assert found is not None
    assert (found.quorum_policy(), found.master_policy()) == (quorum, master)


def test_a_torn_tail_of_the_metadata_is_cut_and_damage_is_refused() -> None:
    batches = [encode_batch(at, at, [PartitionChange(at, 0, at)]) for at in range(4)]
    whole = b"".join(batches)
    for cut in range(len(whole)):
        image = read_metadata(whole[:cut])
        ends = [len(b"".join(batches[:nth])) for nth in range(5)]
        assert image.good_bytes == max(end for end in ends if end <= cut)
        assert image.torn is (cut not in ends)
    for position in range(len(whole)):
        bad = bytearray(whole)
        bad[position] ^= 0x40
        if position >= len(whole) - len(batches[-1]):
            assert read_metadata(bytes(bad)).next_batch_seq == 3
        else:
            with pytest.raises(ChecksumMismatch):
                read_metadata(bytes(bad))


def test_numbers_of_two_starts_never_meet() -> None:
    first, second = Sequences(1), Sequences(2)
    drawn = [first.file_seq(), first.writer().writer_seq, first.file_seq()]
    drawn += [second.file_seq(), second.writer().writer_seq]
    assert len(set(drawn)) == 5 and max(drawn[:3]) < min(drawn[3:])
    writer = first.writer()
    assert [writer.take_counter() for _ in range(3)] == [0, 1, 2]
    for bad in (0, 2**32):
        with pytest.raises(StreamMisuse):
            Sequences(bad)


def _tampered(name: str) -> st.SearchStrategy[bytes]:
    golden = bytes.fromhex(GOLDEN[name])
    return st.one_of(
        st.binary(max_size=200),
        st.builds(
            lambda at, patch: golden[:at] + patch + golden[at + len(patch) :],
            st.integers(0, len(golden)),
            st.binary(max_size=8),
        ),
    )


@given(_tampered("run"), _tampered("index"), _tampered("metadata"))
@example(b"", b"", b"")
def test_any_bytes_are_decoded_or_refused_by_a_typed_error(
    run: bytes, index: bytes, metadata: bytes
) -> None:
    for decode in (
        lambda: opened(FileCipher(b"k" * 32, HEADER), run, 72),
        lambda: decode_file_header(run),
        lambda: decode_index(index, 6, 333, 100),
        lambda: read_metadata(metadata),
        lambda: decode_store_record(metadata),
    ):
        with suppress(LogError):
            decode()
