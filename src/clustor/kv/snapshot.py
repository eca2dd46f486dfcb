"""A store's state as a stream of bytes, cut into chunks without regard to what is in them.

The stream is a sequence of frames (length: u32 little-endian, then a msgpack array): one
header, the live records by key, the events in order, the clients with the oldest first,
and a trailer that carries a checksum of all bytes before it. An event that is still the live
record of its key is stored as that key alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

import msgspec
from xxhash import xxh3_128

from clustor.kv.clients import ClientEntry
from clustor.kv.errors import KvMisuse, SnapshotRefused
from clustor.kv.types import Key, KvLimits, KvRecord, Revision, StoreId

VERSION = 1
CHUNK_BYTES_MAX = 1024 * 1024
_LENGTH_BYTES = 4
# No length may make the reader hold more than this. What a frame carries may fill half of it.
_FRAME_BYTES_MAX = 64 * 1024 * 1024


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Positional and closed, like the commands."""


class KvSnapshotHeader(_Frame, tag=0):
    version: int
    store_id: StoreId
    limits: KvLimits
    revision: Revision
    compacted: Revision
    now_ms: int
    applied_index: int


class _Live(_Frame, tag=1):
    record: KvRecord


class _Event(_Frame, tag=2):
    record: KvRecord


class _LiveEvent(_Frame, tag=3):
    key: Key


class _Client(_Frame, tag=4):
    entry: ClientEntry


class _Trailer(_Frame, tag=5):
    checksum: bytes  # xxh3-128 of all bytes before the trailer's length


_AnyFrame: TypeAlias = KvSnapshotHeader | _Live | _Event | _LiveEvent | _Client | _Trailer

_encode_frame = msgspec.msgpack.Encoder().encode
_decode_frame = msgspec.msgpack.Decoder(_AnyFrame).decode


@dataclass(slots=True)
class KvSnapshotState:
    """Everything a snapshot carries."""

    header: KvSnapshotHeader
    live: list[KvRecord] = field(default_factory=list)
    events: list[KvRecord] = field(default_factory=list)
    clients: list[ClientEntry] = field(default_factory=list)


def require_storable(limits: KvLimits) -> None:
    """Refuse limits under which a snapshot could be written that nobody can read."""
    largest = max(limits.key_bytes_max + limits.value_bytes_max, limits.reply_bytes_max)
    if largest > _FRAME_BYTES_MAX // 2:
        raise KvMisuse("limits too large", largest=largest, limit=_FRAME_BYTES_MAX // 2)


def encode(state: KvSnapshotState) -> Iterator[bytes]:
    """Give the stream in chunks of exactly CHUNK_BYTES_MAX, the last one shorter."""
    buffer = bytearray()
    checksum = xxh3_128()
    for frame in _frames(state):
        body = _encode_frame(frame)
        piece = framed(body)
        checksum.update(piece)
        buffer += piece
        yield from _take_chunks(buffer)
    trailer = _encode_frame(_Trailer(checksum.digest()))
    buffer += len(trailer).to_bytes(_LENGTH_BYTES, "little") + trailer
    yield from _take_chunks(buffer)
    if buffer:
        yield bytes(buffer)


def framed(body: bytes) -> bytes:
    """Put a frame's length before it."""
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


def _take_chunks(buffer: bytearray) -> Iterator[bytes]:
    while len(buffer) >= CHUNK_BYTES_MAX:
        yield bytes(buffer[:CHUNK_BYTES_MAX])
        del buffer[:CHUNK_BYTES_MAX]


def _frames(state: KvSnapshotState) -> Iterator[_AnyFrame]:
    yield state.header
    for record in state.live:
        yield _Live(record)
    live = {record.key: record for record in state.live}
    for event in state.events:
        yield _LiveEvent(event.key) if live.get(event.key) is event else _Event(event)
    for entry in state.clients:
        yield _Client(entry)


def decode(chunks: Iterable[bytes]) -> KvSnapshotState:
    """Read a whole snapshot, cut into chunks in whatever way.

    Raises SnapshotRefused unless it is complete, intact and of this version.
    """
    reader = _Reader()
    for body, checksum_before in bodies(chunks):
        try:
            frame = _decode_frame(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SnapshotRefused("not a frame", frame=reader.frames) from error
        reader.on_frame(frame, checksum_before)
    return reader.finish()


def bodies(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Give each frame's body and the checksum of all bytes before the frame."""
    buffer = bytearray()
    checksum = xxh3_128()
    for chunk in chunks:
        buffer += chunk
        position = 0
        while (end := _frame_end(buffer, position)) is not None:
            before = checksum.digest()
            checksum.update(bytes(buffer[position:end]))
            yield bytes(buffer[position + _LENGTH_BYTES : end]), before
            position = end
        del buffer[:position]
    if buffer:
        raise SnapshotRefused("cut short", left_bytes=len(buffer))


def _frame_end(buffer: bytearray, position: int) -> int | None:
    """Return where the frame at `position` ends, or None if it is not all there yet."""
    body = position + _LENGTH_BYTES
    if len(buffer) < body:
        return None
    length = int.from_bytes(buffer[position:body], "little")
    if length > _FRAME_BYTES_MAX:
        raise SnapshotRefused("frame too large", length=length, limit=_FRAME_BYTES_MAX)
    return body + length if len(buffer) >= body + length else None


class _Reader:
    """Collect frames into a state; the trailer must come last and vouch for them."""

    def __init__(self) -> None:
        self._state: KvSnapshotState | None = None
        self._live: dict[Key, KvRecord] = {}
        self._complete = False
        self.frames = 0

    def on_frame(self, frame: _AnyFrame, checksum_before: bytes) -> None:
        if self._complete:
            raise SnapshotRefused("bytes after the end", frame=self.frames)
        self.frames += 1
        if self._state is None:
            self._state = _begin(frame)
            return
        match frame:
            case KvSnapshotHeader():
                raise SnapshotRefused("second header", frame=self.frames)
            case _Live(record=record):
                self._live[record.key] = record
                self._state.live.append(record)
            case _Event(record=record):
                self._state.events.append(record)
            case _LiveEvent(key=key):
                if key not in self._live:
                    raise SnapshotRefused("event of no live key", frame=self.frames)
                self._state.events.append(self._live[key])
            case _Client(entry=entry):
                self._state.clients.append(entry)
            case _Trailer(checksum=checksum):
                if checksum != checksum_before:
                    raise SnapshotRefused("checksum mismatch", frames=self.frames)
                self._complete = True
            case _:
                assert_never(frame)

    def finish(self) -> KvSnapshotState:
        if self._state is None or not self._complete:
            raise SnapshotRefused("cut short", frames=self.frames)
        return self._state


def _begin(frame: _AnyFrame) -> KvSnapshotState:
    if not isinstance(frame, KvSnapshotHeader):
        raise SnapshotRefused("no header")
    if frame.version != VERSION:
        raise SnapshotRefused("unknown version", version=frame.version, known=VERSION)
    return KvSnapshotState(frame)
