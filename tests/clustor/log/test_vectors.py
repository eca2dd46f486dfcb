"""Published vectors and second implementations: MACs, CRC lanes, IVs, AADs and sealed blocks.

Nothing here is computed by the code under test: the twins are written from the text of clustor
§7.1, §12.2 and App. B, with the rulings C2 and C4.
"""

from __future__ import annotations

import hashlib
import hmac
from itertools import pairwise
from random import Random

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.cipher import (
    SegmentCipher,
    blocks_needed,
    sealed_bytes,
    wal_aad,
    wal_block_iv,
)
from clustor.log.errors import AuthenticationFailed
from clustor.log.frame import encode_frames, pack_offsets
from clustor.log.keys import KeyRing
from clustor.log.lanes import CrcLanes
from clustor.log.segment import (
    RunHeader,
    SegmentTrailer,
    decode_trailer,
    encode_run_header,
    encode_trailer,
    segment_mac,
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

# The segment MAC: App. B.3, ruling C2.

B3_KEY = bytes(range(32))
B3_MAC = "5c50cc7f43ef3c0127db59a3a8394ed16782e7997b53093c35bff32f8644b8f0"
B3_TRAILER = SegmentTrailer(
    segment_seq=SegmentSeq(7),
    first_index=LogIndex(42),
    last_index=LogIndex(121),
    entry_count=17,
    entries_lanes=0x1032547698BADCFE67452301EFCDAB89.to_bytes(16, "little"),
    offsets_lanes=0x0123456789ABCDEFFEDCBA9876543210.to_bytes(16, "little"),
)


def test_c2_the_published_segment_mac_is_reproduced() -> None:
    assert segment_mac(B3_TRAILER, B3_KEY).hex() == B3_MAC


def test_c2_the_message_of_the_mac_byte_by_byte() -> None:
    message = (
        b"segment-mac-v1"
        + bytes([7, 0, 0, 0, 0, 0, 0, 0])
        + bytes([42, 0, 0, 0, 0, 0, 0, 0])
        + bytes([121, 0, 0, 0, 0, 0, 0, 0])
        + bytes([17, 0, 0, 0])
        + bytes.fromhex("89abcdef01234567fedcba9876543210")
        + bytes.fromhex("1032547698badcfeefcdab8967452301")
    )
    assert hmac.new(B3_KEY, message, hashlib.sha256).hexdigest() == B3_MAC


B3_WIRE = bytes.fromhex(
    "43454e44"  # CEND
    "0101"  # version, mac_suite_id
    "0700000000000000 2a00000000000000 7900000000000000 11000000"
    "89abcdef01234567fedcba9876543210"
    "1032547698badcfeefcdab8967452301" + B3_MAC
)


def test_c2_the_trailer_of_the_vector_both_ways() -> None:
    assert encode_trailer(B3_TRAILER, B3_KEY) == B3_WIRE
    assert decode_trailer(B3_WIRE, B3_KEY) == B3_TRAILER
    assert decode_trailer(B3_WIRE + b"neighbour", B3_KEY) == B3_TRAILER


@pytest.mark.parametrize("position", range(len(B3_WIRE)))
def test_c2_every_byte_of_a_trailer_is_vouched_for(position: int) -> None:
    """Version and suite as well: the tag of the message stands for them."""
    for change in (0x01, 0x80, 0xFF):
        wrong = bytearray(B3_WIRE)
        wrong[position] ^= change
        with pytest.raises(AuthenticationFailed):
            decode_trailer(bytes(wrong), B3_KEY)


def test_another_key_refuses_the_trailer() -> None:
    with pytest.raises(AuthenticationFailed):
        decode_trailer(B3_WIRE, bytes(32))


# CRC lanes: §7.1, ruling C4.


def bitwise_crc32c(data: bytes) -> int:
    """CRC32C one bit at a time: reflected polynomial 0x82F63B78, all ones before and after."""
    remainder = 0xFFFFFFFF
    for byte in data:
        remainder ^= byte
        for _ in range(8):
            carry = remainder & 1
            remainder >>= 1
            if carry:
                remainder ^= 0x82F63B78
    return remainder ^ 0xFFFFFFFF


def naive_lanes(stream: bytes) -> bytes:
    """Distribute words to lanes one by one, in the words of §7.1."""
    while len(stream) % 4:
        stream += b"\0"
    lanes = [b"", b"", b"", b""]
    for word_index in range(len(stream) // 4):
        lanes[word_index % 4] += stream[4 * word_index : 4 * word_index + 4]
    return b"".join(bitwise_crc32c(lane).to_bytes(4, "little") for lane in lanes)


def lanes_of(*pieces: bytes) -> bytes:
    lanes = CrcLanes()
    for piece in pieces:
        lanes.update([piece])
    return lanes.packed()


def test_the_bitwise_crc_is_crc32c() -> None:
    """The check value of the Castagnoli polynomial, and the iSCSI vectors of RFC 3720 B.4."""
    assert bitwise_crc32c(b"123456789") == 0xE3069283
    assert bitwise_crc32c(bytes(32)) == 0x8A9136AA
    assert bitwise_crc32c(b"\xff" * 32) == 0x62A8AB43
    assert bitwise_crc32c(bytes(range(32))) == 0x46DD794E


B5_ENTRIES = (
    bytes.fromhex("01000000000010000000000000000000aa"),
    bytes.fromhex("01000000000008000000000000000000bb"),
)
B5_OFFSETS = bytes.fromhex("00000000000000001000000000000000")
LANES = {
    "nothing": ((), "00000000000000000000000000000000"),
    "B.5 entries": (B5_ENTRIES, "a74fee537bdafdc68ab2288c8ab2288c"),
    "B.5 offsets": ((B5_OFFSETS,), "c74b6748c74b6748fafa03a1c74b6748"),
}


@pytest.mark.parametrize(("pieces", "packed"), LANES.values(), ids=LANES.keys())
def test_c4_computed_lanes_of_the_example(pieces: tuple[bytes, ...], packed: str) -> None:
    """B.5 prints placeholders; these are what its bytes really give."""
    assert lanes_of(*pieces).hex() == packed
    assert naive_lanes(b"".join(pieces)).hex() == packed


@pytest.mark.parametrize("length", range(71))
def test_c4_lanes_of_every_short_length(length: int) -> None:
    stream = Random(length).randbytes(length)
    assert lanes_of(stream) == naive_lanes(stream)


@given(st.lists(st.binary(max_size=90), max_size=12))
def test_c4_lanes_do_not_depend_on_the_pieces(pieces: list[bytes]) -> None:
    assert lanes_of(*pieces) == naive_lanes(b"".join(pieces))


@pytest.mark.parametrize("seed", range(4))
def test_c4_lanes_of_long_streams_in_uneven_pieces(seed: int) -> None:
    """Long enough that pieces are folded on the way, and not on a word's border."""
    rng = Random(seed)
    stream = rng.randbytes(65_536 + rng.randrange(4_000))
    cuts = sorted({0, len(stream), 65_535, *(rng.randrange(len(stream)) for _ in range(9))})
    pieces = [stream[start:end] for start, end in pairwise(cuts)]
    assert lanes_of(*pieces) == naive_lanes(stream)


def test_asking_for_the_lanes_changes_nothing() -> None:
    lanes = CrcLanes()
    for nth in range(40):
        lanes.update([bytes([nth]) * (nth % 7)])
        assert lanes.packed() == lanes.packed()
    assert lanes.packed() == naive_lanes(b"".join(bytes([n]) * (n % 7) for n in range(40)))


# IVs and AADs: §12.2.


def naive_iv(dek_epoch: int, segment_seq: int, block_counter: int) -> bytes:
    preimage = dek_epoch.to_bytes(4, "big")
    preimage += segment_seq.to_bytes(8, "big")
    preimage += block_counter.to_bytes(8, "big")
    preimage += b"WAL-Block-IV v1"
    assert len(preimage) == 4 + 8 + 8 + 15
    return hashlib.sha256(preimage).digest()[:12]


IVS = {
    "first block of all": ((1, 1, 0), "92ae489a61c4eac8d11a98f5"),
    "every byte its own": (
        (0x01020304, 0x05060708090A0B0C, 0x0D0E0F1011121314),
        "06aabb05777cec705c0800b3",
    ),
    "the largest": ((2**32 - 1, 2**64 - 1, 2**64 - 1), "1669064514e5bc67dd43e4a7"),
    "epoch and segment are not exchanged": ((2, 1, 0), "643feb6d395cf54a764bad66"),
}


@pytest.mark.parametrize(("numbers", "iv"), IVS.values(), ids=IVS.keys())
def test_ivs(numbers: tuple[int, int, int], iv: str) -> None:
    assert wal_block_iv(*numbers).hex() == iv
    assert naive_iv(*numbers).hex() == iv


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 2), st.binary())
def test_ivs_are_the_big_endian_preimage_and_blocks_use_them(
    dek_epoch: int, segment_seq: int, counter: int, plaintext: bytes
) -> None:
    assert wal_block_iv(dek_epoch, segment_seq, counter) == naive_iv(
        dek_epoch, segment_seq, counter
    )
    cipher = SegmentCipher(b"k" * 32, PartitionId(3), DekEpoch(dek_epoch), SegmentSeq(segment_seq))
    expected = naive_seal(b"k" * 32, 3, dek_epoch, segment_seq, counter, plaintext)
    assert seal(cipher, plaintext, counter) == expected


AADS = {
    "ones": ((1, 1, 1), "010100000000000000010000000100000000000000"),
    "every byte its own": (
        (0x0102030405060708, 0x090A0B0C, 0x0D0E0F1011121314),
        "0108070605040302010c0b0a0914131211100f0e0d",
    ),
}


@pytest.mark.parametrize(("numbers", "aad"), AADS.values(), ids=AADS.keys())
def test_the_aad_is_little_endian(numbers: tuple[int, int, int], aad: str) -> None:
    assert wal_aad(*numbers).hex() == aad
    assert len(wal_aad(*numbers)) == 21


# Sealed blocks.


def seal(cipher: SegmentCipher, plaintext: bytes, counter: int) -> bytes:
    return b"".join(cipher.seal(plaintext, counter))


def naive_seal(
    key: bytes, partition: int, dek_epoch: int, segment_seq: int, counter: int, plaintext: bytes
) -> bytes:
    """Seal 4096 bytes at a time with GCM as a mode of AES, tag last."""
    aad = b"\x01" + partition.to_bytes(8, "little") + dek_epoch.to_bytes(4, "little")
    aad += segment_seq.to_bytes(8, "little")
    sealed = b""
    while plaintext:
        block, plaintext = plaintext[:4096], plaintext[4096:]
        encryptor = Cipher(
            algorithms.AES256(key), modes.GCM(naive_iv(dek_epoch, segment_seq, counter))
        ).encryptor()
        encryptor.authenticate_additional_data(aad)
        sealed += encryptor.update(block) + encryptor.finalize() + encryptor.tag
        counter += 1
    return sealed


SEALED_LENGTHS = [1, 15, 16, 17, 4095, 4096, 4097, 8192, 8193]


@pytest.mark.parametrize("length", SEALED_LENGTHS)
def test_runs_are_sealed_block_by_block_and_opened_whole(length: int) -> None:
    plaintext = Random(length).randbytes(length)
    cipher = SegmentCipher(bytes(range(32)), PartitionId(7), DekEpoch(3), SegmentSeq(9))
    sealed = seal(cipher, plaintext, 1000)
    assert sealed == naive_seal(bytes(range(32)), 7, 3, 9, 1000, plaintext)
    assert cipher.open(sealed, 1000) == plaintext
    assert len(sealed) == sealed_bytes(length) == length + 16 * blocks_needed(length)


@pytest.mark.parametrize("length", SEALED_LENGTHS)
def test_positions_in_plaintext_and_ciphertext_agree(length: int) -> None:
    """Under a keystream that is the same for both, the byte at a position is the only change."""
    cipher = SegmentCipher(bytes(32), PartitionId(7), DekEpoch(3), SegmentSeq(9))
    reference = seal(cipher, bytes(length), 0)
    for position in {0, length // 2, length - 1}:
        changed = bytearray(length)
        changed[position] = 0x5A
        sealed = seal(cipher, bytes(changed), 0)
        first = next(at for at in range(len(sealed)) if sealed[at] != reference[at])
        assert pack_offsets(0, [position]) == (36 + first).to_bytes(8, "little")
        assert sealed[first] ^ reference[first] == 0x5A


GOLDEN_RUN = (
    "4352554e4500000006000000000000000b000000000000000200000000000000bf6938cdb15a86ca"
    "1266396b11f0e5957dabc2388bea8c725eda522071e84dd295e9e9bdfb8f93759636fdf834000b6c"
    "55de81803ddea8a9df962bfc8204f9dcaf968a7009735ef88d21e50812fd9f3517dd086138deff58"
    "29"
)


def test_one_whole_run_as_it_stands_in_a_segment() -> None:
    """From the root key to the bytes on disk: derivation, frames, run header, sealed block."""
    keys = KeyRing()
    keys.add_dek(DekEpoch(3), bytes(range(32)))
    keys.add_mac(MacEpoch(1), bytes(32))
    key = keys.log_key(DekEpoch(3), PartitionId(7), LogId(bytes(range(16))))
    cipher = SegmentCipher(key, PartitionId(7), DekEpoch(3), SegmentSeq(5))
    entries = [
        Entry(Term(2), LogIndex(11), b"first"),
        Entry(Term(2), LogIndex(12), b"", EntryKind.NO_OP),
    ]
    frames = encode_frames(entries)
    header = RunHeader(len(frames.plaintext), BlockCounter(6), LogIndex(11), 2)
    run = encode_run_header(header) + seal(cipher, frames.plaintext, 6)
    assert run.hex() == GOLDEN_RUN
    naive_key = hmac.new(
        bytes(range(32)),
        b"clustor wal v1" + (7).to_bytes(8, "little") + bytes(range(16)) + b"\x01",
        hashlib.sha256,
    ).digest()
    assert run[36:] == naive_seal(naive_key, 7, 3, 5, 6, frames.plaintext)


# B.4: a tag that differs anywhere is refused.


@pytest.mark.parametrize("block", [0, 1], ids=["whole block", "short last block"])
@pytest.mark.parametrize("position", range(16))
def test_a_tag_that_differs_in_any_one_byte_is_refused(block: int, position: int) -> None:
    cipher = SegmentCipher(bytes(32), PartitionId(7), DekEpoch(1), SegmentSeq(1))
    sealed = seal(cipher, b"x" * 5000, 40)
    tag_start = 4096 if block == 0 else len(sealed) - 16
    for change in (0x01, 0x10, 0x80, 0xFF):
        wrong = bytearray(sealed)
        wrong[tag_start + position] ^= change
        with pytest.raises(AuthenticationFailed) as refusal:
            cipher.open(bytes(wrong), 40)
        assert refusal.value.facts == {"segment_seq": 1, "block_counter": 40 + block}


WRONG_CONTEXTS = {
    "another key": (b"\x01" * 32, 7, 1, 1, 0),
    "another partition": (bytes(32), 8, 1, 1, 0),
    "another epoch": (bytes(32), 7, 2, 1, 0),
    "another segment": (bytes(32), 7, 1, 2, 0),
    "another counter": (bytes(32), 7, 1, 1, 1),
}


@pytest.mark.parametrize("context", WRONG_CONTEXTS.values(), ids=WRONG_CONTEXTS.keys())
def test_a_block_opens_only_where_it_was_sealed(context: tuple[bytes, int, int, int, int]) -> None:
    cipher = SegmentCipher(bytes(32), PartitionId(7), DekEpoch(1), SegmentSeq(1))
    sealed = seal(cipher, b"x", 0)
    key, partition, epoch, seq, counter = context
    other = SegmentCipher(key, PartitionId(partition), DekEpoch(epoch), SegmentSeq(seq))
    with pytest.raises(AuthenticationFailed):
        other.open(sealed, counter)


@pytest.mark.parametrize("length", [1, 15, 16, 4111, 4112 + 16])
def test_ciphertext_of_an_impossible_length_is_refused(length: int) -> None:
    """A cut leaves less than a tag, or a tag of something else."""
    cipher = SegmentCipher(bytes(32), PartitionId(7), DekEpoch(1), SegmentSeq(1))
    with pytest.raises(AuthenticationFailed):
        cipher.open(seal(cipher, b"x" * 5000, 0)[:length], 0)
