"""Garbage: what no authorised snapshot needs, deleted in an order that survives crashes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from clustor.log.steps import DeleteFile, FileName, Plan, Storage, SyncDirectory, directory_of
from clustor.snapshot.authorization import plan_trim, require_settled
from clustor.snapshot.catalog import AuthorizedSnapshot, Catalog, CatalogChange
from clustor.snapshot.errors import CorruptSnapshot, ManifestRejected
from clustor.snapshot.layout import (
    AUTHORIZATION_LOG,
    CHUNKS_DIRECTORY,
    INCOMING_DIRECTORY,
    INCOMING_MANIFEST,
    SNAPSHOT_DIRECTORY,
    chunk_file,
    is_manifest_directory,
)
from clustor.snapshot.manifest import MANIFEST_BYTES_MAX, Manifest, decode_manifest
from clustor.snapshot.types import AuthSeq, SnapshotKind

FULLS_RETAINED_DEFAULT: Final = 2
FILES_PER_PLAN_MAX: Final = 4096


def plan_collect_garbage(
    storage: Storage,
    catalog: Catalog,
    *,
    protect: Collection[FileName] = (),
    fulls_retained: int = FULLS_RETAINED_DEFAULT,
    files_max: int = FILES_PER_PLAN_MAX,
) -> Plan:
    """Plan to delete up to `files_max` files that nothing needs; an empty plan means: all done.

    Kept: the newest acknowledged snapshot with its chain and everything authorised after it,
    the newest `fulls_retained` full snapshots with their deltas, an import that can be resumed,
    and `protect` (the files of an emission or import that is under way). Manifests go before
    chunks, so that a manifest that is still there still has its chunks.
    Refuses (CorruptSnapshot) while a manifest is damaged: nobody knows what it needs.
    """
    require_settled(catalog.log)
    if catalog.damaged:
        raise CorruptSnapshot("a damaged manifest: nothing is deleted", files=catalog.damaged)
    kept = _kept_files(storage, catalog, fulls_retained) | set(protect)
    manifests = [file for file in _manifest_files(storage) if file not in kept]
    chunks = [file for file in _chunk_files(storage) if file not in kept]
    manifests = manifests[:files_max]
    chunks = chunks[: files_max - len(manifests)]
    return (*_deletions(manifests), *_deletions(chunks))


def plan_forget(catalog: Catalog, *, fulls_retained: int = FULLS_RETAINED_DEFAULT) -> CatalogChange:
    """Plan to drop the authorisations of collected snapshots, so that their log stays short.

    Only for a catalog whose garbage is collected: a record goes after its files.
    """
    oldest = _oldest_kept(catalog, fulls_retained)
    if oldest is None:
        return CatalogChange((), catalog)
    plan, log = plan_trim(catalog.log, oldest)
    snapshots = tuple(s for s in catalog.snapshots if s.record.auth_seq >= oldest)
    return CatalogChange(plan, Catalog(log, snapshots, catalog.damaged))


def _oldest_kept(catalog: Catalog, fulls_retained: int) -> AuthSeq | None:
    """Return the first authorisation to keep; None keeps all.

    A delta's parent is always the authorisation before it, so a chain is a run of numbers that
    starts at its full snapshot, and one number divides what is kept from what is not.
    """
    acknowledged = catalog.newest_acknowledged
    if acknowledged is None:
        return None
    needed = catalog.chain(acknowledged)[0].record.auth_seq
    fulls = [s.record.auth_seq for s in catalog.snapshots if _is_full(s)]
    retained = fulls[-fulls_retained:] if fulls_retained else []
    return min([needed, *retained])


def _is_full(snapshot: AuthorizedSnapshot) -> bool:
    return snapshot.record.snapshot_kind is SnapshotKind.FULL


def _kept_files(storage: Storage, catalog: Catalog, fulls_retained: int) -> set[FileName]:
    oldest = _oldest_kept(catalog, fulls_retained)
    kept: set[FileName] = set()
    for snapshot in catalog.snapshots:
        if oldest is None or snapshot.record.auth_seq >= oldest:
            kept |= {snapshot.file, *_chunks_of(snapshot.manifest)}
    incoming = _resumable(storage, catalog)
    if incoming is not None:
        kept |= {INCOMING_MANIFEST, *_chunks_of(incoming)}
    return kept


def _chunks_of(manifest: Manifest) -> set[FileName]:
    return {chunk_file(chunk.chunk_id) for chunk in manifest.chunks}


def _resumable(storage: Storage, catalog: Catalog) -> Manifest | None:
    """Return the manifest of an import that a restart can go on with."""
    try:
        manifest = decode_manifest(storage.read(INCOMING_MANIFEST, 0, MANIFEST_BYTES_MAX + 1))
    except (FileNotFoundError, ManifestRejected):
        return None
    newest = catalog.newest
    if catalog.find(manifest.manifest_id) is not None:
        return None
    if newest is not None and manifest.base_index < newest.manifest.base_index:
        return None
    return manifest


def _manifest_files(storage: Storage) -> Iterator[FileName]:
    """Name every manifest and temporary file, authorised or not."""
    for name in storage.names(SNAPSHOT_DIRECTORY):
        directory = f"{SNAPSHOT_DIRECTORY}/{name}"
        if is_manifest_directory(name) or directory == INCOMING_DIRECTORY:
            for file in storage.names(directory):
                yield FileName(f"{directory}/{file}")
        elif directory == AUTHORIZATION_LOG + ".tmp":
            yield FileName(directory)


def _chunk_files(storage: Storage) -> Iterator[FileName]:
    for name in storage.names(CHUNKS_DIRECTORY):
        yield FileName(f"{CHUNKS_DIRECTORY}/{name}")


def _deletions(files: list[FileName]) -> Plan:
    directories = dict.fromkeys(directory_of(file) for file in files)
    return (*(DeleteFile(file) for file in files), *(SyncDirectory(name) for name in directories))
