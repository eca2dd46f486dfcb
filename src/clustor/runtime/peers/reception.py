"""Bytes of a connection between nodes become its handshake, then packets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clustor import wire as w
from clustor.wire import BATCH_ID

PREFIX_BYTES: Final = 4


class PeerReception:
    """Bytes of one connection become its handshake, then packets. Pure but for its callback.

    A frame that lies whole in what was read is cut out of it; one that comes in parts is put
    together once, when its last part is here.
    """

    def __init__(self, on_packet: Callable[[w.Packet], None]) -> None:
        self._on_packet = on_packet
        self._head = bytearray()  # of the handshake
        self._prefix = b""  # less than a frame's length, of a frame that comes in parts
        self._parts: list[bytes] = []  # of its body
        self._missing = 0  # bytes of its body
        self.frames = 0
        self.negotiated: w.Negotiated | None = None

    def receive(self, data: bytes) -> None:
        """Take bytes; raises WireError, after everything valid before it was delivered."""
        if self.negotiated is None:
            self._head += data
            self._take_handshake()
            return
        if self._missing:
            data = self._take_part(data)
        if self._prefix:
            data, self._prefix = self._prefix + data, b""
        if data:
            self._take_frames(data)

    def _take_part(self, data: bytes) -> bytes:
        """Take more of the frame that is under way; return what lies behind it."""
        missing = self._missing
        if len(data) < missing:
            self._parts.append(data)
            self._missing = missing - len(data)
            return b""
        self._parts.append(data[:missing])
        body, self._parts, self._missing = b"".join(self._parts), [], 0
        self._deliver(body)
        return data[missing:]

    def _take_frames(self, data: bytes) -> None:
        """Deliver the frames that lie whole in `data`, and keep the rest for what follows."""
        assert self.negotiated is not None
        at, end = 0, len(data)
        bytes_max = self.negotiated.dialect.body_bytes_max
        while end - at >= PREFIX_BYTES:
            start = at + PREFIX_BYTES
            length = int.from_bytes(data[at:start], "little")
            if length > bytes_max:
                raise w.WireBodyTooLarge("frame too large", length=length, limit=bytes_max)
            at = start + length
            if at > end:
                self._parts, self._missing = [data[start:]], at - end
                return
            self._deliver(data[start:at])
        self._prefix = data[at:]

    def _take_handshake(self) -> None:
        body = w.take_frame(self._head, body_bytes_max=w.EXPLAIN_BODY_BYTES_MAX)
        if body is None:
            return
        self.negotiated = w.negotiate(w.local_handshake(), w.decode_handshake(body))
        if self._head:
            rest, self._head = bytes(self._head), bytearray()
            self.receive(rest)

    def _deliver(self, body: bytes) -> None:
        assert self.negotiated is not None
        self.frames += 1
        if body and body[0] != BATCH_ID:
            self._on_packet(w.decode_packet(memoryview(body), self.negotiated.dialect))
            return
        for packet in w.decode_packets(body, self.negotiated.dialect):
            self._on_packet(packet)
