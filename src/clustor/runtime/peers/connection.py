"""One connection between nodes, as far as both directions share it: TLS, identity, handshake."""

from __future__ import annotations

import asyncio
import socket
import ssl
from abc import ABC, abstractmethod
from typing import Final, Protocol, cast

from clustor import wire as w
from clustor.runtime.admin.plaintext import peer_address
from clustor.runtime.containment import guarded
from clustor.runtime.errors import PeerRefused
from clustor.runtime.peers.reception import PeerReception
from clustor.runtime.peers.tls import TlsPipe
from clustor.runtime.pki.identity import NodeId
from clustor.runtime.pki.peer_trust import ChainReader, Shown

WRITE_BUFFER_BYTES_MAX: Final = 8 << 20
HANDSHAKE_SECONDS_MAX: Final = 5.0
SILENCE_MS_MAX: Final = 3_000
"""After so long without a sign of the peer's machine a connection ends, and is dialled anew: TCP's
own patience doubles with every try, and would outlast a partition by as long as it lasted."""
PLACE: Final = "peer"
"""Where an error while one connection between nodes is served is counted."""


class ConnectionOwner(Protocol):
    """What every connection asks of the transport that it belongs to."""

    frames_received: int
    bytes_received: int
    chains: ChainReader

    def check_shown(self, shown: Shown | None) -> None:
        """Refuse what TLS believed and this node does not; raises PeerRefused."""


def _hello() -> bytes:
    body = w.encode_handshake(w.local_handshake())
    return w.encode_frame(body, body_bytes_max=w.EXPLAIN_BODY_BYTES_MAX)


def _notice_silence(connection: socket.socket) -> None:
    """Let the kernel end a connection whose other end's machine is gone, idle or not."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS_MAX)


class PeerConnection(asyncio.Protocol, ABC):
    """What both directions share: TLS, then the peer's identity, then its handshake."""

    def __init__(self, owner: ConnectionOwner, tls: ssl.SSLContext, *, server_side: bool) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._pipe = TlsPipe(tls, server_side=server_side)
        self._reception = PeerReception(self.on_packet)
        self._identified = False
        self._shown: Shown | None = None
        self._paused = False
        self._timeout: asyncio.TimerHandle | None = None
        self.peer = NodeId(0)

    @property
    def ready(self) -> bool:
        """Whether both handshakes are over."""
        return self._transport is not None and self._reception.negotiated is not None

    @guarded(PLACE)
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        _notice_silence(transport.get_extra_info("socket"))
        loop = asyncio.get_running_loop()
        late = PeerRefused("the peer did not finish its handshake in time")
        self._timeout = loop.call_later(HANDSHAKE_SECONDS_MAX, self.refuse, late)
        self.arrived(peer_address(transport))
        if not self._pipe.server_side:
            self._pipe.start()
            self._write_out()

    @guarded(PLACE)
    def data_received(self, data: bytes) -> None:
        self._owner.bytes_received += len(data)
        try:
            plain = self._pipe.receive(data)
            if self._pipe.established and not self._identified:
                self._identified = True
                self.identify(self._pipe.certificate())
                self._shown = self._pipe.shown(self._owner.chains)
                self._owner.check_shown(self._shown)
                self.write(_hello())
            self._write_out()
            if plain:
                reception = self._reception
                was_ready = reception.negotiated is not None
                frames = reception.frames
                reception.receive(plain)
                self._owner.frames_received += reception.frames - frames
                if not was_ready and self.ready:
                    self._stop_timeout()
                    self.became_ready()
        except (w.WireError, PeerRefused) as error:
            self.refuse(error)

    @guarded(PLACE)
    def connection_lost(self, _exc: Exception | None) -> None:
        self._stop_timeout()
        self._transport = None
        self.ended()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def write(self, data: bytes) -> None:
        self._pipe.send(data)
        self._write_out()

    def write_pieces(self, pieces: list[w.Buffer]) -> None:
        """Write what follows each other; long pieces are not joined for it."""
        encrypted = self._pipe.send_pieces(pieces)
        if self._transport is not None:
            self._transport.writelines(encrypted)

    @property
    def shown(self) -> Shown | None:
        """What the peer has shown, once it was believed."""
        return self._shown

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def whom(self) -> str:
        address = peer_address(self._transport) if self._transport is not None else ""
        return f"node {self.peer or '?'} {address}"

    @guarded(PLACE)
    def refuse(self, error: Exception) -> None:
        """Say why, tell the peer as far as TLS can, and close."""
        if self._transport is None:
            return
        self.refused(error)
        self._write_out()
        self._transport.close()

    def _write_out(self) -> None:
        data = self._pipe.take_outgoing()
        if data and self._transport is not None:
            self._transport.write(data)

    def _stop_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    # What each direction does in its own way.

    def arrived(self, source: str) -> None:
        """Take note of where the connection comes from."""

    @abstractmethod
    def identify(self, certificate: bytes | None) -> None:
        """Take the peer's certificate, or refuse it."""

    @abstractmethod
    def became_ready(self) -> None:
        """Both sides agree on a dialect."""

    @abstractmethod
    def refused(self, error: Exception) -> None:
        """The handshake ended in an error."""

    @abstractmethod
    def ended(self) -> None:
        """The connection is gone."""

    @abstractmethod
    def on_packet(self, packet: w.Packet) -> None:
        """Take one packet."""
