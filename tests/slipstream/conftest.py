"""Buckets of every backend, made the same way."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from clustor.kv import Compact, Txn, TxnDelete, TxnDeleteRange, prefix_end
from slipstream.clustor import ClustorConnection, ClustorConnectionConfig, ClustorKvStore
from slipstream.memory import MemoryBucket, MemoryConnection
from slipstream.nats import NatsConnection, NatsConnectionConfig
from slipstream.nats.store import NatsKvStore
from slipstream.ports import (
    DEFAULT_STORE_CONFIG,
    Connection,
    KvReader,
    KvStore,
    KvTtl,
    KvWatcher,
    KvWriter,
)
from slipstream.types import StoreConfig
from tests.interop.cluster_process import ClusterProcess
from tests.slipstream.servers import NatsServer

_names = itertools.count()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that the test may kill."""
    server = NatsServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def clustor_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    """A cluster of one node, in a process of its own."""
    with ClusterProcess(tmp_path_factory.mktemp("clustor"), nodes=1) as cluster:
        cluster.wait_for_leader()
        yield cluster


class Lab(Protocol):
    """A backend under test, with the levers that a test needs and a user has not."""

    connection: Connection

    async def bucket(self, config: StoreConfig = ...) -> Bucket: ...

    async def evict_through(self, bucket: Bucket, revision: int) -> None: ...

    async def recreate(self, bucket: Bucket) -> None: ...


class Bucket:
    """A bucket with every role at hand."""

    def __init__(self, store: KvStore) -> None:
        reader, writer, watcher = store.reader(), store.writer(), store.watcher()
        assert reader is not None
        assert writer is not None
        assert watcher is not None
        self.store = store
        self.name = store.name
        self.reader: KvReader = reader
        self.writer: KvWriter = writer
        self.watcher: KvWatcher = watcher
        self.ttl: KvTtl | None = store.ttl()


class MemoryLab:
    def __init__(self, connection: MemoryConnection) -> None:
        self.connection: Connection = connection

    async def bucket(self, config: StoreConfig = DEFAULT_STORE_CONFIG) -> Bucket:
        return Bucket(await self.connection.store(f"bucket-{next(_names)}", config))

    async def evict_through(self, bucket: Bucket, revision: int) -> None:
        assert isinstance(bucket.store, MemoryBucket)
        bucket.store.evict_through(revision)

    async def recreate(self, bucket: Bucket) -> None:
        assert isinstance(bucket.store, MemoryBucket)
        bucket.store.recreate()


class NatsLab:
    def __init__(self, connection: NatsConnection) -> None:
        self.nats = connection
        self.connection: Connection = connection

    async def bucket(self, config: StoreConfig = DEFAULT_STORE_CONFIG) -> Bucket:
        name = f"bucket-{os.getpid()}-{next(_names)}"
        return Bucket(await self.connection.store(name, config))

    async def evict_through(self, bucket: Bucket, revision: int) -> None:
        link = link_of(bucket)
        await link.jetstream.purge_stream(link.stream, seq=revision + 1)

    async def recreate(self, bucket: Bucket) -> None:
        link = link_of(bucket)
        await link.jetstream.delete_stream(link.stream)
        await self.connection.store(bucket.name)


class ClustorLab:
    """All buckets share one store: revisions are the store's, and so is compaction."""

    def __init__(self, connection: ClustorConnection) -> None:
        self.connection: Connection = connection

    async def bucket(self, config: StoreConfig = DEFAULT_STORE_CONFIG) -> Bucket:
        name = f"bucket-{os.getpid()}-{next(_names)}"
        return Bucket(await self.connection.store(name, config))

    async def evict_through(self, bucket: Bucket, revision: int) -> None:
        assert isinstance(bucket.store, ClustorKvStore)
        await bucket.store._link.client.execute(Compact(revision))

    async def recreate(self, bucket: Bucket) -> None:
        await self.remove(bucket)
        await self.connection.store(bucket.name)

    async def remove(self, bucket: Bucket) -> None:
        assert isinstance(bucket.store, ClustorKvStore)
        link = bucket.store._link
        entries = link.layout.prefix("")
        everything = TxnDeleteRange(entries, prefix_end(entries))
        await link.client.execute(Txn([], [TxnDelete(link.layout.record), everything]))


def link_of(bucket: Bucket):  # type: ignore[no-untyped-def]  # the link is not public
    """Reach under a NATS bucket, for what only a server's operator does."""
    assert isinstance(bucket.store, NatsKvStore)
    return bucket.store._link


def fast(url: str) -> NatsConnectionConfig:
    """Settings under which a test waits for nothing longer than it must."""
    return NatsConnectionConfig(url=url, heartbeat_seconds=0.5, reconnect_wait_seconds=0.05)


@pytest.fixture
async def nats_lab(nats_server: NatsServer) -> AsyncIterator[NatsLab]:
    connection = NatsConnection(fast(nats_server.url))
    await connection.connect()
    yield NatsLab(connection)
    await connection.shutdown()


@pytest.fixture
async def memory_lab() -> MemoryLab:
    connection = MemoryConnection()
    await connection.connect()
    return MemoryLab(connection)


def clustor_config(cluster: ClusterProcess) -> ClustorConnectionConfig:
    """Settings under which a slow machine is waited for."""
    return ClustorConnectionConfig(tuple(cluster.admins()), connect_seconds=90.0)


def clustor_url(cluster: ClusterProcess) -> str:
    return "clustor://" + ",".join(map(str, cluster.admins()))


@pytest.fixture
async def clustor_lab(clustor_node: ClusterProcess) -> AsyncIterator[ClustorLab]:
    connection = ClustorConnection(clustor_config(clustor_node))
    await connection.connect()
    yield ClustorLab(connection)
    await connection.shutdown()


@pytest.fixture(params=["memory", "nats", "clustor"])
def lab(request: pytest.FixtureRequest) -> Lab:
    """Every backend in turn; a new one is a lab and a name here."""
    found: Lab = request.getfixturevalue(f"{request.param}_lab")
    return found
