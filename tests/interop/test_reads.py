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
from clustor.runtime.kv.client import KvClient, KvUnavailable
from clustor.runtime.kv.link import KvLink
from clustor.runtime.kv.stream import KvOperation, Status, WatchEvents, WatchRequest
from tests.interop.cluster_process import DEADLINE_SECONDS, PATIENT, ClusterProcess
from tests.interop.control_process import all_healthy, insist, pause, prepared
from tests.interop.machine import slowness
from tests.interop.test_snapshots_in_time import metrics

NODES = (1, 2, 3)
GROUPS = 2  # one of keys, the control plane's
NUMBERS = {"cache_fresh_ms": 3_000, "cache_grace_ms": 9_000}
REVOKE_SECONDS = 0.1
TRIES = 5
KEY = b"key"
STALE = "ControlPlaneUnavailable{CacheNotFresh}"
EXPIRED = "ControlPlaneUnavailable{CacheExpired}"
REVOKED = "FollowerCapabilityRevoked"

_events = msgspec.msgpack.Decoder(WatchEvents)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    data = tmp_path_factory.mktemp("reads") / "cluster"
    prepared(data, **NUMBERS, patience=PATIENT, fault_injection=True)
    with ClusterProcess(data) as running:
        running.until(lambda: all_healthy(running, GROUPS), "every group is proven")
        yield running


@pytest.fixture
def healthy(cluster: ClusterProcess) -> Iterator[ClusterProcess]:
    """The cluster, with every replica of the control plane at work before and after."""
    cluster.until(lambda: all_healthy(cluster, GROUPS), "every group is proven")
    yield cluster
    pause_all(cluster, paused=False)


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
    cluster: ClusterProcess,
    node: int,
    command: Command,
    operation: KvOperation = KvOperation.COMMAND,
) -> tuple[int, bytes]:
    """Ask one node once, and follow nobody."""
    async with linked(cluster, node) as link:
        return await link.request(1, operation, encode_command(command))


async def ask_snapshot(cluster: ClusterProcess, node: int) -> tuple[int, bytes]:
    return await ask(cluster, node, Get(Key(KEY)), KvOperation.SNAPSHOT_READ)


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
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await ask_snapshot(cluster, node))[0] != Status.APPLIED:
            await asyncio.sleep(0.01)


async def test_a_thousand_reads_append_nothing_and_sync_nothing(healthy: ClusterProcess) -> None:
    """Reads that write do so every time; a follower that hears of a write late does not."""
    async with client_of(healthy) as client:
        await client.put(KEY, b"1")
        assert (await client.get(KEY) or pytest.fail("no record")).value == b"1"
        written: list[tuple[object, object]] = []
        while not written or written[-1][0] != written[-1][1]:
            assert len(written) < TRIES, written
            before = writes(healthy)
            await read_a_thousand_times(client)
            written.append((before, writes(healthy)))


async def read_a_thousand_times(client: KvClient) -> None:
    found = await asyncio.gather(*(client.get(KEY) for _ in range(950)))
    pages = await asyncio.gather(*(client.range(b"", None, 10) for _ in range(50)))
    assert [record.value for record in found if record is not None] == [b"1"] * len(found)
    assert all(page.records[0].key == KEY for page in pages)


def client_of(cluster: ClusterProcess) -> KvClient:
    return KvClient(cluster.admins(), timeout_seconds=DEADLINE_SECONDS)


async def test_a_read_sees_every_write_that_was_acknowledged_before(
    healthy: ClusterProcess,
) -> None:
    async with client_of(healthy) as writer, client_of(healthy) as reader:
        for number in range(50):
            await writer.put(KEY, b"%d" % number)
            record = await reader.get(KEY)
            assert record is not None and record.value == b"%d" % number


async def test_followers_read_while_they_may_and_not_100_ms_longer(
    healthy: ClusterProcess,
) -> None:
    """Who is shown more for longer is so every time; a machine that is busy now and then is not."""
    seconds: list[float] = []
    while min(seconds, default=1.0) > REVOKE_SECONDS:
        assert len(seconds) < TRIES, seconds
        turn = len(seconds)
        took = await seconds_to_revoke(healthy, turn)
        seconds.append(took / await asyncio.to_thread(slowness))


async def seconds_to_revoke(healthy: ClusterProcess, turn: int) -> float:
    """Let a follower read, see it serve, and return for how long it served when it might not."""
    follower = followers(healthy)[0]
    async with client_of(healthy) as client:
        revision = (await client.range(b"", None, 1)).revision
        assert refusal_of(await ask_snapshot(healthy, follower)) == REVOKED
        watch = msgspec.msgpack.encode(WatchRequest(revision, []))
        async with linked(healthy, follower) as link:
            status, leader = await link.request(1, KvOperation.WATCH, watch)
            assert status == Status.NOT_LEADER
            assert leader.decode() == str(healthy.admin(healthy.wait_for_leader()))

            await asyncio.to_thread(grant, healthy, capability=True, request=f"grant-1-{turn}")
            await until_served(healthy, follower)
            assert (await ask(healthy, follower, Get(Key(KEY))))[0] == Status.NOT_LEADER
            events = link.stream(1, watch)
            await client.put(KEY, b"shown by a follower")
            shown = await following(events)
            assert shown.events[-1].value == b"shown by a follower"

            await asyncio.to_thread(grant, healthy, capability=False, request=f"revoke-1-{turn}")
            began = time.monotonic()
            async with asyncio.timeout(DEADLINE_SECONDS):
                status, body = await anext(events)
                while status == Status.EVENTS:
                    status, body = await anext(events)
            seconds = time.monotonic() - began
            assert (status, body) == (Status.REFUSED, REVOKED.encode())
    assert refusal_of(await ask_snapshot(healthy, follower)) == REVOKED
    print(f"\nrevoked after {1000 * seconds:.0f} ms")
    return seconds


async def following(events: Any) -> WatchEvents:
    """Return the next that a watch shows."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            status, body = await anext(events)
            assert status == Status.EVENTS, (status, body)
            found = _events.decode(body)
            if found.events:
                return found


async def test_a_clients_watch_goes_where_it_is_served(healthy: ClusterProcess) -> None:
    """It begins at a follower that may not, and goes on when a follower may no more."""
    follower = followers(healthy)[1]
    async with client_of(healthy) as writer:
        revision = (await writer.range(b"", None, 1)).revision
        async with KvClient([healthy.admin(follower)]) as watcher:
            shown = watcher.watch([b"watched"], revision)
            for value in (b"1", b"2"):
                await writer.put(b"watched", value)
                async with asyncio.timeout(DEADLINE_SECONDS):
                    found = await anext(shown)
                assert [record.value for record in found.events] == [value]
            await shown.aclose()
            assert watcher.redirects >= 1


async def refused_for(
    cluster: ClusterProcess, node: int, *words: str, operation: KvOperation = KvOperation.COMMAND
) -> str:
    """Wait until a node refuses reads with one of these words; return which."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            status, said = await ask(cluster, node, Get(Key(KEY)), operation)
            if status == Status.REFUSED and said.decode() in words:
                return said.decode()
            await asyncio.sleep(0.02)


def pause_all(cluster: ClusterProcess, *, paused: bool) -> None:
    for node in NODES:
        pause(cluster, node, paused=paused)


async def until_healthy(cluster: ClusterProcess) -> None:
    """Wait until every copy is fresh, and every group proven."""
    condition = partial(all_healthy, cluster, GROUPS)
    await asyncio.to_thread(cluster.until, condition, "every group is proven again")


async def grow_stale(
    cluster: ClusterProcess, leader: int, follower: int, client: KvClient
) -> bytes:
    """Let the copies grow old, and judge what is served; return what was written meanwhile.

    A machine that is too slow to ask everything before they expire begins again.
    """
    for turn in range(TRIES):
        pause_all(cluster, paused=True)
        value = b"stale-%d" % turn
        if await is_judged_while_stale(cluster, leader, follower, client, value):
            return value
        pause_all(cluster, paused=False)
        await until_healthy(cluster)
        await until_served(cluster, follower)
    pytest.fail("they expired before all was asked, every time")


async def is_judged_while_stale(
    cluster: ClusterProcess, leader: int, follower: int, client: KvClient, value: bytes
) -> bool:
    """Ask everything of a leader whose copy is stale; False: it was not until the end."""
    said = [
        await refused_for(cluster, leader, STALE, EXPIRED),
        await refused_for(cluster, follower, REVOKED, EXPIRED, operation=KvOperation.SNAPSHOT_READ),
        await why_unavailable(cluster, leader),
    ]
    looked = await ask(cluster, leader, Txn([], [TxnGet(Key(KEY))]))
    told = await asyncio.to_thread(metrics, cluster.admin(leader))
    await client.put(KEY, value)  # writes go on
    shown = await ask_snapshot(cluster, leader)
    said.append(refusal_of(await ask(cluster, leader, Get(Key(KEY)))))
    if any(EXPIRED in each for each in said):
        return False
    assert said == [STALE, REVOKED, f"refused: {STALE}", STALE]
    assert refusal_of(looked) == STALE
    assert told["clustor_raft_strict_fallback_blocking_read_index"] >= 1
    assert value_of(shown) == value
    return True


async def why_unavailable(cluster: ClusterProcess, leader: int) -> str:
    """Return what a client's error says that waited in vain, once a node had answered it."""
    while True:
        only_leader = [cluster.admin(leader)] * 2  # two: it then asks for no others
        async with KvClient(only_leader, timeout_seconds=1) as brief:
            with pytest.raises(KvUnavailable) as raised:
                await brief.get(KEY)
        if str(raised.value).startswith("refused: "):
            return str(raised.value)


async def test_reads_are_refused_while_the_copy_is_stale_or_expired(
    healthy: ClusterProcess,
) -> None:
    leader, follower = healthy.wait_for_leader(), followers(healthy)[0]
    await asyncio.to_thread(grant, healthy, capability=True, request="grant-2")
    await until_served(healthy, follower)
    only_leader = [healthy.admin(leader)] * 2
    async with (
        KvClient(only_leader, timeout_seconds=DEADLINE_SECONDS) as client,
        linked(healthy, leader) as watch,
    ):
        revision = (await client.range(b"", None, 1)).revision
        events = watch.stream(1, msgspec.msgpack.encode(WatchRequest(revision, [])))
        await client.put(KEY, b"fresh")
        assert (await following(events)).events[-1].value == b"fresh"
        stale = await grow_stale(healthy, leader, follower, client)

        await refused_for(healthy, leader, EXPIRED)
        assert value_of(await ask_snapshot(healthy, leader)) == stale
        await client.put(KEY, b"expired")
        assert refusal_of(await ask_snapshot(healthy, leader)) == EXPIRED
        while (await following(events)).events[-1].value != stale:
            pass  # what an earlier try has written
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                pytest.fail(f"shown while Expired: {await following(events)}")

        pause_all(healthy, paused=False)
        await until_healthy(healthy)
        record = await client.get(KEY)
        assert record is not None and record.value == b"expired"
