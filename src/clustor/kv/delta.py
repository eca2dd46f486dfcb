"""What changed in a store since a moment that its machine remembers, as a stream of frames.

The history of events is the delta: each is the record that a key had then, or its deletion. Where
the history no longer reaches back to that moment there is no delta, and a whole snapshot is due.
Of clients those are told that asked since, in the order that the table keeps them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
from xxhash import xxh3_128

from clustor.kv.clients import ClientEntry
from clustor.kv.errors import SnapshotRefused
from clustor.kv.snapshot import bodies, framed
from clustor.kv.types import KvRecord, Revision, StoreId

VERSION: Final = 1
CHUNK_BYTES: Final = 256 * 1024


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Positional and closed, like the snapshot's."""


class KvDeltaHeader(_Frame, tag=16):
    """From which state to which; numbers of frames that follow."""

    version: int
    store_id: StoreId
    since_index: int
    since_revision: Revision
    applied_index: int
    revision: Revision
    compacted: Revision
    now_ms: int
    clients: int  # how many the table has afterwards
    events: int
    entries: int


class _Event(_Frame, tag=17):
    record: KvRecord


class _Client(_Frame, tag=18):
    entry: ClientEntry


class _End(_Frame, tag=19):
    checksum: bytes  # xxh3-128 of all bytes before this frame's length


_AnyFrame: TypeAlias = KvDeltaHeader | _Event | _Client | _End

_encode_frame = msgspec.msgpack.Encoder().encode
_decode_frame = msgspec.msgpack.Decoder(_AnyFrame).decode


@dataclass(frozen=True, slots=True)
class KvMark:
    """A moment that a delta can begin at."""

    applied_index: int
    revision: Revision
    client_stamp: int


@dataclass(slots=True)
class Delta:
    """Everything that a delta carries."""

    header: KvDeltaHeader
    events: list[KvRecord]
    entries: list[ClientEntry]


def encode(delta: Delta) -> Iterator[bytes]:
    """Give the stream in pieces of about CHUNK_BYTES."""
    buffer = bytearray()
    checksum = xxh3_128()
    for frame in _frames(delta):
        piece = framed(_encode_frame(frame))
        checksum.update(piece)
        buffer += piece
        if len(buffer) >= CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    buffer += framed(_encode_frame(_End(checksum.digest())))
    yield bytes(buffer)


def _frames(delta: Delta) -> Iterator[_AnyFrame]:
    yield delta.header
    for event in delta.events:
        yield _Event(event)
    for entry in delta.entries:
        yield _Client(entry)


def decode(chunks: Iterable[bytes]) -> Delta:
    """Read a whole delta, cut in whatever way; raises SnapshotRefused unless it is intact."""
    delta: Delta | None = None
    complete = False
    for number, (body, checksum_before) in enumerate(bodies(chunks)):
        try:
            frame = _decode_frame(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SnapshotRefused("not a frame of a delta", frame=number) from error
        if complete:
            raise SnapshotRefused("bytes after the end", frame=number)
        if isinstance(frame, KvDeltaHeader):
            if delta is not None or frame.version != VERSION:
                raise SnapshotRefused("not a delta of this version", version=frame.version)
            delta = Delta(frame, [], [])
        elif delta is None:
            raise SnapshotRefused("no header")
        elif isinstance(frame, _Event):
            delta.events.append(frame.record)
        elif isinstance(frame, _Client):
            delta.entries.append(frame.entry)
        else:
            complete = frame.checksum == checksum_before
    if delta is None or not complete:
        raise SnapshotRefused("a delta is cut short or damaged")
    found = (len(delta.events), len(delta.entries))
    if found != (delta.header.events, delta.header.entries):
        raise SnapshotRefused("a delta lacks frames", found=found)
    return delta
