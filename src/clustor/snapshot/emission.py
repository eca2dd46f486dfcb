"""Emission: a state becomes chunks and a signed manifest, one bounded plan after the other."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import UNSET

from clustor.log.keys import KeyRing
from clustor.log.steps import (
    Create,
    FileName,
    MakeDirectory,
    Plan,
    Sync,
    SyncDirectory,
    WriteFile,
    plan_replace,
)
from clustor.log.types import DekEpoch, LogIndex, Term
from clustor.snapshot.catalog import Catalog, check_successor
from clustor.snapshot.chunks import CHUNK_BYTES_DEFAULT, ChunkCipher, zeroize
from clustor.snapshot.errors import SnapshotInvalidated, SnapshotMisuse
from clustor.snapshot.layout import (
    CHUNKS_DIRECTORY,
    SNAPSHOT_DIRECTORY,
    chunk_file,
    manifest_directory,
    manifest_file,
)
from clustor.snapshot.manifest import (
    CHUNK_BYTES_MAX,
    CommitEpoch,
    DedupShard,
    Encryption,
    LogicalMarker,
    Manifest,
    SnapshotChunk,
    encode_manifest,
    seal_manifest,
)
from clustor.snapshot.types import (
    IV_SALT_BYTES,
    ChunkId,
    HexDigest,
    InvalidationReason,
    IvSalt,
    ManifestId,
    SnapshotKind,
    chunk_id_of,
    hex_digest,
)

EMIT_VERSION: Final = 1
DELTA_CHAIN_MAX_DEFAULT: Final = 32
CHUNKS_MAX: Final = 90_000  # their manifest stays below MANIFEST_BYTES_MAX
NO_PANES: Final = hex_digest(hashlib.sha256(b"").digest())
"""The `ap_pane_digest` of a product that has no panes."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """What to emit. `manifest_id` and `iv_salt` are drawn anew for every attempt.

    A salt that is used twice under one key repeats IVs, which gives plaintext away; reusing one
    of a snapshot in the catalog is refused.
    """

    manifest_id: ManifestId
    iv_salt: IvSalt
    kind: SnapshotKind
    base_term: Term
    base_index: LogIndex
    version_id: int
    producer_version: str
    ap_pane_digest: HexDigest = NO_PANES
    dedup_shards: tuple[DedupShard, ...] = ()
    commit_epoch_vector: tuple[CommitEpoch, ...] = ()
    logical_markers: tuple[LogicalMarker, ...] = ()
    chunk_bytes: int = CHUNK_BYTES_DEFAULT


class Emission:
    """The plans of one snapshot: iterating gives one per chunk, `plan_manifest` the last.

    Each plan is carried out in full before the next is pulled. When the manifest's has been,
    the catalog's order goes on: `relist`, `plan_authorize`, `plan_acknowledge`. An emission
    that is given up needs nothing: its files are garbage.
    """

    def __init__(
        self,
        draft: Manifest,
        content: Iterator[bytes],
        *,
        cipher: ChunkCipher,
        signer: Ed25519PrivateKey,
        chunk_bytes: int,
    ) -> None:
        self.generation = 0  # set, with the manifest, by `plan_manifest`
        self.manifest: Manifest | None = None
        self._draft = draft
        self._pieces = _resized(content, chunk_bytes)
        self._cipher = cipher
        self._signer = signer
        self._chunks: list[SnapshotChunk] = []
        self._offset = 0

    def __iter__(self) -> Iterator[Plan]:
        return self

    def __next__(self) -> Plan:
        plain = next(self._pieces)
        return self._plan_chunk(plain)

    def plan_manifest(self, catalog: Catalog, ap_pane_digest: HexDigest | None = None) -> Plan:
        """Sign the manifest over all chunks, and plan its file, by the catalog as it is *now*.

        `ap_pane_digest` takes the place of the request's, where it was not known before.

        An import may have been authorised since the emission began. Its manifest must not be
        overwritten, and a delta on an older parent must not go on: SnapshotDeltaRetired.
        """
        if next(self._pieces, None) is not None:
            raise SnapshotMisuse("chunks are still to be written", written=len(self._chunks))
        check_successor(catalog, self._draft)
        whole = msgspec.structs.replace(
            self._draft,
            chunks=tuple(self._chunks),
            ap_pane_digest=ap_pane_digest or self._draft.ap_pane_digest,
        )
        self.manifest = seal_manifest(whole, self._signer)
        self.generation = catalog.free_generation(whole.base_term, whole.base_index)
        return plan_manifest(self.manifest, self.generation)

    def files(self) -> set[FileName]:
        """Name what this emission has written or is about to, for the garbage collector."""
        draft = self._draft
        manifest = manifest_file(draft.base_term, draft.base_index, self.generation)
        temporary = FileName(manifest + ".tmp")
        return {manifest, temporary, *(chunk_file(chunk.chunk_id) for chunk in self._chunks)}

    def _plan_chunk(self, plain: bytearray) -> Plan:
        if len(self._chunks) == CHUNKS_MAX:
            raise SnapshotMisuse("too many chunks for one manifest: use larger ones")
        chunk_id = chunk_id_of(self._draft.manifest_id, self._offset)
        sealed = bytes(self._cipher.seal(self._offset, plain))
        digest = hex_digest(hashlib.sha256(sealed).digest())
        self._chunks.append(SnapshotChunk(chunk_id, digest, len(plain), self._offset))
        self._offset += len(plain)
        zeroize(plain)
        file = chunk_file(chunk_id)
        write: Plan = (Create(file), WriteFile(file, 0, sealed), Sync(file))
        if len(self._chunks) > 1:
            return write
        return (MakeDirectory(CHUNKS_DIRECTORY), *write)


def plan_manifest(manifest: Manifest, generation: int) -> Plan:
    """Plan a manifest's file, after the names of its chunks and directories are durable."""
    directory = manifest_directory(manifest.base_term, manifest.base_index, generation)
    file = manifest_file(manifest.base_term, manifest.base_index, generation)
    return (
        SyncDirectory(CHUNKS_DIRECTORY),
        MakeDirectory(directory),
        SyncDirectory(SNAPSHOT_DIRECTORY),
        SyncDirectory(""),
        *plan_replace(file, encode_manifest(manifest)),
    )


def plan_snapshot(
    catalog: Catalog,
    request: SnapshotRequest,
    content: Iterator[bytes],
    *,
    keys: KeyRing,
    signer: Ed25519PrivateKey,
    delta_chain_max: int = DELTA_CHAIN_MAX_DEFAULT,
) -> Emission:
    """Begin a snapshot: `content` is the state, or for a delta what changed since the newest one.

    One chunk is in memory at a time. Raises SnapshotMisuse for a request that cannot be meant,
    SnapshotInvalidated when a delta may not extend the chain (too long, or its parent's key
    epoch has ended): then a full snapshot is due.
    """
    _check_request(catalog, request)
    epoch = keys.dek_epoch
    draft = _draft(catalog, request, epoch)
    if request.kind is SnapshotKind.DELTA:
        _check_chain(catalog, draft, epoch, delta_chain_max)
    check_successor(catalog, draft)
    _check_sealable(draft, signer)
    cipher = ChunkCipher(
        keys.snapshot_key(epoch, catalog.partition),
        partition=catalog.partition,
        dek_epoch=epoch,
        iv_salt=request.iv_salt,
        base_index=request.base_index,
    )
    return Emission(draft, content, cipher=cipher, signer=signer, chunk_bytes=request.chunk_bytes)


def _check_request(catalog: Catalog, request: SnapshotRequest) -> None:
    if not 1 <= request.chunk_bytes <= CHUNK_BYTES_MAX:
        raise SnapshotMisuse("chunk size out of bounds", chunk_bytes=request.chunk_bytes)
    if len(request.iv_salt) != IV_SALT_BYTES:
        raise SnapshotMisuse("a salt has 16 bytes", given_bytes=len(request.iv_salt))
    if any(known.manifest.iv_salt == request.iv_salt for known in catalog.snapshots):
        raise SnapshotMisuse("this salt was used before", manifest_id=request.manifest_id)


def _check_sealable(draft: Manifest, signer: Ed25519PrivateKey) -> None:
    """Find out now, not after the last chunk, whether the manifest's members are in order."""
    stand_in = SnapshotChunk(ChunkId(str(uuid.UUID(int=0))), NO_PANES, 0, 0)
    seal_manifest(msgspec.structs.replace(draft, chunks=(stand_in,)), signer)


def _draft(catalog: Catalog, request: SnapshotRequest, epoch: DekEpoch) -> Manifest:
    """Fill in what is known before the content is; the chunks follow."""
    parent = catalog.newest if request.kind is SnapshotKind.DELTA else None
    if request.kind is SnapshotKind.DELTA and parent is None:
        raise SnapshotInvalidated(
            request.kind, InvalidationReason.DELTA_CHAIN_VIOLATION, parent="none authorised"
        )
    return Manifest(
        manifest_id=request.manifest_id,
        version_id=request.version_id,
        producer_version=request.producer_version,
        emit_version=EMIT_VERSION,
        base_term=request.base_term,
        base_index=request.base_index,
        snapshot_kind=request.kind,
        delta_parent_manifest_id=UNSET if parent is None else parent.record.manifest_id,
        delta_chain_length=0 if parent is None else parent.manifest.delta_chain_length + 1,
        encryption=Encryption(epoch, "0x" + request.iv_salt.hex()),
        chunks=(),
        logical_markers=request.logical_markers,
        ap_pane_digest=request.ap_pane_digest,
        dedup_shards=request.dedup_shards,
        commit_epoch_vector=request.commit_epoch_vector,
    )


def _check_chain(catalog: Catalog, draft: Manifest, epoch: DekEpoch, delta_chain_max: int) -> None:
    if draft.delta_chain_length > delta_chain_max:
        raise SnapshotInvalidated(
            SnapshotKind.DELTA,
            InvalidationReason.DELTA_CHAIN_VIOLATION,
            delta_chain_length=draft.delta_chain_length,
            delta_chain_max=delta_chain_max,
        )
    assert catalog.newest is not None
    parent_epoch = catalog.newest.manifest.encryption.dek_epoch
    if parent_epoch != epoch:  # the parent dies with its key; a delta on it would too
        raise SnapshotInvalidated(
            SnapshotKind.DELTA,
            InvalidationReason.DEK_EPOCH_ROLLOVER,
            parent_dek_epoch=parent_epoch,
            dek_epoch=epoch,
        )


def _resized(content: Iterator[bytes], chunk_bytes: int) -> Iterator[bytearray]:
    """Cut a stream of any pieces into chunks of one size; an empty stream is one empty chunk."""
    chunk = bytearray()
    yielded = False
    for piece in content:
        rest = memoryview(piece)
        while rest:
            taken = rest[: chunk_bytes - len(chunk)]
            chunk += taken
            rest = rest[len(taken) :]
            if len(chunk) == chunk_bytes:
                yield chunk
                chunk, yielded = bytearray(), True
    if chunk or not yielded:
        yield chunk
