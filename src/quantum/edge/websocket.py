"""Protocols over WebSocket: a layer that is a handler to the listener, and a wire to the protocol.

RFC 6455, binary frames only; the sub-protocol says who speaks: `mqtt` (MQTT 5 §6), `amqp` (AMQP's
WebSocket binding). A packet may begin and end anywhere in a frame, so what a frame carries is
passed on as it comes, fragment or not: nothing is gathered here, and a frame's own bound is all
the memory that a client can take.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, cast

from websockets.datastructures import Headers
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from quantum.edge.ports import (
    ConnectionPeer,
    EarlyWire,
    Expelling,
    Handler,
    NewHandler,
    Transport,
    WirePort,
)

MQTT: Final = "mqtt"
AMQP: Final = "amqp"
_PONG_BYTES_MAX: Final = 16 << 10
_WITH_TLS: Final[dict[Transport, Transport]] = {"tcp": "ws", "tls": "wss"}
_LOOPBACK_ORIGIN: Final = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?")

journal = logging.getLogger("quantum.edge.websocket")
journal.setLevel(logging.WARNING)  # the library has a line for every connection otherwise


@dataclass(frozen=True, slots=True)
class WebSocketLimits:
    """What a client may send, and from where."""

    head_bytes_max: int = 8 << 10
    """Of the request that asks for the upgrade."""
    frame_bytes_max: int = 1 << 20
    origins: tuple[re.Pattern[str] | None, ...] = (None, _LOOPBACK_ORIGIN)
    """Pages that may connect; None: programs that are no page. Any page that a developer
    visits could otherwise speak to the broker on the developer's own machine."""


class WebSocket:
    """One WebSocket connection."""

    __slots__ = (
        "_closed",
        "_handler",
        "_head_bytes",
        "_limits",
        "_new_handlers",
        "_peer",
        "_pong_bytes",
        "_protocol",
        "_wire",
    )

    _wire: EarlyWire
    _peer: ConnectionPeer

    def __init__(self, new_handlers: Mapping[str, NewHandler], limits: WebSocketLimits) -> None:
        self._new_handlers = new_handlers
        self._limits = limits
        self._handler: Handler | None = None
        self._closed = False
        """Whether our side has ended it: the client may still speak, but nobody listens."""
        self._head_bytes = 0
        self._pong_bytes = 0
        """Written for pings while the client did not read."""
        self._protocol = ServerProtocol(
            origins=cast("list[Origin | re.Pattern[str] | None]", list(limits.origins)),
            subprotocols=[Subprotocol(each) for each in new_handlers],
            max_size=(None, limits.frame_bytes_max),
            logger=journal,
        )

    # What the listener calls.

    def opened(self, wire: WirePort, peer: ConnectionPeer) -> None:
        self._wire = cast("EarlyWire", wire)
        self._peer = replace(peer, transport=_WITH_TLS[peer.transport])

    def received(self, data: bytes) -> None:
        if self._protocol.state is State.CONNECTING and self._head_is_too_long(data):
            return
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame):
                self._take(event)
        self._write_out()

    def writable_again(self) -> None:
        self._pong_bytes = 0
        if self._handler is not None:
            self._handler.writable_again()

    def expelled(self, why: str) -> None:
        if isinstance(self._handler, Expelling):
            self._handler.expelled(why)
        else:
            self._wire.close()

    def lost(self) -> None:
        if self._handler is not None:
            handler, self._handler = self._handler, None
            handler.lost()

    # What the protocol's handler asks for.

    def write(self, data: bytes) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_binary(data)
            self._wire.write(b"".join(self._protocol.data_to_send()))

    @property
    def writable(self) -> bool:
        return self._wire.writable

    def close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._closed = True
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
            self._write_out()
            self._wire.expect_end()

    def abort(self) -> None:
        self._wire.abort()

    def pause_reading(self) -> None:
        self._wire.pause_reading()

    def resume_reading(self) -> None:
        self._wire.resume_reading()

    # Events.

    def _head_is_too_long(self, data: bytes) -> bool:
        self._head_bytes += len(data)
        if self._head_bytes <= self._limits.head_bytes_max:
            return False
        answer = Response(431, "Request Header Fields Too Large", Headers(Connection="close"))
        self._wire.write_early(answer.serialize())
        self._wire.close()
        return True

    def _answer(self, request: Request) -> None:
        response = self._protocol.accept(request)
        if self._protocol.eof_sent:  # what stood behind the head was no frame: it is over already
            self._wire.write_early(response.serialize())
            self._wire.close()
            return
        self._protocol.send_response(response)
        if self._protocol.state is State.OPEN:
            self._handler = self._new_handlers[self._protocol.subprotocol or MQTT]()
            self._handler.opened(self, self._peer)

    def _take(self, frame: Frame) -> None:
        if self._closed or self._handler is None:
            return
        if frame.opcode is Opcode.TEXT:
            self._closed = True
            if self._protocol.state is State.OPEN:
                self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "binary frames are needed")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT) and frame.data:
            self._handler.received(bytes(frame.data))

    def _write_out(self) -> None:
        pieces = self._protocol.data_to_send()
        if data := b"".join(pieces):
            self._write_within_bounds(data)
        if b"" in pieces:  # the library's sign for the end of the connection
            self._wire.close()

    def _write_within_bounds(self, data: bytes) -> None:
        """Send answers to pings too, but not without end to a client that does not read."""
        if not self._wire.writable:
            self._pong_bytes += len(data)
            if self._pong_bytes > _PONG_BYTES_MAX:
                self._wire.abort()
                return
        self._wire.write_early(data)


def over_websocket(
    new_handlers: Mapping[str, NewHandler], limits: WebSocketLimits | None = None
) -> NewHandler:
    """Return what makes handlers for a WebSocket listener, plain or under TLS.

    `new_handlers` are by sub-protocol, and may become more.
    """
    bounds = limits or WebSocketLimits()
    return lambda: WebSocket(new_handlers, bounds)
