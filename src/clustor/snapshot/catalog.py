"""The catalog: which snapshots this partition has, and how one becomes authoritative.

    chunks durable → manifest durable → `relist` → `plan_authorize` → `plan_acknowledge`

A crash between any two of these leaves the snapshot before it authoritative, or this one. What
an interrupted emission leaves behind is named by no authorisation and is garbage.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass, replace

from clustor.log.keys import KeyRing
from clustor.log.steps import FileName, Plan, Storage
from clustor.log.types import LogIndex, PartitionId, Term
from clustor.snapshot.authorization import (
    AuthorizationLog,
    CompactionAuthAck,
    SnapshotAuthorizationRecord,
    plan_append_entry,
    plan_settle,
    read_authorization_log,
)
from clustor.snapshot.chunks import check_digest, cipher_for, sealed_bytes
from clustor.snapshot.errors import (
    CorruptSnapshot,
    ManifestRejected,
    SnapshotDeltaRetired,
    SnapshotFileMissing,
    SnapshotInvalidated,
    SnapshotMisuse,
    SnapshotSuperseded,
)
from clustor.snapshot.layout import chunk_file, manifest_file
from clustor.snapshot.manifest import (
    MANIFEST_BYTES_MAX,
    Manifest,
    SnapshotChunk,
    decode_manifest,
    encode_manifest,
    manifest_hash,
)
from clustor.snapshot.types import AuthSeq, InvalidationReason, ManifestId, SnapshotKind


@dataclass(frozen=True, slots=True)
class AuthorizedSnapshot:
    """A snapshot that counts. `acknowledged`: the log below its base may be compacted."""

    record: SnapshotAuthorizationRecord
    manifest: Manifest
    acknowledged: bool = False

    @property
    def file(self) -> FileName:
        return manifest_file(self.record.base_term, self.record.base_index, self.record.generation)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The authorised snapshots of a partition, oldest first. A value: changes return a new one."""

    log: AuthorizationLog
    snapshots: tuple[AuthorizedSnapshot, ...]
    damaged: tuple[FileName, ...] = ()  # superseded manifests that are not what was authorised

    @property
    def partition(self) -> PartitionId:
        return self.log.partition

    @property
    def newest(self) -> AuthorizedSnapshot | None:
        return self.snapshots[-1] if self.snapshots else None

    @property
    def newest_acknowledged(self) -> AuthorizedSnapshot | None:
        return next((s for s in reversed(self.snapshots) if s.acknowledged), None)

    def find(self, manifest: ManifestId) -> AuthorizedSnapshot | None:
        return next((s for s in self.snapshots if s.record.manifest_id == manifest), None)

    def chain(self, snapshot: AuthorizedSnapshot) -> tuple[AuthorizedSnapshot, ...]:
        """Return what a restore reads: the full snapshot, and the deltas up to this one."""
        chain = [snapshot]
        while (parent := chain[-1].record.parent) is not None:
            found = self.find(parent)
            if found is None:
                raise SnapshotFileMissing("a delta's parent is gone", manifest_id=parent)
            chain.append(found)
        return tuple(reversed(chain))

    def free_generation(self, term: Term, index: LogIndex) -> int:
        """Return the first generation at this place that no authorised snapshot has."""
        here = (term, index)
        taken = [
            s.record for s in self.snapshots if (s.record.base_term, s.record.base_index) == here
        ]
        return max((record.generation + 1 for record in taken), default=0)


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """A plan, and the catalog that is true once the plan is carried out."""

    plan: Plan
    after: Catalog


@dataclass(frozen=True, slots=True)
class Relisted:
    """Proof that a snapshot's files were read back and are what they should be."""

    manifest: Manifest
    generation: int
    manifest_hash: bytes


def open_catalog(storage: Storage, partition: PartitionId) -> Catalog:
    """Read what is authorised, and check that what must be there is.

    Must be there, whole: the newest snapshot and the newest acknowledged one, each with its
    chain. Older ones may have been collected. Chunks are checked by presence and length;
    `read_content` authenticates their bytes. Raises CorruptSnapshot. The catalog is for reading
    until `settle_catalog`'s plan is carried out.
    """
    log = read_authorization_log(storage, partition)
    acknowledged = {e.auth_seq for e in log.entries if isinstance(e, CompactionAuthAck)}
    records = [e for e in log.entries if isinstance(e, SnapshotAuthorizationRecord)]
    needed = _needed(records, acknowledged)
    snapshots: list[AuthorizedSnapshot] = []
    damaged: list[FileName] = []
    for record in records:
        try:
            manifest = read_manifest(storage, record)
            _check_lengths(storage, manifest)
        except CorruptSnapshot as error:
            if record.manifest_id in needed:
                raise
            if not isinstance(error, SnapshotFileMissing):
                damaged.append(_file_of(record))
            continue
        snapshots.append(AuthorizedSnapshot(record, manifest, record.auth_seq in acknowledged))
    return Catalog(log, tuple(snapshots), tuple(damaged))


def settle_catalog(catalog: Catalog) -> CatalogChange:
    """Plan what a restart owes before the first change: see `plan_settle`."""
    plan, log = plan_settle(catalog.log)
    return CatalogChange(plan, replace(catalog, log=log))


def _file_of(record: SnapshotAuthorizationRecord) -> FileName:
    return manifest_file(record.base_term, record.base_index, record.generation)


def _needed(
    records: list[SnapshotAuthorizationRecord], acknowledged: set[AuthSeq]
) -> set[ManifestId]:
    """Name the manifests that the newest and the newest acknowledged snapshot stand on."""
    by_id = {record.manifest_id: record for record in records}
    heads = records[-1:] + [r for r in records if r.auth_seq in acknowledged][-1:]
    needed: set[ManifestId] = set()
    for head in heads:
        at: ManifestId | None = head.manifest_id
        while at is not None and at not in needed:
            if at not in by_id:
                raise SnapshotFileMissing("a delta's parent was never authorised", manifest_id=at)
            needed.add(at)
            at = by_id[at].parent
    return needed


def read_manifest(storage: Storage, record: SnapshotAuthorizationRecord) -> Manifest:
    """Read an authorised manifest; the chain's hash vouches for it, whoever signed it."""
    file = _file_of(record)
    try:
        data = storage.read(file, 0, MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise SnapshotFileMissing("an authorised manifest is gone", file=file) from error
    if not hmac.compare_digest(manifest_hash(data), record.manifest_hash):
        raise CorruptSnapshot("a manifest is not the one that was authorised", file=file)
    try:
        return decode_manifest(data)
    except ManifestRejected as error:
        raise CorruptSnapshot("an authorised manifest cannot be read", file=file) from error


def _check_lengths(storage: Storage, manifest: Manifest) -> None:
    for chunk in manifest.chunks:
        file = chunk_file(chunk.chunk_id)
        try:
            size = storage.size(file)
        except FileNotFoundError as error:
            raise SnapshotFileMissing("a chunk is gone", file=file) from error
        if size != sealed_bytes(chunk.len):
            raise CorruptSnapshot(
                "a chunk has the wrong length",
                file=file,
                bytes=size,
                expected=sealed_bytes(chunk.len),
            )


def relist(storage: Storage, manifest: Manifest, generation: int) -> Relisted:
    """Read every file of a written snapshot back and check it (clustor §7.3: stat, checksum).

    It reads the whole snapshot, one chunk in memory at a time: not for an event loop.
    """
    encoded = encode_manifest(manifest)
    file = manifest_file(manifest.base_term, manifest.base_index, generation)
    try:
        found = storage.read(file, 0, len(encoded) + 1)
    except FileNotFoundError as error:
        raise SnapshotFileMissing("the manifest was not written", file=file) from error
    if not hmac.compare_digest(found, encoded):
        raise CorruptSnapshot("the manifest is not what was written", file=file)
    for chunk in manifest.chunks:
        check_digest(chunk, read_chunk(storage, chunk))
    return Relisted(manifest, generation, manifest_hash(encoded))


def plan_authorize(catalog: Catalog, relisted: Relisted, *, since_full_ms: int) -> CatalogChange:
    """Plan the SnapshotAuthorizationRecord: once it is durable, this snapshot is authoritative.

    Raises SnapshotDeltaRetired when another snapshot became the newest meanwhile.
    """
    manifest = relisted.manifest
    check_successor(catalog, manifest)
    if relisted.generation < catalog.free_generation(manifest.base_term, manifest.base_index):
        raise SnapshotMisuse(
            "an authorised snapshot has this place", generation=relisted.generation
        )
    record = SnapshotAuthorizationRecord(
        manifest_id=manifest.manifest_id,
        base_term=manifest.base_term,
        base_index=manifest.base_index,
        generation=relisted.generation,
        auth_seq=catalog.log.next_auth_seq,
        manifest_hash=relisted.manifest_hash,
        parent=manifest.parent,
        since_full_ms=since_full_ms,
    )
    plan, log = plan_append_entry(catalog.log, record)
    snapshots = (*catalog.snapshots, AuthorizedSnapshot(record, manifest))
    return CatalogChange(plan, replace(catalog, log=log, snapshots=snapshots))


def plan_acknowledge(catalog: Catalog) -> CatalogChange:
    """Plan the CompactionAuthAck of the newest snapshot; nothing to do when it has one."""
    newest = catalog.newest
    if newest is None:
        raise SnapshotMisuse("there is no snapshot to acknowledge")
    if newest.acknowledged:
        return CatalogChange((), catalog)
    ack = CompactionAuthAck(newest.record.manifest_id, newest.record.auth_seq)
    plan, log = plan_append_entry(catalog.log, ack)
    snapshots = (*catalog.snapshots[:-1], replace(newest, acknowledged=True))
    return CatalogChange(plan, replace(catalog, log=log, snapshots=snapshots))


def check_successor(catalog: Catalog, manifest: Manifest) -> None:
    """Check that `manifest` may follow the newest snapshot, as a full one or as its delta.

    Raises SnapshotSuperseded, SnapshotDeltaRetired, or SnapshotInvalidated for a broken chain.
    """
    check_newer(catalog, manifest)
    if manifest.snapshot_kind is SnapshotKind.DELTA:
        _check_delta(catalog, manifest, catalog.newest)


def check_newer(catalog: Catalog, manifest: Manifest) -> None:
    """Check that `manifest` is not older than the newest snapshot, nor one that is known."""
    newest = catalog.newest
    if catalog.find(manifest.manifest_id) is not None:
        raise SnapshotSuperseded("already authorised", manifest_id=manifest.manifest_id)
    if newest is not None and _is_older(manifest, newest.manifest):
        raise SnapshotSuperseded(
            "older than the newest snapshot",
            manifest_id=manifest.manifest_id,
            base_index=manifest.base_index,
            newest_base_index=newest.manifest.base_index,
        )


def _is_older(manifest: Manifest, newest: Manifest) -> bool:
    """Both grow together along a committed log; behind in either is no successor."""
    return manifest.base_term < newest.base_term or manifest.base_index < newest.base_index


def _check_delta(catalog: Catalog, manifest: Manifest, newest: AuthorizedSnapshot | None) -> None:
    """A delta builds on the newest snapshot, is one longer, and covers more."""
    if newest is None or manifest.parent != newest.record.manifest_id:
        assert manifest.parent is not None  # the decoder and the emission both hold this
        if catalog.find(manifest.parent) is not None:
            raise SnapshotDeltaRetired(manifest_id=manifest.manifest_id, parent=manifest.parent)
        raise _chain_violation(manifest, "an unknown parent")
    if manifest.delta_chain_length != newest.manifest.delta_chain_length + 1:
        raise _chain_violation(manifest, "not one longer than its parent")
    if manifest.base_index <= newest.manifest.base_index:
        raise _chain_violation(manifest, "covers no more than its parent")


def _chain_violation(manifest: Manifest, cause: str) -> SnapshotInvalidated:
    return SnapshotInvalidated(
        SnapshotKind.DELTA,
        InvalidationReason.DELTA_CHAIN_VIOLATION,
        cause=cause,
        manifest_id=manifest.manifest_id,
        parent=manifest.parent,
        delta_chain_length=manifest.delta_chain_length,
    )


def read_content(
    storage: Storage, manifest: Manifest, keys: KeyRing, partition: PartitionId
) -> Iterator[bytearray]:
    """Yield a snapshot's content chunk by chunk, each authenticated before it is yielded.

    The consumer builds a new state and takes it into use only when the iterator has ended
    without an error: damage may stand in the last chunk.
    """
    cipher = cipher_for(manifest, keys, partition)
    for chunk in manifest.chunks:
        yield cipher.open(chunk, read_chunk(storage, chunk))


def read_chunk(storage: Storage, chunk: SnapshotChunk) -> bytes:
    """Read a chunk as it is on disk. Raises SnapshotFileMissing."""
    file = chunk_file(chunk.chunk_id)
    try:
        return storage.read(file, 0, sealed_bytes(chunk.len) + 1)
    except FileNotFoundError as error:
        raise SnapshotFileMissing("a chunk is gone", file=file) from error
