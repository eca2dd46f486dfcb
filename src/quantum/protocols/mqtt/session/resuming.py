"""A client that waits unread while its session finds another leader, and then goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quantum.edge.ports import WirePort
from quantum.protocols.mqtt.codec import PacketType
from quantum.protocols.mqtt.session.relay_memory import RelayMemory

RESUME_MS_MAX: Final = 60_000
"""For how long a client waits for another leader; within its keep-alive, where it has one."""


class ResumedWire:
    """A client's wire whose CONNACK is not the client's: it has had one."""

    __slots__ = ("_is_answered", "_memory", "_on_answered", "_wants_pause", "late", "wire")

    def __init__(
        self, wire: WirePort, memory: RelayMemory, on_answered: Callable[[], None]
    ) -> None:
        self.wire = wire
        self._memory = memory
        self._on_answered = on_answered
        self._is_answered = False
        self._wants_pause = False
        self.late = bytearray()
        """What the client said meanwhile; it is not read, but something may be on its way."""
        wire.pause_reading()

    def connect_again(self) -> bytes:
        """Return the CONNECT for the next leader."""
        return self._memory.connect_again()

    def go_on(self) -> bytes:
        """Read again, and return what the next leader must hear before that."""
        said = self._memory.said_again() + bytes(self.late)
        self.late.clear()
        if not self._wants_pause:
            self.wire.resume_reading()
        return said

    # The handler's side.

    def write(self, data: bytes) -> None:
        if self._is_answered:
            self.wire.write(data)
        else:
            self._take_connack(data)

    def _take_connack(self, data: bytes) -> None:
        body = next((at for at in range(1, min(5, len(data))) if data[at] < 0x80), 0) + 1
        length = sum((byte & 0x7F) << 7 * n for n, byte in enumerate(data[1:body]))
        present, reason = data[body] & 1, data[body + 1]
        if data[0] >> 4 != PacketType.CONNACK or reason or present < self._memory.needs_session:
            self.close()
            return
        self._is_answered = True
        rest = data[body + length :]
        if rest:
            self.wire.write(rest)
        self._on_answered()

    @property
    def writable(self) -> bool:
        return self.wire.writable

    def close(self) -> None:
        """Close; a client that was never told more is told that its server moved."""
        if not self._is_answered and self._memory.farewell:
            self.wire.write(self._memory.farewell)
        self._is_answered = True
        self.wire.close()

    def abort(self) -> None:
        self.wire.abort()

    def pause_reading(self) -> None:
        self._wants_pause = True
        if self._is_answered:
            self.wire.pause_reading()

    def resume_reading(self) -> None:
        self._wants_pause = False
        if self._is_answered:
            self.wire.resume_reading()
