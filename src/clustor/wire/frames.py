"""Frames on a raw stream: `body_len:u32 little-endian || body`, and nothing else (§8.1).

`take_frame` gives whole bodies and suits what fits a window. `FrameStream` gives the same
frames, but hands a body beyond 64 KiB over in parts, so that a connection holds one window and
not one frame.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from .errors import WireBodyTooLarge, WireBodyTooShort, WireMisuse
from .types import WINDOW_BYTES, Buffer

PREFIX_BYTES = 4
_PREFIX = struct.Struct("<I")


def encode_frame(body: Buffer, *, body_bytes_max: int) -> bytes:
    """Put the length before `body`. Raises WireBodyTooLarge where a peer would."""
    _check_length(len(body), body_bytes_max)
    return b"".join((len(body).to_bytes(PREFIX_BYTES, "little"), body))


def take_frame(buffer: bytearray, *, body_bytes_max: int) -> bytes | None:
    """Remove the first whole frame from `buffer` and return its body, or None for 'not yet'.

    A length over the cap raises WireBodyTooLarge as soon as its four bytes are there.
    """
    length = _promised(buffer, body_bytes_max)
    return None if length is None else _take_body(buffer, length)


def _take_body(buffer: bytearray, length: int) -> bytes | None:
    end = PREFIX_BYTES + length
    if len(buffer) < end:
        return None
    with memoryview(buffer) as view:  # one copy; released before the buffer is cut
        body = bytes(view[PREFIX_BYTES:end])
    del buffer[:end]
    return body


def check_stream_end(buffer: bytes | bytearray) -> None:
    """Raise WireBodyTooShort if the stream ended inside a frame."""
    if not buffer:
        return
    promised = None
    if len(buffer) >= PREFIX_BYTES:
        promised = int.from_bytes(buffer[:PREFIX_BYTES], "little")
    held = max(0, len(buffer) - PREFIX_BYTES)
    raise WireBodyTooShort("the stream ended inside a frame", promised=promised, held=held)


@dataclass(slots=True)
class WholeFrame:
    """A frame whose body fits the window."""

    body: bytes


@dataclass(slots=True)
class FramePart:
    """Some bytes of a larger body: `data` stands at `offset` of `body_bytes`.

    Parts of one body come in order, without gaps, until `offset + len(data) == body_bytes`.
    """

    body_bytes: int
    offset: int
    data: bytes


FrameEvent: TypeAlias = WholeFrame | FramePart


class FrameStream:
    """Turn received bytes into frame events, holding at most one window beyond what is fed."""

    __slots__ = ("_body_bytes", "_body_bytes_max", "_buffer", "_offset")

    def __init__(self, *, body_bytes_max: int) -> None:
        self._body_bytes_max = body_bytes_max
        self._buffer = bytearray()
        self._body_bytes = 0  # of the large body under way; 0 between frames
        self._offset = 0  # bytes of it that were handed over, < _body_bytes while under way

    @property
    def is_between_frames(self) -> bool:
        """Whether nothing is held: the next bytes begin a frame."""
        return not self._buffer and not self._body_bytes

    @property
    def held_bytes(self) -> int:
        return len(self._buffer)

    def receive_data(self, data: Buffer) -> None:
        """Take bytes from the peer. Pull events until None first: not pulling is backpressure."""
        if len(self._buffer) >= PREFIX_BYTES + WINDOW_BYTES:
            raise WireMisuse("events wait to be pulled", held=len(self._buffer))
        self._buffer += data

    def next_event(self) -> FrameEvent | None:
        """Return the next event, or None until more bytes arrive."""
        if self._body_bytes:
            return self._next_part()
        length = _promised(self._buffer, self._body_bytes_max)
        if length is None:
            return None
        if length <= WINDOW_BYTES:
            body = _take_body(self._buffer, length)
            return None if body is None else WholeFrame(body)
        del self._buffer[:PREFIX_BYTES]
        self._body_bytes, self._offset = length, 0
        return self._next_part()

    def end(self) -> None:
        """Say that no more bytes come. Raises WireBodyTooShort inside a frame."""
        if self._body_bytes:
            held = self._offset + len(self._buffer)
            raise WireBodyTooShort(
                "the stream ended inside a frame", promised=self._body_bytes, held=held
            )
        check_stream_end(self._buffer)

    def _next_part(self) -> FramePart | None:
        wanted = min(WINDOW_BYTES, self._body_bytes - self._offset)
        if len(self._buffer) < wanted:
            return None
        part = FramePart(self._body_bytes, self._offset, bytes(self._buffer[:wanted]))
        del self._buffer[:wanted]
        self._offset += wanted
        if self._offset == self._body_bytes:
            self._body_bytes = self._offset = 0
        return part


def _promised(buffer: bytearray, body_bytes_max: int) -> int | None:
    if len(buffer) < PREFIX_BYTES:
        return None
    length: int = _PREFIX.unpack_from(buffer)[0]
    _check_length(length, body_bytes_max)
    return length


def _check_length(length: int, body_bytes_max: int) -> None:
    if length > body_bytes_max:
        raise WireBodyTooLarge("frame too large", length=length, limit=body_bytes_max)
