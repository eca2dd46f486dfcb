"""`watch_applied`: deliver, batch, apply, then move the cursor; the safe way to watch.

Each flush runs the caller's `apply` to its end, stores the raw batch and its cursor in the fold
in one step, and only then reports the cursor. Decisions are in `pending` and `resync`, which the
model checker calls as well; this file waits, calls and counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar, overload

from slipstream.applied.pending import Pending
from slipstream.applied.resync import (
    RESYNC_ORDER,
    ResyncStep,
    contradicts,
    needs_resync,
    plan_stale,
)
from slipstream.applied.waits import Waits, in_thread
from slipstream.artifact.export import export_to
from slipstream.artifact.manifest import ExportRequest
from slipstream.errors import (
    CursorExpired,
    KvError,
    Misuse,
    SlipstreamError,
    SnapshotError,
    WatchError,
)
from slipstream.folds.store import SnapshotStore
from slipstream.ports import KvReader, KvWatcher, Watch
from slipstream.types import (
    NO_CURSOR,
    AppliedReport,
    BatchConfig,
    KvUpdate,
    WatchCursor,
    WatchEvent,
    WatchScope,
)

logger = logging.getLogger(__name__)

Parsed = TypeVar("Parsed")
OnApplied = Callable[[WatchCursor], Awaitable[None]]
_DEFAULT_CONFIG: Final = BatchConfig()
_EVERYTHING: Final = WatchScope.all()


@overload
async def watch_applied(
    watcher: KvWatcher,
    *,
    scope: WatchScope = ...,
    fold: SnapshotStore | None = ...,
    reader: KvReader | None = ...,
    apply: Callable[[list[KvUpdate]], Awaitable[None]] | None = ...,
    on_applied: OnApplied | None = ...,
    config: BatchConfig = ...,
    exports: asyncio.Queue[ExportRequest] | None = ...,
    stop: asyncio.Event | None = ...,
    until_caught_up: bool = ...,
    audit: bool = ...,
    report: AppliedReport | None = ...,
) -> AppliedReport: ...


@overload
async def watch_applied(
    watcher: KvWatcher,
    *,
    parse: Callable[[KvUpdate], Parsed | None],
    apply: Callable[[list[Parsed]], Awaitable[None]],
    scope: WatchScope = ...,
    fold: SnapshotStore | None = ...,
    reader: KvReader | None = ...,
    on_applied: OnApplied | None = ...,
    config: BatchConfig = ...,
    exports: asyncio.Queue[ExportRequest] | None = ...,
    stop: asyncio.Event | None = ...,
    until_caught_up: bool = ...,
    audit: bool = ...,
    report: AppliedReport | None = ...,
) -> AppliedReport: ...


async def watch_applied(
    watcher: KvWatcher,
    *,
    parse: Callable[[KvUpdate], Any] | None = None,
    apply: Callable[[list[Any]], Awaitable[None]] | None = None,
    scope: WatchScope = _EVERYTHING,
    fold: SnapshotStore | None = None,
    reader: KvReader | None = None,
    on_applied: OnApplied | None = None,
    config: BatchConfig = _DEFAULT_CONFIG,
    exports: asyncio.Queue[ExportRequest] | None = None,
    stop: asyncio.Event | None = None,
    until_caught_up: bool = False,
    audit: bool = True,
    report: AppliedReport | None = None,
) -> AppliedReport:
    """Watch a scope and keep a fold and the caller's state in step with it.

    Resumes from the fold's own cursor; there is no way to pass a bare one, because a cursor says
    nothing about keys that have not changed since. `parse` may reject an update with None: it is
    covered by the cursor all the same. `audit` compares the fold with the bucket's versions (no
    values travel) when the revision at the cursor is gone and so cannot vouch for the bucket's
    past; it needs the reader. `report` is filled as the watch goes; pass one to see it
    while it runs, or after an error.

    Returns when `stop` is set, the watch ends, or `until_caught_up` is reached; each time what
    was delivered is flushed first. Raises `WatchError` when the watch must be started again, and
    whatever `apply` raises.
    """
    if fold is None and exports is not None:
        raise Misuse("exports need a fold to export")
    loop = _Loop(
        watcher=watcher,
        scope=scope,
        fold=fold,
        reader=reader,
        parse=parse or _keep,
        apply=apply,
        on_applied=on_applied,
        config=config,
        report=report if report is not None else AppliedReport(),
        until_caught_up=until_caught_up,
        audit=audit,
    )
    return await loop.run(stop or asyncio.Event(), exports or asyncio.Queue())


def _keep(update: KvUpdate) -> KvUpdate:
    return update


class _Loop(Generic[Parsed]):
    """One run of `watch_applied`."""

    def __init__(
        self,
        *,
        watcher: KvWatcher,
        scope: WatchScope,
        fold: SnapshotStore | None,
        reader: KvReader | None,
        parse: Callable[[KvUpdate], Parsed | None],
        apply: Callable[[list[Parsed]], Awaitable[None]] | None,
        on_applied: OnApplied | None,
        config: BatchConfig,
        report: AppliedReport,
        until_caught_up: bool,
        audit: bool,
    ) -> None:
        self._watcher, self._scope, self._fold, self._reader = watcher, scope, fold, reader
        self._parse, self._apply, self._on_applied = parse, apply, on_applied
        self._config, self._report = config, report
        self._until_caught_up, self._audit = until_caught_up, audit
        self._pending: Pending[Parsed] = Pending()
        self._deadline: float | None = None  # when the open batch must be flushed
        self._done = False
        report.cursor = report.resumed_from = fold.cursor if fold is not None else NO_CURSOR

    async def run(
        self, stop: asyncio.Event, exports: asyncio.Queue[ExportRequest]
    ) -> AppliedReport:
        async with await self._open() as watch:
            waits = Waits(watch, stop, exports)
            try:
                while not self._done or self._pending.raw:
                    await self._turn(watch, waits)
            finally:
                await waits.close()
        return self._report

    async def _turn(self, watch: Watch, waits: Waits) -> None:
        """Wait for something to happen, and handle it."""
        room = max(1, self._config.updates_max - self._pending.fresh)
        timeout = None if self._deadline is None else self._deadline - _now()
        await waits.until_something(room, timeout, taking=not self._done)
        events = await self._delivered(waits)
        if events is not None:
            self._ingest(watch, events)
        full = self._pending.fresh >= self._config.updates_max
        late = self._deadline is not None and _now() >= self._deadline
        request = waits.take_request()
        self._done = self._done or waits.stopped
        if full or late or request is not None or (self._done and self._pending.fresh):
            await self._flush()
        if request is not None:
            await self._export(request)

    async def _delivered(self, waits: Waits) -> list[WatchEvent] | None:
        """Give what was taken; on a failed watch flush what came before the failure."""
        try:
            return waits.take_events()
        except KvError as error:
            while self._pending.raw:
                await self._flush()
            if isinstance(error, WatchError):
                raise
            raise WatchError("the watch failed", cause=str(error)) from error

    def _ingest(self, watch: Watch, events: list[WatchEvent]) -> None:
        if not events:
            self._done = True
        for event in events:
            if isinstance(event, KvUpdate):
                self._take_in(watch, event)
            else:
                self._report.caught_up = True
                self._done = self._done or self._until_caught_up
        if self._pending.raw and self._deadline is None:
            self._deadline = _now() + self._config.window_seconds

    def _take_in(self, watch: Watch, update: KvUpdate) -> None:
        cursor = NO_CURSOR
        if not update.version.is_unknown:
            cursor = WatchCursor(
                update.version.raw, watch.store_identity, self._scope.identity, update.witness
            )
        parsed = self._parse(update)
        self._report.delivered += 1
        self._report.rejected += parsed is None
        self._pending.take_in(update, parsed, cursor)

    async def _flush(self) -> None:
        """Apply, then store data and cursor, then report; a failed store keeps the batch."""
        pending = self._pending
        parsed = pending.take_parsed()
        if parsed and self._apply is not None:
            await self._apply(parsed)
        cursor = pending.cursor_after(self._report.cursor)
        try:
            if self._fold is not None:
                await in_thread(partial(self._fold.apply, pending.raw, cursor))
        except (SnapshotError, OSError) as error:
            self._on_store_failed(error)
            return
        self._report.applied += len(pending.raw)
        self._report.flushes += 1
        self._report.cursor = cursor
        pending.on_stored()
        self._deadline = None
        if self._on_applied is not None:
            await self._on_applied(cursor)

    def _on_store_failed(self, error: Exception) -> None:
        self._report.store_failures += 1
        if self._pending.on_store_failed():
            raise WatchError(
                "the fold refuses to store", failures=self._pending.failures, cause=str(error)
            ) from error
        logger.warning("the fold did not store a batch, it is tried again: %s", error)
        self._deadline = _now() + self._pending.wait_seconds(self._config.window_seconds)

    async def _export(self, request: ExportRequest) -> None:
        assert self._fold is not None
        try:
            manifest = await in_thread(partial(export_to, self._fold, request.directory))
        except (SlipstreamError, OSError) as error:
            if not request.reply.done():
                request.reply.set_exception(error)
            return
        self._report.exports += 1
        if not request.reply.done():
            request.reply.set_result(manifest)

    # Opening, and what to do when the cursor is no good

    async def _open(self) -> Watch:
        cursor, fold, capacity = self._report.cursor, self._fold, self._config.channel_capacity
        if fold is None:
            return await self._watcher.watch(self._scope, capacity=capacity)
        empty = await in_thread(lambda: next(iter(fold.keys()), None) is None)
        if needs_resync(cursor, self._scope, fold_is_empty=empty):
            return await self._resync("its scope is another", scope_changed=True)
        try:
            watch = await self._watcher.watch(self._scope, after=cursor, capacity=capacity)
        except CursorExpired as error:
            return await self._resync(str(error), scope_changed=False)
        if watch.cursor_proven or not self._audit or await self._fold_fits(fold):
            return watch
        await watch.close()
        return await self._resync("the bucket was restored from another past", scope_changed=False)

    async def _fold_fits(self, fold: SnapshotStore) -> bool:
        """Compare the fold with what stands in the bucket, version by version."""
        if self._reader is None or fold.cursor.is_none:
            return True
        try:
            listed = [await self._reader.versions(prefix) for prefix in self._scope.prefixes]
        except KvError as error:
            raise WatchError("cannot audit the fold", cause=str(error)) from error
        standing = {entry.key: entry for entries in listed for entry in entries}
        self._report.audited = True
        return not await in_thread(
            lambda: contradicts(fold.iterate(), standing, fold.cursor, self._scope)
        )

    async def _resync(self, reason: str, *, scope_changed: bool) -> Watch:
        """Walk the steps of a resync in their order; see `resync`."""
        logger.warning("the fold cannot resume, it is synced anew: %s", reason)
        self._report.resynced = True
        live: set[str] | None = None
        watch: Watch | None = None
        for step in RESYNC_ORDER:
            match step:
                case ResyncStep.LIST_LIVE_KEYS:
                    live = await self._live_keys()
                case ResyncStep.APPLY_DELETES:
                    await self._apply_deletes(live, scope_changed=scope_changed)
                case ResyncStep.OPEN_WATCH:
                    capacity = self._config.channel_capacity
                    watch = await self._watcher.watch(self._scope, capacity=capacity)
        assert watch is not None
        return watch

    async def _live_keys(self) -> set[str] | None:
        if self._reader is None:
            logger.warning("no reader: keys deleted meanwhile may stay in the fold")
            self._report.stale_keys_unchecked = True
            return None
        try:
            listed = [await self._reader.keys(prefix) for prefix in self._scope.prefixes]
        except KvError as error:
            raise WatchError("cannot list the live keys", cause=str(error)) from error
        return {key for keys in listed for key in keys}

    async def _apply_deletes(self, live: set[str] | None, *, scope_changed: bool) -> None:
        """Delete what vanished, in batches; the cursor stays, so that a crash runs this again."""
        fold = self._fold
        if live is None or fold is None:
            return
        plan = partial(plan_stale, live=live, scope=self._scope, scope_changed=scope_changed)
        try:
            stale = await in_thread(lambda: list(plan(fold.keys())))
            for start in range(0, len(stale), self._config.updates_max):
                batch = stale[start : start + self._config.updates_max]
                parsed = [item for item in map(self._parse, batch) if item is not None]
                if parsed and self._apply is not None:
                    await self._apply(parsed)
                await in_thread(partial(fold.apply, batch, fold.cursor))
        except SnapshotError as error:
            raise WatchError("cannot resync the fold", cause=str(error)) from error
        self._report.stale_keys_removed += len(stale)


def _now() -> float:
    return asyncio.get_running_loop().time()
