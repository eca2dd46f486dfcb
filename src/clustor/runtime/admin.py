"""The admin port: a small, strict HTTP/1.1 for status and commands, and the KV stream's upgrade.

One request per connection, GET or a POST of a little JSON, which must be complete within a few
seconds. In development it is plaintext and bound to loopback (ruling C15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias, cast

from clustor import wire as w
from clustor.runtime.admin_commands import AdminCommands, Answer
from clustor.runtime.errors import PortTaken
from clustor.runtime.http_head import HEAD_BYTES_MAX, BadRequest, Head, parse_head, respond
from clustor.runtime.kv_service import KvService
from clustor.runtime.kv_stream import StreamViolation, take_requests
from clustor.runtime.transport import Address

REQUEST_SECONDS_MAX: Final = 5.0
OPEN_REQUESTS_MAX: Final = 1 << 16
CONNECTIONS_MAX: Final = 4096
UPGRADE: Final = "clustor-kv"

_SWITCHING: Final = (
    f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n"
).encode()

StatusOf: TypeAlias = Callable[[], object]


class Pages(Protocol):
    """Pages of a service; None says that a page is not one of them.

    A page that must be read from disk comes later: a future that is never an exception.
    """

    def get(self, target: str, /) -> Answer | asyncio.Future[Answer] | None: ...
    def post(self, target: str, /) -> Answer | None: ...


class AdminConnection(asyncio.Protocol):
    """One connection: a head, then an answer, or the KV stream for the rest of its life."""

    __slots__ = (
        "_buffer",
        "_head",
        "_number",
        "_open",
        "_reading",
        "_server",
        "_staged",
        "_timeout",
        "_transport",
        "_writable",
    )

    def __init__(self, server: AdminServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: Head | None = None  # of a request whose body still comes
        self._number: int | None = None  # in the KV service, once upgraded
        self._staged: list[bytes] = []
        self._open = 0
        self._reading = True
        self._writable = True
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.admit(self):
            self._finish(503, {"error": "too many connections"})
            return
        loop = asyncio.get_running_loop()
        late = {"error": "the request did not come in time"}
        self._timeout = loop.call_later(REQUEST_SECONDS_MAX, self._finish, 408, late)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._number is not None:
            self._on_stream(self._number)
        elif self._head is not None:
            self._on_body(self._head)
        else:
            self._on_head()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._stop_timeout()
        self._server.forget(self)
        self._transport = None
        if self._number is not None:
            self._server.kv_left(self._number)

    def pause_writing(self) -> None:
        self._writable = False
        self._pace()

    def resume_writing(self) -> None:
        self._writable = True
        self._pace()
        if self._number is not None and self._server.kv is not None:
            self._server.kv.on_writable(self._number)

    @property
    def writable(self) -> bool:
        """Whether the client takes what is written."""
        return self._writable and self._transport is not None

    def close(self) -> None:
        """End the connection after what was written."""
        if self._transport is not None:
            self._transport.close()

    # HTTP

    def _on_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 and len(self._buffer) <= HEAD_BYTES_MAX:
            return
        if end < 0 or end > HEAD_BYTES_MAX:
            self._finish(431, {"error": "the head is too large"})
            return
        try:
            head = parse_head(bytes(self._buffer[:end]))
        except BadRequest as error:
            self._finish(error.code, {"error": str(error)})
            return
        del self._buffer[: end + 4]
        self._on_body(head)

    def _on_body(self, head: Head) -> None:
        self._head = head
        if len(self._buffer) < head.body_bytes:
            return
        self._head = None
        self._stop_timeout()
        if head.method == "POST":
            self._on_command(head)
        else:
            self._on_request(head)

    def _on_command(self, head: Head) -> None:
        commands = self._server.commands
        if commands is None:
            self._finish(503, {"error": "this node takes no commands: it is in repair mode"})
        elif len(self._buffer) > head.body_bytes:
            self._finish(400, {"error": "more than the body"})
        else:
            answer = self._server.pages.post(head.path) if self._server.pages else None
            self._finish(*(answer or commands.carry_out(head.path, bytes(self._buffer))))

    def _on_request(self, head: Head) -> None:
        kv = self._server.kv
        answer = self._server.pages.get(head.path) if self._server.pages else None
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(lambda ready: self._finish(*ready.result()))
        elif answer is not None:
            self._finish(*answer)
        elif head.path == "/status":
            self._finish(200, self._server.status())
        elif head.path == "/.well-known/wide-int-registry":
            self._finish(200, w.canonical(w.wide_int_registry()))
        elif head.path != "/kv":
            self._finish(404, {"error": "no such page"})
        elif head.headers.get("upgrade", "").lower() != UPGRADE:
            self._finish(426, {"error": f"this page wants Upgrade: {UPGRADE}"})
        elif kv is None:
            self._finish(503, {"error": "this node serves no clients: it is in repair mode"})
        else:
            self._upgrade(kv)

    def _upgrade(self, kv: KvService) -> None:
        assert self._transport is not None
        self._number = kv.joined(self)
        self._transport.write(_SWITCHING)
        if self._buffer:
            self._on_stream(self._number)

    def _finish(self, code: int, content: object) -> None:
        self._stop_timeout()
        if self._transport is not None:
            self._transport.write(respond(code, content))
            self._transport.close()

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    # The KV stream

    def _on_stream(self, number: int) -> None:
        kv = self._server.kv
        assert kv is not None
        try:
            requests = take_requests(self._buffer)
            if requests:
                self._open += len(requests)
                kv.on_requests(number, requests)
                self._pace()
        except StreamViolation:
            if self._transport is not None:
                self._transport.abort()

    def stage(self, reply: bytes) -> None:
        """Let a reply leave with the next flush."""
        self._staged.append(reply)

    def release(self, count: int) -> None:
        """Count requests that are over."""
        self._open -= count
        if not self._reading:
            self._pace()

    def flush(self) -> None:
        """Write what is staged, at once."""
        if self._staged and self._transport is not None:
            self._transport.write(b"".join(self._staged))
        self._staged.clear()

    def _pace(self) -> None:
        """Read on only while the client takes its replies and does not ask for too much."""
        wanted = self._writable and self._open < OPEN_REQUESTS_MAX
        if self._transport is None or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


class AdminServer:
    """The admin port of one node; `kv` and `commands` are None in repair mode."""

    def __init__(
        self, status: StatusOf, kv: KvService | None, commands: AdminCommands | None = None
    ) -> None:
        self.status = status
        self.kv = kv
        self.commands = commands
        self.pages: Pages | None = None
        """What a service shows beside."""
        self._connections: set[AdminConnection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> None:
        """Take connections; raises PortTaken."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: AdminConnection(self), address.host, address.port, reuse_address=True
            )
        except OSError as error:
            raise PortTaken(
                "cannot listen for clients", address=str(address), cause=error
            ) from error

    def admit(self, connection: AdminConnection) -> bool:
        """Take a connection in, unless there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= CONNECTIONS_MAX

    def forget(self, connection: AdminConnection) -> None:
        self._connections.discard(connection)

    def kv_left(self, number: int) -> None:
        if self.kv is not None:
            self.kv.left(number)

    def close(self) -> None:
        """Stop listening, and end every connection after what was written."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
