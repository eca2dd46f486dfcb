"""A snapshot in one object: its manifest, then its chunks as they were on disk.

    magic:8  length:u32 (little-endian)  manifest.json  chunk  chunk  …

The manifest says how long each chunk is, and its digest; the chunks are sealed with the tenant's
keys. Only full snapshots are archived: the broker emits no others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from blake3 import blake3

from clustor.log.keys import KeyRing
from clustor.log.steps import Storage
from clustor.log.types import PartitionId
from clustor.snapshot.catalog import AuthorizedSnapshot
from clustor.snapshot.chunks import check_digest, cipher_for, sealed_bytes
from clustor.snapshot.errors import ManifestRejected
from clustor.snapshot.layout import chunk_file
from clustor.snapshot.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from quantum.archive.errors import ArchiveDamaged
from quantum.archive.names import snapshot_name
from quantum.archive.objects import Objects
from quantum.archive.records import SnapshotRow
from quantum.archive.segments import Pace
from quantum.archive.types import PrgId

MAGIC: Final = b"QNTMSNP1"
_HEAD: Final = struct.Struct("<8sI")


def snapshot_pieces(storage: Storage, manifest: Manifest, pace: Pace) -> Iterator[bytes]:
    """Yield a snapshot's object. Raises FileNotFoundError when it was collected meanwhile."""
    encoded = encode_manifest(manifest)
    yield _HEAD.pack(MAGIC, len(encoded)) + encoded
    for chunk in manifest.chunks:
        sealed = storage.read(chunk_file(chunk.chunk_id), 0, sealed_bytes(chunk.len) + 1)
        check_digest(chunk, sealed)
        pace(len(sealed))
        yield sealed


def examine_snapshot(
    prg: PrgId, storage: Storage, snapshot: AuthorizedSnapshot, pace: Pace
) -> SnapshotRow:
    """Read a snapshot, check every chunk's digest, and describe its object."""
    manifest = snapshot.manifest
    digest = blake3()
    size = 0
    for piece in snapshot_pieces(storage, manifest, pace):
        digest.update(piece)
        size += len(piece)
    return SnapshotRow(
        object=snapshot_name(prg, manifest.base_index, digest.hexdigest()),
        bytes=size,
        blake3=digest.hexdigest(),
        base_index=manifest.base_index,
        base_term=manifest.base_term,
        manifest_id=str(manifest.manifest_id),
        content_bytes=manifest.content_bytes,
        dek_epoch=manifest.encryption.dek_epoch,
    )


def read_snapshot(
    objects: Objects, name: str, keys: KeyRing, partition: PartitionId
) -> Iterator[bytes]:
    """Yield an archived snapshot's content, chunk by chunk, each authenticated."""
    manifest, offset = _read_manifest(objects, name)
    cipher = cipher_for(manifest, keys, partition)
    for chunk in manifest.chunks:
        sealed = objects.read(name, offset, sealed_bytes(chunk.len))
        offset += len(sealed)
        yield bytes(cipher.open(chunk, sealed))


def _read_manifest(objects: Objects, name: str) -> tuple[Manifest, int]:
    head = objects.read(name, 0, _HEAD.size)
    if len(head) < _HEAD.size or head[: len(MAGIC)] != MAGIC:
        raise ArchiveDamaged("not a snapshot's object", object=name)
    _, length = _HEAD.unpack(head)
    if length > MANIFEST_BYTES_MAX:
        raise ArchiveDamaged("not a snapshot's object", object=name)
    try:
        return decode_manifest(objects.read(name, _HEAD.size, length)), _HEAD.size + length
    except ManifestRejected as error:
        raise ArchiveDamaged("a snapshot's manifest cannot be read", object=name) from error
