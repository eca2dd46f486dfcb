"""Chunks: the content, encrypted block by block, and authenticated before anyone sees a byte.

A chunk's file is its blocks of 4096 plaintext bytes (the last may be shorter), each followed by
its 16-byte tag. An empty content has one empty block, so that even it is bound to its partition.

Choices where clustor §12.2 leaves one:
- The digest in the manifest is the SHA-256 of the *file*: a listing, a transfer and a scrub can
  check it without the key, and damage is found before anything is decrypted.
- The AAD's `segment_seq` has no meaning for a snapshot; the manifest's `base_index` stands there.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clustor.log.errors import KeyUnavailable
from clustor.log.keys import KeyRing
from clustor.log.types import DekEpoch, LogIndex, PartitionId
from clustor.snapshot.errors import SnapshotChunkAuthFailure, SnapshotInvalidated
from clustor.snapshot.manifest import Manifest, SnapshotChunk
from clustor.snapshot.types import (
    IV_SALT_BYTES,
    InvalidationReason,
    IvSalt,
    digest_bytes,
)

BLOCK_BYTES: Final = 4096  # clustor's `wal.crypto_block_bytes`
TAG_BYTES: Final = 16
CHUNK_BYTES_DEFAULT: Final = 2**20
_AAD_VERSION: Final = 1
_IV_TAG: Final = b"Snapshot-Chunk-IV v1"


def chunk_iv(dek_epoch: DekEpoch, iv_salt: IvSalt, chunk_offset: int, block_counter: int) -> bytes:
    """Derive one block's IV (clustor §12.2; the hashed fields are big-endian)."""
    preimage = (
        dek_epoch.to_bytes(4, "big")
        + iv_salt
        + chunk_offset.to_bytes(8, "big")
        + block_counter.to_bytes(8, "big")
        + _IV_TAG
    )
    return hashlib.sha256(preimage).digest()[:12]


def sealed_bytes(plain_bytes: int) -> int:
    """Return the file length of a chunk of `plain_bytes`."""
    blocks = max(1, -(-plain_bytes // BLOCK_BYTES))
    return plain_bytes + blocks * TAG_BYTES


class ChunkCipher:
    """Seals and opens the chunks of one manifest."""

    def __init__(
        self,
        key: bytes,
        *,
        partition: PartitionId,
        dek_epoch: DekEpoch,
        iv_salt: IvSalt,
        base_index: LogIndex,
    ) -> None:
        assert len(iv_salt) == IV_SALT_BYTES, len(iv_salt)
        self._aead = AESGCM(key)
        self._dek_epoch = dek_epoch
        self._iv_salt = iv_salt
        self._aad = (
            _AAD_VERSION.to_bytes(1, "little")
            + partition.to_bytes(8, "little")
            + dek_epoch.to_bytes(4, "little")
            + base_index.to_bytes(8, "little")
        )

    def seal(self, offset: int, plain: bytes | bytearray) -> bytearray:
        """Encrypt one chunk; `offset` is where it starts in the content."""
        sealed = bytearray(sealed_bytes(len(plain)))
        source, target = memoryview(plain), memoryview(sealed)
        stride = BLOCK_BYTES + TAG_BYTES
        for block, start in enumerate(range(0, len(sealed), stride)):
            piece = source[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
            iv = chunk_iv(self._dek_epoch, self._iv_salt, offset, block)
            self._aead.encrypt_into(iv, piece, self._aad, target[start : start + stride])
        return sealed

    def open(self, chunk: SnapshotChunk, sealed: bytes | bytearray) -> bytearray:
        """Check a chunk's length, digest and tags, and return its plaintext.

        On failure what was already decrypted is overwritten with zeros before the error leaves.
        The caller overwrites the returned buffer when it is done with it.
        """
        check_digest(chunk, sealed)
        plain = bytearray(chunk.len)
        source, target = memoryview(sealed), memoryview(plain)
        stride = BLOCK_BYTES + TAG_BYTES
        for block, start in enumerate(range(0, len(sealed), stride)):
            piece = target[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]
            iv = chunk_iv(self._dek_epoch, self._iv_salt, chunk.offset, block)
            try:
                self._aead.decrypt_into(iv, source[start : start + stride], self._aad, piece)
            except InvalidTag:
                zeroize(plain)
                raise SnapshotChunkAuthFailure(
                    "a block's tag does not match", chunk_id=chunk.chunk_id, block=block
                ) from None
        return plain


def check_digest(chunk: SnapshotChunk, sealed: bytes | bytearray) -> None:
    """Compare a chunk's file with what the manifest promises, without any key."""
    if len(sealed) != sealed_bytes(chunk.len):
        raise SnapshotChunkAuthFailure(
            "a chunk has the wrong length",
            chunk_id=chunk.chunk_id,
            bytes=len(sealed),
            expected=sealed_bytes(chunk.len),
        )
    if not hmac.compare_digest(hashlib.sha256(sealed).digest(), digest_bytes(chunk.digest)):
        raise SnapshotChunkAuthFailure("a chunk's digest differs", chunk_id=chunk.chunk_id)


def cipher_for(manifest: Manifest, keys: KeyRing, partition: PartitionId) -> ChunkCipher:
    """Return the cipher that opens this manifest's chunks.

    Raises SnapshotInvalidated when the key's epoch is gone from the ring.
    """
    epoch = manifest.encryption.dek_epoch
    try:
        key = keys.snapshot_key(epoch, partition)
    except KeyUnavailable as error:
        raise SnapshotInvalidated(
            manifest.snapshot_kind,
            InvalidationReason.DEK_EPOCH_ROLLOVER,
            manifest_id=manifest.manifest_id,
            dek_epoch=epoch,
        ) from error
    return ChunkCipher(
        key,
        partition=partition,
        dek_epoch=epoch,
        iv_salt=manifest.iv_salt,
        base_index=manifest.base_index,
    )


def zeroize(buffer: bytearray) -> None:
    """Overwrite a plaintext buffer in place."""
    buffer[:] = bytes(len(buffer))
