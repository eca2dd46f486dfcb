"""A second node starts from an artifact, where the log alone could not have started it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from slipstream import (
    AppliedReport,
    ExportLease,
    ExportRequest,
    RoundOutcome,
    SnapshotStore,
    StoreConfig,
    WatchCursor,
    import_remote,
    run_export_round,
    watch_applied,
)
from slipstream.artifact.transport import ObjectStoreTransport
from tests.slipstream.conftest import Bucket, NatsLab
from tests.slipstream.fold_cases import FOLDS, contents

KEYS = 400
TAIL = 25


async def follow(bucket: Bucket, fold: SnapshotStore) -> AppliedReport:
    return await watch_applied(
        bucket.watcher, reader=bucket.reader, fold=fold, until_caught_up=True
    )


@pytest.mark.parametrize("backend", FOLDS.values(), ids=FOLDS.keys())
async def test_a_node_bootstraps_past_the_end_of_the_log_and_gets_only_the_tail(
    nats_lab: NatsLab, tmp_path: Path, backend: type[SnapshotStore]
) -> None:
    bucket = await nats_lab.bucket(StoreConfig(bytes_max=None))
    fleet = await nats_lab.bucket()
    transport = ObjectStoreTransport(MemoryStore(), "folds")
    stop = asyncio.Event()
    exports: asyncio.Queue[ExportRequest] = asyncio.Queue()
    for number in range(KEYS):
        await bucket.writer.put(f"k.{number}", b"v")
    seeded = asyncio.Event()

    async def on_applied(cursor: WatchCursor) -> None:
        if (cursor.as_u64() or 0) >= KEYS:
            seeded.set()

    with backend.load(tmp_path / "first") as first:
        running = asyncio.ensure_future(
            watch_applied(
                bucket.watcher, fold=first, exports=exports, stop=stop, on_applied=on_applied
            )
        )
        async with asyncio.timeout(90):
            await seeded.wait()

        async def keep_writing() -> None:
            for number in range(10_000_000):
                await bucket.writer.put(f"more.{number}", b"v")

        writing = asyncio.ensure_future(keep_writing())
        lease = ExportLease(fleet.reader, fleet.writer, "lease", "first")
        round_ = await run_export_round(
            lease, exports, transport, key="edge", work_directory=tmp_path / "w", ttl_seconds=60
        )
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert round_.outcome is RoundOutcome.PUBLISHED
        assert round_.manifest is not None
        exported_at = round_.manifest.rank
        # The log forgets everything that the artifact covers: no older cursor can resume.
        await nats_lab.evict_through(bucket, exported_at)
        for number in range(TAIL):
            await bucket.writer.put(f"tail.{number}", b"v")
        stop.set()
        await running
        await follow(bucket, first)
        wanted = contents(first)
    assert len(await bucket.reader.keys()) < len(wanted), "the log alone is not enough"

    manifest = await import_remote(transport, "edge", tmp_path / "second", backend)
    assert manifest.rank == exported_at
    with backend.load(tmp_path / "second") as second:
        report = await follow(bucket, second)
        head = report.cursor.as_u64()
        assert head is not None
        assert not report.resynced
        assert report.resumed_from.as_u64() == exported_at
        assert TAIL <= report.delivered <= head - exported_at, "the tail, and nothing before it"
        assert contents(second) == wanted


async def test_an_artifact_that_the_log_has_outrun_is_resynced_and_not_trusted(
    nats_lab: NatsLab, tmp_path: Path
) -> None:
    backend = FOLDS["sqlite"]
    bucket = await nats_lab.bucket()
    transport = ObjectStoreTransport(MemoryStore(), "folds")
    for key in ("gone", "stays"):
        await bucket.writer.put(key, b"v")
    from slipstream import export_to

    with backend.load(tmp_path / "first") as first:
        await follow(bucket, first)
        export_to(first, tmp_path / "artifact")
    await transport.upload("edge", tmp_path / "artifact")
    await bucket.writer.delete("gone")
    await bucket.writer.put("stays", b"w")
    await bucket.writer.put("more", b"v")
    await nats_lab.evict_through(bucket, 3)
    await import_remote(transport, "edge", tmp_path / "second", backend)
    with backend.load(tmp_path / "second") as second:
        report = await follow(bucket, second)
        assert (report.resynced, report.stale_keys_removed) == (True, 1)
        assert contents(second) == {"stays": b"w", "more": b"v"}
