"""Connections between nodes: one in each direction, mutual TLS, frames, batches.

A node speaks on the connections that it opened and listens on those that were opened to it.
Both sides begin with a handshake frame; nothing else is read before it was negotiated. What all
groups have for one peer in one turn of the loop leaves as one batch in one write. No task, future
or callback per message: `send` queues, `flush` writes, and received packets go to one function.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, cast

from clustor import wire as w
from clustor.runtime.errors import PeerRefused, PortTaken
from clustor.runtime.pki import (
    ClusterId,
    NodeId,
    check_peer,
    client_context,
    refusal_of,
    server_context,
)
from clustor.runtime.send_queue import SendQueue

QUEUE_BYTES_MAX: Final = 32 << 20
WRITE_BUFFER_BYTES_MAX: Final = 8 << 20
HANDSHAKE_SECONDS_MAX: Final = 5.0
_FIRST_PAUSE_SECONDS: Final = 0.02
_LAST_PAUSE_SECONDS: Final = 1.0
_PREFIX_BYTES: Final = 4

OnPacket: TypeAlias = Callable[[NodeId, w.Packet], None]
Jitter: TypeAlias = Callable[[], float]
"""Chance, given at construction: uniform in [0, 1)."""

journal = logging.getLogger("clustor.transport")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Reception:
    """Bytes of one connection become its handshake, then packets. Pure but for its callback."""

    def __init__(self, on_packet: Callable[[w.Packet], None]) -> None:
        self._on_packet = on_packet
        self._head = bytearray()
        self._stream: w.FrameStream | None = None
        self._body = bytearray()  # of a frame that comes in parts
        self.negotiated: w.Negotiated | None = None

    def receive(self, data: bytes) -> None:
        """Take bytes; raises WireError, after everything valid before it was delivered."""
        if self._stream is None:
            self._head += data
            self._take_handshake()
            return
        self._stream.receive_data(data)
        self._pull(self._stream)

    def _take_handshake(self) -> None:
        body = w.take_frame(self._head, body_bytes_max=w.EXPLAIN_BODY_BYTES_MAX)
        if body is None:
            return
        self.negotiated = w.negotiate(w.local_handshake(), w.decode_handshake(body))
        self._stream = w.FrameStream(body_bytes_max=self.negotiated.dialect.body_bytes_max)
        if self._head:
            rest, self._head = bytes(self._head), bytearray()
            self.receive(rest)

    def _pull(self, stream: w.FrameStream) -> None:
        while (event := stream.next_event()) is not None:
            if isinstance(event, w.WholeFrame):
                self._deliver(event.body)
            else:
                self._body += event.data
                if len(self._body) == event.body_bytes:
                    body, self._body = bytes(self._body), bytearray()
                    self._deliver(body)

    def _deliver(self, body: bytes) -> None:
        assert self.negotiated is not None
        for packet in w.decode_packets(body, self.negotiated.dialect):
            self._on_packet(packet)


def _hello() -> bytes:
    body = w.encode_handshake(w.local_handshake())
    return w.encode_frame(body, body_bytes_max=w.EXPLAIN_BODY_BYTES_MAX)


class _Inbound(asyncio.Protocol):
    """A connection that a peer opened: it speaks, this node listens."""

    def __init__(self, owner: Transport) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._reception = Reception(self._on_packet)
        self._early = b""  # bytes that came with the end of the TLS handshake
        self.peer = NodeId(0)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        try:
            self.peer = self._owner.peer_of(self._transport, None)
        except PeerRefused as refusal:
            self._refuse(refusal)
            return
        self._owner.inbound_opened(self)
        self._transport.write(_hello())
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            self._early += data
        elif self.peer:
            try:
                self._reception.receive(data)
            except (w.WireError, PeerRefused) as error:
                self._refuse(error)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._owner.inbound_closed(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _on_packet(self, packet: w.Packet) -> None:
        if int(packet.route.source_replica_id) != self.peer:
            raise PeerRefused(
                "a node spoke for another", peer=self.peer, source=packet.route.source_replica_id
            )
        self._owner.on_packet(self.peer, packet)

    def _refuse(self, error: Exception) -> None:
        journal.warning("closed the connection from node %s: %s", self.peer or "?", error)
        if self._transport is not None:
            self._transport.abort()


class _Outbound(asyncio.Protocol):
    """The connection that this node opened to one peer, kept open as long as it runs."""

    def __init__(self, owner: Transport, peer: NodeId, address: Address) -> None:
        self._owner = owner
        self.peer = peer
        self.address = address
        self.queue = SendQueue(QUEUE_BYTES_MAX)
        self.ready = False
        self._transport: asyncio.Transport | None = None
        self._reception = Reception(lambda _: None)  # a peer only answers the handshake here
        self._paused = False
        self._said = ""
        self._closed = asyncio.Event()
        self._wake = asyncio.Event()

    async def keep_connected(self) -> None:
        """Dial, wait for the end of the connection, and dial again, with longer pauses."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            if await self._dial():
                pause = _FIRST_PAUSE_SECONDS
                await self._closed.wait()
            self._wake.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    self._wake.wait(), pause * (0.5 + 0.5 * self._owner.jitter())
                )
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)

    def wake(self) -> None:
        """Dial now: the peer was heard."""
        if not self.ready:
            self._wake.set()

    def flush(self) -> None:
        """Write all that waits, at once; what finds no connection is lost."""
        if not self.ready or self._paused or self._transport is None:
            if not self.ready:
                self.queue.clear()
            return
        negotiated = self._reception.negotiated
        assert negotiated is not None
        dialect = negotiated.dialect
        pieces: list[bytes] = []
        for body in w.encode_batches(self.queue.take(), dialect):
            pieces.append(len(body).to_bytes(_PREFIX_BYTES, "little"))
            pieces.append(body)
        self._transport.write(b"".join(pieces))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        try:
            self._owner.peer_of(self._transport, self.peer)
        except PeerRefused as refusal:
            self._say(f"refused node {self.peer} at {self.address}: {refusal}")
            self._transport.abort()
            return
        self._transport.write(_hello())

    def data_received(self, data: bytes) -> None:
        try:
            self._reception.receive(data)
        except w.WireError as error:
            self._say(f"closed the connection to node {self.peer}: {error}")
            if self._transport is not None:
                self._transport.abort()
            return
        if self._reception.negotiated is not None and not self.ready:
            self.ready = True
            self._say(f"connected to node {self.peer} at {self.address}")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if len(self.queue):
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(exc, ssl.SSLError):
            self._say(f"node {self.peer} at {self.address} refused our certificate: {exc.reason}")
        self.ready = self._paused = False
        self._transport = None
        self.queue.clear()
        self._closed.set()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def _dial(self) -> bool:
        self._closed.clear()
        self._reception = Reception(lambda _: None)
        try:
            await asyncio.wait_for(self._connect(), HANDSHAKE_SECONDS_MAX)
        except ssl.SSLError as error:
            self._say(f"refused node {self.peer} at {self.address}: {refusal_of(error)}")
        except (OSError, TimeoutError) as error:
            self._say(f"cannot reach node {self.peer} at {self.address}: {error}")
        else:
            return True
        return False

    async def _connect(self) -> None:
        await asyncio.get_running_loop().create_connection(
            lambda: self,
            self.address.host,
            self.address.port,
            ssl=self._owner.client_tls,
            server_hostname="",
        )

    def _say(self, line: str) -> None:
        """Say something once: a peer that stays away is no news every second."""
        if line != self._said:
            self._said = line
            journal.info(line)


class Transport:
    """All connections of one node."""

    def __init__(
        self, cluster: ClusterId, node: NodeId, pki: Path, on_packet: OnPacket, jitter: Jitter
    ) -> None:
        self._cluster = cluster
        self._node = node
        self.client_tls = client_context(pki)
        self._server_tls = server_context(pki)
        self.on_packet = on_packet
        self.jitter = jitter
        self._outbound: dict[NodeId, _Outbound] = {}
        self._inbound: set[_Inbound] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._dirty: set[NodeId] = set()

    async def listen(self, address: Address) -> None:
        """Take connections from peers; raises PortTaken."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Greeting(self), address.host, address.port, reuse_address=True
            )
        except OSError as error:
            raise PortTaken("cannot listen for peers", address=str(address), cause=error) from error

    def connect(self, peer: NodeId, address: Address) -> None:
        """Keep a connection to a peer from now on."""
        outbound = _Outbound(self, peer, address)
        self._outbound[peer] = outbound
        self._spawn(outbound.keep_connected())

    def send(self, peer: NodeId, packet: w.Packet) -> None:
        """Let a packet leave with the next flush. It may be lost, as every packet may."""
        outbound = self._outbound.get(peer)
        if outbound is not None and outbound.ready:
            outbound.queue.add(packet)
            self._dirty.add(peer)

    def flush(self) -> None:
        """Write to every peer that something waits for, once."""
        if self._dirty:
            for peer in self._dirty:
                self._outbound[peer].flush()
            self._dirty.clear()

    def connected(self) -> list[NodeId]:
        """Name the peers that this node can speak to now."""
        return sorted(peer for peer, outbound in self._outbound.items() if outbound.ready)

    async def close(self) -> None:
        """End every connection. What was written is given to the kernel first."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for outbound in self._outbound.values():
            outbound.close()
        for inbound in list(self._inbound):
            inbound.close()
        if self._server is not None:
            self._server.close()

    # What connections ask of their owner.

    def peer_of(self, transport: asyncio.Transport, expected: NodeId | None) -> NodeId:
        """Return who is at the other end, or raise PeerRefused."""
        tls = transport.get_extra_info("ssl_object")
        peer = check_peer(tls.getpeercert(binary_form=True), self._cluster, expected)
        if peer == self._node:
            raise PeerRefused("a peer with our own identity", peer=peer)
        return peer

    def inbound_opened(self, inbound: _Inbound) -> None:
        self._inbound.add(inbound)
        outbound = self._outbound.get(inbound.peer)
        if outbound is not None:
            outbound.wake()

    def inbound_closed(self, inbound: _Inbound) -> None:
        self._inbound.discard(inbound)

    def greet(self, transport: asyncio.Transport) -> None:
        self._spawn(self._secure(transport))

    async def _secure(self, transport: asyncio.Transport) -> None:
        """Run the TLS handshake of an accepted connection, and name why it failed."""
        inbound = _Inbound(self)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                inbound,
                self._server_tls,
                server_side=True,
                ssl_handshake_timeout=HANDSHAKE_SECONDS_MAX,
            )
        except ssl.SSLError as error:
            journal.warning("refused a connection: %s", refusal_of(error))
            transport.abort()
        except (OSError, TimeoutError):
            transport.abort()
        else:
            if secured is not None:
                inbound.connection_made(secured)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Greeting(asyncio.Protocol):
    """An accepted connection before TLS: it reads nothing itself."""

    def __init__(self, owner: Transport) -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = cast("asyncio.Transport", transport)
        plain.pause_reading()
        self._owner.greet(plain)
