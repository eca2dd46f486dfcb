"""Reads of real nodes: what they cost, who may serve them, and when they are refused (§10.3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
import pytest

from clustor.control.moves import SetFollowerReads
from clustor.kv import Command, Found, Get, Key, Reply, Txn, TxnGet, decode_reply, encode_command
from clustor.runtime.kv_client import KvClient, KvUnavailable
from clustor.runtime.kv_link import KvLink
from clustor.runtime.kv_stream import Operation, Status, WatchEvents, WatchRequest
from tests.interop.cluster_process import UNHURRIED, ClusterProcess
from tests.interop.control_process import all_healthy, everybody, insist, pause, prepared
from tests.interop.machine import slowness
from tests.interop.test_snapshots_in_time import metrics

NODES = (1, 2, 3)
GROUPS = 2  # one of keys, the control plane's
NUMBERS = {"cache_fresh_ms": 3_000, "cache_grace_ms": 9_000}
REVOKE_SECONDS = 0.1
KEY = b"key"
STALE = "ControlPlaneUnavailable{CacheNotFresh}"
EXPIRED = "ControlPlaneUnavailable{CacheExpired}"
REVOKED = "FollowerCapabilityRevoked"

_events = msgspec.msgpack.Decoder(WatchEvents)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("reads") / "cluster"
    prepared(data, **NUMBERS, patience=UNHURRIED, fault_injection=True)
    with ClusterProcess(data) as running:
        running.until(lambda: all_healthy(running, GROUPS), "every group is proven")
        yield running


@pytest.fixture
def healthy(cluster: ClusterProcess) -> Iterator[ClusterProcess]:
    """The cluster, with every replica of the control plane at work before and after."""
    cluster.until(lambda: all_healthy(cluster, GROUPS), "every group is proven")
    yield cluster
    for node in NODES:
        pause(cluster, node, paused=False)


@asynccontextmanager
async def linked(cluster: ClusterProcess, node: int) -> AsyncIterator[KvLink]:
    """Speak to one node alone."""
    link = await KvLink.open(cluster.admin(node))
    try:
        yield link
    finally:
        link.close()
        await link.wait_closed()


async def ask(
    cluster: ClusterProcess, node: int, command: Command, operation: Operation = Operation.COMMAND
) -> tuple[int, bytes]:
    """Ask one node once, and follow nobody."""
    async with linked(cluster, node) as link:
        return await link.request(1, operation, encode_command(command))


async def ask_snapshot(cluster: ClusterProcess, node: int) -> tuple[int, bytes]:
    return await ask(cluster, node, Get(Key(KEY)), Operation.SNAPSHOT_READ)


def value_of(answer: tuple[int, bytes]) -> bytes | None:
    status, body = answer
    assert status == Status.APPLIED, answer
    reply: Reply = decode_reply(body)
    assert isinstance(reply, Found)
    return None if reply.record is None else reply.record.value


def refusal_of(answer: tuple[int, bytes]) -> str:
    assert answer[0] == Status.REFUSED, answer
    return answer[1].decode()


def grant(cluster: ClusterProcess, *, capability: bool, request: str) -> None:
    insist(cluster, SetFollowerReads(partition_id=1, capability=capability), request)


def writes(cluster: ClusterProcess) -> list[tuple[int, int]]:
    """Return what each replica has appended and synced."""
    groups = [cluster.wait_for_group(node) for node in NODES]
    return [(group["last_index"], group["syncs"]) for group in groups]


def followers(cluster: ClusterProcess) -> list[int]:
    leader = cluster.wait_for_leader()
    return [node for node in NODES if node != leader]


async def until_served(cluster: ClusterProcess, node: int) -> None:
    async with asyncio.timeout(30):
        while (await ask_snapshot(cluster, node))[0] != Status.APPLIED:
            await asyncio.sleep(0.01)


async def test_a_thousand_reads_append_nothing_and_sync_nothing(healthy: ClusterProcess) -> None:
    async with KvClient(healthy.admins()) as client:
        await client.put(KEY, b"1")
        assert (await client.get(KEY) or pytest.fail("no record")).value == b"1"
        before = writes(healthy)
        found = await asyncio.gather(*(client.get(KEY) for _ in range(950)))
        pages = await asyncio.gather(*(client.range(b"", None, 10) for _ in range(50)))
    assert {record.value for record in found if record is not None} == {b"1"}
    assert all(page.records[0].key == KEY for page in pages)
    assert writes(healthy) == before


async def test_a_read_sees_every_write_that_was_acknowledged_before(
    healthy: ClusterProcess,
) -> None:
    async with KvClient(healthy.admins()) as writer, KvClient(healthy.admins()) as reader:
        for number in range(50):
            await writer.put(KEY, b"%d" % number)
            record = await reader.get(KEY)
            assert record is not None and record.value == b"%d" % number


async def test_followers_read_while_they_may_and_not_100_ms_longer(
    healthy: ClusterProcess,
) -> None:
    follower = followers(healthy)[0]
    async with KvClient(healthy.admins()) as client:
        revision = (await client.range(b"", None, 1)).revision
        assert refusal_of(await ask_snapshot(healthy, follower)) == REVOKED
        watch = msgspec.msgpack.encode(WatchRequest(revision, []))
        async with linked(healthy, follower) as link:
            status, leader = await link.request(1, Operation.WATCH, watch)
            assert status == Status.NOT_LEADER
            assert leader.decode() == str(healthy.admin(healthy.wait_for_leader()))

            await asyncio.to_thread(grant, healthy, capability=True, request="grant-1")
            await until_served(healthy, follower)
            assert (await ask(healthy, follower, Get(Key(KEY))))[0] == Status.NOT_LEADER
            events = link.stream(1, watch)
            await client.put(KEY, b"shown by a follower")
            shown = await following(events)
            assert shown.events[-1].value == b"shown by a follower"

            await asyncio.to_thread(grant, healthy, capability=False, request="revoke-1")
            began = time.monotonic()
            async with asyncio.timeout(30):
                status, body = await anext(events)
                while status == Status.EVENTS:
                    status, body = await anext(events)
            seconds = time.monotonic() - began
            assert (status, body) == (Status.REFUSED, REVOKED.encode())
    assert refusal_of(await ask_snapshot(healthy, follower)) == REVOKED
    print(f"\nrevoked after {1000 * seconds:.0f} ms")
    assert seconds <= REVOKE_SECONDS * await asyncio.to_thread(slowness)


async def following(events: Any) -> WatchEvents:
    """Return the next that a watch shows."""
    async with asyncio.timeout(30):
        while True:
            status, body = await anext(events)
            assert status == Status.EVENTS, (status, body)
            found = _events.decode(body)
            if found.events:
                return found


async def test_a_clients_watch_goes_where_it_is_served(healthy: ClusterProcess) -> None:
    """It begins at a follower that may not, and goes on when a follower may no more."""
    follower = followers(healthy)[1]
    async with KvClient(healthy.admins()) as writer:
        revision = (await writer.range(b"", None, 1)).revision
        async with KvClient([healthy.admin(follower)]) as watcher:
            shown = watcher.watch([b"watched"], revision)
            for value in (b"1", b"2"):
                await writer.put(b"watched", value)
                found = await anext(shown)
                assert [record.value for record in found.events] == [value]
            await shown.aclose()
            assert watcher.redirects == 1


async def refused_for(
    cluster: ClusterProcess, node: int, words: str, operation: Operation = Operation.COMMAND
) -> None:
    """Wait until a node refuses reads with these words."""
    async with asyncio.timeout(60):
        while True:
            answer = await ask(cluster, node, Get(Key(KEY)), operation)
            if answer == (Status.REFUSED, words.encode()):
                return
            await asyncio.sleep(0.02)


async def test_reads_are_refused_while_the_copy_is_stale_or_expired(
    healthy: ClusterProcess,
) -> None:
    leader, follower = healthy.wait_for_leader(), followers(healthy)[0]
    await asyncio.to_thread(grant, healthy, capability=True, request="grant-2")
    await until_served(healthy, follower)
    only_leader = [healthy.admin(leader)] * 2  # two: it then asks for no others
    async with (
        KvClient(only_leader) as client,
        KvClient(only_leader, timeout_seconds=1) as brief,
        linked(healthy, leader) as watch,
    ):
        revision = (await client.range(b"", None, 1)).revision
        events = watch.stream(1, msgspec.msgpack.encode(WatchRequest(revision, [])))
        await client.put(KEY, b"fresh")
        assert (await following(events)).events[-1].value == b"fresh"
        for node in NODES:
            pause(healthy, node, paused=True)

        await refused_for(healthy, leader, STALE)
        await refused_for(healthy, follower, REVOKED, Operation.SNAPSHOT_READ)
        with pytest.raises(KvUnavailable, match=r"ControlPlaneUnavailable\{CacheNotFresh\}"):
            await brief.get(KEY)
        looking = Txn([], [TxnGet(Key(KEY))])
        assert refusal_of(await ask(healthy, leader, looking)) == STALE
        told = await asyncio.to_thread(metrics, healthy.admin(leader))
        assert told["clustor_raft_strict_fallback_blocking_read_index"] >= 1
        await client.put(KEY, b"stale")  # writes go on
        assert value_of(await ask_snapshot(healthy, leader)) == b"stale"

        await refused_for(healthy, leader, EXPIRED)
        assert value_of(await ask_snapshot(healthy, leader)) == b"stale"
        await client.put(KEY, b"expired")
        assert refusal_of(await ask_snapshot(healthy, leader)) == EXPIRED
        assert (await following(events)).events[-1].value == b"stale"
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                pytest.fail(f"shown while Expired: {await following(events)}")

        for node in NODES:
            pause(healthy, node, paused=False)
        await asyncio.to_thread(
            healthy.until, partial(all_healthy, healthy, GROUPS), "every group is proven again"
        )
        record = await client.get(KEY)
        assert record is not None and record.value == b"expired"
    assert {each["cache_state"] for each in everybody(healthy)} == {"Fresh"}
