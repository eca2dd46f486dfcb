"""Import: a peer's snapshot becomes this replica's own, in the five steps of clustor §9.5.

    manifest checked → chunks staged → restored and compared → authorised → reconciled

The manifest is first kept in `snapshot/incoming/`, so that a restart goes on where the crash
stopped it; chunks are authenticated before they are written. Nothing counts until the same
authorisation order as an emission's has been gone through.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final, TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from clustor.log.keys import KeyRing
from clustor.log.steps import (
    Create,
    DeleteFile,
    FileName,
    MakeDirectory,
    Plan,
    Storage,
    Sync,
    SyncDirectory,
    WriteFile,
    plan_replace,
)
from clustor.log.types import LogIndex, PartitionId, Term
from clustor.snapshot.catalog import Catalog, check_newer, check_successor
from clustor.snapshot.chunks import cipher_for, sealed_bytes, zeroize
from clustor.snapshot.emission import DELTA_CHAIN_MAX_DEFAULT, EMIT_VERSION, plan_manifest
from clustor.snapshot.errors import (
    SnapshotChunkAuthFailure,
    SnapshotDeterminismViolation,
    SnapshotInvalidated,
    SnapshotMisuse,
    SnapshotVersionUnsupported,
)
from clustor.snapshot.layout import (
    CHUNKS_DIRECTORY,
    INCOMING_DIRECTORY,
    INCOMING_MANIFEST,
    SNAPSHOT_DIRECTORY,
    chunk_file,
    manifest_file,
)
from clustor.snapshot.manifest import (
    MANIFEST_BYTES_MAX,
    DedupShard,
    Manifest,
    SnapshotChunk,
    decode_manifest,
    encode_manifest,
    verify_manifest,
)
from clustor.snapshot.types import ChunkId, HexDigest, InvalidationReason, SnapshotKind

RETRIES_MAX: Final = 3
RETRY_WINDOW_MS: Final = 60_000
RETRY_DELAY_MS_MAX: Final = 10_000


def retry_delay_ms(attempt: int, jitter: float) -> int:
    """Return `min(2^attempt × 1000, 10,000)` ms, moved by up to 25 % (`jitter` from -1 to 1)."""
    assert attempt >= 0 and -1 <= jitter <= 1, (attempt, jitter)
    delay_ms = min(1000 << attempt, RETRY_DELAY_MS_MAX)
    return round(delay_ms * (1 + jitter / 4))


@dataclass(frozen=True, slots=True)
class ImportPolicy:
    """What this replica accepts. More than one key is trusted while a rotation is under way."""

    trusted_keys: Sequence[Ed25519PublicKey]
    version_id_min: int
    version_id_max: int
    delta_chain_max: int = DELTA_CHAIN_MAX_DEFAULT


class ImportPhase(StrEnum):
    STREAMING = "Streaming"  # chunks are missing
    STAGED = "Staged"  # all chunks are durable and authentic; the state is to be restored
    RESTORED = "Restored"  # the restored state has the manifest's digests; to be authorised
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class StoreChunk:
    """The chunk is authentic; carry the plan out, then call `on_chunk_stored`."""

    chunk_id: ChunkId
    plan: Plan


@dataclass(frozen=True, slots=True)
class RetryChunk:
    """Ask for the chunk again, at another peer if there is one, not before `at_ms`."""

    chunk_id: ChunkId
    attempt: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class QuarantineVerdict:
    """Bytes failed authentication until the retries were spent: quarantine the partition."""

    chunk_id: ChunkId
    attempts: int
    cause: str


@dataclass(frozen=True, slots=True)
class SourceLost:
    """The chunk never arrived: no bytes were wrong, so the import ends and nothing else does."""

    chunk_id: ChunkId
    attempts: int


ChunkOutcome: TypeAlias = StoreChunk | RetryChunk | QuarantineVerdict | SourceLost


@dataclass(frozen=True, slots=True)
class AwaitApply:
    """Buffered entries stay buffered: the state machine is not at the base yet."""

    missing_entries: int


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The import is over. Buffered entries from `replay_from` on may be applied."""

    base_term: Term
    base_index: LogIndex
    applied_index_floor: LogIndex
    replay_from: LogIndex


@dataclass(slots=True)
class _Failures:
    """The retries of one chunk; the window starts at the first failure."""

    since_ms: int
    attempts: int = 0
    retry_at_ms: int = 0


@dataclass(slots=True)
class SnapshotImport:
    """One import. `plan` stages it (or, resumed, makes what was found durable); run it first."""

    manifest: Manifest
    partition: PartitionId
    keys: KeyRing
    plan: Plan
    phase: ImportPhase = ImportPhase.STREAMING
    generation: int = 0  # set by `plan_install`
    _missing: dict[ChunkId, SnapshotChunk] = field(default_factory=dict)
    _asked: set[ChunkId] = field(default_factory=set)
    _failures: dict[ChunkId, _Failures] = field(default_factory=dict)

    def files(self) -> set[FileName]:
        """Name what this import has written or may write, for the garbage collector."""
        manifest = self.manifest
        target = manifest_file(manifest.base_term, manifest.base_index, self.generation)
        chunks = (chunk_file(chunk.chunk_id) for chunk in manifest.chunks)
        manifests = (INCOMING_MANIFEST, target)
        return {*chunks, *manifests, *(FileName(file + ".tmp") for file in manifests)}

    @property
    def missing(self) -> int:
        """How many chunks are not stored yet."""
        return len(self._missing)

    def take_wanted(self, now_ms: int, limit: int) -> tuple[SnapshotChunk, ...]:
        """Return up to `limit` chunks to ask for now; each is not returned again until it fails."""
        if self.phase is not ImportPhase.STREAMING:
            return ()
        ready: list[SnapshotChunk] = []
        for chunk_id, chunk in self._missing.items():
            if len(ready) == limit:
                break
            failures = self._failures.get(chunk_id)
            waits = failures is not None and failures.retry_at_ms > now_ms
            if chunk_id not in self._asked and not waits:
                ready.append(chunk)
        self._asked.update(chunk.chunk_id for chunk in ready)
        return tuple(ready)

    def next_deadline(self) -> int | None:
        """Return when `take_wanted` has something again that waits for its backoff now."""
        waiting = (f.retry_at_ms for c, f in self._failures.items() if c not in self._asked)
        return min(waiting, default=None)

    def on_chunk(
        self, chunk_id: ChunkId, sealed: bytes, *, now_ms: int, jitter: float
    ) -> ChunkOutcome:
        """Take a chunk that arrived: authenticate it, then say how to store it."""
        chunk = self._expect(chunk_id)
        cipher = cipher_for(self.manifest, self.keys, self.partition)
        try:
            plain = cipher.open(chunk, sealed)
        except SnapshotChunkAuthFailure as error:
            return self._fail(chunk_id, str(error), now_ms, jitter)
        zeroize(plain)
        file = chunk_file(chunk_id)
        return StoreChunk(
            chunk_id, (DeleteFile(file), Create(file), WriteFile(file, 0, sealed), Sync(file))
        )

    def on_chunk_lost(self, chunk_id: ChunkId, *, now_ms: int, jitter: float) -> ChunkOutcome:
        """Take note that a chunk did not arrive: the peer went away, or has it no more."""
        self._expect(chunk_id)
        return self._fail(chunk_id, None, now_ms, jitter)

    def on_chunk_stored(self, chunk_id: ChunkId) -> None:
        """Take note that a StoreChunk's plan was carried out."""
        self._expect(chunk_id)
        del self._missing[chunk_id]
        self._asked.discard(chunk_id)
        self._failures.pop(chunk_id, None)
        if not self._missing:
            self.phase = ImportPhase.STAGED

    def on_restored(self, ap_pane_digest: HexDigest, dedup_shards: Sequence[DedupShard]) -> None:
        """Compare the state that was built from `read_content` with what the producer had.

        Raises SnapshotDeterminismViolation; the built state is then to be thrown away.
        """
        self._require(ImportPhase.STAGED)
        expected = self.manifest
        panes_agree = hmac.compare_digest(ap_pane_digest, expected.ap_pane_digest)
        if not panes_agree or tuple(dedup_shards) != expected.dedup_shards:
            self.phase = ImportPhase.FAILED
            raise SnapshotDeterminismViolation(
                "the restored state differs from the emitted one",
                manifest_id=expected.manifest_id,
                member="dedup_shards" if panes_agree else "ap_pane_digest",
            )
        self.phase = ImportPhase.RESTORED

    def plan_install(self, catalog: Catalog) -> Plan:
        """Plan the manifest at its place, by the catalog as it is *now*.

        Then: `relist`, `plan_authorize`, `plan_acknowledge`, `plan_finish_import`. Raises as
        `check_successor` when a local emission was authorised meanwhile.
        """
        self._require(ImportPhase.RESTORED)
        check_successor(catalog, self.manifest)
        place = (self.manifest.base_term, self.manifest.base_index)
        self.generation = catalog.free_generation(*place)
        return plan_manifest(self.manifest, self.generation)

    def reconcile(
        self, authorized: Catalog, applied_index: LogIndex, *, trust_cache_valid: bool
    ) -> AwaitApply | Reconciled:
        """Say whether the buffered entries may flow again (clustor §9.5, steps 4 and 5)."""
        self._require(ImportPhase.RESTORED)
        if authorized.find(self.manifest.manifest_id) is None:
            raise SnapshotMisuse("authorise first", manifest_id=self.manifest.manifest_id)
        if not trust_cache_valid:
            raise _invalidated(self.manifest, InvalidationReason.INVALID_TRUST_CACHE)
        base = self.manifest.base_index
        if applied_index < base:
            return AwaitApply(base - applied_index)
        floor = min(applied_index, base)
        return Reconciled(self.manifest.base_term, base, floor, LogIndex(applied_index + 1))

    def _expect(self, chunk_id: ChunkId) -> SnapshotChunk:
        self._require(ImportPhase.STREAMING)
        chunk = self._missing.get(chunk_id)
        if chunk is None:
            raise SnapshotMisuse("this chunk is not missing", chunk_id=chunk_id)
        return chunk

    def _require(self, phase: ImportPhase) -> None:
        if self.phase is not phase:
            raise SnapshotMisuse("not in this phase", phase=self.phase, needed=phase)

    def _fail(
        self, chunk_id: ChunkId, auth_failure: str | None, now_ms: int, jitter: float
    ) -> ChunkOutcome:
        self._asked.discard(chunk_id)
        failures = self._failures.setdefault(chunk_id, _Failures(since_ms=now_ms))
        attempt = failures.attempts + 1
        at_ms = now_ms + retry_delay_ms(attempt, jitter)
        if attempt <= RETRIES_MAX and at_ms - failures.since_ms <= RETRY_WINDOW_MS:
            failures.attempts, failures.retry_at_ms = attempt, at_ms
            return RetryChunk(chunk_id, attempt, at_ms)
        self.phase = ImportPhase.FAILED
        if auth_failure is None:
            return SourceLost(chunk_id, failures.attempts)
        return QuarantineVerdict(chunk_id, failures.attempts, auth_failure)


def begin_import(
    data: bytes, *, catalog: Catalog, keys: KeyRing, policy: ImportPolicy
) -> SnapshotImport:
    """Check a manifest that a peer offers, and begin its import.

    Raises ManifestRejected (form, hash, signature, version), SnapshotInvalidated (key epoch,
    emit version, a chain that does not continue ours) or SnapshotSuperseded.
    """
    manifest = decode_manifest(data)
    check_offer(manifest, catalog=catalog, keys=keys, policy=policy)
    stage: Plan = (
        MakeDirectory(CHUNKS_DIRECTORY),
        MakeDirectory(INCOMING_DIRECTORY),
        SyncDirectory(SNAPSHOT_DIRECTORY),
        SyncDirectory(""),
        *plan_replace(INCOMING_MANIFEST, encode_manifest(manifest)),
    )
    missing = {chunk.chunk_id: chunk for chunk in manifest.chunks}
    return SnapshotImport(manifest, catalog.partition, keys, stage, _missing=missing)


def begin_chain_import(
    datas: Sequence[bytes], *, catalog: Catalog, keys: KeyRing, policy: ImportPolicy
) -> list[SnapshotImport]:
    """Check a full snapshot and its deltas that a peer offers, and begin to stage them all.

    The chain is the peer's own, so it cannot follow ours: whoever has staged and restored it
    emits the state anew. Nothing is kept to resume by: chunks of a chain are garbage until then.
    Raises as `begin_import`.
    """
    manifests = [decode_manifest(data) for data in datas]
    for manifest in manifests:
        check_trusted(manifest, catalog=catalog, keys=keys, policy=policy)
    _check_links(manifests)
    check_newer(catalog, manifests[-1])
    stage: Plan = (
        MakeDirectory(CHUNKS_DIRECTORY),
        SyncDirectory(SNAPSHOT_DIRECTORY),
        SyncDirectory(""),
    )
    return [
        SnapshotImport(
            each,
            catalog.partition,
            keys,
            stage,
            _missing={chunk.chunk_id: chunk for chunk in each.chunks},
        )
        for each in manifests
    ]


def _check_links(manifests: Sequence[Manifest]) -> None:
    """Check that each manifest builds on the one before it, and the first on none."""
    violation = InvalidationReason.DELTA_CHAIN_VIOLATION
    if manifests[0].snapshot_kind is not SnapshotKind.FULL:
        raise _invalidated(manifests[0], violation)
    for parent, child in pairwise(manifests):
        follows = (
            child.parent == parent.manifest_id
            and child.delta_chain_length == parent.delta_chain_length + 1
            and child.base_index > parent.base_index
            and child.base_term >= parent.base_term
        )
        if not follows:
            raise _invalidated(child, violation)


def check_offer(
    manifest: Manifest, *, catalog: Catalog, keys: KeyRing, policy: ImportPolicy
) -> None:
    """Steps 1 and 2: signature, key epoch, version bounds, and whether it follows what we have."""
    check_trusted(manifest, catalog=catalog, keys=keys, policy=policy)
    check_successor(catalog, manifest)


def check_trusted(
    manifest: Manifest, *, catalog: Catalog, keys: KeyRing, policy: ImportPolicy
) -> None:
    """Check the signature, the key epoch and the version bounds."""
    verify_manifest(manifest, policy.trusted_keys)
    cipher_for(manifest, keys, catalog.partition)
    if not policy.version_id_min <= manifest.version_id <= policy.version_id_max:
        raise SnapshotVersionUnsupported(
            "version_id is out of bounds",
            version_id=manifest.version_id,
            bounds=(policy.version_id_min, policy.version_id_max),
        )
    if manifest.emit_version != EMIT_VERSION:
        raise _invalidated(manifest, InvalidationReason.EMIT_VERSION_CHANGE)
    if manifest.delta_chain_length > policy.delta_chain_max:
        raise _invalidated(manifest, InvalidationReason.DELTA_CHAIN_VIOLATION)


def resume_import(
    storage: Storage, *, catalog: Catalog, keys: KeyRing, policy: ImportPolicy
) -> SnapshotImport | None:
    """Go on with the import that a crash interrupted; None when there is none.

    Chunks that are there and authentic are kept; `plan` makes them durable, since a killed
    process may have left them in memory only. (An import whose plan *failed* is not resumed but
    given up by `plan_finish_import`: a sync that failed once proves nothing later.)
    Raises as `begin_import` when the offer no longer holds: the leftovers are garbage then.
    """
    try:
        data = storage.read(INCOMING_MANIFEST, 0, MANIFEST_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    manifest = decode_manifest(data)
    if catalog.find(manifest.manifest_id) is not None:
        return None
    check_offer(manifest, catalog=catalog, keys=keys, policy=policy)
    missing = {chunk.chunk_id: chunk for chunk in manifest.chunks}
    for chunk_id in _authentic_chunks(storage, manifest, keys, catalog.partition):
        del missing[chunk_id]
    kept = (Sync(chunk_file(c.chunk_id)) for c in manifest.chunks if c.chunk_id not in missing)
    directories = (CHUNKS_DIRECTORY, INCOMING_DIRECTORY, SNAPSHOT_DIRECTORY, "")
    synced = (SyncDirectory(directory) for directory in directories)
    plan: Plan = (MakeDirectory(CHUNKS_DIRECTORY), *kept, *synced)
    phase = ImportPhase.STREAMING if missing else ImportPhase.STAGED
    return SnapshotImport(manifest, catalog.partition, keys, plan, phase, _missing=missing)


def _authentic_chunks(
    storage: Storage, manifest: Manifest, keys: KeyRing, partition: PartitionId
) -> list[ChunkId]:
    cipher = cipher_for(manifest, keys, partition)
    found: list[ChunkId] = []
    for chunk in manifest.chunks:
        try:
            sealed = storage.read(chunk_file(chunk.chunk_id), 0, sealed_bytes(chunk.len) + 1)
            zeroize(cipher.open(chunk, sealed))
        except (FileNotFoundError, SnapshotChunkAuthFailure):
            continue  # never arrived, or torn: asked for again
        found.append(chunk.chunk_id)
    return found


def plan_finish_import() -> Plan:
    """Plan to clear the staging area, after the authorisation or when an import is given up."""
    return (DeleteFile(INCOMING_MANIFEST), SyncDirectory(INCOMING_DIRECTORY))


def _invalidated(manifest: Manifest, reason: InvalidationReason) -> SnapshotInvalidated:
    return SnapshotInvalidated(manifest.snapshot_kind, reason, manifest_id=manifest.manifest_id)
