"""Clients whose sessions run on another node: their bytes pass through, both ways, bounded.

The node that the client reached opens a relay to the leader of the session's partition. There
the relay is a wire like any other, and the same protocol handler sits behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from quantum.edge.ports import Expelling, Handler, WirePort
from quantum.mesh import link
from quantum.partition.leader import PartitionLeader

PAUSE_BYTES: Final = 256 << 10
"""How much of one connection may be on its way between nodes before its source is paused."""
TAKEN_BYTES: Final = 32 << 10


class RelayHost(Protocol):
    """The node that a relay begins or ends on."""

    def say(self, node: int, said: link.Said, size: int) -> None: ...
    def soon(self, call: Callable[[], None]) -> None: ...
    def forget_entry(self, number: int) -> None: ...
    def forget_exit(self, node: int, number: int) -> None: ...


class Memory(Protocol):
    """What a protocol remembers of a relayed client, so that it outlives the session's leader."""

    @property
    def can_resume(self) -> bool:
        """Whether nothing is lost where another leader goes on with this client."""
        ...

    @property
    def farewell(self) -> bytes:
        """What to tell a client that cannot go on; empty: its protocol has no words for it."""
        ...

    def client_said(self, data: bytes) -> None: ...
    def server_said(self, data: bytes) -> None: ...


class RelayEntry:
    """The client's end: on the node that it reached."""

    __slots__ = (
        "_early",
        "_open",
        "_owed",
        "_paused",
        "_service",
        "_wire",
        "memory",
        "node",
        "number",
        "prg",
        "resume",
        "route_again",
    )

    def __init__(  # noqa: PLR0917  # a relay is all of these
        self,
        service: RelayHost,
        wire: WirePort,
        prg: PartitionLeader,
        node: int,
        number: int,
        data: bytes,
    ) -> None:
        self._service = service
        self._wire = wire
        self._early: bytearray | None = bytearray(data)
        """All that the client sent, until the first answer: it can be sent elsewhere, too."""
        self.route_again: Callable[[bytes], None] | None = None
        self.memory: Memory | None = None
        """What lets the client go on under another leader; None: it cannot."""
        self.resume: Callable[[], None] | None = None
        self.prg = prg
        self.node = node
        self.number = number
        self._open = 0  # bytes that the other end has not taken
        self._owed = 0  # bytes that went to the client and were not reported
        self._paused = False

    def received(self, data: bytes) -> None:
        """Pass on what the client sent."""
        said = link.RelayData(self.number, opened_here=True, data=data)
        self._service.say(self.node, said, len(data) + 32)
        if self._early is not None:
            self._early += data
        if self.memory is not None:
            self.memory.client_said(data)
        self._open += len(data)
        if self._open > PAUSE_BYTES and not self._paused:
            self._paused = True
            self._wire.pause_reading()

    def on_taken(self, taken: int) -> None:
        self._open -= taken
        if self._paused and self._open <= PAUSE_BYTES // 2:
            self._paused = False
            self._wire.resume_reading()

    def on_data(self, data: bytes) -> None:
        """Pass on what the session sends."""
        self._early = None
        if self.memory is not None:
            self.memory.server_said(data)
        self._wire.write(data)
        self._owed += len(data)
        self.report()

    def report(self) -> None:
        """Say how much the client's connection took, when it is worth saying."""
        if self._owed >= TAKEN_BYTES and self._wire.writable:
            said = link.RelayTaken(self.number, opened_here=True, taken=self._owed)
            self._service.say(self.node, said, 32)
            self._owed = 0

    def expelled(self, why: str) -> None:
        """The client is believed no more: the session's node says so, and ends the relay."""
        self._service.say(self.node, link.RelayExpelled(self.number, why), len(why) + 32)

    def lost(self) -> None:
        """The client is gone."""
        self._service.forget_entry(self.number)
        self._service.say(self.node, link.RelayEnd(self.number, opened_here=True), 32)

    def end(self, *, again: bool = True) -> None:
        """The session ended the connection, or cannot be reached.

        The client need not notice. Without an answer it asks again, wherever the session is led by
        then; else its session is resumed there, if nothing is lost by that. Without `again` the
        other end meant it.
        """
        early, route_again, memory = self._early, self.route_again, self.memory
        if again and early is not None and route_again is not None:
            if self._paused:
                self._wire.resume_reading()
            route_again(bytes(early))
        elif again and memory is not None and memory.can_resume and self.resume is not None:
            self.resume()
        else:
            if again and memory is not None and early is None and memory.farewell:
                self._wire.write(memory.farewell)
            self._wire.close()


@runtime_checkable
class _Broken(Handler, Protocol):
    """A handler that can be told that its client did not end the connection."""

    def broken_by_us(self) -> None: ...


class RelayExit:
    """The session's end: a wire for the handler, on the node that leads the partition."""

    __slots__ = ("_closed", "_open", "_owed", "_paused", "_service", "handler", "node", "number")

    def __init__(self, service: RelayHost, node: int, number: int) -> None:
        self._service = service
        self.node = node
        self.number = number
        self.handler: Handler | None = None
        self._open = 0
        self._owed = 0
        self._paused = False
        self._closed = False

    def on_data(self, data: bytes) -> None:
        """Take what the client sent."""
        self._owed += len(data)
        self._report()
        if self.handler is not None and not self._closed:
            self.handler.received(data)

    def _report(self) -> None:
        if self._owed >= TAKEN_BYTES and not self._paused:
            said = link.RelayTaken(self.number, opened_here=False, taken=self._owed)
            self._service.say(self.node, said, 32)
            self._owed = 0

    def on_taken(self, taken: int) -> None:
        was_writable = self.writable
        self._open -= taken
        if not was_writable and self.writable and self.handler is not None:
            self.handler.writable_again()

    def write(self, data: bytes) -> None:
        if self._closed:
            return
        said = link.RelayData(self.number, opened_here=False, data=data)
        self._service.say(self.node, said, len(data) + 32)
        self._open += len(data)

    @property
    def writable(self) -> bool:
        return self._open <= PAUSE_BYTES

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._service.say(self.node, link.RelayEnd(self.number, opened_here=False), 32)
        self._service.forget_exit(self.node, self.number)
        self._service.soon(self.lost)

    def give_back(self) -> None:
        """Close unanswered: the session is led elsewhere, and the client's node asks there."""
        if not self._closed:
            self._closed = True
            end = link.RelayEnd(self.number, opened_here=False, again=True)
            self._service.say(self.node, end, 32)
            self._service.forget_exit(self.node, self.number)
            self._service.soon(self.lost)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        """Say no more what was taken: the client's node then stops, after a bounded amount."""
        self._paused = True

    def resume_reading(self) -> None:
        """Say what was taken."""
        self._paused = False
        self._report()

    def expelled(self, why: str) -> None:
        """The client is believed no more."""
        if isinstance(self.handler, Expelling):
            self.handler.expelled(why)

    def node_lost(self) -> None:
        """The client's node is gone, or the way to it: who knows whether the client is."""
        handler = self.handler
        if isinstance(handler, _Broken):
            handler.broken_by_us()
        self.lost()

    def lost(self) -> None:
        """The client is gone."""
        self._closed = True
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.lost()
