"""The words of the snapshots: identifiers, kinds, reasons, and the hex that JSON carries."""

from __future__ import annotations

import hashlib
import uuid
from enum import StrEnum
from typing import Final, NewType

ManifestId = NewType("ManifestId", str)
"""A UUIDv7 in lower case: it is unique, and its first 48 bits are the emission's time."""

ChunkId = NewType("ChunkId", str)  # a UUID in lower case
HexDigest = NewType("HexDigest", str)  # "0x" and the 64 hex digits of a SHA-256
IvSalt = NewType("IvSalt", bytes)  # 16 random bytes, never the same for two manifests
AuthSeq = NewType("AuthSeq", int)  # u64, counts the authorisations of a partition from 1

IV_SALT_BYTES: Final = 16
DIGEST_BYTES: Final = 32
JSON_INTEGER_MAX: Final = 2**53 - 1
"""The widest integer of RFC 8785; the manifest carries numbers (clustor App. B.2), not strings."""


class SnapshotKind(StrEnum):
    FULL = "Full"
    DELTA = "Delta"


class InvalidationReason(StrEnum):
    """Why a snapshot no longer counts (clustor §11.1)."""

    INVALID_TRUST_CACHE = "InvalidTrustCache"
    SCHEMA_BUMP = "SchemaBump"
    EMIT_VERSION_CHANGE = "EmitVersionChange"
    DEK_EPOCH_ROLLOVER = "DekEpochRollover"
    DELTA_CHAIN_VIOLATION = "DeltaChainViolation"


def hex_digest(digest: bytes) -> HexDigest:
    """Write 32 bytes as the manifest does."""
    assert len(digest) == DIGEST_BYTES, len(digest)
    return HexDigest("0x" + digest.hex())


def digest_bytes(digest: HexDigest) -> bytes:
    """Read back what `hex_digest` wrote."""
    return bytes.fromhex(digest[2:])


def new_manifest_id(emit_ts_ms: int, random_bytes: bytes) -> ManifestId:
    """Make the UUIDv7 of a manifest that is emitted at `emit_ts_ms`, from 10 random bytes."""
    assert 0 <= emit_ts_ms < 2**48, emit_ts_ms
    assert len(random_bytes) == 10, len(random_bytes)
    value = (emit_ts_ms << 80) | int.from_bytes(random_bytes, "big")
    value = value & ~(0xF << 76) | 0x7 << 76  # version 7
    value = value & ~(0x3 << 62) | 0x2 << 62  # RFC 9562 variant
    return ManifestId(str(uuid.UUID(int=value)))


def emit_ts_ms(manifest: ManifestId) -> int:
    """Return when the manifest was emitted: the delta cadence counts from it (clustor §9.5)."""
    return uuid.UUID(manifest).int >> 80


def chunk_id_of(manifest: ManifestId, offset: int) -> ChunkId:
    """Name the chunk of a manifest that starts at `offset`.

    Chunks of all snapshots share one directory. A name that follows from the manifest's own id
    needs no chance, and no two manifests can want the same file.
    """
    seed = b"snapshot chunk v1" + uuid.UUID(manifest).bytes + offset.to_bytes(8, "little")
    value = int.from_bytes(hashlib.sha256(seed).digest()[:16], "big")
    value = value & ~(0xF << 76) | 0x8 << 76  # version 8: the maker's own scheme
    value = value & ~(0x3 << 62) | 0x2 << 62
    return ChunkId(str(uuid.UUID(int=value)))
