"""Buckets of every backend, made the same way."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest

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


@pytest.fixture(params=["memory", "nats"])
def lab(request: pytest.FixtureRequest) -> Lab:
    """Every backend in turn; a new one is a lab and a name here."""
    found: Lab = request.getfixturevalue(f"{request.param}_lab")
    return found
