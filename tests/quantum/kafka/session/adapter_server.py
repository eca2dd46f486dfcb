"""The real adapter behind a real socket on loopback, over `MemoryTopics`: no log, no other node."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from quantum.edge.ports import ConnectionPeer
from quantum.protocols.kafka.session.adapter import KafkaAdapter
from quantum.protocols.kafka.session.limits import KafkaLimits
from quantum.tenants.policy import TenantGuard
from tests.quantum.kafka.session.memory_topics import MemoryTopics


class FakeHost:
    """What an adapter asks of its node, driven by a test or by a loop."""

    def __init__(self) -> None:
        self.tick_ms = 0
        self.draining = False
        self.refused: list[tuple[str, str]] = []
        self.calls: list[Any] = []

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def clock_ms(self) -> int:
        return self.tick_ms

    def soon(self, call: Any) -> None:
        self.calls.append(call)

    def turn_soon(self) -> None:
        pass

    def note_refused(
        self, what: str, *, who: str, why: str, target: str = "", tenant: str = ""
    ) -> None:
        self.refused.append((what, why))


class TestTenant:
    """A tenant with one PRG, as the adapter sees it."""

    __test__ = False

    def __init__(self, topics: MemoryTopics) -> None:
        self.name = "dev"
        self.topics = topics
        self.shut = ""
        self.prg_count = 1
        self.guard = TenantGuard("dev", 0)
        self.sides: list[Any] = []


class AdapterBench:
    """An adapter with one tenant, turned by hand."""

    def __init__(self, limits: KafkaLimits | None = None) -> None:
        self.host = FakeHost()
        self.adapter = KafkaAdapter(self.host, limits or KafkaLimits(), os.urandom)  # type: ignore[arg-type]  # a fake at the port
        self.topics = MemoryTopics(self.host.now_ms)
        self.tenant = TestTenant(self.topics)
        self.adapter.host_tenant(self.tenant)  # type: ignore[arg-type]
        self.adapter.addresses["tcp"] = {1: ("127.0.0.1", 9092)}

    def turn(self, ms: int = 0) -> None:
        """Let what is due happen, and write."""
        self.host.tick_ms += ms
        self.topics.elapse()
        self.adapter.on_tick(self.host.tick_ms)
        while self.host.calls:
            calls, self.host.calls = self.host.calls, []
            for call in calls:
                call()
        self.adapter.flush()

    def connect(self) -> BenchWire:
        wire = BenchWire()
        wire.handler = self.adapter.new_connection()
        wire.handler.opened(wire, ConnectionPeer("tcp", "127.0.0.1:5555", "dev"))
        return wire


class BenchWire:
    """A wire whose other end is a list."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_open = True
        self.writable = True
        self.paused = False
        self.handler: Any = None

    def write(self, data: bytes) -> None:
        if self.is_open:
            self.written += data

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.handler.lost()

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class _Protocol(asyncio.Protocol):
    def __init__(self, server: AdapterServer) -> None:
        self._server = server
        self.writable = True

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._server.open.add(self)
        self._handler = self._server.bench.adapter.new_connection()
        self._handler.opened(self, ConnectionPeer("tcp", "127.0.0.1:1", "dev"))

    def data_received(self, data: bytes) -> None:
        self._handler.received(data)
        self._server.bench.turn()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._handler.writable_again()

    def connection_lost(self, _error: Any) -> None:
        self._server.open.discard(self)
        self._handler.lost()

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()


class AdapterServer:
    """The bench on a socket, in a thread of its own, for stock clients."""

    def __init__(self) -> None:
        self.bench = AdapterBench()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self.open: set[_Protocol] = set()
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._server.close()
        for each in list(self.open):
            each.abort()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _start(self) -> None:
        self._server = await self._loop.create_server(lambda: _Protocol(self), "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.bench.adapter.addresses["tcp"] = {1: ("127.0.0.1", self.port)}
        self._tick()

    def _tick(self) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        self.bench.host.tick_ms = now_ms
        self.bench.turn()
        self._loop.call_later(0.01, self._tick)


@contextmanager
def serving() -> Iterator[AdapterServer]:
    with AdapterServer() as server:
        yield server
