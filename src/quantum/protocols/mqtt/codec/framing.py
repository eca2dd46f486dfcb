"""Cut a stream of bytes into packets, however the bytes arrive.

A reader is pulled: what was whole before a bad header is still delivered, and a peer that is
not pulled stays in its own buffer. Bytes are joined when a packet is whole and at no other
time, so that a packet that drips in costs no more copying than one that came at once.
"""

from __future__ import annotations

from typing import Final

from quantum.protocols.mqtt.codec.errors import MalformedPacket
from quantum.protocols.mqtt.codec.types import REMAINING_LENGTH_MAX, ReasonCode

HEADER_BYTES_MAX: Final = 5  # a first byte and four of remaining length
_HEADER_BYTES_MIN: Final = 2
PACKET_BYTES_MAX: Final = REMAINING_LENGTH_MAX + HEADER_BYTES_MAX


def read_header(buffer: bytes, start: int, end: int) -> tuple[int, int] | None:
    """Read the fixed header at `start`: where the body starts, and where it ends.

    None means that the header itself is not whole yet. Raises MalformedPacket for a remaining
    length of more than four bytes, or of more bytes than its value takes.
    """
    length = 0
    for size in range(4):
        position = start + 1 + size
        if position >= end:
            return None
        byte = buffer[position]
        length |= (byte & 0x7F) << 7 * size
        if byte < 0x80:
            if size and not byte:
                break
            return position + 1, position + 1 + length
    raise MalformedPacket(ReasonCode.MALFORMED_PACKET, "ill-formed remaining length")


class PacketReader:
    """Holds what one connection received and was not yet asked for.

    `packet_bytes_max` bounds a whole packet, header included, as MQTT 5's Maximum Packet Size
    counts it. Until the first packet was taken the peer is a stranger, and the smaller
    `first_packet_bytes_max` holds. A packet above its bound is refused on its header.
    """

    __slots__ = (
        *("_arrived", "_buffer", "_held", "_limit", "_needed", "_position", "_then"),
        "reads",
    )

    def __init__(self, packet_bytes_max: int, first_packet_bytes_max: int | None = None) -> None:
        self._buffer = b""  # joined bytes; those before `_position` were taken
        self._position = 0
        # What came after `_buffer`. A list of chunks would copy less, and let a peer that sends
        # two bytes at a time make us hold twenty times what it sent.
        self._arrived: bytearray | None = None
        self._held = 0  # bytes received and not taken
        self._needed = _HEADER_BYTES_MIN  # no packet is whole before so many bytes are held
        self._then = packet_bytes_max  # the bound once a packet was taken
        self._limit = first_packet_bytes_max or packet_bytes_max
        self.reads = 0
        """How often something was taken: while this stands, the same packet is not whole."""

    @property
    def buffered_bytes(self) -> int:
        """How many bytes were received and not taken; 0 exactly between two packets."""
        return self._held

    @property
    def awaited_bytes(self) -> int:
        """How large the packet is that is not whole yet, as far as its header is here."""
        return self._needed if self._held < self._needed else 0

    @property
    def packet_bytes_max(self) -> int:
        """The bound of the next packet."""
        return self._limit

    @packet_bytes_max.setter
    def packet_bytes_max(self, packet_bytes_max: int) -> None:
        self._limit = self._then = packet_bytes_max

    def receive(self, data: bytes) -> None:
        """Hold what the connection brought. Never raises: faults are told when pulled."""
        if not self._held:
            self._buffer, self._position = data, 0
        elif self._arrived is None:
            self._arrived = bytearray(data)
        else:
            self._arrived += data
        self._held += len(data)

    def next_packet(self) -> tuple[int, bytes] | None:
        """Take the next packet as its first byte and its body, or None if none is whole yet.

        Raises MalformedPacket for an ill-formed or too long remaining length, and again
        whenever it is asked: behind such a header there is nothing to find.
        """
        bounds = self._locate()
        if bounds is None:
            return None
        first_byte = self._buffer[self._position]
        body = self._buffer[bounds[0] : bounds[1]]
        self.consume(bounds[1])
        return first_byte, body

    def window(self) -> tuple[bytes, int] | None:
        """Give a buffer and where in it a whole packet starts, for `hot.scan` to walk.

        None and faults are as in `next_packet`. Nothing is taken until `consume` says so.
        """
        if self._locate() is None:
            return None
        return self._buffer, self._position

    def consume(self, position: int) -> None:
        """Take everything before `position` of the buffer that `window` gave."""
        assert self._position <= position <= len(self._buffer)
        self._held -= position - self._position
        self._position = position
        self.reads += 1
        self._needed = _HEADER_BYTES_MIN
        self._limit = self._then
        if position == len(self._buffer):
            self._let_go()

    def take_all(self) -> bytes:
        """Take everything that is held, whole packets or not: another will read it."""
        self._let_go()
        held, self._buffer, self._position, self._held = self._buffer, b"", 0, 0
        self._needed = _HEADER_BYTES_MIN
        return held

    def _locate(self) -> tuple[int, int] | None:
        """Find the bounds of the next body in `_buffer`, joining what arrived if that helps."""
        if self._held < self._needed:
            return None
        bounds = read_header(self._buffer, self._position, len(self._buffer))
        if bounds is None and self._arrived is not None:
            self._let_go()
            bounds = read_header(self._buffer, self._position, len(self._buffer))
        if bounds is None:
            self._needed = self._held + 1
            return None
        packet_bytes = bounds[1] - self._position
        if packet_bytes > self._limit:
            code = ReasonCode.PACKET_TOO_LARGE
            raise MalformedPacket(code, "packet too large", length=packet_bytes, limit=self._limit)
        if bounds[1] <= len(self._buffer):
            return bounds
        start = self._position
        if packet_bytes <= self._held or start:
            self._let_go()
        self._needed = packet_bytes
        return (bounds[0] - start, bounds[1] - start) if packet_bytes <= self._held else None

    def _let_go(self) -> None:
        """Join what is held into one buffer, without what was taken."""
        rest = self._buffer[self._position :]
        if self._arrived is not None:
            rest = b"".join((rest, self._arrived))
            self._arrived = None
        self._buffer, self._position = rest, 0
