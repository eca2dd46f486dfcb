"""Artifacts in an object store: a payload under its content's address, and one pointer to it.

    <prefix>/<key>.payloads/<blake3(manifest)[..8]>.tar     written once, never changed
    <prefix>/<key>.manifest.json                            the pointer, which only rises

The pointer is swapped last and on condition, so a crash at any step leaves the one before.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import LocalStore

from slipstream.artifact.importing import read_manifest
from slipstream.artifact.manifest import ExportManifest, address_of
from slipstream.artifact.outcomes import PublishedArtifact, PublishOutcome
from slipstream.artifact.pointer import decode_pointer, encode_pointer, pointer_state
from slipstream.artifact.tarball import (
    MANIFEST_BYTES_MAX,
    manifest_bytes_in,
    tar_chunks,
    unpack,
)
from slipstream.errors import (
    ArtifactInvalid,
    ArtifactMissing,
    ConditionalPutUnsupported,
    Misuse,
    PointerContention,
    PointerForeign,
)
from slipstream.protocol import payload_prunable, pointer_publish_allowed

_PART_BYTES: Final = 8 * 1024 * 1024
_PARTS_AT_ONCE: Final = 8
_SWAP_RETRIES_MAX: Final = 8
_DOWNLOAD_ATTEMPTS: Final = 3
_TAR_BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class _Observed:
    """A pointer as it was read, and the version to condition a swap on."""

    raw: bytes | None
    version: dict[str, str]


class ObjectStoreTransport:
    """Artifacts on S3, GCS, Azure, a local directory or memory, by way of `obstore`.

    A store without conditional put (a local directory) is refused, unless you say that the
    pointer may go backwards: `allow_non_atomic_pointer`, for development alone.
    """

    def __init__(
        self,
        store: Any,
        prefix: str,
        *,
        allow_non_atomic_pointer: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        nonce: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        self._store = store
        self._prefix = prefix.strip("/")
        self._non_atomic = allow_non_atomic_pointer
        self._clock, self._nonce = clock, nonce

    async def upload(self, key: str, artifact: Path) -> PublishedArtifact:
        """Store the payload, then move the pointer to it unless a newer one is there."""
        return await asyncio.to_thread(self._upload, key, artifact)

    async def download(self, key: str, directory: Path) -> ExportManifest:
        """Bring the published artifact into a new directory, verified."""
        return await asyncio.to_thread(self._download, key, directory)

    async def pointer(self, key: str) -> ExportManifest | None:
        """Give what is published, None when nothing is."""
        observed = await asyncio.to_thread(self._observe, key)
        return None if observed.raw is None else decode_pointer(observed.raw)[1]

    async def prune(self, key: str, grace_seconds: float) -> int:
        """Delete payloads that can never be published again; give how many."""
        return await asyncio.to_thread(self._prune, key, timedelta(seconds=grace_seconds))

    # Publishing

    def _upload(self, key: str, artifact: Path) -> PublishedArtifact:
        self._require_conditional_put()
        manifest = read_manifest(artifact)
        self.put_payload(key, artifact, manifest)
        return PublishedArtifact(manifest, self.swap_pointer(key, manifest))

    def put_payload(self, key: str, artifact: Path, manifest: ExportManifest) -> None:
        """Store a payload under its address; storing it again changes nothing."""
        obstore.put(
            self._store,
            self._payload_path(key, manifest.address),
            tar_chunks(artifact, manifest),
            chunk_size=_PART_BYTES,
            max_concurrency=_PARTS_AT_ONCE,
        )

    def swap_pointer(self, key: str, manifest: ExportManifest) -> PublishOutcome:
        """Move the pointer, on the condition that nobody moved it since we looked."""
        for _ in range(1 + _SWAP_RETRIES_MAX):
            observed = self._observe(key)
            _require_same_life(observed, manifest)
            if not pointer_publish_allowed(pointer_state(observed.raw), manifest.rank):
                return PublishOutcome.SUPERSEDED_BY_NEWER
            if self._try_swap(key, manifest, observed):
                return PublishOutcome.PUBLISHED
        raise PointerContention("the pointer moved every time", retries=_SWAP_RETRIES_MAX)

    def _try_swap(self, key: str, manifest: ExportManifest, observed: _Observed) -> bool:
        mode: Any = observed.version if observed.raw is not None else "create"
        if self._non_atomic:
            mode = "overwrite"
        elif observed.raw is not None and not observed.version:
            raise ConditionalPutUnsupported("the store gives its objects no version")
        try:
            encoded = encode_pointer(manifest.encode(), self._nonce())
            obstore.put(self._store, self._pointer_path(key), encoded, mode=mode)
        except (AlreadyExistsError, PreconditionError):
            return False
        except NotImplementedError as error:
            raise ConditionalPutUnsupported("the store has no conditional put") from error
        return True

    def _require_conditional_put(self) -> None:
        """Refuse before the payload travels; a local directory can create but not swap."""
        if isinstance(self._store, LocalStore) and not self._non_atomic:
            raise ConditionalPutUnsupported(
                "a local directory has no conditional put (allow_non_atomic_pointer: development)"
            )

    # Fetching

    def _download(self, key: str, directory: Path) -> ExportManifest:
        directory.mkdir(parents=True)
        before: bytes | None = None
        for _ in range(_DOWNLOAD_ATTEMPTS):
            observed = self._observe(key)
            if observed.raw is None:
                raise ArtifactMissing("nothing is published", key=key)
            if observed.raw == before:
                break
            before = observed.raw
            encoded, _ = decode_pointer(observed.raw)
            try:
                payload = obstore.get(self._store, self._payload_path(key, address_of(encoded)))
            except FileNotFoundError:
                continue  # A newer one was published and this one pruned, perhaps: look again.
            return unpack(iter(payload.stream()), encoded, directory)
        raise ArtifactInvalid("the pointer's payload is not there", key=key)

    def _observe(self, key: str) -> _Observed:
        try:
            found = obstore.get(self._store, self._pointer_path(key))
        except FileNotFoundError:
            return _Observed(None, {})
        if found.meta["size"] > 2 * MANIFEST_BYTES_MAX:
            raise ArtifactInvalid("the pointer is too large", size=found.meta["size"])
        marks = {"e_tag": found.meta["e_tag"], "version": found.meta["version"]}
        version = {name: mark for name, mark in marks.items() if mark is not None}
        return _Observed(bytes(found.bytes()), version)

    # Pruning

    def _prune(self, key: str, grace: timedelta) -> int:
        observed = self._observe(key)
        if observed.raw is None:
            return 0
        try:
            encoded, manifest = decode_pointer(observed.raw)
        except ArtifactInvalid:
            return 0  # What is below a pointer that cannot be read is not known.
        target = self._payload_path(key, address_of(encoded))
        doomed = [
            found["path"]
            for chunk in obstore.list(self._store, self._payload_folder(key))
            for found in chunk
            if self._is_prunable(found, target, manifest.rank, grace)
        ]
        for path in doomed:
            obstore.delete(self._store, path)
        return len(doomed)

    def _is_prunable(self, found: Any, target: str, pointer_rank: int, grace: timedelta) -> bool:
        is_target = found["path"] == target
        aged_out = self._clock() - found["last_modified"] >= grace
        rank = None if is_target or not aged_out else self._payload_rank(found["path"])
        return payload_prunable(rank, pointer_rank, is_pointer_target=is_target, aged_out=aged_out)

    def _payload_rank(self, path: str) -> int | None:
        """Read the rank from the manifest at the head of a payload; None when it has none."""
        try:
            head = bytes(obstore.get_range(self._store, path, start=0, length=_TAR_BLOCK))
            size = manifest_bytes_in(head)
            raw = bytes(obstore.get_range(self._store, path, start=_TAR_BLOCK, length=size))
            return ExportManifest.decode(raw).rank
        except (ArtifactInvalid, FileNotFoundError, obstore.exceptions.BaseError):
            return None

    # Names

    def _pointer_path(self, key: str) -> str:
        return self._path(f"{_plain(key)}.manifest.json")

    def _payload_folder(self, key: str) -> str:
        return self._path(f"{_plain(key)}.payloads")

    def _payload_path(self, key: str, address: str) -> str:
        return f"{self._payload_folder(key)}/{address}.tar"

    def _path(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name


def _require_same_life(observed: _Observed, manifest: ExportManifest) -> None:
    """Refuse to compare the revisions of two lives of a bucket: neither is the newer."""
    try:
        published = decode_pointer(observed.raw or b"")[1].cursor.store
    except ArtifactInvalid:
        return
    if published and manifest.cursor.store and published != manifest.cursor.store:
        raise PointerForeign("the pointer is of another life of the bucket")


def _plain(key: str) -> str:
    if not key or "/" in key or key.startswith("."):
        raise Misuse("an artifact's key is one plain name", key=key)
    return key
