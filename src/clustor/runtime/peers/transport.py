"""Connections between nodes: one in each direction, mutual TLS, frames, batches.

A node speaks on the connections that it opened and listens on those that were opened to it.
Both sides begin with a handshake frame; nothing else is read before it was negotiated. What all
groups have for one peer in one turn of the loop leaves as one batch in one write. No task, future
or callback per message: `send` queues, `flush` writes, and received packets go to one function.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias, cast

from clustor import wire as w
from clustor.runtime.admin.plaintext import peer_address
from clustor.runtime.containment import contained, guarded
from clustor.runtime.errors import PeerRefused, PortTaken
from clustor.runtime.peers.address import Address as Address  # noqa: PLC0414  # known from here
from clustor.runtime.peers.connection_gate import ConnectionGate, GateLimits
from clustor.runtime.peers.send_queue import SendQueue
from clustor.runtime.peers.tls import TlsPipe
from clustor.runtime.pki.identity import (
    ClusterId,
    NodeId,
    check_peer,
    client_context,
    server_context,
)
from clustor.runtime.pki.peer_trust import ChainReader, Shown
from clustor.runtime.telemetry.few_lines import FewLines
from clustor.wire.table import BATCH_ID

QUEUE_BYTES_MAX: Final = 32 << 20
WRITE_BUFFER_BYTES_MAX: Final = 8 << 20
HANDSHAKE_SECONDS_MAX: Final = 5.0
GATE: Final = GateLimits(connections_max=1024, half_open_max=128)
"""A cluster has a few connections per node; whoever else comes has seconds to show who it is."""
DIAL_SECONDS_MAX: Final = 1.0
SILENCE_MS_MAX: Final = 3_000
"""After so long without a sign of the peer's machine a connection ends, and is dialled anew: TCP's
own patience doubles with every try, and would outlast a partition by as long as it lasted."""
_FIRST_PAUSE_SECONDS: Final = 0.02
_LAST_PAUSE_SECONDS: Final = 1.0
_PREFIX_BYTES: Final = 4
PLACE: Final = "peer"
"""Where an error while one connection between nodes is served is counted."""

OnPacket: TypeAlias = Callable[[NodeId, w.Packet], None]
OnLost: TypeAlias = Callable[[NodeId], None]
"""A connection to or from a peer ended: what was on its way may be lost."""
Jitter: TypeAlias = Callable[[], float]
"""Chance, given at construction: uniform in [0, 1)."""

journal = logging.getLogger("clustor.transport")


class Reception:
    """Bytes of one connection become its handshake, then packets. Pure but for its callback."""

    def __init__(self, on_packet: Callable[[w.Packet], None]) -> None:
        self._on_packet = on_packet
        self._head = bytearray()
        self._stream: w.FrameStream | None = None
        self._body = bytearray()  # of a frame that comes in parts
        self.frames = 0
        self.negotiated: w.Negotiated | None = None

    def receive(self, data: bytes) -> None:
        """Take bytes; raises WireError, after everything valid before it was delivered."""
        if self._stream is None:
            self._head += data
            self._take_handshake()
            return
        if self._stream.is_between_frames:
            data = self._take_whole(data)
        if data:
            self._stream.receive_data(data)
            self._pull(self._stream)

    def _take_whole(self, data: bytes) -> bytes:
        """Deliver the small frames that lie whole in `data`, as most do; return the rest."""
        assert self.negotiated is not None
        at, end = 0, len(data)
        bytes_max = min(w.WINDOW_BYTES, self.negotiated.dialect.body_bytes_max)
        while end - at >= _PREFIX_BYTES:
            start = at + _PREFIX_BYTES
            length = int.from_bytes(data[at:start], "little")
            if length > bytes_max or start + length > end:
                break
            at = start + length
            self._deliver(data[start:at])
        return data[at:] if at else data

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
        self.frames += 1
        if body and body[0] != BATCH_ID:
            self._on_packet(w.decode_packet(memoryview(body), self.negotiated.dialect))
            return
        for packet in w.decode_packets(body, self.negotiated.dialect):
            self._on_packet(packet)


def _hello() -> bytes:
    body = w.encode_handshake(w.local_handshake())
    return w.encode_frame(body, body_bytes_max=w.EXPLAIN_BODY_BYTES_MAX)


def _notice_silence(connection: socket.socket) -> None:
    """Let the kernel end a connection whose other end's machine is gone, idle or not."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS_MAX)


class _Connection(asyncio.Protocol, ABC):
    """What both directions share: TLS, then the peer's identity, then its handshake."""

    def __init__(self, owner: Transport, tls: ssl.SSLContext, *, server_side: bool) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._pipe = TlsPipe(tls, server_side=server_side)
        self._reception = Reception(self.on_packet)
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


class _Inbound(_Connection):
    """A connection that a peer opened: it speaks, this node listens."""

    def __init__(self, owner: Transport) -> None:
        super().__init__(owner, owner.server_tls, server_side=True)

    def arrived(self, source: str) -> None:
        self._owner.inbound_arrived(self, source)

    def identify(self, certificate: bytes | None) -> None:
        self.peer = self._owner.check(certificate, None)

    def became_ready(self) -> None:
        self._owner.inbound_opened(self)

    def refused(self, error: Exception) -> None:
        self._owner.say_refused(f"refused a connection from node {self.peer or '?'}: {error}")
        if self._owner.on_refused is not None:
            self._owner.on_refused(self.peer, error)

    def ended(self) -> None:
        self._owner.inbound_closed(self)

    def on_packet(self, packet: w.Packet) -> None:
        if int(packet.route.source_replica_id) != self.peer:
            raise PeerRefused(
                "a node spoke for another", peer=self.peer, source=packet.route.source_replica_id
            )
        self._owner.on_packet(self.peer, packet)


class _Outbound(_Connection):
    """A connection that this node opened to a peer: it speaks, the peer answers the handshake."""

    def __init__(self, owner: Transport, line: Line) -> None:
        super().__init__(owner, owner.client_tls, server_side=False)
        self._line = line

    @guarded(PLACE)
    def send(self, packets: list[w.Packet]) -> None:
        """Write packets as few frames, at once."""
        negotiated = self._reception.negotiated
        assert negotiated is not None
        if len(packets) == 1:
            body = w.encode_packet(packets[0], negotiated.dialect)
            self.write(len(body).to_bytes(_PREFIX_BYTES, "little") + body)
            self._owner.frames_sent += 1
            return
        pieces: list[bytes] = []
        for body in w.encode_batches(packets, negotiated.dialect):
            pieces.append(len(body).to_bytes(_PREFIX_BYTES, "little"))
            pieces.append(body)
            self._owner.frames_sent += 1
        self.write(b"".join(pieces))

    @property
    def writable(self) -> bool:
        return self.ready and not self._paused

    def identify(self, certificate: bytes | None) -> None:
        self.peer = self._owner.check(certificate, self._line.peer)

    def became_ready(self) -> None:
        self._line.opened()

    def refused(self, error: Exception) -> None:
        self._line.say(f"refused node {self._line.peer} at {self._line.address}: {error}")

    def ended(self) -> None:
        self._line.closed()

    def on_packet(self, packet: w.Packet) -> None:
        raise PeerRefused(
            "a peer spoke where it should only listen", group=packet.route.partition_id
        )

    def resume_writing(self) -> None:
        super().resume_writing()
        self._line.flush()


class Line:
    """The way to one peer: dialled again and again, with what waits to be said."""

    def __init__(self, owner: Transport, peer: NodeId, address: Address) -> None:
        self._owner = owner
        self.peer = peer
        self.address = address
        self._queue = SendQueue(QUEUE_BYTES_MAX)
        self._connection: _Outbound | None = None
        self._said = ""
        self._ended = asyncio.Event()
        self._woken = asyncio.Event()
        self._pause = _FIRST_PAUSE_SECONDS

    @property
    def ready(self) -> bool:
        return self._connection is not None and self._connection.ready

    @property
    def is_behind(self) -> bool:
        """Whether the connection takes nothing now; what is sent all the same may be dropped."""
        return self.ready and self._connection is not None and not self._connection.writable

    @property
    def connection(self) -> _Outbound | None:
        return self._connection

    def add(self, packet: w.Packet) -> None:
        """Let a packet wait for the next flush; without a connection it is lost at once."""
        if self.ready:
            self._queue.add(packet)

    def flush(self) -> None:
        """Write all that waits, unless the peer does not read: then it waits, bounded."""
        if self._connection is not None and self._connection.writable and len(self._queue):
            self._connection.send(self._queue.take())

    async def keep_open(self) -> None:
        """Dial, wait for the end of the connection, and dial again, with longer pauses."""
        while True:
            if await self._dial():
                await self._ended.wait()
            self._woken.clear()
            pause = self._pause * (0.5 + 0.5 * self._owner.jitter())
            self._pause = min(2 * self._pause, _LAST_PAUSE_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)

    def wake(self) -> None:
        """Dial now: the peer was heard."""
        self._woken.set()

    def opened(self) -> None:
        self._pause = _FIRST_PAUSE_SECONDS
        self.say(f"connected to node {self.peer} at {self.address}")

    def closed(self) -> None:
        self._connection = None
        self._queue.clear()
        self._ended.set()
        self._owner.on_lost(self.peer)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def say(self, line: str) -> None:
        """Say something once: a peer that stays away is no news every second."""
        if line != self._said:
            self._said = line
            journal.info(line)

    async def _dial(self) -> bool:
        if self._owner.quarantined is not None:
            self.say(f"does not call node {self.peer}: {self._owner.quarantined}")
            return False
        self._ended.clear()
        connection = _Outbound(self._owner, self)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_SECONDS_MAX):
                await loop.create_connection(
                    lambda: connection, self.address.host, self.address.port
                )
        except TimeoutError:
            connection.close()
            self.say(f"cannot reach node {self.peer} at {self.address}: no answer")
            return False
        except OSError as error:
            self.say(f"cannot reach node {self.peer} at {self.address}: {error}")
            return False
        self._connection = connection
        return True


class Transport:
    """All connections of one node."""

    def __init__(
        self,
        cluster: ClusterId,
        node: NodeId,
        pki: Path,
        *,
        on_packet: OnPacket,
        on_lost: OnLost,
        jitter: Jitter,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._pki = pki
        self.client_tls = client_context(pki)
        self.server_tls = server_context(pki)
        self.on_refused: Callable[[NodeId, Exception], None] | None = None
        """Is told whom this node did not let in (0: it could not be told), and why."""
        self.quarantined: str | None = None
        """Why this node speaks to nobody, when it does not (clustor §12.1)."""
        self.disbelief: Callable[[Shown], str | None] | None = None
        """Says why a certificate that TLS believes is not believed now; None: nobody asks."""
        self.on_packet = on_packet
        self.on_lost = on_lost
        self.jitter = jitter
        self.chains = ChainReader()
        self.frames_sent = 0
        self.frames_received = 0
        self.bytes_received = 0
        """From all peers, since the beginning: whether it grows says whether more is to be read."""
        self._lines: dict[NodeId, Line] = {}
        self._inbound: set[_Inbound] = set()
        self.gate: ConnectionGate[_Inbound] = ConnectionGate(GATE)
        self._refusals = FewLines(journal.warning)
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._dirty: set[Line] = set()

    async def listen(self, address: Address) -> None:
        """Take connections from peers; raises PortTaken."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Inbound(self), address.host, address.port, reuse_address=True
            )
        except OSError as error:
            raise PortTaken("cannot listen for peers", address=str(address), cause=error) from error

    def connect(self, peer: NodeId, address: Address) -> None:
        """Keep a connection to a peer from now on."""
        line = Line(self, peer, address)
        self._lines[peer] = line
        self._tasks[peer] = asyncio.get_running_loop().create_task(
            contained.lasting("peer line", line.keep_open)
        )

    def disconnect(self, peer: NodeId) -> None:
        """Speak to a peer no more, and let it speak here no more on what is open."""
        line, task = self._lines.pop(peer, None), self._tasks.pop(peer, None)
        if line is not None and task is not None:
            task.cancel()
            line.close()
        for inbound in [each for each in self._inbound if each.peer == peer]:
            inbound.close()

    def renew(self) -> None:
        """Use the certificates that the files hold now for connections to come; none is ended.

        Raises CertificateUnusable, and goes on with the old ones.
        """
        client, server = client_context(self._pki), server_context(self._pki)
        self.client_tls, self.server_tls = client, server

    def end_where(self, refuses: Callable[[Shown], bool]) -> list[NodeId]:
        """End the connections whose peer's certificate is refused now; name the peers."""
        ended: list[NodeId] = []
        outbound = (line.connection for line in self._lines.values())
        for connection in [*self._inbound, *outbound]:
            shown = connection.shown if connection is not None else None
            if connection is not None and shown is not None and refuses(shown):
                ended.append(connection.peer)
                connection.close()
        return ended

    def quarantine(self, why: str) -> None:
        """End every connection and take none until `lift`; other nodes are not told to do so."""
        self.quarantined = why
        self.end_where(lambda _shown: True)

    def lift(self) -> None:
        """Speak to peers again."""
        self.quarantined = None
        for line in self._lines.values():
            line.wake()

    def send(self, peer: NodeId, packet: w.Packet) -> None:
        """Let a packet leave with the next flush. It may be lost, as every packet may."""
        line = self._lines.get(peer)
        if line is not None:
            line.add(packet)
            self._dirty.add(line)

    def flush(self) -> None:
        """Write to every peer that something waits for, once."""
        if self._dirty:
            for line in self._dirty:
                line.flush()
            self._dirty.clear()

    def is_behind(self, peer: NodeId) -> bool:
        """Say whether a connected peer reads too slowly for more than what waits for it."""
        line = self._lines.get(peer)
        return line is not None and line.is_behind

    def connected(self) -> list[NodeId]:
        """Name the peers that this node can speak to now."""
        return sorted(peer for peer, line in self._lines.items() if line.ready)

    async def close(self) -> None:
        """End every connection. What was written is given to the kernel first."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for line in self._lines.values():
            line.close()
        for inbound in list(self._inbound):
            inbound.close()
        if self._server is not None:
            self._server.close()

    # What connections ask of their owner.

    def check(self, certificate: bytes | None, expected: NodeId | None) -> NodeId:
        """Return who a certificate names, or raise PeerRefused."""
        if self.quarantined is not None:
            raise PeerRefused("this node is in quarantine", why=self.quarantined)
        peer = check_peer(certificate, self._cluster, expected)
        if peer == self._node:
            raise PeerRefused("a peer with our own identity", peer=peer)
        return peer

    def check_shown(self, shown: Shown | None) -> None:
        """Refuse what TLS believed and this node does not; raises PeerRefused."""
        why = self.disbelief(shown) if shown is not None and self.disbelief is not None else None
        if why is not None:
            raise PeerRefused("the peer's certificate is not believed now", why=why)

    def say_refused(self, line: str) -> None:
        """Tell the journal, briefly: anybody can be refused, as often as he likes."""
        self._refusals.add(line, asyncio.get_running_loop().time())

    def inbound_arrived(self, inbound: _Inbound, source: str) -> None:
        leaving = self.gate.arrive(inbound, source)
        if leaving is not None:
            leaving.refuse(PeerRefused("too many connections at once"))
            leaving.abort()
            self.gate.left(leaving)

    def inbound_opened(self, inbound: _Inbound) -> None:
        self.gate.opened(inbound)
        self._inbound.add(inbound)
        line = self._lines.get(inbound.peer)
        if line is not None and not line.ready:
            line.wake()

    def inbound_closed(self, inbound: _Inbound) -> None:
        self.gate.left(inbound)
        if inbound in self._inbound:
            self._inbound.discard(inbound)
            self.on_lost(inbound.peer)
