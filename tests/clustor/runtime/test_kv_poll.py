"""Polls of the KV stream, and a client among nodes that say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from clustor.kv import Compact, KvWritten, Txn, TxnDeleteRange
from clustor.runtime.kv.client import KvClient, KvUnavailable, WatchCompacted
from clustor.runtime.peers.transport import Address
from tests.interop.cluster_process import ClusterProcess

TIMEOUT_SECONDS = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    with ClusterProcess(tmp_path_factory.mktemp("poll"), nodes=1) as cluster:
        cluster.wait_for_leader()
        yield cluster


@pytest.fixture
async def client(node: ClusterProcess) -> AsyncIterator[KvClient]:
    async with KvClient(node.admins(), timeout_seconds=TIMEOUT_SECONDS) as found:
        yield found


async def put(client: KvClient, key: bytes) -> int:
    reply = await client.put(key, b"v")
    assert isinstance(reply, KvWritten)
    return reply.revision


async def test_a_poll_gives_what_came_after_in_pages(client: KvClient) -> None:
    revisions = [await put(client, b"page/%d" % number) for number in range(5)]
    await put(client, b"other")
    found: list[list[int]] = []
    position = revisions[0] - 1
    while len(found) < 3:
        page = await client.poll([b"page/"], position, events_max=2)
        if page.events:  # a node that has just started shows nothing until its copy is confirmed
            found.append([event.mod_revision for event in page.events])
        position = page.through
    assert found == [revisions[0:2], revisions[2:4], revisions[4:5]]


async def test_a_revision_is_never_torn_apart(client: KvClient) -> None:
    last = [await put(client, b"whole/%d" % number) for number in range(5)][-1]
    await client.execute(Txn([], [TxnDeleteRange(b"whole/", b"whole0")]))
    page = await client.poll([b"whole/"], last, events_max=1)
    assert [event.is_delete for event in page.events] == [True] * 5


async def test_a_poll_waits_for_its_event(client: KvClient) -> None:
    now = await put(client, b"other")
    polling = asyncio.ensure_future(client.poll([b"awaited"], now, events_max=9))
    wanted = await put(client, b"awaited")
    found = await polling
    assert [event.mod_revision for event in found.events] == [wanted]


async def test_a_poll_says_how_far_it_is_where_nothing_happens(client: KvClient) -> None:
    first = await put(client, b"other")
    last = await put(client, b"other")
    at_once = await client.poll([b"never"], first, events_max=9, reached=last)
    assert (at_once.events, at_once.through) == ([], last)
    sign_of_life = await client.poll([b"never"], first, events_max=9)
    assert (sign_of_life.events, sign_of_life.through) == ([], last)


async def test_a_poll_of_what_is_gone_says_so(client: KvClient) -> None:
    last = [await put(client, b"gone/%d" % number) for number in range(3)][-1]
    await client.execute(Compact(last))
    with pytest.raises(WatchCompacted) as compacted:
        await client.poll([b"gone/"], last - 1, events_max=9)
    assert compacted.value.oldest == last
    assert (await client.poll([b"gone/"], last, events_max=9, reached=last)).events == []


async def test_a_poll_ahead_of_the_store_gets_no_sign_of_life(node: ClusterProcess) -> None:
    """The node may hang behind its group: whoever asks must be free to ask another."""
    async with KvClient(node.admins(), timeout_seconds=TIMEOUT_SECONDS) as client:
        now = await put(client, b"other")
    async with KvClient(node.admins(), timeout_seconds=2.5) as client:
        with pytest.raises(KvUnavailable):
            await client.poll([b""], now + 1_000, events_max=9)


class _Mute(asyncio.Protocol):
    """Upgrades, and says nothing more; a question for the status gets no answer at all."""

    def __init__(self, transports: list[asyncio.Transport]) -> None:
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._transports.append(transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /kv "):
            self._transport.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        elif data.startswith(b"GET "):
            self._transport.close()


@asynccontextmanager
async def mute_node() -> AsyncIterator[Address]:
    """A node that takes every request and answers none."""
    transports: list[asyncio.Transport] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Mute(transports), "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with server:
        yield Address(host, port)
        for transport in transports:
            transport.abort()


async def test_a_write_that_was_sent_and_not_answered_may_have_happened() -> None:
    async with mute_node() as address, KvClient([address], timeout_seconds=3.0) as client:
        with pytest.raises(KvUnavailable) as unknown:
            await client.put(b"k", b"v")
        assert unknown.value.maybe_applied
        with pytest.raises(KvUnavailable) as unread:
            await client.get(b"k")
        assert not unread.value.maybe_applied


async def test_a_write_that_was_never_sent_did_not_happen() -> None:
    async with KvClient([Address("127.0.0.1", 1)], timeout_seconds=0.2) as client:
        with pytest.raises(KvUnavailable) as unknown:
            await client.put(b"k", b"v")
        assert not unknown.value.maybe_applied


async def test_a_node_that_says_nothing_is_left_for_another(node: ClusterProcess) -> None:
    async with (
        mute_node() as mute,
        KvClient([mute, *node.admins()], timeout_seconds=TIMEOUT_SECONDS) as client,
    ):
        now = await put(client, b"elsewhere")
        assert client.links_opened >= 2
        assert (await client.poll([b"elsewhere"], now - 1, events_max=1)).through >= now


async def next_key(client: KvClient, prefix: bytes, revision: int) -> bytes:
    """Return the key of the first event that a watch gives."""
    async for found in client.watch([prefix], revision):
        return bytes(found.events[0].key)
    raise AssertionError("a watch does not end by itself")


async def test_a_watch_leaves_a_node_that_gives_no_sign_of_life(node: ClusterProcess) -> None:
    async with (
        mute_node() as mute,
        KvClient([mute, *node.admins()], timeout_seconds=2.0) as watcher,
        KvClient(node.admins(), timeout_seconds=TIMEOUT_SECONDS) as client,
    ):
        now = await put(client, b"watched/1")
        assert await next_key(watcher, b"watched/", now - 1) == b"watched/1"
        assert watcher.links_opened >= 2


async def test_a_watch_stays_while_nothing_happens(node: ClusterProcess) -> None:
    """Signs of life come every second: silence of five is none of the node's.

    On a machine that is busy with something else it may be: then the watch is tried again.
    """
    for _ in range(5):
        if await stays(node):
            return
    raise AssertionError("the watch left every time")


async def stays(node: ClusterProcess) -> bool:
    async with (
        KvClient(node.admins(), timeout_seconds=5.0) as watcher,
        KvClient(node.admins(), timeout_seconds=TIMEOUT_SECONDS) as client,
    ):
        now = await put(client, b"other")
        watching = asyncio.ensure_future(next_key(watcher, b"quiet/", now))
        for _ in range(7):  # each of these waits for a sign of life, too
            await client.poll([b"never"], now, events_max=1)
        await put(client, b"quiet/1")
        assert await watching == b"quiet/1"
        return watcher.links_opened == 1


async def test_a_connection_that_is_never_upgraded_is_closed() -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    class Deaf(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            ended.set_result(None)

    server = await asyncio.get_running_loop().create_server(Deaf, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    async with server:
        async with KvClient([Address(host, port)], timeout_seconds=0.2) as client:
            with pytest.raises(KvUnavailable):
                await client.get(b"k")
        await asyncio.wait_for(ended, TIMEOUT_SECONDS)


async def test_a_closed_client_answers_no_more(node: ClusterProcess) -> None:
    async with KvClient(node.admins(), timeout_seconds=TIMEOUT_SECONDS) as client:
        now = await put(client, b"k")
        assert client.is_connected
        polling = asyncio.ensure_future(client.poll([b"never"], now, events_max=1))
        await asyncio.sleep(0)
    with pytest.raises(KvUnavailable):
        await polling
    with pytest.raises(KvUnavailable):
        await client.get(b"k")
    assert client.is_closed
    assert not client.is_connected
