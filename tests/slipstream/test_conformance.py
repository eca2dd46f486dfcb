"""Every backend keeps the same contract: reads, conditional writes, watches, resumption."""

from __future__ import annotations

import asyncio

import pytest

from slipstream.errors import (
    AlreadyExists,
    CursorExpired,
    InvalidKey,
    RevisionMismatch,
    StoreReplaced,
)
from slipstream.ports import Watch
from slipstream.types import (
    CaughtUp,
    KvUpdate,
    StoreConfig,
    UpdateKind,
    WatchCursor,
    WatchEvent,
    WatchScope,
)
from tests.slipstream.conftest import Bucket, Lab

ALL = WatchScope.all()


async def take(watch: Watch, count: int) -> list[WatchEvent]:
    """Take exactly `count` events."""
    events: list[WatchEvent] = []
    async with asyncio.timeout(180):
        while len(events) < count:
            events += await watch.take(count - len(events))
    return events


def brief(events: list[WatchEvent]) -> list[str]:
    """Say each event in a word."""
    return [
        f"{event.kind.value} {event.key}" if isinstance(event, KvUpdate) else "caught up"
        for event in events
    ]


async def cursor_of(watch: Watch, event: WatchEvent) -> WatchCursor:
    assert isinstance(event, KvUpdate)
    return WatchCursor(event.version.raw, watch.store_identity, b"", event.witness)


@pytest.fixture
async def bucket(lab: Lab) -> Bucket:
    return await lab.bucket()


async def test_a_connection_knows_its_health_and_opens_again(lab: Lab) -> None:
    assert lab.connection.capabilities.compare_and_set
    health = [lab.connection.is_healthy]
    await lab.connection.connect()
    await lab.connection.shutdown()
    health.append(lab.connection.is_healthy)
    await lab.connection.connect()
    health.append(lab.connection.is_healthy)
    assert health == [True, False, True]
    assert (await lab.bucket()).name


async def test_an_existing_bucket_is_opened_as_it_is(lab: Lab) -> None:
    bucket = await lab.bucket(StoreConfig(history_max=2))
    await bucket.writer.put("a", b"1")
    again = Bucket(await lab.connection.store(bucket.name, StoreConfig(history_max=5)))
    assert (await again.reader.keys()) == ["a"]


async def test_what_was_put_is_read_and_what_was_deleted_is_not(bucket: Bucket) -> None:
    first = await bucket.writer.put("a.b", b"1")
    second = await bucket.writer.put("a.b", b"2")
    assert (first.as_u64() or 0) < (second.as_u64() or 0)
    entry = await bucket.reader.get("a.b")
    assert entry is not None
    assert (entry.value, entry.version, entry.deleted) == (b"2", second, False)
    assert await bucket.reader.get("a.c") is None
    assert await bucket.reader.entry("a.c") is None
    assert await bucket.writer.delete("a.b")
    assert await bucket.writer.delete("never.there")
    assert await bucket.reader.get("a.b") is None
    gone = await bucket.reader.entry("a.b")
    assert gone is not None
    assert gone.deleted


async def test_create_wins_once_and_again_after_either_kind_of_delete(bucket: Bucket) -> None:
    version = await bucket.writer.create("k", b"1")
    with pytest.raises(AlreadyExists):
        await bucket.writer.create("k", b"2")
    await bucket.writer.delete_with_version("k", version)
    assert await bucket.reader.get("k") is None
    await bucket.writer.create("k", b"3")
    await bucket.writer.delete("k")
    await bucket.writer.create("k", b"4")
    entry = await bucket.reader.get("k")
    assert entry is not None
    assert entry.value == b"4"


async def test_a_conditional_write_loses_to_whoever_came_first(bucket: Bucket) -> None:
    first = await bucket.writer.put("k", b"1")
    second = await bucket.writer.update("k", b"2", first)
    with pytest.raises(RevisionMismatch):
        await bucket.writer.update("k", b"3", first)
    with pytest.raises(RevisionMismatch):
        await bucket.writer.delete_with_version("k", first)
    assert await bucket.writer.delete_with_version("k", second)
    tombstone = await bucket.reader.entry("k")
    assert tombstone is not None
    assert tombstone.deleted
    await bucket.writer.update("k", b"4", tombstone.version)
    assert await bucket.reader.get("k") is not None


async def test_scan_and_keys_leave_out_deletions_and_respect_any_prefix(bucket: Bucket) -> None:
    for key in ["app.b", "app.a", "apple", "b", "app.gone"]:
        await bucket.writer.put(key, key.encode())
    version = await bucket.writer.put("app.cas", b"v")
    await bucket.writer.delete("app.gone")
    await bucket.writer.delete_with_version("app.cas", version)
    assert await bucket.reader.keys() == ["app.a", "app.b", "apple", "b"]
    assert await bucket.reader.keys("app.") == ["app.a", "app.b"]
    assert await bucket.reader.keys("app") == ["app.a", "app.b", "apple"]
    assert await bucket.reader.keys("appl") == ["apple"]
    assert await bucket.reader.keys("zzz") == []
    scanned = await bucket.reader.scan("app.")
    assert [(entry.key, entry.value) for entry in scanned] == [
        ("app.a", b"app.a"),
        ("app.b", b"app.b"),
    ]
    for entry in scanned:
        assert await bucket.reader.get(entry.key) == entry


async def test_a_bucket_of_5000_keys_comes_back_whole(bucket: Bucket) -> None:
    wanted = [f"k.{n:04}" for n in range(5_000)]
    for start in range(0, 5_000, 500):
        await asyncio.gather(*(bucket.writer.put(k, b"v") for k in wanted[start : start + 500]))
    assert await bucket.reader.keys() == wanted
    entries = await bucket.reader.scan("k.")
    assert [entry.key for entry in entries] == wanted
    assert len({entry.version for entry in entries}) == 5_000


@pytest.mark.parametrize("key", ["", "a b", "a.*", "a.>", ".a", "a.", "a..b", "a\n"])
async def test_a_key_that_no_store_can_carry_is_refused(bucket: Bucket, key: str) -> None:
    with pytest.raises(InvalidKey):
        await bucket.writer.put(key, b"v")
    with pytest.raises(InvalidKey):
        await bucket.reader.get(key)


@pytest.mark.parametrize("prefix", ["k*", "a.>", "a .", "*", ".a"])
async def test_a_pattern_is_not_a_prefix(bucket: Bucket, prefix: str) -> None:
    with pytest.raises(InvalidKey):
        await bucket.reader.keys(prefix)
    with pytest.raises(InvalidKey):
        await bucket.watcher.watch(WatchScope.prefix(prefix))


async def test_a_watch_brings_the_state_first_and_then_what_changes(bucket: Bucket) -> None:
    await bucket.writer.put("a", b"1")
    await bucket.writer.put("b", b"1")
    await bucket.writer.put("a", b"2")
    await bucket.writer.delete("b")
    async with await bucket.watcher.watch(ALL) as watch:
        assert brief(await take(watch, 3)) == ["put a", "delete b", "caught up"]
        await bucket.writer.put("c", b"1")
        await bucket.writer.delete("a")
        assert brief(await take(watch, 2)) == ["put c", "delete a"]


async def test_a_watch_of_nothing_is_caught_up_at_once(bucket: Bucket) -> None:
    async with await bucket.watcher.watch(ALL) as watch:
        assert await take(watch, 1) == [CaughtUp()]


async def test_a_key_in_the_gap_between_seeding_and_watching_is_not_lost(bucket: Bucket) -> None:
    seed = await bucket.reader.keys()
    await bucket.writer.put("between", b"1")
    async with await bucket.watcher.watch(ALL) as watch:
        assert seed == []
        assert brief(await take(watch, 2)) == ["put between", "caught up"]


async def test_a_conditional_delete_is_a_delete_to_whoever_watches(bucket: Bucket) -> None:
    version = await bucket.writer.put("a", b"1")
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 2)
        await bucket.writer.delete_with_version("a", version)
        (event,) = await take(watch, 1)
        assert isinstance(event, KvUpdate)
        assert event.kind is UpdateKind.DELETE
        assert not event.version.is_unknown


async def test_updates_come_in_order_with_their_revisions(bucket: Bucket) -> None:
    async with await bucket.watcher.watch(ALL, capacity=4) as watch:
        await take(watch, 1)
        versions = [await bucket.writer.put(f"k.{n}", b"v") for n in range(50)]
        events = await take(watch, 50)
        assert [event.version for event in events if isinstance(event, KvUpdate)] == versions


async def test_prefixes_share_one_watch_and_leave_the_rest_out(bucket: Bucket) -> None:
    for key in ["a.1", "b.1", "c.1", "ab", "a.b.c"]:
        await bucket.writer.put(key, b"v")
    scope = WatchScope.of_prefixes("a.", "c.", "a.b.")
    async with await bucket.watcher.watch(scope) as watch:
        assert brief(await take(watch, 4)) == ["put a.1", "put c.1", "put a.b.c", "caught up"]
        await bucket.writer.put("b.2", b"v")
        await bucket.writer.put("c.2", b"v")
        assert brief(await take(watch, 1)) == ["put c.2"]
    async with await bucket.watcher.watch(WatchScope.prefix("a")) as watch:
        assert brief(await take(watch, 4)) == ["put a.1", "put ab", "put a.b.c", "caught up"]


@pytest.mark.parametrize("scope", [ALL, WatchScope.prefix("k."), WatchScope.of_prefixes("k.", "z")])
async def test_a_resumed_watch_brings_the_delta_and_nothing_else(
    bucket: Bucket, scope: WatchScope
) -> None:
    for n in range(5):
        await bucket.writer.put(f"k.{n}", b"v")
    async with await bucket.watcher.watch(scope) as watch:
        events = await take(watch, 6)
        cursor = await cursor_of(watch, events[2])
    await bucket.writer.delete("k.0")
    async with await bucket.watcher.watch(scope, after=cursor) as watch:
        wanted = ["put k.3", "put k.4", "delete k.0", "caught up"]
        assert brief(await take(watch, 4)) == wanted


async def test_resuming_at_the_end_is_caught_up_at_once_and_lives_on(bucket: Bucket) -> None:
    await bucket.writer.put("a", b"1")
    async with await bucket.watcher.watch(ALL) as watch:
        cursor = await cursor_of(watch, (await take(watch, 2))[0])
    async with await bucket.watcher.watch(ALL, after=cursor) as watch:
        assert brief(await take(watch, 1)) == ["caught up"]
        await bucket.writer.put("b", b"1")
        assert brief(await take(watch, 1)) == ["put b"]


async def test_a_cursor_below_the_log_is_expired_and_one_at_its_edge_is_not(
    lab: Lab, bucket: Bucket
) -> None:
    versions = [await bucket.writer.put(f"k.{n}", b"v") for n in range(10)]
    below, edge = versions[4].as_u64(), versions[5].as_u64()
    assert below is not None
    assert edge is not None
    await lab.evict_through(bucket, edge)
    with pytest.raises(CursorExpired):
        await bucket.watcher.watch(ALL, after=WatchCursor.from_u64(below))
    async with await bucket.watcher.watch(ALL, after=WatchCursor.from_u64(edge)) as watch:
        assert brief(await take(watch, 5)) == [f"put k.{n}" for n in (6, 7, 8, 9)] + ["caught up"]


async def test_a_cursor_of_a_bucket_that_was_recreated_is_never_trusted(
    lab: Lab, bucket: Bucket
) -> None:
    for n in range(3):
        await bucket.writer.put(f"k.{n}", b"v")
    async with await bucket.watcher.watch(ALL) as watch:
        cursor = await cursor_of(watch, (await take(watch, 4))[2])
    await lab.recreate(bucket)
    with pytest.raises(StoreReplaced):  # Its revisions went backwards.
        await bucket.watcher.watch(ALL, after=cursor)
    for n in range(9):
        await bucket.writer.put(f"k.{n}", b"v")
    with pytest.raises(StoreReplaced):  # They have caught up since, and it is another life.
        await bucket.watcher.watch(ALL, after=cursor)
    unstamped = WatchCursor(cursor.position, cursor.store)
    with pytest.raises(StoreReplaced):  # The life alone tells, too.
        await bucket.watcher.watch(ALL, after=unstamped)
    unbound = WatchCursor.from_u64(1 << 40)  # beyond anything that was ever written
    with pytest.raises(StoreReplaced):
        await bucket.watcher.watch(ALL, after=unbound)


async def test_a_versionstamp_cursor_is_of_another_kind_of_store(bucket: Bucket) -> None:
    with pytest.raises(StoreReplaced):
        await bucket.watcher.watch(ALL, after=WatchCursor(b"0123456789"))


async def test_a_closed_watch_ends(bucket: Bucket) -> None:
    watch = await bucket.watcher.watch(ALL)
    await take(watch, 1)
    waiting = asyncio.ensure_future(watch.take(1))
    await asyncio.sleep(0)
    await watch.close()
    assert await waiting == []
    assert await watch.take(1) == []


async def test_a_watch_is_an_async_iterator(bucket: Bucket) -> None:
    await bucket.writer.put("a", b"1")
    seen: list[WatchEvent] = []
    async with await bucket.watcher.watch(ALL) as watch:
        async for event in watch:
            seen.append(event)
            if isinstance(event, CaughtUp):
                break
    assert brief(seen) == ["put a", "caught up"]


async def test_a_key_with_a_time_to_live_expires_as_a_delete(lab: Lab) -> None:
    bucket = await lab.bucket(StoreConfig(per_key_ttl=True))
    assert bucket.ttl is not None
    async with await bucket.watcher.watch(ALL) as watch:
        await take(watch, 1)
        await bucket.ttl.create_with_ttl("session", b"1", 1.0)
        with pytest.raises(AlreadyExists):
            await bucket.ttl.create_with_ttl("session", b"2", 1.0)
        assert brief(await take(watch, 2)) == ["put session", "delete session"]
        assert await bucket.reader.get("session") is None
