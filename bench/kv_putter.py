"""A load of puts on one connection: always so many in flight, no task or future for any."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol, cast

from clustor.kv import Key, Put, encode_command
from clustor.runtime.kv.stream import KvOperation, Status, encode_request, take_replies
from clustor.runtime.peers.transport import Address

_THROTTLED_SECONDS: Final = 0.05


class Putter(Protocol):
    """What the benchmark drives, whatever the system."""

    async def run(self, depth: int, seconds: float, value: bytes) -> list[float]:
        """Keep `depth` puts in flight for about `seconds`; return each one's seconds."""

    def close(self) -> None: ...


class LeaderLost(Exception):
    """The leader changed under the load: what was measured so far means nothing."""


class KvPutter(asyncio.Protocol):
    """A client of the KV stream that does nothing but put."""

    def __init__(self, address: Address, keys: int = 10_000) -> None:
        self._address = address
        self._keys = keys
        loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._buffer = bytearray()
        self._sent: dict[int, float] = {}
        self._latencies: list[float] = []
        self._next_id = 0
        self._until = 0.0
        self._value = b""
        self.throttled = 0
        """How often a put was held back because the log was behind; it came again."""

    @classmethod
    async def open(cls, address: Address, keys: int = 10_000) -> KvPutter:
        loop = asyncio.get_running_loop()
        _, putter = await loop.create_connection(
            lambda: cls(address, keys), address.host, address.port
        )
        await putter._ready
        return putter

    async def run(self, depth: int, seconds: float, value: bytes) -> list[float]:
        """Keep `depth` puts in flight for about `seconds`; return each one's seconds."""
        self._ended = asyncio.get_running_loop().create_future()
        self._latencies = []
        self._value = value
        self._until = time.perf_counter() + seconds
        self._put(depth)
        await self._ended
        return self._latencies

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(
            f"GET /kv HTTP/1.1\r\nHost: {self._address}\r\n"
            "Connection: Upgrade\r\nUpgrade: clustor-kv\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._ready.done():
            head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101"), head
            self._buffer = bytearray(rest)
            self._ready.set_result(None)
        replies = take_replies(self._buffer)
        now = time.perf_counter()
        for request_id, status, body in replies:
            if status == Status.THROTTLED:
                self.throttled += 1
                del self._sent[request_id]
                asyncio.get_running_loop().call_later(_THROTTLED_SECONDS, self._put_again)
                continue
            if status != Status.APPLIED:
                self._end(LeaderLost(f"{Status(status).name}: {body!r}"))
                return
            self._latencies.append(now - self._sent.pop(request_id))
        if now < self._until:
            self._put(sum(1 for _, status, _ in replies if status == Status.APPLIED))
        elif replies and not self._sent:
            self._end(None)

    def _put_again(self) -> None:
        if time.perf_counter() < self._until:
            self._put(1)
        elif not self._sent:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or LeaderLost("the node hung up"))

    def _put(self, count: int) -> None:
        now = time.perf_counter()
        requests: list[bytes] = []
        for _ in range(count):
            self._next_id += 1
            key = Key(b"bench-%d" % (self._next_id % self._keys))
            body = encode_command(Put(key, self._value))
            requests.append(encode_request(self._next_id, 1, KvOperation.COMMAND, body))
            self._sent[self._next_id] = now
        self._transport.write(b"".join(requests))

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
