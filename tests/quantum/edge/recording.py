"""A handler that remembers what happened to it, and a listener full of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from quantum.edge.admission import AdmissionLimits
from quantum.edge.listener import Listener, ListenerConnection
from quantum.edge.lobby import EdgeLimits, Lobby
from quantum.edge.ports import ConnectionPeer, NewHandler, WirePort

HOST = "127.0.0.1"


@dataclass
class Recorder:
    """One handler. `answer` is what it writes for what it received."""

    answer: Callable[[bytes], bytes] = bytes.upper
    events: list[str] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    wire: WirePort | None = None
    peer: ConnectionPeer | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    says_goodbye: bool = True

    def opened(self, wire: WirePort, peer: ConnectionPeer) -> None:
        assert self.wire is None
        self.events.append("opened")
        self.wire, self.peer = wire, peer

    def received(self, data: bytes) -> None:
        assert self.wire is not None and "lost" not in self.events
        self.events.append("received")
        self.data += data
        if answer := self.answer(data):
            self.wire.write(answer)

    def writable_again(self) -> None:
        self.events.append("writable_again")
        self.drained.set()

    def expelled(self, why: str) -> None:
        assert self.wire is not None and "lost" not in self.events
        self.events.append(f"expelled: {why}")
        if not self.says_goodbye:
            return
        self.wire.write(b"goodbye")
        self.wire.close()

    def lost(self) -> None:
        assert self.events.count("opened") == 1 and "lost" not in self.events
        self.events.append("lost")
        self.ended.set()


class Handlers:
    """Makes recorders, and keeps them."""

    def __init__(self, answer: Callable[[bytes], bytes] = bytes.upper) -> None:
        self.made: list[Recorder] = []
        self._answer = answer

    def __call__(self) -> Recorder:
        recorder = Recorder(self._answer)
        self.made.append(recorder)
        return recorder


def limits(
    *,
    connections_max: int = 100,
    per_second: float = 10_000.0,
    burst: int = 100,
    waiting_max: int = 10,
    first_answer_seconds: float = 30.0,
    close_seconds: float = 30.0,
) -> EdgeLimits:
    return EdgeLimits(
        admission=AdmissionLimits(connections_max, per_second, burst, waiting_max),
        first_answer_seconds=first_answer_seconds,
        close_seconds=close_seconds,
        turn_seconds=0.01,
    )


Stream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Clients:
    """Raw clients of one listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._writers: list[asyncio.StreamWriter] = []

    async def __call__(self, **options: Any) -> Stream:
        """Open a connection that is closed with the listener, at the latest."""
        reader, writer = await asyncio.open_connection(HOST, self._listener.port, **options)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def listening(
    new_handler: NewHandler,
    edge_limits: EdgeLimits | None = None,
    *,
    connection: Callable[[Listener], ListenerConnection] = ListenerConnection,
) -> AsyncIterator[tuple[Listener, Clients]]:
    """A listener on a free port of loopback; nothing of it is left afterwards."""
    lobby = Lobby(edge_limits or limits())
    listener = Listener("mqtt", lobby, new_handler, tenant="dev", connection=connection)
    await listener.start(HOST, 0)
    clients = Clients(listener)
    try:
        yield listener, clients
    finally:
        await clients.close()
        await listener.close()
        assert lobby.present == 0
        lobby.close()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Read to the end, however the connection ends."""
    try:
        return await asyncio.wait_for(reader.read(-1), 180)
    except ConnectionResetError:
        return b""
