"""Bytes to frames: protocol headers, the buffer between two reads, and frames that we write."""

from __future__ import annotations

from typing import Final

from quantum.protocols.amqp.engine import hot
from quantum.protocols.amqp.engine.composites import Composite
from quantum.protocols.amqp.engine.errors import FramingFault
from quantum.protocols.amqp.engine.fields import encode_composite

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
TLS_HEADER: Final = b"AMQP\x02\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES: Final = 8
HEARTBEAT: Final = b"\0\0\0\x08\x02\0\0\0"
AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

_ROWS_AT_ONCE: Final = 64


class FrameReader:
    """Holds what arrived and was not read; joins it only when a whole frame came of it.

    A peer that sends byte by byte therefore costs as much as its bytes, not their square.
    """

    __slots__ = ("_next", "_position", "_rows", "_tail", "_tail_bytes", "buffer")

    def __init__(self) -> None:
        self.buffer = b""
        """What the positions of the rows count in."""
        self._position = 0
        self._rows: list[hot.Row] = []
        self._next = 0
        self._tail: list[bytes] = []
        self._tail_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What waits here; a driver that reads on regardless is its own flood."""
        return len(self.buffer) - self._position + self._tail_bytes

    def feed(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_bytes += len(data)

    def take_header(self) -> bytes | None:
        """Take eight bytes; fewer if they can be none of AMQP's headers already."""
        self._join()
        found = self.buffer[self._position : self._position + HEADER_BYTES]
        if len(found) < HEADER_BYTES and AMQP_HEADER[:4].startswith(found[:4]):
            return None
        self._position += len(found)
        return found

    def take_row(self, frame_bytes_max: int, rows_max: int = _ROWS_AT_ONCE) -> hot.Row | None:
        """Take the next whole frame, or None; raise FramingFault if there can be none."""
        if self._next < len(self._rows):
            row = self._rows[self._next]
            self._next += 1
            return row
        return self._scan(frame_bytes_max, rows_max)

    def _scan(self, frame_bytes_max: int, rows_max: int) -> hot.Row | None:
        for _ in range(2):
            self._rows, self._position = hot.scan(
                self.buffer, self._position, frame_bytes_max, rows_max
            )
            if self._rows:
                self._next = 1
                return self._rows[0]
            if self._tail_bytes < self._missing_bytes(frame_bytes_max):
                break
            self._join()
        self._next = 0
        return None

    def _missing_bytes(self, frame_bytes_max: int) -> int:
        """Return how many bytes more make a frame, or a size where there is none yet."""
        here = len(self.buffer) - self._position
        if here < 4:
            return max(4 - here, 1)
        size = int.from_bytes(self.buffer[self._position : self._position + 4], "big")
        if size < 8:
            raise FramingFault("a frame is smaller than its header", size=size)
        if size > frame_bytes_max:
            raise FramingFault("a frame is too large", size=size, limit=frame_bytes_max)
        return size - here

    def _join(self) -> None:
        if self._tail:
            self.buffer = b"".join((self.buffer[self._position :], *self._tail))
            self._position = 0
            self._tail.clear()
            self._tail_bytes = 0


def encode_frame(channel: int, body: Composite, frame_type: int = AMQP_FRAME) -> bytes:
    """Write a frame of one performative without a payload."""
    content = encode_composite(body)
    head = bytes((2, frame_type, channel >> 8, channel & 255))
    return (len(content) + 8).to_bytes(4, "big") + head + content
