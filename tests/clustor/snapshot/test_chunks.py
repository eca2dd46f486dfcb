"""Chunks: the IV, the block layout, and that no unauthenticated byte gets out."""

from __future__ import annotations

import hashlib

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from clustor.log.types import DekEpoch, LogIndex, PartitionId
from clustor.snapshot.chunks import BLOCK_BYTES, TAG_BYTES, ChunkCipher, chunk_iv, sealed_bytes
from clustor.snapshot.errors import SnapshotChunkAuthFailure
from clustor.snapshot.manifest import SnapshotChunk
from clustor.snapshot.types import ChunkId, IvSalt, hex_digest
from tests.clustor.snapshot.support import patient

SALT = IvSalt(bytes(range(16)))
NAME = ChunkId("00000000-0000-0000-0000-000000000001")


def cipher(
    key: int = 1, partition: int = 7, epoch: int = 3, salt: IvSalt = SALT, base: int = 4096
) -> ChunkCipher:
    return ChunkCipher(
        bytes([key]) * 32,
        partition=PartitionId(partition),
        dek_epoch=DekEpoch(epoch),
        iv_salt=salt,
        base_index=LogIndex(base),
    )


def chunk_of(plain: bytes, sealed: bytes | bytearray, offset: int = 0) -> SnapshotChunk:
    return SnapshotChunk(NAME, hex_digest(hashlib.sha256(sealed).digest()), len(plain), offset)


def independent_iv(epoch: int, salt: bytes, offset: int, counter: int) -> bytes:
    text = f"{epoch:08x}{salt.hex()}{offset:016x}{counter:016x}" + b"Snapshot-Chunk-IV v1".hex()
    return hashlib.new("sha256", bytes.fromhex(text)).digest()[0:12]


def test_the_iv_has_the_published_preimage() -> None:
    assert chunk_iv(DekEpoch(3), SALT, 1048576, 5) == independent_iv(3, SALT, 1048576, 5)
    assert chunk_iv(DekEpoch(3), SALT, 1048576, 5).hex() == "bc7df84737324e5ce3ce97ca"


@patient
@given(
    st.integers(0, 2**32 - 1),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
)
def test_the_iv_agrees_with_an_independent_twin(
    epoch: int, salt: bytes, offset: int, counter: int
) -> None:
    made = chunk_iv(DekEpoch(epoch), IvSalt(salt), offset, counter)
    assert made == independent_iv(epoch, salt, offset, counter)


def test_the_layout_is_blocks_with_their_tags_under_the_documented_aad() -> None:
    plain = bytes(range(256)) * 33  # two blocks and a part
    sealed = cipher().seal(8192, plain)
    aad = bytes([1]) + (7).to_bytes(8, "little") + (3).to_bytes(4, "little")
    aad += (4096).to_bytes(8, "little")
    expected = b"".join(
        AESGCM(b"\1" * 32).encrypt(
            independent_iv(3, SALT, 8192, n), plain[n * 4096 : (n + 1) * 4096], aad
        )
        for n in range(3)
    )
    assert sealed == expected
    assert len(sealed) == sealed_bytes(len(plain)) == len(plain) + 3 * TAG_BYTES


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * 4096])
def test_what_is_sealed_opens(size: int) -> None:
    plain = bytes(n % 251 for n in range(size))
    sealed = cipher().seal(12, plain)
    assert len(sealed) == sealed_bytes(size)
    assert cipher().open(chunk_of(plain, sealed, 12), sealed) == plain


OTHERS = {
    "key": cipher(key=2),
    "partition": cipher(partition=8),
    "epoch": cipher(epoch=4),
    "salt": cipher(salt=IvSalt(bytes(16))),
    "base": cipher(base=4097),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
@pytest.mark.parametrize("plain", [b"", b"secret" * 1000], ids=["empty", "long"])
def test_another_key_partition_epoch_salt_or_base_opens_nothing(
    other: ChunkCipher, plain: bytes
) -> None:
    sealed = cipher().seal(0, plain)
    with pytest.raises(SnapshotChunkAuthFailure):
        other.open(chunk_of(plain, sealed), sealed)


def test_a_chunk_moved_to_another_offset_does_not_open() -> None:
    sealed = cipher().seal(0, b"secret")
    with pytest.raises(SnapshotChunkAuthFailure):
        cipher().open(chunk_of(b"secret", sealed, offset=64), sealed)


@pytest.mark.parametrize("at", [0, 5, 4096, 4111, 4112, 4118])
def test_a_flip_is_caught_by_the_digest_and_also_by_the_tag_alone(at: int) -> None:
    plain = bytes(4102)
    sealed = cipher().seal(0, plain)
    promised = chunk_of(plain, sealed)
    sealed[at] ^= 1
    with pytest.raises(SnapshotChunkAuthFailure, match="digest"):
        cipher().open(promised, sealed)
    with pytest.raises(SnapshotChunkAuthFailure, match="tag"):  # a manifest that vouches for it
        cipher().open(chunk_of(plain, sealed), sealed)


@pytest.mark.parametrize("change", [-1, 1, -TAG_BYTES, BLOCK_BYTES + TAG_BYTES])
def test_a_wrong_length_is_refused_before_anything_is_decrypted(change: int) -> None:
    sealed = bytes(cipher().seal(0, bytes(5000)))
    promised = chunk_of(bytes(5000), sealed)
    other = sealed[:change] if change < 0 else sealed + bytes(change)
    with pytest.raises(SnapshotChunkAuthFailure, match="length"):
        cipher().open(promised, other)


def test_blocks_that_opened_before_the_bad_one_are_overwritten() -> None:
    """The plaintext buffer that the failing call held is all zeros in its traceback."""
    plain = b"secret!!" * 1024
    sealed = cipher().seal(0, plain)
    sealed[-1] ^= 1
    with pytest.raises(SnapshotChunkAuthFailure) as caught:
        cipher().open(chunk_of(plain, sealed), sealed)
    buffers = [
        entry.frame.f_locals["plain"] for entry in caught.traceback if "piece" in entry.locals
    ]
    assert [bytes(buffer) for buffer in buffers] == [bytes(len(plain))]


@patient
@given(st.binary(max_size=64), st.binary(max_size=100))
def test_any_bytes_give_a_typed_error(plain: bytes, garbage: bytes) -> None:
    sealed = bytes(cipher().seal(0, plain))
    if garbage != sealed:
        with pytest.raises(SnapshotChunkAuthFailure):
            cipher().open(chunk_of(plain, sealed), garbage)
