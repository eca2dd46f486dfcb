"""The export lease: one winner, and no record that can wedge the fleet."""

from __future__ import annotations

import asyncio
import json

import pytest

from slipstream.artifact import ExportLease
from slipstream.errors import Misuse, RevisionMismatch
from slipstream.types import WatchCursor
from tests.slipstream.conftest import Bucket, Lab


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 1_718_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def bucket(lab: Lab) -> Bucket:
    return await lab.bucket()


def lease(bucket: Bucket, holder: str, clock: Clock) -> ExportLease:
    return ExportLease(bucket.reader, bucket.writer, "export.lease", holder, clock=clock)


async def test_exactly_one_of_many_wins(bucket: Bucket) -> None:
    clock = Clock()
    tries = [lease(bucket, f"node-{n}", clock).try_acquire(300) for n in range(8)]
    guards = [guard for guard in await asyncio.gather(*tries) if guard is not None]
    assert len(guards) == 1
    record = await lease(bucket, "anyone", clock).read()
    assert record == guards[0].record


async def test_the_record_is_the_json_of_the_text(bucket: Bucket) -> None:
    guard = await lease(bucket, "node-42", Clock()).try_acquire(300)
    assert guard is not None
    entry = await bucket.reader.get("export.lease")
    assert entry is not None
    assert json.loads(entry.value) == {
        "holder_id": "node-42",
        "acquired_at_unix": 1718000000,
        "expires_at_unix": 1718000300,
        "completed_cursor_hex": None,
        "completed_at_unix": None,
    }


async def test_an_expired_lease_is_stolen_and_its_holder_finds_out(bucket: Bucket) -> None:
    clock = Clock()
    first = await lease(bucket, "slow", clock).try_acquire(300)
    assert first is not None
    clock.now += 299
    assert await lease(bucket, "quick", clock).try_acquire(300) is None
    clock.now += 1
    second = await lease(bucket, "quick", clock).try_acquire(300)
    assert second is not None
    with pytest.raises(RevisionMismatch):
        await first.complete(WatchCursor.from_u64(7))
    with pytest.raises(RevisionMismatch):
        await first.abandon()
    await second.complete(WatchCursor.from_u64(9))
    record = await lease(bucket, "anyone", clock).read()
    assert record is not None
    assert record.completed_cursor_hex == WatchCursor.from_u64(9).encode().hex()
    assert record.completed_at_unix == 1718000300


@pytest.mark.parametrize("value", [b"garbage", b"{}", b'{"holder_id": 3}'])
async def test_a_record_that_cannot_be_read_wedges_nobody(bucket: Bucket, value: bytes) -> None:
    await bucket.writer.put("export.lease", value)
    clock = Clock()
    assert await lease(bucket, "anyone", clock).read() is None
    assert await lease(bucket, "node", clock).try_acquire(300) is not None
    assert await lease(bucket, "other", clock).try_acquire(300) is None


async def test_an_abandoned_round_is_free_at_once(bucket: Bucket) -> None:
    clock = Clock()
    guard = await lease(bucket, "first", clock).try_acquire(300)
    assert guard is not None
    await guard.abandon()
    assert await lease(bucket, "second", clock).read() is None
    assert await lease(bucket, "second", clock).try_acquire(300) is not None


async def test_a_lease_of_no_time_is_refused(bucket: Bucket) -> None:
    with pytest.raises(Misuse):
        await lease(bucket, "node", Clock()).try_acquire(0)
