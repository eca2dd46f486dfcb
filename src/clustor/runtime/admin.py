"""The admin port: a small, strict HTTP/1.1 for status and commands, and the KV stream's upgrade.

One request per connection, its body at most a mebibyte of JSON, which must be complete within a
few seconds. In development it is plaintext and bound to loopback (ruling C15); elsewhere it is
TLS, and without a certificate nobody sees anything but a refusal.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final, Protocol, TypeAlias, cast

from clustor import wire as w
from clustor.runtime.admin_commands import AdminCommands, Answer
from clustor.runtime.containment import contained, guarded
from clustor.runtime.errors import CertificateUnreadable, PortTaken
from clustor.runtime.http_head import (
    HEAD_BYTES_MAX,
    BadRequest,
    Head,
    Request,
    Response,
    parse_head,
    refusal,
    respond,
)
from clustor.runtime.kv_service import KvService
from clustor.runtime.kv_stream import StreamViolation, take_requests
from clustor.runtime.transport import Address
from clustor.runtime.trust import ChainReader, Shown

REQUEST_SECONDS_MAX: Final = 5.0
TAKING_SECONDS_MAX: Final = 30.0  # for the answer: who does not read it must not hold it in memory
OPEN_REQUESTS_MAX: Final = 1 << 16
CONNECTIONS_MAX: Final = 4096
OPEN_ANSWERS_MAX: Final = 256
UPGRADE: Final = "clustor-kv"
PLACE: Final = "admin"
"""Where an error while one connection is served is counted."""

_SWITCHING: Final = (
    f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n"
).encode()

_TLS_HANDSHAKE: Final = 0x16

StatusOf: TypeAlias = Callable[[], object]


Later: TypeAlias = Callable[[Callable[[int, object], None]], None]
"""An answer that is made bit by bit: it is given a function to call with the code and content."""


class Pages(Protocol):
    """Pages of a service; None says that a page is not one of them.

    A page that must be read from disk comes later: a future that is never an exception.
    """

    def get(self, target: str, /) -> Answer | asyncio.Future[Answer] | Later | None: ...
    def post(self, target: str, /) -> Answer | None: ...


class Api(Protocol):
    """Pages that take their time, and the guard of all others.

    `take` returns None for what is none of its business; what it returns is awaited, and None
    from that lets the request through to the other pages.
    """

    def take(self, request: Request, /) -> Coroutine[None, None, Response | None] | None: ...


class Calls(Protocol):
    """Pages that are answered later; None says that a page is not one of them."""

    def post(self, target: str, body: bytes, /) -> Awaitable[Answer] | None: ...


class AdminConnection(asyncio.Protocol):
    """One connection: a head, then an answer, or the KV stream for the rest of its life."""

    __slots__ = (
        "_answering",
        "_buffer",
        "_certificate",
        "_encrypted",
        "_head",
        "_number",
        "_open",
        "_reading",
        "_server",
        "_shown",
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
        self._encrypted = False
        self._certificate: bytes | None = None
        self._shown: Shown | None = None
        self._answering = False

    @guarded(PLACE)
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tls = transport.get_extra_info("ssl_object")
        self._encrypted = tls is not None
        if tls is not None:
            self._certificate = tls.getpeercert(binary_form=True)
            try:
                self._shown = self._server.chains.shown_by(tls)
            except CertificateUnreadable as error:
                self._refuse(403, str(error))
                return
        if not self._server.admit(self):
            self._refuse(503, "too many connections")
            return
        loop = asyncio.get_running_loop()
        late = "the request did not come in time"
        self._timeout = loop.call_later(REQUEST_SECONDS_MAX, self._refuse, 408, late)

    @guarded(PLACE)
    def data_received(self, data: bytes) -> None:
        if self._answering:
            return  # one request per connection
        self._buffer += data
        if self._number is not None:
            self._on_stream(self._number)
        elif self._head is not None:
            self._on_body(self._head)
        else:
            self._on_head()

    @guarded(PLACE)
    def connection_lost(self, _exc: Exception | None) -> None:
        self._stop_timeout()
        self._server.forget(self)
        self._transport = None
        if self._number is not None:
            self._server.kv_left(self._number)

    def pause_writing(self) -> None:
        self._writable = False
        self._pace()

    @guarded(PLACE)
    def resume_writing(self) -> None:
        self._writable = True
        self._pace()
        if self._number is not None and self._server.kv is not None:
            self._server.kv.on_writable(self._number)

    @property
    def shown(self) -> Shown | None:
        """What the client's certificate was, where it had one; None as soon as it is leaving."""
        leaves = self._transport is None or self._transport.is_closing()
        return None if leaves else self._shown

    @property
    def writable(self) -> bool:
        """Whether the client takes what is written."""
        return self._writable and self._transport is not None

    def close(self) -> None:
        """End the connection after what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def whom(self) -> str:
        """Name the client by its address."""
        address = self._transport.get_extra_info("peername") if self._transport else None
        return f"admin {address[0] if address else ''}"

    # HTTP

    def _on_head(self) -> None:
        if self._buffer[0] == _TLS_HANDSHAKE:  # at once: it would wait for an answer to that
            self._refuse(400, "this port speaks plaintext")
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 and len(self._buffer) <= HEAD_BYTES_MAX:
            return
        if end < 0 or end > HEAD_BYTES_MAX:
            self._refuse(431, "the head is too large")
            return
        try:
            head = parse_head(bytes(self._buffer[:end]))
        except BadRequest as error:
            self._refuse(error.code, str(error))
            return
        del self._buffer[: end + 4]
        self._on_body(head)

    def _on_body(self, head: Head) -> None:
        self._head = head
        if len(self._buffer) < head.body_bytes:
            return
        self._head = None
        self._stop_timeout()
        if head.method != "GET" and len(self._buffer) > head.body_bytes:
            self._refuse(400, "more than the body")
            return
        api, request = self._server.api, self._request(head)
        answer = api.take(request) if api is not None else None
        if answer is not None:
            if not self._begin(self._answer(head, answer)):
                answer.close()
        else:
            self._on_page(head)

    def _begin(self, work: Coroutine[None, None, None]) -> bool:
        self._answering = self._server.begin(work)
        if not self._answering:
            self._refuse(503, "too many requests at once")
        return self._answering

    async def _answer_call(self, later: Awaitable[Answer]) -> None:
        self.finish(*(await later))

    def _request(self, head: Head) -> Request:
        body = bytes(self._buffer[: head.body_bytes])
        return Request(
            head.method, head.path, head.headers, body, self._encrypted, self._certificate
        )

    async def _answer(self, head: Head, answer: Coroutine[None, None, Response | None]) -> None:
        response = await answer
        if response is not None:
            self.finish(response.code, response.content, response.headers)
            return
        self._answering = False
        self._on_page(head, guarded=True)

    def _on_page(self, head: Head, *, guarded: bool = False) -> None:
        if self._encrypted and not guarded:
            self._refuse(401, "nothing here is for everybody")
        elif head.method == "GET":
            self._on_request(head)
        elif head.method == "POST":
            self._on_command(head)
        else:
            self._refuse(405, "GET and POST only")

    def _on_command(self, head: Head) -> None:
        commands = self._server.commands
        if commands is None:
            self.finish(503, {"error": "this node takes no commands: it is in repair mode"})
        else:
            body = bytes(self._buffer)
            later = self._server.calls.post(head.path, body) if self._server.calls else None
            if later is not None:
                self._begin(self._answer_call(later))
                return
            answer = self._server.pages.post(head.path) if self._server.pages else None
            self.finish(*(answer or commands.carry_out(head.path, body)))

    def _on_request(self, head: Head) -> None:
        kv = self._server.kv
        answer = self._server.find(head.path)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(self._on_ready)
        elif callable(answer):
            answer(self.finish)
        elif answer is not None:
            self.finish(*answer)
        elif head.path == "/status":
            self.finish(200, self._server.status())
        elif head.path == "/.well-known/wide-int-registry":
            self.finish(200, w.canonical(w.wide_int_registry()))
        elif head.path != "/kv":
            self.finish(404, {"error": "no such page"})
        elif head.headers.get("upgrade", "").lower() != UPGRADE:
            self.finish(426, {"error": f"this page wants Upgrade: {UPGRADE}"})
        elif kv is None:
            self.finish(503, {"error": "this node serves no clients: it is in repair mode"})
        else:
            self._upgrade(kv)

    @guarded(PLACE)
    def _on_ready(self, ready: asyncio.Future[Answer]) -> None:
        self.finish(*ready.result())

    def _upgrade(self, kv: KvService) -> None:
        assert self._transport is not None
        self._number = kv.joined(self)
        self._transport.write(_SWITCHING)
        if self._buffer:
            self._on_stream(self._number)

    @guarded(PLACE)
    def finish(self, code: int, content: object, headers: Mapping[str, str] | None = None) -> None:
        """Answer, and end the connection."""
        self._stop_timeout()
        if self._transport is not None:
            self._transport.write(respond(code, content, headers))
            self._transport.close()
            loop = asyncio.get_running_loop()
            self._timeout = loop.call_later(TAKING_SECONDS_MAX, self._transport.abort)

    def _refuse(self, code: int, message: str) -> None:
        self.finish(code, refusal(code, message))

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

    @guarded(PLACE)
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
        self.calls: Calls | None = None
        """What the control plane is asked for."""
        self.api: Api | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self.telemetry: Pages | None = None
        self._connections: set[AdminConnection] = set()
        self.chains = ChainReader()
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address, tls: ssl.SSLContext | None = None) -> None:
        """Take connections, under TLS where a context is given; raises PortTaken."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: AdminConnection(self),
                address.host,
                address.port,
                ssl=tls,
                reuse_address=True,
            )
        except OSError as error:
            raise PortTaken(
                "cannot listen for clients", address=str(address), cause=error
            ) from error

    def begin(self, answer: Coroutine[None, None, None]) -> bool:
        """Let an answer take its time, unless too many do already."""
        if len(self._answers) >= OPEN_ANSWERS_MAX:
            answer.close()
            return False
        task = contained.spawn(PLACE, answer)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        return True

    def find(self, target: str) -> Answer | asyncio.Future[Answer] | Later | None:
        """Return a page of the node's telemetry or of a service, or None."""
        for pages in (self.telemetry, self.pages):
            answer = None if pages is None else pages.get(target)
            if answer is not None:
                return answer
        return None

    def admit(self, connection: AdminConnection) -> bool:
        """Take a connection in, unless there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= CONNECTIONS_MAX

    def forget(self, connection: AdminConnection) -> None:
        self._connections.discard(connection)

    def end_where(self, refuses: Callable[[Shown], bool]) -> list[Shown]:
        """End the connections whose certificate is refused now, streams above all; name them."""
        ended: list[Shown] = []
        for connection in list(self._connections):
            shown = connection.shown
            if shown is not None and refuses(shown):
                ended.append(shown)
                connection.abort()
        return ended

    def kv_left(self, number: int) -> None:
        if self.kv is not None:
            self.kv.left(number)

    def close(self) -> None:
        """Stop listening, and end every connection after what was written."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close()
