"""Real nodes, real disks, real `kill -9`: what was acknowledged is there, and in one order."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from clustor.kv import Conflict, KvWritten
from clustor.runtime.kv.client import KvClient, KvUnavailable
from clustor.runtime.peers.transport import Address
from clustor.sim import linearizability
from clustor.sim.history import CallHistory, Process
from clustor.sim.models import Cas, KeyValue, KvCall, ModelGet, ModelPut
from tests.clustor.runtime.waiting import until
from tests.interop.cluster_process import ClusterProcess

WORKERS = 6
KEYS = 4
BUDGET = 5_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """Three nodes whose leaders are killed and come back: each test has keys of its own."""
    with ClusterProcess(tmp_path_factory.mktemp("three") / "cluster") as running:
        yield running


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """One node, for what needs no other: each test has keys of its own."""
    with ClusterProcess(tmp_path_factory.mktemp("one") / "cluster", nodes=1) as running:
        running.wait_for_leader()
        yield running


class Load:
    """Workers that write, compare and read; what they saw, and what was acknowledged."""

    def __init__(self, client: KvClient) -> None:
        self.client = client
        self.history: CallHistory[KvCall] = CallHistory()
        self.acknowledged: dict[bytes, bytes] = {}
        self.stopping = False
        self._processes = itertools.count()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Load]:
        """Load the cluster while the context lasts; the workers end with it however it ends."""
        workers = [asyncio.create_task(self._run(worker)) for worker in range(WORKERS)]
        try:
            yield self
        finally:
            self.stopping = True
            await asyncio.gather(*workers)

    async def _run(self, worker: int) -> None:
        process = Process(next(self._processes))
        for turn in itertools.count():
            if self.stopping:
                return
            try:
                await self._turn(process, worker, turn)
            except KvUnavailable as error:
                if error.maybe_applied:
                    self.history.unknown(process)
                    process = Process(next(self._processes))  # an unknown call stays open
                else:
                    self.history.did_not_happen(process)

    async def _turn(self, process: Process, worker: int, turn: int) -> None:
        key, value = b"shared-%d" % (turn % KEYS), b"%d:%d" % (worker, turn)
        if turn % 3 == 0:
            self.history.invoke(process, ModelPut(key, value))
            await self.client.put(key, value)
            self.history.ok(process)
        elif turn % 3 == 1:
            self.history.invoke(process, ModelGet(key))
            record = await self.client.get(key)
            self.history.ok(process, None if record is None else record.value)
        else:
            expected = b"%d:%d" % ((worker + 1) % WORKERS, turn - 2)
            self.history.invoke(process, Cas(key, expected, value))
            reply = await self.client.cas_value(key, expected, value)
            self.history.ok(process, not isinstance(reply, Conflict))
        own = b"own-%d-%d" % (worker, turn)
        with suppress(KvUnavailable):  # then it is not acknowledged, and may be there or not
            await self.client.put(own, value)
            self.acknowledged[own] = value

    def has_more_than(self, acknowledged: int) -> bool:
        return len(self.acknowledged) > acknowledged

    async def check(self, client: KvClient | None = None) -> None:
        """Nothing acknowledged is missing or other than it was, and one order explains it all."""
        there: dict[bytes, bytes] = {}
        start, more = b"own-", True
        while more:
            page = await (client or self.client).range(start, b"own.", 10_000)
            there |= {bytes(record.key): record.value for record in page.records}
            start, more = page.records[-1].key + b"\0", page.more
        lost = {key for key, value in self.acknowledged.items() if there.get(key) != value}
        assert not lost
        print(f"\n{len(self.acknowledged)} writes acknowledged and there")
        verdict = linearizability.check(self.history.operations(), KeyValue(), budget=BUDGET)
        assert isinstance(verdict, linearizability.Ok), verdict


async def kill_leaders(cluster: ClusterProcess, kills: int) -> list[float]:
    """Kill the leader again and again under load; return the seconds to each new leader."""
    seconds: list[float] = []
    async with KvClient(cluster.admins(), timeout_seconds=180) as client:
        async with Load(client).running() as load:
            for nth in range(kills):
                before = len(load.acknowledged)
                seconds.append(await asyncio.to_thread(_kill_one, cluster))
                await until(partial(load.has_more_than, before), f"writes after kill {nth}")
        await load.check()
        assert len(load.acknowledged) > kills
    return seconds


def _kill_one(cluster: ClusterProcess) -> float:
    leader = cluster.wait_for_leader()
    starts = cluster.started(leader)
    began = time.monotonic()
    cluster.kill(leader)
    cluster.wait_for_leader(but=leader)
    seconds = time.monotonic() - began
    cluster.until(lambda: cluster.starts[leader] > starts, "the node is started again")
    cluster.until(lambda: cluster.caught_up(leader), "the node has caught up")
    return seconds


def report(seconds: list[float]) -> None:
    listed = " ".join(f"{each:.2f}" for each in seconds)
    print(f"\nseconds to a new leader: median {statistics.median(seconds):.2f} ({listed})")


async def test_no_acknowledged_write_is_lost_when_leaders_are_killed(
    cluster: ClusterProcess,
) -> None:
    report(await kill_leaders(cluster, 5))


@pytest.mark.soak
async def test_twenty_leaders_killed_in_a_row(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path / "cluster") as cluster:
        report(await kill_leaders(cluster, 20))


async def test_everything_is_there_after_all_nodes_were_killed_and_started(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    with ClusterProcess(data, restart=False) as cluster:
        cluster.wait_for_leader()
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            await asyncio.gather(*(client.put(b"key-%d" % n, b"%d" % n) for n in range(200)))
        for node in (1, 2, 3):
            cluster.kill(node)
        assert cluster.wait() != 0
    with ClusterProcess(data) as cluster:
        cluster.wait_for_leader()
        async with KvClient(cluster.admins(), timeout_seconds=180) as client:
            page = await client.range(b"key-", b"key.", 1000)
        assert {record.key: record.value for record in page.records} == {
            b"key-%d" % n: b"%d" % n for n in range(200)
        }


async def test_a_cluster_stops_gracefully_and_goes_on_with_many_groups(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    for turn in range(2):
        with ClusterProcess(data, groups=4) as cluster:
            for partition in range(1, 5):
                cluster.wait_for_leader(partition)
                async with KvClient(
                    cluster.admins(), partition=partition, timeout_seconds=180
                ) as client:
                    record = await client.get(b"turn")
                    assert (record is None) == (turn == 0)
                    await client.put(b"turn", b"%d of %d" % (turn, partition))
            assert cluster.stop() == 0
            assert not any("killed" in line for line in cluster.lines), cluster.lines


class LossyProxy:
    """Stands before a node and cuts the first connections when the first reply comes by."""

    def __init__(self, target: Address, cuts: int) -> None:
        self._target = target
        self.cuts = cuts
        self._serving: set[asyncio.Task[None]] = set()

    async def ended(self) -> None:
        """Wait until every connection is closed on both sides."""
        await asyncio.gather(*self._serving)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.serve(reader, writer))
        self._serving.add(task)
        await task

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(self._target.host, self._target.port)
        upward = asyncio.create_task(_carry(reader, requests))
        # A client that waits too long for a busy node hangs up, and comes again.
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            writer.write(await answers.readuntil(b"\r\n\r\n"))
            while data := await answers.read(1 << 16):
                if self.cuts:
                    self.cuts -= 1  # the command was applied, and its reply is lost
                    break
                writer.write(data)
        writer.close()
        requests.close()
        upward.cancel()
        closed = (upward, writer.wait_closed(), requests.wait_closed())
        await asyncio.gather(*closed, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


async def test_a_write_whose_reply_was_lost_is_applied_once(node: ClusterProcess) -> None:
    """Sent again and again, a compare-and-set that succeeded answers that it succeeded."""
    proxy = LossyProxy(node.admin(1), cuts=3)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    addresses = [Address("127.0.0.1", port)] * 2  # two, so that it asks for no others
    async with KvClient(addresses, timeout_seconds=180) as client:
        reply = await client.cas_value(b"key", None, b"mine")
        assert isinstance(reply, KvWritten), reply
        assert proxy.cuts == 0
        record = await client.get(b"key")
        assert record is not None and record.version == 1
    await proxy.ended()
    server.close()


async def test_writes_in_doubt_are_settled_when_the_leader_is_killed(
    cluster: ClusterProcess,
) -> None:
    leader = cluster.wait_for_leader()
    async with KvClient(cluster.admins(), timeout_seconds=180) as client:
        await client.put(b"counter", b"0")
        for value in range(60):
            if value == 20:
                cluster.kill(leader)
            reply = await client.cas_value(b"counter", b"%d" % value, b"%d" % (value + 1))
            assert isinstance(reply, KvWritten)


async def test_a_watch_sees_every_revision_once_and_in_order(cluster: ClusterProcess) -> None:
    leader = cluster.wait_for_leader()
    seen: list[int] = []

    async def follow() -> None:
        async with KvClient(cluster.admins(), timeout_seconds=180) as watcher:
            async for found in watcher.watch([b"w-"], 0):
                seen.extend(record.mod_revision for record in found.events)
                if len(seen) >= 100:
                    return

    async with KvClient(cluster.admins(), timeout_seconds=180) as client:
        following = asyncio.create_task(follow())
        for value in range(100):
            if value == 50:
                cluster.kill(leader)
            await client.put(b"w-%d" % value, b"")
        await asyncio.wait_for(following, 180)
    assert seen == sorted(set(seen))
    assert len(seen) == 100


async def test_a_key_with_a_time_to_live_ends(node: ClusterProcess) -> None:
    async with KvClient(node.admins(), timeout_seconds=180) as client:
        await client.put(b"short", b"life", ttl_ms=1)
        await client.put(b"long", b"life", ttl_ms=3_600_000)
        async for found in client.watch([b"short"], 0):
            if found.events and found.events[-1].is_delete:
                break
        assert await client.get(b"short") is None
        assert await client.get(b"long") is not None
