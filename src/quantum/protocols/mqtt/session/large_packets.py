"""Packets of more than 128 KiB on their way in: so many bytes at once, and others wait unread.

Every connection may send a packet of 16 MiB. What one holds before it is whole is nobody's but
the node's, so there is one bound for all. Who comes when it is reached is left unread until
somebody is through, in the order in which they came. Somebody who takes too long while others
wait must go: otherwise a few clients that drip could hold everybody up.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from quantum.partition.backpressure import Pausable, Soon
from quantum.protocols.mqtt.codec import ReasonCode

LARGE_BYTES: Final = 128 << 10
TOTAL_BYTES_MAX: Final = 64 << 20
WAIT_MS_MAX: Final = 30_000
_WHOLE_MS: Final = 60_000
_BYTES_PER_SECOND: Final = 1 << 10


def whole_within_ms(size: int) -> int:
    """Return how long a packet of any size may take when nobody waits: a bad network's time."""
    return _WHOLE_MS + size * 1000 // _BYTES_PER_SECOND


class LargeSender(Pausable, Protocol):
    """A client whose packet is large."""

    def disconnect(self, reason: ReasonCode, why: str) -> None: ...


class LargePackets:
    """Who may send one now, and who waits for that."""

    __slots__ = ("_bytes", "_coming", "_soon", "_waiting", "ended")

    def __init__(self, soon: Soon) -> None:
        self._soon = soon
        self._coming: dict[LargeSender, tuple[int, int]] = {}
        """Whose packets come, how large they are, and since when."""
        self._waiting: deque[tuple[LargeSender, int, int]] = deque()
        self._bytes = 0
        self.ended = 0
        """How many clients had to go because others waited for them."""

    @property
    def bytes(self) -> int:
        """What those who may send one hold at most."""
        return self._bytes

    @property
    def waiting(self) -> int:
        """How many are left unread until somebody is through."""
        return len(self._waiting)

    def begin(self, connection: LargeSender, size: int, now_ms: int) -> None:
        """Note that a large packet comes; its connection is held if there are too many."""
        if connection in self._coming or any(each[0] is connection for each in self._waiting):
            return
        if self._waiting or (self._bytes and self._bytes + size > TOTAL_BYTES_MAX):
            self._waiting.append((connection, size, now_ms))
            connection.hold()
        else:
            self._admit(connection, size, now_ms)

    def _admit(self, connection: LargeSender, size: int, now_ms: int) -> None:
        self._coming[connection] = (size, now_ms)
        self._bytes += size

    def end(self, connection: LargeSender, now_ms: int) -> None:
        """Note that a packet is whole, or that its connection is gone: others may go on."""
        if connection in self._coming:
            self._bytes -= self._coming.pop(connection)[0]
        else:
            self._waiting = deque(each for each in self._waiting if each[0] is not connection)
        while self._waiting:
            first, size, _ = self._waiting[0]
            if self._bytes and self._bytes + size > TOTAL_BYTES_MAX:
                return
            self._waiting.popleft()
            self._admit(first, size, now_ms)
            self._soon(first.let_go)

    def on_tick(self, now_ms: int) -> None:
        """Send away who takes too long while somebody waits for it."""
        if not self._waiting or now_ms - self._waiting[0][2] < WAIT_MS_MAX:
            return
        slowest = min(self._coming, key=lambda each: self._coming[each][1])
        if now_ms - self._coming[slowest][1] >= WAIT_MS_MAX:
            self.ended += 1
            slowest.disconnect(ReasonCode.QUOTA_EXCEEDED, "a large packet takes too long")
