"""A three-node etcd beside ours, and a client that puts over its gRPC as fast as it answers.

The client speaks just enough HTTP/2 for unary calls on one connection: literal headers, data in
one frame, flow control in both directions. Its own CPU is not counted for etcd.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self, cast

from tests.clustor.runtime.waiting import free_base_port

_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_WIDE_WINDOW: Final = (1 << 31) - 1
_START_WINDOW: Final = 65_535


class EtcdCluster:
    """Three etcd processes on loopback; nothing where etcd is not installed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._binary = shutil.which("etcd")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._base = free_base_port(9) if self._binary else 0

    @property
    def installed(self) -> bool:
        return self._binary is not None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def __enter__(self) -> Self:
        names = {number: f"http://127.0.0.1:{self._peer(number)}" for number in (1, 2, 3)}
        everyone = ",".join(f"n{number}={url}" for number, url in names.items())
        for number, url in names.items():
            if self._binary is None:
                break
            client = f"http://127.0.0.1:{self._client(number)}"
            self._processes.append(
                subprocess.Popen(
                    [
                        *(self._binary, "--name", f"n{number}"),
                        *("--data-dir", str(self._root / f"n{number}")),
                        *("--listen-peer-urls", url, "--initial-advertise-peer-urls", url),
                        *("--listen-client-urls", client, "--advertise-client-urls", client),
                        *("--initial-cluster", everyone, "--initial-cluster-state", "new"),
                        *("--log-level", "error"),
                    ],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(20)

    def wait_for_leader(self) -> int:
        """Return the client port of the node that leads."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for number in (1, 2, 3):
                port = self._client(number)
                try:
                    if asyncio.run(_leads(port)):
                        return port
                except (OSError, TimeoutError, RuntimeError):
                    continue
            time.sleep(0.1)
        raise TimeoutError("etcd has no leader")

    def _peer(self, number: int) -> int:
        return self._base + 10 * (number + 3)

    def _client(self, number: int) -> int:
        return self._base + 10 * (number + 3) + 1


async def _leads(port: int) -> bool:
    """Ask Maintenance.Status whether the node's own id is the leader's."""
    client = await EtcdPutter.open(port, path="/etcdserverpb.Maintenance/Status")
    try:
        reply = await asyncio.wait_for(client.call(b""), 5)
    finally:
        client.close()
    status = _fields(reply)
    own = _fields(cast("bytes", status.get(1, b""))).get(2)  # header.member_id
    return own is not None and own == status.get(4)  # leader


class EtcdPutter(asyncio.Protocol):
    """Unary calls on one HTTP/2 connection, many at once."""

    def __init__(self, path: str) -> None:
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._answer: asyncio.Future[bytes] = loop.create_future()
        self._buffer = bytearray()
        self._head = _request_head(path)
        self._next_stream = 1
        self._sent: dict[int, float] = {}
        self._bodies: dict[int, bytes] = {}
        self._window = _START_WINDOW
        self._waiting: list[bytes] = []
        self._received = 0
        self._latencies: list[float] = []
        self._until = 0.0
        self._value = b""
        self._putting = False

    @classmethod
    async def open(cls, port: int, *, path: str = "/etcdserverpb.KV/Put") -> EtcdPutter:
        loop = asyncio.get_running_loop()
        _, putter = await loop.create_connection(lambda: cls(path), "127.0.0.1", port)
        return putter

    async def call(self, message: bytes) -> bytes:
        """Make one call and return its reply's message."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(self._request(message))
        return await self._answer

    async def run(self, depth: int, seconds: float, value: bytes) -> list[float]:
        """Keep `depth` puts in flight for about `seconds`; return each one's seconds."""
        self._ended = asyncio.get_running_loop().create_future()
        self._latencies = []
        self._putting = True
        self._value = value
        self._until = time.perf_counter() + seconds
        self._put(depth)
        await self._ended
        return self._latencies

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # HEADER_TABLE_SIZE 0: what the server sends needs no memory; INITIAL_WINDOW_SIZE large.
        settings = bytes.fromhex("000100000000") + b"\x00\x04" + _WIDE_WINDOW.to_bytes(4, "big")
        wide = (_WIDE_WINDOW - _START_WINDOW).to_bytes(4, "big")
        self._transport.write(
            _PREFACE + _frame(_SETTINGS, 0, 0, settings) + _frame(_WINDOW, 0, 0, wide)
        )

    def connection_lost(self, exc: Exception | None) -> None:
        error = exc or ConnectionError("etcd hung up")
        for future in (self._ended, self._answer):
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen: nobody may be waiting for it

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        done = 0
        position, view = 0, bytes(self._buffer)
        while position + 9 <= len(view):
            length = int.from_bytes(view[position : position + 3], "big")
            if position + 9 + length > len(view):
                break
            kind, flags = view[position + 3], view[position + 4]
            stream = int.from_bytes(view[position + 5 : position + 9], "big") & 0x7FFFFFFF
            done += self._on_frame(kind, flags, stream, view[position + 9 : position + 9 + length])
            position += 9 + length
        del self._buffer[:position]
        if done:
            self._on_done(done)

    def _on_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> int:
        """Handle a frame; return how many calls it ended."""
        if kind == _DATA:
            self._bodies[stream] = self._bodies.get(stream, b"") + payload
            self._received += len(payload)
            if self._received > 1 << 20:
                grown = self._received.to_bytes(4, "big")
                self._transport.write(_frame(_WINDOW, 0, 0, grown))
                self._received = 0
        elif kind == _SETTINGS and not flags & _ACK:
            self._transport.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW and stream == 0:
            self._window += int.from_bytes(payload, "big")
            self._send_waiting()
        elif kind in (_RST, _GOAWAY):
            raise RuntimeError("etcd refused a call")
        return 1 if flags & _END_STREAM and kind in (_DATA, _HEADERS) and self._end(stream) else 0

    def _end(self, stream: int) -> bool:
        began = self._sent.pop(stream, None)
        body = self._bodies.pop(stream, b"")
        if began is None:
            return False
        assert len(body) >= 5, "a call without a reply"
        self._latencies.append(time.perf_counter() - began)
        if not self._answer.done():
            self._answer.set_result(body[5:])
        return True

    def _on_done(self, done: int) -> None:
        if not self._putting:
            return
        if time.perf_counter() < self._until:
            self._put(done)
        elif not self._sent and not self._ended.done():
            self._putting = False
            self._ended.set_result(None)

    def _put(self, count: int) -> None:
        for _ in range(count):
            key = b"bench-%d" % (self._next_stream // 2 % 10_000)
            message = b"\x0a" + _varint(len(key)) + key
            message += b"\x12" + _varint(len(self._value)) + self._value
            self._waiting.append(self._request(message))
        self._send_waiting()

    def _send_waiting(self) -> None:
        """Send what the connection's window allows; streams have windows of their own size."""
        sent: list[bytes] = []
        counted = 9 + len(self._head) + 9  # frame heads and headers are not flow-controlled
        while self._waiting and self._window >= len(self._waiting[0]) - counted:
            self._window -= len(self._waiting[0]) - counted
            sent.append(self._waiting.pop(0))
        if sent:
            self._transport.write(b"".join(sent))

    def _request(self, message: bytes) -> bytes:
        stream = self._next_stream
        self._next_stream += 2
        self._sent[stream] = time.perf_counter()
        body = b"\x00" + len(message).to_bytes(4, "big") + message
        return _frame(_HEADERS, _END_HEADERS, stream, self._head) + _frame(
            _DATA, _END_STREAM, stream, body
        )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def _request_head(path: str) -> bytes:
    """Encode the headers of a call as literals that are never indexed."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "etcd",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    return b"".join(
        b"\x10" + _hpack(name.encode()) + _hpack(value.encode()) for name, value in headers.items()
    )


def _hpack(text: bytes) -> bytes:
    assert len(text) < 127
    return bytes((len(text),)) + text


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _fields(message: bytes) -> dict[int, int | bytes]:
    """Read a protobuf message's fields of the two kinds that we need."""
    found: dict[int, int | bytes] = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(message):
        tag = varint()
        if tag & 7 == 0:
            found[tag >> 3] = varint()
        elif tag & 7 == 2:
            length = varint()
            found[tag >> 3] = message[position : position + length]
            position += length
        else:
            raise RuntimeError("an unexpected kind of field")
    return found
