"""The backend in memory: what its levers do, and that it is honest about overruns."""

from __future__ import annotations

import pytest

from slipstream.errors import NotConnected, WatchError
from slipstream.memory import MemoryBucket, MemoryConnection
from slipstream.types import WatchScope
from tests.slipstream.test_conformance import ALL, brief, take


async def test_retention_that_overruns_a_lagging_watch_fails_it_before_it_applies() -> None:
    bucket = MemoryBucket("b")
    await bucket.put("k.first", b"v")
    watch = await bucket.watch(ALL)
    await take(watch, 2)
    await bucket.delete("k.first")
    await bucket.put("k.second", b"v")
    bucket.evict_through(2)
    with pytest.raises(WatchError) as caught:
        await take(watch, 1)
    assert caught.value.facts == {"frontier": 1, "first": 3}


async def test_overwritten_keys_are_a_benign_gap() -> None:
    bucket = MemoryBucket("b")
    await bucket.put("static", b"v")
    watch = await bucket.watch(ALL)
    await take(watch, 2)
    for _ in range(5):
        await bucket.put("hot", b"v")
    assert brief(await take(watch, 1)) == ["put hot"]


async def test_a_prefix_watch_cannot_tell_eviction_from_other_keys() -> None:
    """Pins the limit of prefix scopes: nothing is noticed before the next resume."""
    bucket = MemoryBucket("b")
    await bucket.put("a.1", b"v")
    watch = await bucket.watch(WatchScope.prefix("a."))
    await take(watch, 2)
    await bucket.delete("a.1")
    await bucket.put("a.2", b"v")
    bucket.evict_through(2)
    assert brief(await take(watch, 1)) == ["put a.2"]


async def test_a_long_life_does_not_grow_the_log_of_a_small_bucket() -> None:
    bucket = MemoryBucket("b")
    for number in range(10_000):
        await bucket.put(f"k.{number % 10}", b"v")
    assert len(bucket.log.order) < 2_000
    watch = await bucket.watch(ALL)
    assert len(await take(watch, 11)) == 11


async def test_a_bucket_recreated_under_a_watch_fails_it() -> None:
    bucket = MemoryBucket("b")
    watch = await bucket.watch(ALL)
    await take(watch, 1)
    bucket.recreate()
    with pytest.raises(WatchError):
        await take(watch, 1)


async def test_a_connection_must_be_open_to_give_buckets() -> None:
    connection = MemoryConnection()
    with pytest.raises(NotConnected):
        await connection.store("b")
