"""The admin port: a small, strict HTTP/1.1 for status and commands, and the KV stream's upgrade.

One request per connection, its body at most a mebibyte of JSON, which must be complete within a
few seconds, the TLS handshake included. In development it is plaintext and bound to loopback
(ruling C15); elsewhere it is TLS, and without a certificate nobody sees anything but a refusal.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final, cast

from clustor import wire as w
from clustor.runtime.admin.commands import AdminCommands, Answer
from clustor.runtime.admin.http import (
    BadRequest,
    Head,
    HttpRequestReader,
    Request,
    Response,
    check_origin,
    refusal,
    respond,
)
from clustor.runtime.admin.plaintext import peer_address, require_loopback
from clustor.runtime.admin.ports import Calls, Later, PagePort, Pages, StatusOf
from clustor.runtime.containment import contained, end_alone, guarded
from clustor.runtime.errors import CertificateUnreadable, PeerRefused, PortTaken
from clustor.runtime.kv.service import KvService
from clustor.runtime.kv.stream import StreamViolation, take_requests
from clustor.runtime.peers.connection_gate import ConnectionGate, GateLimits
from clustor.runtime.peers.tls import TlsPipe
from clustor.runtime.peers.transport import Address
from clustor.runtime.pki.peer_trust import ChainReader, Shown

REQUEST_SECONDS_MAX: Final = 5.0
TAKING_SECONDS_MAX: Final = 30.0  # for the answer: who does not read it must not hold it in memory
OPEN_REQUESTS_MAX: Final = 1 << 16
GATE: Final = GateLimits(connections_max=4096, half_open_max=512)
OPEN_ANSWERS_MAX: Final = 256
UPGRADE: Final = "clustor-kv"
PLACE: Final = "admin"
"""Where an error while one connection is served is counted."""

_SWITCHING: Final = (
    f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n\r\n"
).encode()

_TLS_HANDSHAKE: Final = 0x16

journal = logging.getLogger("clustor.admin")


class AdminConnection(asyncio.Protocol):
    """One connection: a request, then an answer, or the KV stream for the rest of its life."""

    __slots__ = (
        "_answering",
        "_certificate",
        "_number",
        "_open",
        "_pipe",
        "_reader",
        "_reading",
        "_server",
        "_shown",
        "_staged",
        "_stream",
        "_timeout",
        "_transport",
        "_writable",
    )

    def __init__(self, server: AdminServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._pipe: TlsPipe | None = None
        """None where the port is plaintext."""
        self._reader: HttpRequestReader | None = HttpRequestReader()
        """None as soon as the request is whole, or refused: there is one on a connection."""
        self._number: int | None = None  # in the KV service, once upgraded
        self._stream = bytearray()
        self._staged: list[bytes] = []
        self._open = 0
        self._reading = True
        self._writable = True
        self._timeout: asyncio.TimerHandle | None = None
        self._certificate: bytes | None = None
        self._shown: Shown | None = None
        self._answering = False

    @guarded(PLACE)
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._server.tls is not None:
            self._pipe = TlsPipe(self._server.tls, server_side=True)
        loop = asyncio.get_running_loop()
        self._timeout = loop.call_later(REQUEST_SECONDS_MAX, self._late)
        self._server.admit(self, peer_address(transport))

    @guarded(PLACE)
    def data_received(self, data: bytes) -> None:
        if self._pipe is not None:
            try:
                data = self._decrypt(self._pipe, data)
            except PeerRefused as error:
                journal.debug("refused a TLS connection: %s", error)
                self._write_out(self._pipe)  # the alert that says so
                self.close()
                return
            except CertificateUnreadable as error:
                self._refuse(403, str(error))
                return
        if data and not self._answering:  # one request per connection
            self._take(data)
        if self._pipe is not None and self._pipe.ended and not self._answering:
            self.close()

    def _take(self, data: bytes) -> None:
        if self._number is not None:
            self._stream += data
            self._on_stream(self._number)
        elif self._reader is not None:
            self._on_request_bytes(self._reader, data)

    def _decrypt(self, pipe: TlsPipe, data: bytes) -> bytes:
        was_established = pipe.established
        plain = pipe.receive(data)
        self._write_out(pipe)
        if pipe.established and not was_established:
            self._certificate = pipe.certificate()
            self._shown = pipe.shown(self._server.chains)
        return plain

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
        if self._transport is not None and not self._transport.is_closing():
            if self._pipe is not None:
                self._pipe.end()
                self._write_out(self._pipe)
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def whom(self) -> str:
        """Name the client by its address."""
        return f"admin {peer_address(self._transport)}" if self._transport is not None else ""

    # HTTP

    def _on_request_bytes(self, reader: HttpRequestReader, data: bytes) -> None:
        if data[0] == _TLS_HANDSHAKE and reader.head is None and self._pipe is None:
            self._refuse(400, "this port speaks plaintext")  # at once: it would wait for more
            return
        try:
            is_whole = reader.receive(data)
            if reader.head is not None:
                self._check(reader.head)
        except BadRequest as error:
            self._refuse(error.code, str(error))
            return
        if is_whole:
            self._on_request_whole(reader)

    def _check(self, head: Head) -> None:
        """Refuse before the body is held. Raises BadRequest."""
        check_origin(head, self._server.host, encrypted=self._pipe is not None)
        if self._pipe is not None and self._certificate is None and head.body_bytes:
            raise BadRequest(401, "nothing here is for everybody")

    def _on_request_whole(self, reader: HttpRequestReader) -> None:
        assert reader.head is not None
        head, self._reader = reader.head, None
        body, behind = reader.take()
        self._stop_timeout()
        self._server.opened(self)
        if head.method != "GET" and behind:
            self._refuse(400, "more than the body")
            return
        self._stream += behind
        encrypted = self._pipe is not None
        request = Request(head.method, head.path, head.headers, body, encrypted, self._certificate)
        api = self._server.api
        answer = api.take(request) if api is not None else None
        if answer is None:
            self._on_page(request)
        elif not self._begin(self._answer(request, answer)):
            answer.close()

    def _begin(self, work: Coroutine[None, None, None]) -> bool:
        self._answering = self._server.begin(self._until_answered(work))
        if not self._answering:
            work.close()
            self._refuse(503, "too many requests at once")
        return self._answering

    async def _until_answered(self, work: Coroutine[None, None, None]) -> None:
        """See an answer through: an error on the way ends the connection that waits for it."""
        try:
            await work
        except Exception as error:  # noqa: BLE001
            end_alone(PLACE, self, error)

    async def _answer_call(self, later: Awaitable[Answer]) -> None:
        self.finish(*(await later))

    async def _answer(
        self, request: Request, answer: Coroutine[None, None, Response | None]
    ) -> None:  # fmt: skip
        response = await answer
        if response is not None:
            self.finish(response.code, response.content, response.headers)
            return
        self._answering = False
        self._on_page(request, guarded=True)

    def _on_page(self, request: Request, *, guarded: bool = False) -> None:
        if request.encrypted and not guarded:
            self._refuse(401, "nothing here is for everybody")
        elif request.method == "GET":
            self._on_request(request)
        elif request.method == "POST":
            self._on_command(request)
        else:
            self._refuse(405, "GET and POST only")

    def _on_command(self, request: Request) -> None:
        commands = self._server.commands
        if commands is None:
            self.finish(503, {"error": "this node takes no commands: it is in repair mode"})
        else:
            target, body = request.target, request.body
            later = self._server.calls.post(target, body) if self._server.calls else None
            if later is not None:
                if not self._begin(self._answer_call(later)) and asyncio.iscoroutine(later):
                    later.close()
                return
            answer = self._server.pages.post(target) if self._server.pages else None
            self.finish(*(answer or commands.carry_out(target, body)))

    def _on_request(self, request: Request) -> None:
        kv = self._server.kv
        answer = self._server.find(request.target)
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(self._on_ready)
        elif callable(answer):
            answer(self.finish)
        elif answer is not None:
            self.finish(*answer)
        elif request.target == "/status":
            self.finish(200, self._server.status())
        elif request.target == "/.well-known/wide-int-registry":
            self.finish(200, w.canonical(w.wide_int_registry()))
        elif request.target != "/kv":
            self.finish(404, {"error": "no such page"})
        elif request.headers.get("upgrade", "").lower() != UPGRADE:
            self.finish(426, {"error": f"this page wants Upgrade: {UPGRADE}"})
        elif kv is None:
            self.finish(503, {"error": "this node serves no clients: it is in repair mode"})
        else:
            self._upgrade(kv)

    @guarded(PLACE)
    def _on_ready(self, ready: asyncio.Future[Answer]) -> None:
        self.finish(*ready.result())

    def _upgrade(self, kv: KvService) -> None:
        self._number = kv.joined(self)
        self._write(_SWITCHING)
        if self._stream:
            self._on_stream(self._number)

    @guarded(PLACE)
    def finish(self, code: int, content: object, headers: Mapping[str, str] | None = None) -> None:
        """Answer, and end the connection."""
        self._stop_timeout()
        if self._transport is not None:
            self._reader = None
            self._write(respond(code, content, headers))
            self.close()
            loop = asyncio.get_running_loop()
            self._timeout = loop.call_later(TAKING_SECONDS_MAX, self._transport.abort)

    def _refuse(self, code: int, message: str) -> None:
        if self._pipe is not None and not self._pipe.established:
            self.abort()  # nothing can be said before the handshake is over
        else:
            self.finish(code, refusal(code, message))

    @guarded(PLACE)
    def _late(self) -> None:
        self._refuse(408, "the request did not come in time")

    @guarded(PLACE)
    def crowded_out(self) -> None:
        """Go: there are too many, and many of them came from there."""
        self._refuse(503, "too many connections")

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._pipe is None:
            self._transport.write(data)
        else:
            self._pipe.send(data)
            self._write_out(self._pipe)

    def _write_out(self, pipe: TlsPipe) -> None:
        data = pipe.take_outgoing()
        if data and self._transport is not None:
            self._transport.write(data)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    # The KV stream

    def _on_stream(self, number: int) -> None:
        kv = self._server.kv
        assert kv is not None
        try:
            requests = take_requests(self._stream)
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
        if self._staged:
            self._write(b"".join(self._staged))
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
        self.service: object | None = None
        """A service of this node, for the API that knows what to ask of it."""
        self.calls: Calls | None = None
        """What the control plane is asked for."""
        self.api: PagePort | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self.telemetry: Pages | None = None
        self._connections: set[AdminConnection] = set()
        self.gate: ConnectionGate[AdminConnection] = ConnectionGate(GATE)
        self.chains = ChainReader()
        self.tls: ssl.SSLContext | None = None
        """None: plaintext, which is served on loopback alone."""
        self.host = ""
        """Where it listens."""
        self._server: asyncio.Server | None = None

    async def listen(
        self, address: Address, tls: ssl.SSLContext | None = None, *, isolated: bool = False
    ) -> None:
        """Take connections, under TLS where a context is given.

        Raises PortTaken, and PlaintextRefused off loopback without TLS, unless the network is
        `isolated`: that of a test or a drill, which ends with it.
        """
        if tls is None and not isolated:
            require_loopback("the admin port", address.host)
        self.tls, self.host = tls, address.host
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: AdminConnection(self), address.host, address.port, reuse_address=True
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

    def admit(self, connection: AdminConnection, source: str) -> None:
        """Take a connection in; another may have to go for it, or this one."""
        self._connections.add(connection)
        leaving = self.gate.arrive(connection, source)
        if leaving is not None:
            leaving.crowded_out()
            self.gate.left(leaving)

    def opened(self, connection: AdminConnection) -> None:
        """Note that a connection has brought its whole request."""
        self.gate.opened(connection)

    def forget(self, connection: AdminConnection) -> None:
        self._connections.discard(connection)
        self.gate.left(connection)

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
