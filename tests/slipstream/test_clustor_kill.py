"""Leaders die and freeze under a live watch: the fold converges, with nothing lost or made up."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import pytest

from slipstream import AppendLogSnapshot, watch_applied
from slipstream.clustor import ClustorConnection
from slipstream.errors import ConnectionFailed, StoreReplaced, Timeout, WatchError
from slipstream.types import AppliedReport
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.slipstream.conftest import Bucket, ClustorLab, clustor_config
from tests.slipstream.fold_cases import contents
from tests.slipstream.test_conformance import ALL, brief, cursor_of, take

WAIT_SECONDS = 180.0
pytestmark = pytest.mark.timeout(900)
_Answer = TypeVar("_Answer")


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("clustor"), patience=UNHURRIED) as cluster:
        cluster.wait_for_leader()
        yield cluster


@dataclass
class History:
    """What a writer was told: values that were acknowledged, and those that it cannot know of."""

    acknowledged: dict[str, bytes] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)

    async def write(self, bucket: Bucket, stop: asyncio.Event) -> None:
        """Write a new key each time, and change a few old ones, until told to stop."""
        for number in range(sys.maxsize):
            if stop.is_set():
                return
            await self._one(bucket, f"new.{number}", b"%d" % number)
            await self._one(bucket, f"hot.{number % 5}", b"" if number % 3 == 0 else b"%d" % number)

    async def _one(self, bucket: Bucket, key: str, value: bytes) -> None:
        try:
            await bucket.writer.put(key, value)
        except Timeout:
            self.doubtful.add(key)
        else:
            self.acknowledged[key] = value


async def until_grown(history: History, count: int) -> None:
    wanted = len(history.acknowledged) + count
    async with asyncio.timeout(WAIT_SECONDS):
        while len(history.acknowledged) < wanted:
            await asyncio.sleep(0.005)


async def at_last(ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
    """Ask until it is answered; a cluster without a leader may let one question wait too long."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with suppress(Timeout, ConnectionFailed):
                return await ask()


async def test_killed_leaders_leave_the_fold_whole(
    three_nodes: ClusterProcess, tmp_path: Path
) -> None:
    connections = [ClustorConnection(clustor_config(three_nodes)) for _ in range(2)]
    for connection in connections:
        await at_last(connection.connect)
    bucket = await at_last(ClustorLab(connections[0]).bucket)
    watched = Bucket(await at_last(lambda: connections[1].store(bucket.name)))
    history, stop, report = History(), asyncio.Event(), AppliedReport()
    no_more = asyncio.Event()
    with AppendLogSnapshot.load(tmp_path / "fold") as fold:
        running = asyncio.ensure_future(
            watch_applied(watched.watcher, fold=fold, stop=stop, report=report)
        )
        writing = asyncio.ensure_future(history.write(bucket, no_more))
        for _ in range(3):
            await until_grown(history, 20)
            leader = await asyncio.to_thread(three_nodes.wait_for_leader)
            starts = three_nodes.started(leader)
            three_nodes.kill(leader)
            await until_grown(history, 20)
            await asyncio.to_thread(
                three_nodes.until,
                lambda: three_nodes.starts[leader] > starts and three_nodes.caught_up(leader),  # noqa: B023
                "the killed node is back",
            )
        no_more.set()
        await writing
        last = (await at_last(lambda: bucket.writer.put("last", b"v"))).as_u64()
        assert last is not None
        async with asyncio.timeout(WAIT_SECONDS):
            while (fold.cursor.as_u64() or 0) < last:
                assert not running.done(), running
                await asyncio.sleep(0.005)
        stop.set()
        await running
        folded = contents(fold)
    assert not report.resynced
    standing = {entry.key: entry.value for entry in await at_last(bucket.reader.scan)}
    assert folded == standing
    for key, value in history.acknowledged.items():
        if key not in history.doubtful:
            assert standing.get(key, b"") == value, key
    assert set(standing) <= {"last"} | set(history.acknowledged) | history.doubtful
    assert report.delivered == report.applied
    for connection in connections:
        await connection.shutdown()


async def test_a_watch_leaves_a_leader_that_froze(three_nodes: ClusterProcess) -> None:
    """A frozen node closes no connection: only its silence can be noticed."""
    connections = [ClustorConnection(clustor_config(three_nodes)) for _ in range(2)]
    await at_last(connections[0].connect)
    watched = await at_last(ClustorLab(connections[0]).bucket)
    leader = await asyncio.to_thread(three_nodes.wait_for_leader)
    async with await at_last(lambda: watched.watcher.watch(ALL)) as watch:
        await take(watch, 1)
        waiting = asyncio.ensure_future(watch.take(1))
        os.kill(three_nodes.pid(leader), signal.SIGSTOP)
        try:
            await asyncio.to_thread(three_nodes.wait_for_leader, but=leader)
            await at_last(connections[1].connect)
            writer = (await at_last(lambda: connections[1].store(watched.name))).writer()
            await at_last(lambda: writer.put("after", b"v"))
            async with asyncio.timeout(WAIT_SECONDS):
                assert brief(await waiting) == ["put after"]
            assert await at_last(lambda: watched.reader.get("after")) is not None
        finally:
            os.kill(three_nodes.pid(leader), signal.SIGCONT)
    for connection in connections:
        await connection.shutdown()


async def test_a_watch_outlives_a_cluster_that_is_gone_for_a_while(tmp_path: Path) -> None:
    """All nodes die at once; nobody answers for longer than an operation may take."""
    with ClusterProcess(tmp_path / "cluster", restart=False, patience=UNHURRIED) as cluster:
        await asyncio.to_thread(cluster.wait_for_leader)
        await outlive(cluster)


async def outlive(cluster: ClusterProcess) -> None:
    patient = clustor_config(cluster)
    connection = ClustorConnection(patient)
    hasty = ClustorConnection(replace(patient, operation_seconds=8.0))
    await at_last(connection.connect)
    bucket = await at_last(ClustorLab(connection).bucket)
    await at_last(lambda: bucket.writer.put("before", b"v"))
    await at_last(hasty.connect)
    watched = Bucket(await at_last(lambda: hasty.store(bucket.name)))
    async with await at_last(lambda: watched.watcher.watch(ALL)) as watch:
        assert brief(await take(watch, 2)) == ["put before", "caught up"]
        waiting = asyncio.ensure_future(watch.take(1))
        for node in (1, 2, 3):
            cluster.kill(node)
        assert await asyncio.to_thread(cluster.wait) != 0
        with pytest.raises(Timeout):
            await watched.reader.get("before")
        cluster.start()
        await asyncio.to_thread(cluster.wait_for_leader)
        await at_last(lambda: bucket.writer.put("after", b"v"))
        async with asyncio.timeout(WAIT_SECONDS):
            assert brief(await waiting) == ["put after"]
    for each in (connection, hasty):
        await each.shutdown()


async def test_another_store_behind_the_same_address_is_noticed(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    with ClusterProcess(data, nodes=1) as cluster:
        await asyncio.to_thread(cluster.wait_for_leader)
        config = replace(clustor_config(cluster), operation_seconds=20.0)
        connection = ClustorConnection(config)
        await at_last(connection.connect)
        bucket = Bucket(await at_last(lambda: connection.store("routes")))
        await at_last(lambda: bucket.writer.put("a", b"1"))
        async with await at_last(lambda: bucket.watcher.watch(ALL)) as watch:
            cursor = await cursor_of(watch, (await take(watch, 2))[0])
            waiting = asyncio.ensure_future(watch.take(1))
            await asyncio.to_thread(cluster.stop)
            await asyncio.to_thread(shutil.rmtree, data)
            cluster.start()
            with pytest.raises(WatchError):
                await asyncio.wait_for(waiting, WAIT_SECONDS)
        again = Bucket(await at_last(lambda: connection.store("routes")))
        for _ in range(3):
            await at_last(lambda: again.writer.put("a", b"1"))
        with pytest.raises(StoreReplaced):
            await at_last(lambda: again.watcher.watch(ALL, after=cursor))
        await connection.shutdown()
