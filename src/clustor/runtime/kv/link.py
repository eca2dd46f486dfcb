"""One connection of a KV client: requests out, replies in by their id."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from typing import Final, cast

import msgspec

from clustor.runtime.kv.stream import (
    KvOperation,
    Status,
    StreamViolation,
    encode_request,
    take_replies,
)
from clustor.runtime.peers.transport import Address

_HEAD_BYTES_MAX: Final = 8 << 10
_OPEN_SECONDS_MAX: Final = 2.0
_CLOSE_SECONDS_MAX: Final = 1.0
_ID_LIMIT: Final = 1 << 32


class LinkLost(Exception):
    """The connection ended before the answer came."""


class KvLink(asyncio.Protocol):
    """A connection after its upgrade. Replies find their request by id, in any order."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._transport: asyncio.Transport | None = None
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()
        self._waiting: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._streams: dict[int, asyncio.Queue[tuple[int, bytes] | None]] = {}
        self._next_id = 0
        self._staged: list[bytes] = []
        self._draining = False
        self._gone = asyncio.Event()

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext | None = None) -> KvLink:
        """Connect, under TLS where a context is given, and upgrade; raises OSError."""
        loop = asyncio.get_running_loop()
        link = cls(address)
        try:
            async with asyncio.timeout(_OPEN_SECONDS_MAX):
                await loop.create_connection(lambda: link, address.host, address.port, ssl=tls)
                await link._upgraded
        except BaseException as error:
            link.abort()  # a node that took the connection may still never answer it
            if isinstance(error, TimeoutError):
                raise OSError(f"no answer from {address}") from None
            raise
        return link

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._draining

    @property
    def is_gone(self) -> bool:
        """Whether the connection has ended."""
        return self._transport is None

    async def request(self, partition: int, operation: int, body: bytes) -> tuple[int, bytes]:
        """Send a request and wait for its one answer; raises LinkLost."""
        if self._transport is None:
            raise LinkLost
        request_id = self._take_id()
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        self._stage(encode_request(request_id, partition, operation, body))
        try:
            return await future
        finally:
            self._waiting.pop(request_id, None)
            self._close_if_drained()

    async def stream(
        self, partition: int, wanted: bytes
    ) -> AsyncGenerator[tuple[int, bytes], None]:
        """Watch; raises LinkLost when the connection ends."""
        if self._transport is None:
            raise LinkLost
        request_id = self._take_id()
        queue: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._streams[request_id] = queue
        self._stage(encode_request(request_id, partition, KvOperation.WATCH, wanted))
        try:
            while (event := await queue.get()) is not None:
                yield event
                if event[0] != Status.EVENTS:
                    return
            raise LinkLost
        finally:
            del self._streams[request_id]
            self._stage(encode_request(request_id, partition, KvOperation.CANCEL, b""))
            self._close_if_drained()

    def drain(self) -> None:
        """Take no new requests; close when the open ones are answered."""
        self._draining = True
        self._close_if_drained()

    def close(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.close()

    async def wait_closed(self) -> None:
        """Wait a little until the other end has heard of it: TLS says goodbye."""
        if self._transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS_MAX):
                    await self._gone.wait()

    def abort(self) -> None:
        """Drop the connection without waiting for the other side: it may be half-dead."""
        self._draining = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(
            f"GET /kv HTTP/1.1\r\nHost: {self.address}\r\n"
            "Connection: Upgrade\r\nUpgrade: clustor-kv\r\n\r\n".encode()
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._upgraded.done() and not self._take_head():
            return
        try:
            for request_id, status, body in take_replies(self._buffer):
                self._deliver(request_id, status, body)
        except StreamViolation:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._gone.set()
        if not self._upgraded.done():
            self._upgraded.set_exception(exc or ConnectionError(f"{self.address} hung up"))
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkLost())
        for queue in self._streams.values():
            queue.put_nowait(None)

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_BYTES_MAX:
                self.close()
            return False
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        if head.startswith(b"HTTP/1.1 101 "):
            self._upgraded.set_result(None)
            return True
        first = head.split(b"\r\n", 1)[0].decode("ascii", "replace")
        self._upgraded.set_exception(ConnectionError(f"{self.address} answered {first}"))
        self.close()
        return False

    def _deliver(self, request_id: int, status: int, body: bytes) -> None:
        future = self._waiting.get(request_id)
        if future is not None:
            if not future.done():
                future.set_result((status, body))
        elif (queue := self._streams.get(request_id)) is not None:
            queue.put_nowait((status, body))

    def _take_id(self) -> int:
        self._next_id = (self._next_id + 1) % _ID_LIMIT
        return self._next_id

    def _stage(self, request: bytes) -> None:
        """Let all requests of one turn of the loop leave in one write."""
        if not self._staged:
            asyncio.get_running_loop().call_soon(self._flush)
        self._staged.append(request)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._staged))
        self._staged.clear()

    def _close_if_drained(self) -> None:
        if self._draining and not self._waiting and not self._streams:
            self.close()


async def admin_addresses(address: Address, tls: ssl.SSLContext | None = None) -> list[Address]:
    """Ask a node for the admin addresses of its cluster; none where it does not answer."""
    with contextlib.suppress(OSError, TimeoutError, msgspec.DecodeError, ValueError, KeyError):
        async with asyncio.timeout(_OPEN_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
            try:
                writer.write(f"GET /status HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
                answer = await reader.read()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        status = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])
        return [_address(node["admin"]) for node in status["nodes"]]
    return []


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return Address(host, int(port))
