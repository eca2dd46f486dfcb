"""`watch_applied`: the cursor follows what was applied, through failures, expiry and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slipstream.applied import MAX_STORE_APPLY_FAILURES, contradicts, watch_applied
from slipstream.artifact import ExportRequest, import_artifact
from slipstream.errors import DestinationExists, Misuse, SnapshotIo, Timeout, WatchError
from slipstream.folds import AppendLogSnapshot, SnapshotStore, SqliteSnapshot
from slipstream.memory import MemoryBucket
from slipstream.ports import Watch
from slipstream.types import (
    NO_CURSOR,
    AppliedReport,
    BatchConfig,
    CaughtUp,
    KvEntry,
    KvUpdate,
    UpdateKind,
    VersionToken,
    WatchCursor,
    WatchEvent,
    WatchScope,
)
from tests.slipstream.conftest import Bucket, Lab, MemoryLab
from tests.slipstream.fold_cases import FOLDS, contents, put

ALL = WatchScope.all()


@pytest.fixture(params=["memory", "nats"])
def lab(request: pytest.FixtureRequest) -> Lab:
    """The backends whose revisions start at 1 in every bucket, as the figures here do.

    Clustor's are shared by all buckets: `test_clustor.py` and `test_clustor_kill.py` watch there.
    """
    found: Lab = request.getfixturevalue(f"{request.param}_lab")
    return found


@pytest.fixture
async def bucket(lab: Lab) -> Bucket:
    return await lab.bucket()


@pytest.fixture
def fold(tmp_path: Path) -> Iterator[SnapshotStore]:
    with AppendLogSnapshot.load(tmp_path / "fold") as fold:
        yield fold


async def catch_up(bucket: Bucket, fold: SnapshotStore, scope: WatchScope = ALL) -> AppliedReport:
    """Run until the fold has everything that stands now."""
    async with asyncio.timeout(90):
        return await watch_applied(
            bucket.watcher, reader=bucket.reader, fold=fold, scope=scope, until_caught_up=True
        )


async def state(bucket: Bucket, prefix: str = "") -> dict[str, bytes]:
    return {entry.key: entry.value for entry in await bucket.reader.scan(prefix)}


async def test_a_first_run_folds_the_state_and_the_next_ones_only_the_delta(
    bucket: Bucket, fold: SnapshotStore
) -> None:
    for n in range(250):
        await bucket.writer.put(f"k.{n}", b"v")
    first = await catch_up(bucket, fold)
    assert (first.delivered, first.applied, first.resynced) == (250, 250, False)
    assert first.resumed_from == NO_CURSOR
    assert contents(fold) == await state(bucket)
    await bucket.writer.put("k.1", b"w")
    await bucket.writer.delete("k.2")
    second = await catch_up(bucket, fold)
    assert (second.delivered, second.resynced) == (2, False)
    assert second.resumed_from == first.cursor
    third = await catch_up(bucket, fold)
    assert (third.delivered, third.cursor) == (0, second.cursor)
    assert contents(fold) == await state(bucket)


async def test_the_cursor_is_reported_after_apply_and_the_fold(
    bucket: Bucket, fold: SnapshotStore
) -> None:
    steps: list[str] = []

    async def apply(batch: list[KvUpdate]) -> None:
        steps.append(f"apply at {fold.cursor.as_u64()}")

    async def on_applied(cursor: WatchCursor) -> None:
        assert fold.cursor == cursor
        steps.append(f"applied {cursor.as_u64()}")

    await bucket.writer.put("a", b"1")
    await bucket.writer.put("b", b"1")
    await watch_applied(
        bucket.watcher, fold=fold, apply=apply, on_applied=on_applied, until_caught_up=True
    )
    assert steps == ["apply at None", "applied 2"]


async def test_an_apply_that_fails_moves_no_cursor(bucket: Bucket, fold: SnapshotStore) -> None:
    async def fail(batch: list[KvUpdate]) -> None:
        raise RuntimeError("not today")

    await bucket.writer.put("a", b"1")
    with pytest.raises(RuntimeError, match="not today"):
        await watch_applied(bucket.watcher, fold=fold, apply=fail, until_caught_up=True)
    assert fold.cursor == NO_CURSOR
    assert contents(fold) == {}
    assert (await catch_up(bucket, fold)).delivered == 1


async def test_rejected_entries_are_covered_by_the_cursor(
    bucket: Bucket, fold: SnapshotStore
) -> None:
    applied: list[str] = []

    def parse(update: KvUpdate) -> str | None:
        return update.key if update.key.startswith("good") else None

    async def apply(batch: list[str]) -> None:
        applied.extend(batch)

    for key in ["good.1", "bad.1", "bad.2"]:
        await bucket.writer.put(key, b"v")
    report = await watch_applied(
        bucket.watcher, fold=fold, parse=parse, apply=apply, until_caught_up=True
    )
    assert applied == ["good.1"]
    assert (report.rejected, report.cursor.as_u64()) == (2, 3)
    assert (await catch_up(bucket, fold)).delivered == 0


async def test_without_a_fold_every_start_is_from_the_whole_state(bucket: Bucket) -> None:
    seen: list[str] = []

    async def apply(batch: list[KvUpdate]) -> None:
        seen.extend(update.key for update in batch)

    await bucket.writer.put("a", b"1")
    for _ in range(2):
        report = await watch_applied(bucket.watcher, apply=apply, until_caught_up=True)
        assert report.cursor.as_u64() == 1
    assert seen == ["a", "a"]


async def test_batches_are_bounded_by_size(bucket: Bucket, fold: SnapshotStore) -> None:
    sizes: list[int] = []

    async def apply(batch: list[KvUpdate]) -> None:
        sizes.append(len(batch))

    for n in range(25):
        await bucket.writer.put(f"k.{n}", b"v")
    config = BatchConfig(window_seconds=60, updates_max=10)
    await watch_applied(bucket.watcher, fold=fold, apply=apply, config=config, until_caught_up=True)
    assert sizes == [10, 10, 5]


async def test_batches_are_bounded_by_their_window(bucket: Bucket, fold: SnapshotStore) -> None:
    stop, applied = asyncio.Event(), asyncio.Event()

    async def on_applied(cursor: WatchCursor) -> None:
        applied.set()

    config = BatchConfig(window_seconds=0.01, updates_max=1_000_000)
    running = asyncio.ensure_future(
        watch_applied(bucket.watcher, fold=fold, on_applied=on_applied, config=config, stop=stop)
    )
    await bucket.writer.put("a", b"1")
    async with asyncio.timeout(90):
        await applied.wait()
    stop.set()
    assert (await running).flushes == 1


async def test_a_stop_flushes_what_was_delivered(bucket: Bucket, fold: SnapshotStore) -> None:
    stop, delivered = asyncio.Event(), asyncio.Event()

    def parse(update: KvUpdate) -> KvUpdate:
        delivered.set()
        return update

    async def apply(batch: list[KvUpdate]) -> None: ...

    config = BatchConfig(window_seconds=3600)
    running = asyncio.ensure_future(
        watch_applied(bucket.watcher, fold=fold, parse=parse, apply=apply, config=config, stop=stop)
    )
    await bucket.writer.put("a", b"1")
    async with asyncio.timeout(90):
        await delivered.wait()
    assert fold.cursor == NO_CURSOR
    stop.set()
    report = await running
    assert report.cursor == fold.cursor != NO_CURSOR
    assert contents(fold) == {"a": b"1"}


async def test_cancelling_waits_for_the_fold_and_closes_the_watch(
    bucket: Bucket, fold: SnapshotStore
) -> None:
    await bucket.writer.put("a", b"1")
    running = asyncio.ensure_future(watch_applied(bucket.watcher, fold=fold))
    async with asyncio.timeout(90):
        while fold.cursor == NO_CURSOR:
            await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await catch_up(bucket, fold)).delivered == 0


class Flaky(SqliteSnapshot):
    """A fold whose disk fails when it is told to."""

    failing = 0

    def apply(self, batch: Sequence[KvUpdate], cursor: WatchCursor) -> None:
        if self.failing > 0:
            self.failing -= 1
            raise SnapshotIo("the disk is away")
        super().apply(batch, cursor)


@pytest.mark.parametrize("failures", [1, MAX_STORE_APPLY_FAILURES - 1])
async def test_a_transient_store_failure_never_leaves_a_gap_below_the_cursor(
    bucket: Bucket, tmp_path: Path, failures: int
) -> None:
    seen: list[str] = []

    async def apply(batch: list[KvUpdate]) -> None:
        seen.extend(update.key for update in batch)

    for n in range(30):
        await bucket.writer.put(f"k.{n}", b"v")
    with Flaky.load(tmp_path / "fold") as fold:
        fold.failing = failures
        config = BatchConfig(window_seconds=0.0001, updates_max=7)
        report = await watch_applied(
            bucket.watcher, fold=fold, apply=apply, config=config, until_caught_up=True
        )
        assert report.store_failures == failures
        assert contents(fold) == await state(bucket)
        assert sorted(seen) == sorted(contents(fold)), "the caller saw each update once"


async def test_a_store_that_stays_away_stops_the_watch(bucket: Bucket, tmp_path: Path) -> None:
    await bucket.writer.put("a", b"1")
    with Flaky.load(tmp_path / "fold") as fold:
        fold.failing = 1_000
        config = BatchConfig(window_seconds=0.0001)
        with pytest.raises(WatchError) as caught:
            await watch_applied(bucket.watcher, fold=fold, config=config, until_caught_up=True)
        assert caught.value.facts["failures"] == MAX_STORE_APPLY_FAILURES
        assert fold.failing == 1_000 - MAX_STORE_APPLY_FAILURES
        assert fold.cursor == NO_CURSOR
        fold.failing = 0
        await catch_up(bucket, fold)
        assert contents(fold) == {"a": b"1"}


@pytest.mark.parametrize("backend", FOLDS.values(), ids=FOLDS.keys())
async def test_an_expired_cursor_is_resynced_with_deletes_before_the_relist(
    lab: Lab, bucket: Bucket, tmp_path: Path, backend: type[SnapshotStore]
) -> None:
    for n in range(6):
        await bucket.writer.put(f"k.{n}", b"old")
    with backend.load(tmp_path / "fold") as fold:
        before = await catch_up(bucket, fold)
        await bucket.writer.delete("k.0")  # gone, and its marker will be too
        await bucket.writer.delete("k.1")
        await bucket.writer.put("k.1", b"recreated")
        for n in range(2, 6):
            await bucket.writer.put(f"k.{n}", b"new")
        await lab.evict_through(bucket, 8)
        steps: list[str] = []

        async def apply(batch: list[KvUpdate]) -> None:
            steps.extend(f"{update.kind.value} {update.key}" for update in batch)

        report = await watch_applied(
            bucket.watcher, reader=bucket.reader, fold=fold, apply=apply, until_caught_up=True
        )
        assert (report.resynced, report.stale_keys_removed) == (True, 1)
        assert report.resumed_from == before.cursor
        assert steps[0] == "delete k.0"
        assert contents(fold) == await state(bucket)
        assert (await catch_up(bucket, fold)).delivered == 0


async def test_a_prefix_resync_leaves_other_keys_alone(lab: Lab, tmp_path: Path) -> None:
    bucket = await lab.bucket()
    scope = WatchScope.of_prefixes("a.", "b.")
    for key in ["a.1", "b.1", "c.1"]:
        await bucket.writer.put(key, b"v")
    with SqliteSnapshot.load(tmp_path / "fold") as fold:
        await catch_up(bucket, fold, scope)
        fold.apply([put("c.kept", b"mine", 1)], fold.cursor)
        await bucket.writer.delete("a.1")
        await bucket.writer.put("b.2", b"v")
        await lab.evict_through(bucket, 4)
        report = await catch_up(bucket, fold, scope)
        assert report.resynced
        assert contents(fold) == {"b.2": b"v", "c.kept": b"mine"}


async def test_without_a_reader_a_resync_may_keep_stale_keys_and_says_so(
    lab: Lab, bucket: Bucket, fold: SnapshotStore
) -> None:
    """Pins why the reader is there: this is the divergence that it prevents."""
    await bucket.writer.put("gone", b"v")
    await bucket.writer.put("stays", b"v")
    await catch_up(bucket, fold)
    await bucket.writer.delete("gone")
    await bucket.writer.put("stays", b"w")
    await lab.evict_through(bucket, 3)
    report = await watch_applied(bucket.watcher, fold=fold, until_caught_up=True)
    assert report.resynced
    assert report.stale_keys_unchecked
    assert contents(fold) == {"gone": b"v", "stays": b"w"}


async def test_a_resync_whose_listing_fails_stops_and_changes_nothing(
    lab: Lab, bucket: Bucket, fold: SnapshotStore
) -> None:
    class Unreadable(MemoryBucket):
        async def keys(self, prefix: str = "") -> list[str]:
            raise Timeout("no answer")

    await bucket.writer.put("a", b"v")
    await catch_up(bucket, fold)
    before = fold.cursor
    for n in range(3):
        await bucket.writer.put(f"b.{n}", b"v")
    await lab.evict_through(bucket, 3)
    with pytest.raises(WatchError, match="list the live keys"):
        await watch_applied(
            bucket.watcher, reader=Unreadable("none"), fold=fold, until_caught_up=True
        )
    assert (fold.cursor, contents(fold)) == (before, {"a": b"v"})


async def test_a_recreated_bucket_is_synced_anew_though_its_revisions_are_lower(
    lab: Lab, bucket: Bucket, fold: SnapshotStore
) -> None:
    for n in range(10):
        await bucket.writer.put(f"old.{n}", b"v")
    await catch_up(bucket, fold)
    await lab.recreate(bucket)
    await bucket.writer.put("new", b"v")
    report = await catch_up(bucket, fold)
    assert report.resynced
    assert (report.resumed_from.as_u64(), report.cursor.as_u64()) == (10, 1)
    assert contents(fold) == {"new": b"v"}
    await bucket.writer.put("newer", b"v")
    again = await catch_up(bucket, fold)
    assert (again.resynced, again.delivered) == (False, 1)


async def test_a_recreated_bucket_that_overtook_the_cursor_is_noticed_too(
    lab: Lab, bucket: Bucket, fold: SnapshotStore
) -> None:
    for n in range(3):
        await bucket.writer.put(f"old.{n}", b"v")
    await catch_up(bucket, fold)
    await lab.recreate(bucket)
    for n in range(9):
        await bucket.writer.put(f"new.{n}", b"v")
    report = await catch_up(bucket, fold)
    assert report.resynced
    assert contents(fold) == await state(bucket)


async def test_another_scope_does_not_trust_the_cursor_of_the_first(
    bucket: Bucket, fold: SnapshotStore
) -> None:
    for key in ["a.1", "b.1", "a.2"]:
        await bucket.writer.put(key, b"v")
    await catch_up(bucket, fold, WatchScope.prefix("a."))
    assert sorted(contents(fold)) == ["a.1", "a.2"]
    widened = await catch_up(bucket, fold)
    assert widened.resynced
    assert sorted(contents(fold)) == ["a.1", "a.2", "b.1"]
    narrowed = await catch_up(bucket, fold, WatchScope.prefix("b."))
    assert (narrowed.resynced, narrowed.stale_keys_removed) == (True, 2)
    assert sorted(contents(fold)) == ["b.1"]


async def test_an_ordinary_overwrite_at_the_cursor_is_audited_and_resumes(
    bucket: Bucket, fold: SnapshotStore
) -> None:
    for key in ["static", "gone", "last"]:
        await bucket.writer.put(key, b"v")
    await bucket.writer.delete("gone")
    await bucket.writer.put("last", b"w")
    await catch_up(bucket, fold)
    await bucket.writer.put("last", b"x")  # The revision at the cursor is no more.
    report = await catch_up(bucket, fold)
    assert (report.audited, report.resynced, report.delivered) == (True, False, 1)
    await bucket.writer.put("last", b"y")
    unaudited = await watch_applied(
        bucket.watcher, reader=bucket.reader, fold=fold, until_caught_up=True, audit=False
    )
    assert (unaudited.audited, unaudited.delivered) == (False, 1)
    assert contents(fold) == await state(bucket)


def entry(key: str, revision: int, *, deleted: bool = False) -> KvEntry:
    return KvEntry(key, b"", VersionToken.from_u64(revision), deleted)


PASTS: dict[str, tuple[list[KvEntry], list[KvEntry], bool]] = {
    "the same": ([entry("a", 3)], [entry("a", 3)], False),
    "written again since": ([entry("a", 3)], [entry("a", 12)], False),
    "deleted since": ([entry("a", 3)], [entry("a", 12, deleted=True)], False),
    "made since": ([], [entry("a", 12)], False),
    "evicted": ([entry("a", 3)], [], False),
    "deleted long ago": ([], [entry("a", 3, deleted=True)], False),
    "of an unknown version": ([KvEntry("a", b"", VersionToken())], [entry("a", 3)], False),
    "an older one stands": ([entry("a", 7)], [entry("a", 3)], True),
    "another one stands": ([entry("a", 3)], [entry("a", 7)], True),
    "a deletion that was not seen": ([entry("a", 3)], [entry("a", 7, deleted=True)], True),
    "a key that was never seen": ([], [entry("a", 3)], True),
}


@pytest.mark.parametrize(("folded", "standing", "wanted"), PASTS.values(), ids=PASTS.keys())
def test_a_fold_of_another_past_is_told_by_its_versions(
    folded: list[KvEntry], standing: list[KvEntry], *, wanted: bool
) -> None:
    stands = {item.key: item for item in standing}
    cursor = WatchCursor.from_u64(10)
    assert contradicts(folded, stands, cursor, WatchScope.all()) is wanted


async def test_an_export_runs_between_flushes_at_exactly_the_applied_cursor(
    bucket: Bucket, fold: SnapshotStore, tmp_path: Path
) -> None:
    stop: asyncio.Event = asyncio.Event()
    exports: asyncio.Queue[ExportRequest] = asyncio.Queue()
    delivered = asyncio.Event()

    def parse(update: KvUpdate) -> KvUpdate:
        delivered.set()
        return update

    async def apply(batch: list[KvUpdate]) -> None: ...

    config = BatchConfig(window_seconds=3600)
    running = asyncio.ensure_future(
        watch_applied(
            bucket.watcher, fold=fold, parse=parse, apply=apply, config=config,
            exports=exports, stop=stop,
        )
    )  # fmt: skip
    await bucket.writer.put("a", b"1")
    async with asyncio.timeout(90):
        await delivered.wait()
        assert fold.cursor == NO_CURSOR, "the batch is still open"
        request = ExportRequest.to(tmp_path / "artifact")
        await exports.put(request)
        manifest = await request.reply
        again = ExportRequest.to(tmp_path / "artifact")
        await exports.put(again)
        with pytest.raises(DestinationExists):
            await again.reply
    stop.set()
    report = await running
    assert manifest.cursor == report.cursor
    assert report.exports == 1
    import_artifact(tmp_path / "artifact", tmp_path / "second", AppendLogSnapshot)
    with AppendLogSnapshot.load(tmp_path / "second") as second:
        assert contents(second) == {"a": b"1"}


class Scripted(Watch):
    """A watch that says what a test wrote, and then ends or fails."""

    def __init__(self, events: list[WatchEvent], error: Exception | None = None) -> None:
        super().__init__()
        self._events, self._error = events, error

    @property
    def store_identity(self) -> bytes:
        return b"scripted"

    async def take(self, limit: int) -> list[WatchEvent]:
        taken, self._events = self._events[:limit], self._events[limit:]
        if not taken and self._error is not None:
            raise self._error
        return taken

    async def close(self) -> None: ...

    async def watch(
        self, scope: WatchScope, *, after: WatchCursor = NO_CURSOR, capacity: int = 256
    ) -> Watch:
        return self


async def test_an_unknown_version_is_applied_and_neither_mints_nor_clobbers_a_cursor(
    fold: SnapshotStore,
) -> None:
    unknown = KvUpdate(UpdateKind.PUT, "odd", b"v", VersionToken())
    report = await watch_applied(Scripted([put("a", b"1", 7), unknown]), fold=fold)
    assert report.cursor.as_u64() == 7
    assert contents(fold) == {"a": b"1", "odd": b"v"}
    report = await watch_applied(Scripted([unknown]), fold=fold)
    assert report.cursor.as_u64() == fold.cursor.as_u64() == 7


async def test_a_watch_that_ends_or_fails_is_flushed_first(fold: SnapshotStore) -> None:
    config = BatchConfig(window_seconds=3600)
    report = await watch_applied(Scripted([put("a", b"1", 1)]), fold=fold, config=config)
    assert report.cursor.as_u64() == fold.cursor.as_u64() == 1
    failing = Scripted([put("b", b"1", 2)], WatchError("retention overran the watch"))
    with pytest.raises(WatchError, match="overran"):
        await watch_applied(failing, fold=fold, config=config)
    assert fold.cursor.as_u64() == 2
    with pytest.raises(WatchError, match="the watch failed"):
        await watch_applied(Scripted([], Timeout("no answer")), fold=fold, config=config)


async def test_a_report_can_be_read_while_the_watch_runs_or_after_it_failed(
    fold: SnapshotStore,
) -> None:
    report = AppliedReport()
    failing = Scripted([put("a", b"1", 1), CaughtUp()], WatchError("gone"))
    with pytest.raises(WatchError):
        await watch_applied(failing, fold=fold, report=report)
    assert (report.delivered, report.applied, report.caught_up) == (1, 1, True)


async def test_exports_without_a_fold_are_refused(memory_lab: MemoryLab) -> None:
    bucket = await memory_lab.bucket()
    with pytest.raises(Misuse):
        await watch_applied(bucket.watcher, exports=asyncio.Queue())
