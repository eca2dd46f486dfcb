"""`slipstream export`, `import` and `lease`."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from slipstream.applied import watch_applied
from slipstream.artifact import (
    ExportLease,
    ExportManifest,
    ExportRequest,
    import_artifact,
    import_remote,
    run_export_round,
)
from slipstream.artifact.transport import ObjectStoreTransport
from slipstream.cli.session import LeaseHeld, NotFound, OpenBucket, Speaker, session
from slipstream.errors import CursorExpired, Misuse
from slipstream.folds import SnapshotStore, fold_backend
from slipstream.types import AppliedReport, WatchScope


def object_store(url: str, *, non_atomic: bool) -> ObjectStoreTransport:
    """Open an object store by its URL; credentials come from its usual environment."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    try:
        store = from_url(url, mkdir=True) if url.startswith("file://") else from_url(url)
    except (BaseError, ValueError) as error:
        cause = str(error).splitlines()[0]
        raise Misuse("cannot open the object store", url=url, cause=cause) from error
    return ObjectStoreTransport(store, "", allow_non_atomic_pointer=non_atomic)


async def export_command(
    speaker: Speaker,
    backend: str,
    bucket: str,
    *,
    path: Path,
    store: str,
    to: Path | None,
    publish: str | None,
    key: str,
    lease_key: str,
    holder: str,
    ttl_seconds: float,
    non_atomic: bool,
) -> None:
    """Bring the fold up to date and export it."""
    if (to is None) == (publish is None):
        raise Misuse("give --to DIRECTORY, or --publish URL")
    async with session(backend, bucket) as opened:
        with fold_backend(store).load(path) as fold:
            async with _caught_up(opened, fold) as exports:
                if to is not None:
                    request = ExportRequest.to(to)
                    await exports.put(request)
                    _say_manifest(speaker, "exported", await request.reply)
                    return
                assert publish is not None
                transport = object_store(publish, non_atomic=non_atomic)
                lease = ExportLease(opened.reader, opened.writer, lease_key, holder)
                with tempfile.TemporaryDirectory(dir=path.parent, prefix=".export-") as work:
                    round_ = await run_export_round(
                        lease,
                        exports,
                        transport,
                        key=key,
                        work_directory=Path(work),
                        ttl_seconds=ttl_seconds,
                    )
                if round_.manifest is None:
                    raise LeaseHeld("another node exports this round", key=lease_key)
                _say_manifest(speaker, round_.outcome.value, round_.manifest)


@asynccontextmanager
async def _caught_up(
    opened: OpenBucket, fold: SnapshotStore
) -> AsyncIterator[asyncio.Queue[ExportRequest]]:
    """Keep a watch running on the fold; it has caught up when this is entered.

    It keeps the scope that the fold was made with only for a fold of everything: an export of a
    narrower one comes from the `watch` that keeps it.
    """
    scope = WatchScope.all()
    if fold.cursor.scope not in {b"", scope.identity}:
        raise Misuse("this fold follows some prefixes only; export one of the whole bucket")
    await watch_applied(
        opened.watcher, fold=fold, reader=opened.reader, scope=scope, until_caught_up=True
    )
    exports: asyncio.Queue[ExportRequest] = asyncio.Queue()
    stop, report = asyncio.Event(), AppliedReport()
    running = asyncio.ensure_future(
        watch_applied(
            opened.watcher, fold=fold, scope=scope, exports=exports, stop=stop, report=report
        )
    )
    try:
        yield exports
    finally:
        stop.set()
        await running


async def import_command(
    speaker: Speaker,
    backend: str,
    bucket: str | None,
    *,
    path: Path,
    store: str,
    source: Path | None,
    published: str | None,
    key: str,
) -> None:
    """Make a fold of an artifact, and say whether the bucket can be resumed from it."""
    if (source is None) == (published is None):
        raise Misuse("give --from DIRECTORY, or --published URL")
    kind = fold_backend(store)
    if source is not None:
        manifest = await asyncio.to_thread(import_artifact, source, path, kind)
    else:
        assert published is not None
        transport = object_store(published, non_atomic=True)  # It is only read.
        manifest = await import_remote(transport, key, path, kind)
    if bucket is None:
        _say_manifest(speaker, "imported", manifest)
        return
    async with session(backend, bucket) as opened:
        resumable = await _is_resumable(opened, manifest)
    _say_manifest(speaker, "imported", manifest, resumable=resumable)


async def _is_resumable(opened: OpenBucket, manifest: ExportManifest) -> bool:
    if manifest.cursor.is_none:
        return False
    try:
        watch = await opened.watcher.watch(WatchScope.all(), after=manifest.cursor)
    except CursorExpired:
        return False
    await watch.close()
    return True


def _say_manifest(
    speaker: Speaker, verb: str, manifest: ExportManifest, *, resumable: bool | None = None
) -> None:
    size = sum(file.size for file in manifest.files)
    note = {None: "", True: ", the bucket continues it", False: ", the bucket has moved past it"}
    speaker.say(
        f"{verb} {manifest.backend} at revision {manifest.rank}, {size} bytes{note[resumable]}",
        outcome=verb,
        backend=manifest.backend,
        revision=manifest.rank,
        bytes=size,
        address=manifest.address,
        **({} if resumable is None else {"resumable": resumable}),
    )


async def lease_command(
    speaker: Speaker,
    backend: str,
    bucket: str,
    *,
    key: str,
    acquire: bool,
    holder: str,
    ttl_seconds: float,
) -> None:
    """Show a lease, or try to win it."""
    async with session(backend, bucket) as opened:
        lease = ExportLease(opened.reader, opened.writer, key, holder)
        if acquire:
            guard = await lease.try_acquire(ttl_seconds)
            if guard is None:
                raise LeaseHeld("another node holds the lease", key=key)
            record = guard.record
        else:
            found = await lease.read()
            if found is None:
                raise NotFound("nobody holds the lease", key=key)
            record = found
    done = record.completed_cursor_hex is not None
    speaker.say(
        f"held by {record.holder_id} until {record.expires_at_unix}"
        + (", its export is published" if done else ""),
        holder=record.holder_id,
        acquired_at_unix=record.acquired_at_unix,
        expires_at_unix=record.expires_at_unix,
        completed_cursor_hex=record.completed_cursor_hex,
        completed_at_unix=record.completed_at_unix,
    )
