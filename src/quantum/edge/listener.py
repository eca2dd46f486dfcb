"""Listeners: sockets become handlers, with nothing per connection but one small object.

`ListenerConnection` is the loop's protocol and the handler's wire in one. It has no buffer, task,
future or timer of its own, and makes its handler when the first bytes come.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from typing import Final, cast

from clustor.runtime.containment import guarded
from quantum.edge.admission import AdmissionVerdict
from quantum.edge.deadlines import NO_SLOT
from quantum.edge.errors import AddressRefused, ClientCertificateRevoked, ListenFailed
from quantum.edge.half_open import source_of
from quantum.edge.lobby import Lobby
from quantum.edge.peer import host_of, shown_address
from quantum.edge.ports import ConnectionPeer, Handler, NewHandler, Transport

BACKLOG: Final = 4096
"""What the kernel holds for us while a turn of the loop is long; it may cap it lower."""
PLACE: Final = "listener"
"""Where an error of one connection is counted."""
HELD_BYTES_MAX: Final = 4096
"""What a connection may say while it waits at the door: more than any client's first words."""


class ListenerConnection(asyncio.Protocol):
    """One plaintext connection; the base of the others."""

    __slots__ = (
        "_closing",
        "_handler",
        "_held",
        "_is_unread",
        "_listener",
        "_slot",
        "_transport",
        "_unread_bytes",
        "_wants_pause",
        "writable",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport | None = None
        self._handler: Handler | None = None
        self._held: bytes | None = None
        """What came while the connection waits at the door; None: it does not wait."""
        self._slot = NO_SLOT
        self._closing = False
        self._wants_pause = False
        """Whether the handler wants nothing more for now."""
        self._unread_bytes = 0
        """What was written since the peer last read what waits for it."""
        self._is_unread = False
        """Whether so many answers wait for the peer that it is not read until it reads."""
        self.writable = True

    # What the handler asks for.

    def write(self, data: bytes) -> None:
        if self._slot != NO_SLOT and not self._closing:
            self._disarm()
        self.write_early(data)

    def write_early(self, data: bytes) -> None:
        if self._transport is not None and not self._closing:
            if not self.writable:
                self._add_unread(len(data), self._transport)
            self._transport.write(data)

    def _add_unread(self, size: int, transport: asyncio.Transport) -> None:
        """Leave a peer unread that lets its answers pile up: each one costs us, and it nothing.

        What was written while it was writable does not count: one delivery may be as large as a
        packet, and a peer that takes its time for it goes on to be heard.
        """
        self._unread_bytes += size
        limits = self._listener.lobby.limits
        if not self._is_unread and self._unread_bytes > limits.unread_bytes_max:
            self._is_unread = True
            self._listener.lobby.counts.left_unread += 1
            transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None and not self._closing:
            self._closing = True
            self.expect_end()
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._closing = True
            self._transport.abort()

    def expect_end(self) -> None:
        self._disarm()
        lobby = self._listener.lobby
        self._slot = lobby.arm(self, lobby.limits.close_seconds)

    def pause_reading(self) -> None:
        self._wants_pause = True
        if self._transport is not None and not self._closing:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._wants_pause = False
        if self._transport is not None and not self._closing and not self._is_unread:
            self._transport.resume_reading()

    # What the loop calls.

    @guarded(PLACE)
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        verdict = self._listener.arrived(self)
        if verdict is AdmissionVerdict.ENTER:
            self._begin()
        elif verdict is AdmissionVerdict.WAIT:
            self._held = b""
            # uvloop reads after this call whatever it says, so the pause comes a turn later.
            asyncio.get_running_loop().call_soon(self._pause_at_the_door)
        else:
            self._transport.abort()

    @guarded(PLACE)
    def data_received(self, data: bytes) -> None:
        handler = self._handler
        if handler is not None:
            handler.received(data)
        elif self._held is not None:
            self._hold(data)
        else:
            self._open(self._peer("tcp")).received(data)

    def pause_writing(self) -> None:
        self.writable = False

    @guarded(PLACE)
    def resume_writing(self) -> None:
        self.writable = True
        self._unread_bytes = 0
        if self._is_unread:
            self._is_unread = False
            if not self._wants_pause:
                self.resume_reading()
        if self._handler is not None and not self._closing:
            self._handler.writable_again()

    @guarded(PLACE)
    def connection_lost(self, _exc: Exception | None) -> None:
        self._disarm()
        self._transport = None
        self._listener.left(self)
        if self._handler is not None:
            handler, self._handler = self._handler, None
            handler.lost()

    # What the lobby calls.

    @guarded(PLACE)
    def admitted(self) -> None:
        """Begin, after a wait at the door."""
        held, self._held = self._held, None
        self._begin()
        self.resume_reading()
        if held:
            self.data_received(held)

    @guarded(PLACE)
    def late(self) -> None:
        """Cut a connection whose time is over."""
        self._slot = NO_SLOT
        if not self._closing:
            self._listener.refuse(self, "it did not finish its first packet in time")
        self.abort()

    @guarded(PLACE)
    def crowded_out(self) -> None:
        """Cut a connection that said nothing while many others came."""
        self.abort()

    def whom(self) -> str:
        return f"{self._listener.name} {self.address}"

    # What the kinds of connections share.

    def _begin(self) -> None:
        lobby = self._listener.lobby
        self._slot = lobby.arm(self, lobby.limits.first_answer_seconds)
        if self._transport is not None:
            self._transport.set_write_buffer_limits(lobby.limits.write_high_water_bytes)

    def _pause_at_the_door(self) -> None:
        if self._held is not None:
            self.pause_reading()

    def _hold(self, data: bytes) -> None:
        assert self._held is not None
        self._held += data
        self.pause_reading()
        if len(self._held) > HELD_BYTES_MAX:
            self.abort()

    def _open(self, peer: ConnectionPeer) -> Handler:
        self._handler = handler = self._listener.new_handler()
        handler.opened(self, peer)
        return handler

    def _peer(self, transport: Transport) -> ConnectionPeer:
        return ConnectionPeer(transport, self.address, self._listener.tenant)

    def _disarm(self) -> None:
        self._listener.lobby.answered(self)
        if self._slot != NO_SLOT:
            self._listener.lobby.disarm(self, self._slot)
            self._slot = NO_SLOT

    @property
    def address(self) -> str:
        return shown_address(self._transport)

    @property
    def source(self) -> str:
        return source_of(host_of(self._transport))


class Listener:
    """One listening address and its connections."""

    def __init__(
        self,
        name: str,
        lobby: Lobby,
        new_handler: NewHandler,
        *,
        tenant: str = "",
        connection: Callable[[Listener], ListenerConnection] = ListenerConnection,
    ) -> None:
        self.name = name
        self.lobby = lobby
        self.new_handler = new_handler
        self.tenant = tenant
        """Whose clients come to this port; under TLS the server name decides instead."""
        self._new_connection = connection
        self._connections: set[ListenerConnection] = set()
        self._server: asyncio.Server | None = None
        self._emptied: asyncio.Future[None] | None = None

    async def start(self, host: str, port: int) -> None:
        """Take connections; port 0 is any free one. Raises ListenFailed."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: self._new_connection(self), host, port, backlog=BACKLOG, reuse_address=True
            )
        except (OSError, OverflowError) as error:
            cause = getattr(error, "strerror", None) or error
            raise ListenFailed(
                "cannot listen", listener=self.name, address=f"{host}:{port}", cause=cause
            ) from error

    @property
    def port(self) -> int:
        """The port that is listened on."""
        assert self._server is not None
        listening: socket.socket = self._server.sockets[0]
        return int(listening.getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._connections)

    def stop_accepting(self) -> None:
        """Let nobody else in; who is here stays."""
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Let nobody else in, close every connection, and wait until all are gone."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._emptied = asyncio.get_running_loop().create_future()
            await self._emptied

    # What connections ask of their listener.

    def arrived(self, connection: ListenerConnection) -> AdmissionVerdict:
        verdict = self.lobby.arrive(connection)
        if verdict is not AdmissionVerdict.TURN_AWAY:
            self._connections.add(connection)
        return verdict

    def left(self, connection: ListenerConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.lobby.leave(connection)
            if self._emptied is not None and not self._connections and not self._emptied.done():
                self._emptied.set_result(None)

    def refuse(self, connection: ListenerConnection, reason: object) -> None:
        self.lobby.refuse("refused %s on %s: %s", connection.address, self.name, reason)
        self.lobby.counts.revoked += isinstance(reason, ClientCertificateRevoked)
        if self.lobby.on_refusal is not None:
            self.lobby.on_refusal(connection.address, reason)


def require_loopback(name: str, host: str, *, development: bool) -> None:
    """Let plaintext be served on loopback in development mode alone (C15)."""
    if not development:
        raise AddressRefused("plaintext is served in development mode only", listener=name)
    if host != "localhost" and not _is_loopback(host):
        raise AddressRefused("plaintext is served on loopback only", listener=name, host=host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
