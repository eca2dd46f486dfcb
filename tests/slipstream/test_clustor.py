"""What is Clustor's own: buckets in one store, compaction, unknown outcomes, the command."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from clustor.runtime.kv.client import KvClient
from slipstream import AppendLogSnapshot, watch_applied
from slipstream.clustor import ClustorConnection, ClustorConnectionConfig, ClustorKvStore
from slipstream.errors import (
    BucketUnavailable,
    ConnectionFailed,
    InvalidKey,
    Misuse,
    NotConnected,
    StoreFailure,
    StoreReplaced,
    Timeout,
    WatchError,
)
from slipstream.types import KvUpdate, StoreConfig, WatchCursor, WatchScope
from tests.clustor.runtime.test_kv_poll import mute_node
from tests.interop.cluster_process import ClusterProcess
from tests.slipstream.conftest import Bucket, ClustorLab, clustor_config, clustor_url
from tests.slipstream.fold_cases import contents
from tests.slipstream.test_cli import Cli
from tests.slipstream.test_conformance import ALL, brief, cursor_of, take


async def test_buckets_share_a_store_and_nothing_else(clustor_lab: ClustorLab) -> None:
    connection = clustor_lab.connection
    names = [f"{(await clustor_lab.bucket()).name}{tail}" for tail in ("", "-", "-x")]
    one, two, three = [Bucket(await connection.store(name)) for name in names]
    async with await two.watcher.watch(ALL) as watch:
        await take(watch, 1)
        for number, bucket in enumerate([one, two, three]):
            await bucket.writer.put("k", b"%d" % number)
            await bucket.writer.put(f"own.{number}", b"v")
        await two.writer.delete("k")
        assert brief(await take(watch, 3)) == ["put k", "put own.1", "delete k"]
    assert await one.reader.keys() == ["k", "own.0"]
    assert await two.reader.keys() == ["own.1"]
    assert await three.reader.keys() == ["k", "own.2"]
    await clustor_lab.remove(one)
    assert await one.reader.keys() == []
    assert await three.reader.keys() == ["k", "own.2"]


async def test_a_recreated_bucket_has_another_identity(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket()
    identities = []
    for _ in range(3):
        async with await bucket.watcher.watch(ALL) as watch:
            identities.append(watch.store_identity)
        async with await bucket.watcher.watch(ALL) as watch:
            assert watch.store_identity == identities[-1]
        await clustor_lab.recreate(bucket)
    assert len(set(identities)) == 3


async def test_a_watch_ends_when_its_bucket_does(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket()
    await bucket.writer.put("a", b"1")
    watches = [await bucket.watcher.watch(scope) for scope in (ALL, WatchScope.prefix("z."))]
    for watch, count in zip(watches, (2, 1), strict=True):
        await take(watch, count)
    waiting = [asyncio.ensure_future(watch.take(1)) for watch in watches]
    await clustor_lab.recreate(bucket)
    for each in waiting:
        with pytest.raises(WatchError):
            await each


async def test_nothing_is_written_into_a_bucket_that_is_gone(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket()
    await bucket.writer.put("a", b"1")
    await clustor_lab.remove(bucket)
    for write in (bucket.writer.put, bucket.writer.create):
        with pytest.raises(BucketUnavailable):
            await write("b", b"1")
    with pytest.raises(BucketUnavailable):
        await bucket.watcher.watch(ALL)
    assert await bucket.reader.keys() == []
    await clustor_lab.connection.store(bucket.name)
    await bucket.writer.put("c", b"1")  # The name is what a bucket is known by.
    assert await bucket.reader.keys() == ["c"]


async def test_an_existing_bucket_keeps_its_settings(clustor_lab: ClustorLab) -> None:
    config = StoreConfig(history_max=3, age_seconds_max=60.0)
    bucket = await clustor_lab.bucket(config)
    again = await clustor_lab.connection.store(bucket.name, StoreConfig(history_max=9))
    assert isinstance(again, ClustorKvStore)
    assert again.config == config


async def test_a_compacted_history_is_resynced_and_the_fold_converges(
    clustor_lab: ClustorLab, tmp_path: Path
) -> None:
    bucket = await clustor_lab.bucket()
    for number in range(20):
        await bucket.writer.put(f"k.{number}", b"1")
    with AppendLogSnapshot.load(tmp_path / "fold") as fold:

        async def follow() -> tuple[bool, int, int]:
            report = await watch_applied(
                bucket.watcher, reader=bucket.reader, fold=fold, until_caught_up=True
            )
            return report.resynced, report.stale_keys_removed, report.delivered

        assert await follow() == (False, 0, 20)
        await bucket.writer.delete("k.3")
        await bucket.writer.delete("k.4")
        await bucket.writer.put("k.5", b"2")
        assert await follow() == (False, 0, 3)
        await bucket.writer.delete("k.6")
        await bucket.writer.delete("k.7")
        await bucket.writer.create("k.7", b"again")
        last = await bucket.writer.put("k.8", b"3")
        await clustor_lab.evict_through(bucket, last.as_u64() or 0)
        resynced, removed, _ = await follow()
        assert (resynced, removed) == (True, 1)
        wanted = {entry.key: entry.value for entry in await bucket.reader.scan()}
        assert contents(fold) == wanted
        assert len(wanted) == 17
        assert await follow() == (False, 0, 0)


async def test_a_watch_that_compaction_overran_says_so(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket()
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 1)
        last = [await bucket.writer.put("a", b"%d" % number) for number in range(3)][-1]
        await clustor_lab.evict_through(bucket, last.as_u64() or 0)
        with pytest.raises(WatchError):
            await watch.take(1)


async def test_a_cursor_of_another_past_is_not_trusted(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket()
    await bucket.writer.put("a", b"1")
    async with await bucket.watcher.watch(ALL) as watch:
        cursor = await cursor_of(watch, (await take(watch, 2))[0])
        born_of = watch.store_identity
    async with await bucket.watcher.watch(ALL, after=cursor) as watch:
        assert watch.cursor_proven
    other = WatchCursor(cursor.position, born_of, b"", cursor.witness ^ 2)
    with pytest.raises(StoreReplaced):
        await bucket.watcher.watch(ALL, after=other)
    elsewhere = WatchCursor(cursor.position, bytes(range(8)), b"", cursor.witness)
    with pytest.raises(StoreReplaced):
        await bucket.watcher.watch(ALL, after=elsewhere)
    before_birth = WatchCursor.from_u64(0)
    with pytest.raises(StoreReplaced):
        await bucket.watcher.watch(ALL, after=before_birth)
    await clustor_lab.evict_through(bucket, cursor.as_u64() or 0)
    async with await bucket.watcher.watch(ALL, after=cursor) as watch:
        assert not watch.cursor_proven


async def test_a_listing_of_many_pages_shows_one_moment(
    clustor_lab: ClustorLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first key is always written before the last, so no moment has the last one ahead."""
    monkeypatch.setattr("slipstream.clustor.link._PAGE_RECORDS", 3)
    bucket = await clustor_lab.bucket()
    for number in range(10):
        await bucket.writer.put(f"m.{number}", b"v")
    await bucket.writer.put("a", b"0")
    await bucket.writer.put("z", b"0")

    seen: set[bytes] = set()

    async def change() -> None:
        """Go on until enough different moments were listed, however fast either side is."""
        for number in itertools.count(1):
            await bucket.writer.put("a", b"%d" % number)
            await bucket.writer.put("z", b"%d" % number)
            await bucket.writer.delete(f"m.{number % 10}")
            if len(seen) > 2:
                return

    changing = asyncio.ensure_future(change())
    while not changing.done():
        values = {entry.key: entry.value for entry in await bucket.reader.scan()}
        assert 0 <= int(values["a"]) - int(values["z"]) <= 1
        seen.add(values["a"])
    await changing


async def test_a_deletion_stands_for_a_while_and_is_no_key(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket()
    assert isinstance(bucket.store, ClustorKvStore)
    await bucket.writer.put("a", b"1")
    await bucket.writer.delete("a")
    await bucket.writer.put("b", b"1")
    versions = await bucket.reader.versions()
    assert [(entry.key, entry.value, entry.deleted) for entry in versions] == [
        ("a", b"", True),
        ("b", b"", False),
    ]
    link = bucket.store._link
    held = await link.client.get(link.layout.key("a"))
    assert held is not None
    assert held.expires_ms > 0, "a tombstone for ever"
    kept = await link.client.get(link.layout.key("b"))
    assert kept is not None
    assert kept.expires_ms == 0


async def test_the_age_of_a_bucket_bounds_every_time_to_live(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket(StoreConfig(age_seconds_max=0.5))
    assert bucket.ttl is not None
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 1)
        await bucket.writer.put("a", b"1")
        await bucket.ttl.create_with_ttl("b", b"1", 3600.0)
        told = brief(await take(watch, 4))
        assert sorted(told) == ["delete a", "delete b", "put a", "put b"]
    with pytest.raises(Misuse):
        await bucket.ttl.create_with_ttl("c", b"1", 0.0)


async def test_what_the_store_cannot_carry_is_refused(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket()
    with pytest.raises(StoreFailure):
        await bucket.writer.put("a", bytes((1 << 20) + 1))
    with pytest.raises(StoreFailure):
        await bucket.writer.put("a", bytes(1 << 20))
    with pytest.raises(InvalidKey):
        await bucket.writer.put("k" * 2_000, b"v")
    largest = (1 << 20) - (4 << 10)  # an entry of the log holds the key and the conditions, too
    await bucket.writer.put("a", bytes(largest))
    entry = await bucket.reader.get("a")
    assert entry is not None
    assert len(entry.value) == largest


async def test_a_watch_and_a_bucket_say_when_the_connection_was_closed(
    clustor_node: ClusterProcess,
) -> None:
    connection = ClustorConnection(clustor_config(clustor_node))
    with pytest.raises(NotConnected):
        await connection.store("any")
    await connection.connect()
    bucket = await ClustorLab(connection).bucket()
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 1)
        waiting = asyncio.ensure_future(watch.take(1))
        await asyncio.sleep(0)
        await connection.shutdown()
        with pytest.raises(WatchError):
            await waiting
    with pytest.raises(NotConnected):
        await bucket.reader.get("a")


async def test_a_cancelled_take_loses_nothing(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket()
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 1)
        seen: list[str] = []
        for number in range(30):
            taking = asyncio.ensure_future(watch.take(5))
            writing = asyncio.ensure_future(bucket.writer.put(f"k.{number}", b"v"))
            await asyncio.wait({taking, writing}, return_when=asyncio.FIRST_COMPLETED)
            taking.cancel()
            (events, _) = await asyncio.gather(taking, writing, return_exceptions=True)
            if isinstance(events, list):
                seen += [each.key for each in events if isinstance(each, KvUpdate)]
        rest = await take(watch, 30 - len(seen))
        seen += [each.key for each in rest if isinstance(each, KvUpdate)]
        assert seen == [f"k.{number}" for number in range(30)]


async def test_a_write_without_an_answer_has_an_unknown_outcome(clustor_lab: ClustorLab) -> None:
    bucket = await clustor_lab.bucket()
    assert isinstance(bucket.store, ClustorKvStore)
    link = bucket.store._link
    async with mute_node() as address:
        connection = ClustorConnection(
            ClustorConnectionConfig((address,), connect_seconds=0.3, operation_seconds=0.3)
        )
        with pytest.raises(ConnectionFailed):
            await connection.connect()
        answering = link.client
        outcomes: list[object] = []
        for seconds in (0.3, 3.0, 30.0):  # on a slow machine it is not even sent so soon
            if link.client is not answering:
                link.client.close()
            link.client = KvClient([address], timeout_seconds=seconds)
            with pytest.raises(Timeout) as unknown:
                await bucket.writer.put("a", b"1")
            outcomes.append(unknown.value.facts["outcome"])
            if outcomes[-1] == "unknown":
                break
        assert outcomes[-1] == "unknown"
        with pytest.raises(Timeout) as unread:
            await bucket.reader.get("a")
        assert unread.value.facts["outcome"] == "not done"
        link.client.close()
        link.client = answering
        assert await bucket.reader.get("a") is None


def test_the_command_puts_gets_and_scans(clustor_node: ClusterProcess) -> None:
    cli = Cli(clustor_url(clustor_node))
    (first,) = cli.json("put", "app.a", "one")
    (second,) = cli.json("put", "app.b", "zwei €")
    assert first["revision"] < second["revision"]
    assert cli.run("get", "app.a") == "one\n"
    assert cli.run("scan", "app.") == "app.a\tone\napp.b\tzwei €\n"
    assert "no such key" in cli.run("get", "app.c", code=4)


def test_the_command_watches_exports_and_imports(
    clustor_node: ClusterProcess, tmp_path: Path
) -> None:
    cli = Cli(clustor_url(clustor_node))
    cli.run("put", "--from-tsv", "-", text="".join(f"k.{n}\tv\n" for n in range(20)))
    fold, artifact, two = (str(tmp_path / name) for name in ("fold", "artifact", "two"))
    watch = ["watch", "--fold", fold, "--until-caught-up"]
    *updates, summary = cli.json(*watch)
    assert [update["key"] for update in updates] == [f"k.{n}" for n in range(20)]
    (put,) = cli.json("put", "k.1", "w")
    (update, summary) = cli.json(*watch)
    assert (update["key"], update["value"], update["revision"]) == ("k.1", "w", put["revision"])
    assert (summary["delivered"], summary["cursor"]) == (1, put["revision"])
    (exported,) = cli.json("export", "--fold", fold, "--to", artifact)
    assert (exported["outcome"], exported["revision"]) == ("exported", put["revision"])
    (imported,) = cli.json("import", "--fold", two, "--from", artifact)
    assert imported["resumable"]
    (put,) = cli.json("put", "k.2", "w")
    (update, summary) = cli.json("watch", "--fold", two, "--until-caught-up")
    assert (update["key"], summary["cursor"]) == ("k.2", put["revision"])
