"""AES-256-GCM over the blocks of a segment, exactly as clustor §12.2.

Each 4096-byte block of plaintext is sealed on its own under an IV that names the key epoch,
the segment and the block. The same IV under the same key must never seal two plaintexts:
`segment_writer.py` reserves the counters, this module only uses them.
"""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from clustor.log.errors import AuthenticationFailed
from clustor.log.types import DekEpoch, PartitionId, SegmentSeq

CRYPTO_BLOCK_BYTES: Final = 4096
TAG_BYTES: Final = 16
AAD_VERSION: Final = 1

_SEALED_BLOCK_BYTES: Final = CRYPTO_BLOCK_BYTES + TAG_BYTES
_IV_LABEL: Final = b"WAL-Block-IV v1"
_IV_PREFIX: Final = struct.Struct(">IQ")
_COUNTER: Final = struct.Struct(">Q")
_AAD: Final = struct.Struct("<BQIQ")


def wal_block_iv(dek_epoch: int, segment_seq: int, block_counter: int) -> bytes:
    """Derive the 96-bit IV of one block: big-endian integers, then the label."""
    preimage = _IV_PREFIX.pack(dek_epoch, segment_seq) + _COUNTER.pack(block_counter) + _IV_LABEL
    return sha256(preimage).digest()[:12]


def wal_aad(partition: int, dek_epoch: int, segment_seq: int) -> bytes:
    """Encode what every block of a segment is bound to: little-endian, 21 bytes."""
    return _AAD.pack(AAD_VERSION, partition, dek_epoch, segment_seq)


def blocks_needed(plaintext_bytes: int) -> int:
    """Count the blocks, and so the counters, that a run of plaintext takes."""
    return -(-plaintext_bytes // CRYPTO_BLOCK_BYTES)


def sealed_bytes(plaintext_bytes: int) -> int:
    """Say how long a run of plaintext is once sealed."""
    return plaintext_bytes + blocks_needed(plaintext_bytes) * TAG_BYTES


class SegmentCipher:
    """Seals and opens the blocks of one segment of one log."""

    __slots__ = ("_aad", "_aead", "_iv_prefix", "segment_seq")

    def __init__(
        self, key: bytes, partition: PartitionId, dek_epoch: DekEpoch, segment_seq: SegmentSeq
    ) -> None:
        self._aead = AESGCM(key)
        self._aad = wal_aad(partition, dek_epoch, segment_seq)
        self._iv_prefix = sha256(_IV_PREFIX.pack(dek_epoch, segment_seq))
        self.segment_seq = segment_seq

    def _iv(self, block_counter: int) -> bytes:
        # Copying the hash of the constant prefix is a third cheaper than hashing it again.
        hasher = self._iv_prefix.copy()
        hasher.update(_COUNTER.pack(block_counter) + _IV_LABEL)
        return hasher.digest()[:12]

    def seal(self, plaintext: bytes, first_block_counter: int) -> list[bytes]:
        """Encrypt a run, block by block; its counters were durably reserved and never used."""
        view = memoryview(plaintext)
        encrypt = self._aead.encrypt
        return [
            encrypt(
                self._iv(first_block_counter + nth),
                view[start : start + CRYPTO_BLOCK_BYTES],
                self._aad,
            )
            for nth, start in enumerate(range(0, len(plaintext), CRYPTO_BLOCK_BYTES))
        ]

    def open(self, sealed: bytes, first_block_counter: int) -> bytes:
        """Decrypt a run. Nothing of it is returned unless every block is authentic.

        The comparison of tags is OpenSSL's, in constant time (clustor App. B.4).
        """
        view = memoryview(sealed)
        decrypt = self._aead.decrypt
        opened = []
        for nth, start in enumerate(range(0, len(sealed), _SEALED_BLOCK_BYTES)):
            counter = first_block_counter + nth
            try:
                block = decrypt(
                    self._iv(counter), view[start : start + _SEALED_BLOCK_BYTES], self._aad
                )
            except InvalidTag:
                raise AuthenticationFailed(
                    "a block is not what was written",
                    segment_seq=self.segment_seq,
                    block_counter=counter,
                ) from None
            opened.append(block)
        return b"".join(opened)
