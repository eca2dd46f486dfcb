"""Connections between nodes: one in each direction, mutual TLS, frames, batches.

A node speaks on the connections that it opened and listens on those that were opened to it.
Both sides begin with a handshake frame; nothing else is read before it was negotiated. What all
groups have for one peer in one turn of the loop leaves as one batch in one write. No task, future
or callback per message: `send` queues, `flush` writes, and received packets go to one function.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from clustor import wire as w
from clustor.runtime.containment import contained, guarded
from clustor.runtime.errors import PeerRefused, PortTaken
from clustor.runtime.peers.address import Address as Address  # noqa: PLC0414  # known from here
from clustor.runtime.peers.connection import PLACE, PeerConnection
from clustor.runtime.peers.connection_gate import ConnectionGate, GateLimits
from clustor.runtime.peers.reception import PREFIX_BYTES
from clustor.runtime.peers.send_queue import SendQueue
from clustor.runtime.pki.identity import (
    ClusterId,
    NodeId,
    check_peer,
    client_context,
    server_context,
)
from clustor.runtime.pki.peer_trust import ChainReader, Shown
from clustor.runtime.telemetry.few_lines import FewLines

QUEUE_BYTES_MAX: Final = 32 << 20
GATE: Final = GateLimits(connections_max=1024, half_open_max=128)
"""A cluster has a few connections per node; whoever else comes has seconds to show who it is."""
DIAL_SECONDS_MAX: Final = 1.0
_FIRST_PAUSE_SECONDS: Final = 0.02
_LAST_PAUSE_SECONDS: Final = 1.0

OnPacket: TypeAlias = Callable[[NodeId, w.Packet], None]
OnLost: TypeAlias = Callable[[NodeId], None]
"""A connection to or from a peer ended: what was on its way may be lost."""
Jitter: TypeAlias = Callable[[], float]
"""Chance, given at construction: uniform in [0, 1)."""

journal = logging.getLogger("clustor.transport")


class _Inbound(PeerConnection):
    """A connection that a peer opened: it speaks, this node listens."""

    _owner: Transport

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


class _Outbound(PeerConnection):
    """A connection that this node opened to a peer: it speaks, the peer answers the handshake."""

    _owner: Transport

    def __init__(self, owner: Transport, line: PeerLine) -> None:
        super().__init__(owner, owner.client_tls, server_side=False)
        self._line = line

    @guarded(PLACE)
    def send(self, packets: list[w.Packet]) -> None:
        """Write packets as few frames, at once."""
        negotiated = self._reception.negotiated
        assert negotiated is not None
        if len(packets) == 1 and not w.is_long(packets[0]):
            body = w.encode_packet(packets[0], negotiated.dialect)
            self.write(len(body).to_bytes(PREFIX_BYTES, "little") + body)
            self._owner.frames_sent += 1
            return
        pieces: list[w.Buffer] = []
        for parts in w.encode_bodies(packets, negotiated.dialect):
            pieces.append(sum(map(len, parts)).to_bytes(PREFIX_BYTES, "little"))
            pieces += parts
            self._owner.frames_sent += 1
        self.write_pieces(pieces)

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


class PeerLine:
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
        self._lines: dict[NodeId, PeerLine] = {}
        self._inbound: set[_Inbound] = set()
        self.gate: ConnectionGate[_Inbound] = ConnectionGate(GATE)
        self._refusals = FewLines(journal.warning)
        self._tasks: dict[NodeId, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None
        self._dirty: set[PeerLine] = set()

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
        line = PeerLine(self, peer, address)
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
