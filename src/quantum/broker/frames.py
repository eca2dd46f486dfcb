"""The pieces of a snapshot: what each kind of thing is as bytes, and back.

A snapshot is a sequence of frames: length:u32 (little-endian), then a MessagePack array. No frame
holds more than a page of anything, so nobody ever holds a second copy of the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from quantum.broker.commands import SubscriptionSpec, WillSpec
from quantum.broker.errors import SnapshotUnusable
from quantum.broker.items import FrozenDelivery, Item
from quantum.broker.message import Message
from quantum.broker.stream_table import StreamSpec

CHUNK_BYTES: Final = 1 << 20
FRAME_BYTES_MAX: Final = 1 << 30
LENGTH_BYTES: Final = 4


class _Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    pass


class BrokerHeader(_Frame, tag=0):
    name: str
    version: int
    prg: int
    applied_index: int
    now_ms: int
    epoch: int
    attachments: int
    dropped: int
    # Not in snapshots of version 2: their tenants have the ring that they were made with.
    routing_epoch: int = 0
    prg_count: int = 0
    is_open: bool = True
    blind: list[int] = []


class FrozenSession(_Frame, tag=1):
    """A session without what is on its way to it: `FrozenDeliveries` follow."""

    client_id: bytes
    epoch: int
    expiry_seconds: int
    attachment: int
    connected: bool
    disconnected_at_ms: int
    subscriptions: list[tuple[bytes, SubscriptionSpec]]
    received: list[tuple[int, int, int]]
    will: WillSpec | None
    will_due_ms: int
    keeps_queue: bool
    look_at_ms: int
    replays: list[tuple[int, bytes, int, int, bytes]]
    window: int
    next_id: int
    unsent: list[int]
    identity: bytes = b""  # not in older snapshots: their sessions are bound to nobody


class FrozenDeliveries(_Frame, tag=2):
    """On its way to the last session: in flight first (with packet ids), then what waits."""

    deliveries: list[FrozenDelivery]


class FrozenGroup(_Frame, tag=3):
    name: bytes
    filter: bytes
    turn: int
    members: list[tuple[int, bytes, int, int, int, bool, bool]]


class FrozenRetained(_Frame, tag=4):
    messages: list[Message]


class FrozenOutbox(_Frame, tag=5):
    """Some items of a channel; the first frame of a channel says how far its receiver got."""

    prg: int
    acked_through: int
    items: list[Item]


class FrozenPlaces(_Frame, tag=6):
    counted: list[tuple[int, int]]
    forwarded: list[tuple[int, int, int, int, list[tuple[int, int]]]]


class FrozenInterests(_Frame, tag=7):
    told: list[tuple[bytes, int]]
    remote: list[tuple[bytes, int, int]]


class FrozenPressure(_Frame, tag=8):
    full: list[bytes]
    congested: list[tuple[bytes, list[int]]]
    refusing: list[bytes]
    replaying: list[bytes]
    turned_away: list[tuple[bytes, int, int]] = []  # not in older snapshots


class FrozenHoldings(_Frame, tag=12):
    """Not in snapshots before version 4: their partitions have an equal part of the defaults."""

    shares: tuple[int, ...]
    ceilings: tuple[int, ...]
    graces: list[tuple[int, int]]
    full_stores: list[int]
    hashes_shares: bool


class FrozenPart(_Frame, tag=13):
    """The next part of a command that has not wholly come yet."""

    data: bytes


class DeltaHeader(_Frame, tag=14):
    """From which state a delta leads, and what it comes to; its `BrokerHeader` follows."""

    name: str
    version: int
    since_index: int
    since: tuple[int, ...]  # `totals` of that state
    totals: tuple[int, ...]


class FrozenGone(_Frame, tag=15):
    """What is no more, or came anew: that follows, behind what was there before."""

    sessions: list[bytes] = []
    groups: list[tuple[bytes, bytes]] = []
    told: list[bytes] = []
    retained: list[bytes] = []
    interests: list[tuple[bytes, int]] = []
    streams: list[int] = []
    pages: list[tuple[int, bytes]] = []


class FrozenChannel(_Frame, tag=16):
    """A channel goes on: what its receiver has is gone, and items follow behind a place."""

    prg: int
    acked_through: int
    after: int


class FrozenFullQueues(_Frame, tag=17):
    """What full queues cost, and did; not there where a tenant never chose (C24)."""

    policy: int
    dropped: list[tuple[int, int]]


class FrozenStreams(_Frame, tag=18):
    """Streams with the offsets at which they start and go on; not there where none ever was."""

    last_number: int
    streams: list[tuple[StreamSpec, int, int]]


class FrozenPage(_Frame, tag=19):
    """A page of a section; not there where no section has any."""

    family: int
    key: bytes
    data: bytes


class End(_Frame, tag=9):
    """Nothing is missing: so many frames came before."""

    frames: int


class FrozenMove(_Frame, tag=10):
    """A change of the ring that is not over here."""

    routing_epoch: int
    old_count: int
    began: list[int]
    flushed: list[int]
    is_flushed: bool
    is_cut: bool
    is_handed: bool
    places: list[tuple[int, int]]
    ended: list[int]


class FrozenHeld(_Frame, tag=11):
    """What waits until a fresh partition opens."""

    held: list[tuple[int, Item]]


Frame: TypeAlias = (
    BrokerHeader
    | FrozenSession
    | FrozenDeliveries
    | FrozenGroup
    | FrozenRetained
    | FrozenOutbox
    | FrozenPlaces
    | FrozenInterests
    | FrozenPressure
    | FrozenMove
    | FrozenHeld
    | FrozenHoldings
    | FrozenFullQueues
    | FrozenPart
    | DeltaHeader
    | FrozenGone
    | FrozenChannel
    | FrozenStreams
    | FrozenPage
    | End
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode_frames(frames: Iterable[Frame]) -> Iterator[bytes]:
    """Give the bytes of frames in pieces of about CHUNK_BYTES."""
    piece = bytearray()
    for frame in frames:
        _append(piece, frame)
        if len(piece) >= CHUNK_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _append(piece: bytearray, frame: Frame) -> None:
    body = _encoder.encode(frame)
    piece += len(body).to_bytes(LENGTH_BYTES, "little")
    piece += body


def encode_frames_later(frames: Iterable[Frame]) -> Iterator[bytes]:
    """Take all frames now, and give their bytes as they are asked for.

    What holds messages is kept as it is: they are there anyway, and never change. Everything
    else is smaller as bytes than as objects, and becomes bytes at once.
    """
    parts: deque[bytes | Frame] = deque()
    piece = bytearray()
    for frame in frames:
        is_heavy = isinstance(frame, FrozenDeliveries | FrozenRetained | FrozenOutbox | FrozenHeld)
        if piece and (is_heavy or len(piece) >= CHUNK_BYTES):
            parts.append(bytes(piece))
            piece.clear()
        if is_heavy:
            parts.append(frame)
        else:
            _append(piece, frame)
    parts.append(bytes(piece))
    return _encode_parts(parts)


def _encode_parts(parts: deque[bytes | Frame]) -> Iterator[bytes]:
    piece = bytearray()
    while parts:
        part = parts.popleft()
        if isinstance(part, bytes):
            piece += part
        else:
            _append(piece, part)
        if len(piece) >= CHUNK_BYTES or not parts:
            yield bytes(piece)
            piece.clear()


def decode_frames(pieces: Iterable[bytes]) -> Iterator[Frame]:
    """Give the frames of pieces that were cut anywhere. Raises SnapshotUnusable."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        at = 0
        while (end := _frame_end(buffer, at)) is not None:
            try:
                yield _decoder.decode(memoryview(buffer)[at + LENGTH_BYTES : end].tobytes())
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise SnapshotUnusable("cannot read a frame", cause=str(error)) from error
            at = end
        del buffer[:at]
    if buffer:
        raise SnapshotUnusable("the snapshot is cut short", left_bytes=len(buffer))


def _frame_end(buffer: bytearray, at: int) -> int | None:
    if len(buffer) < at + LENGTH_BYTES:
        return None
    length = int.from_bytes(buffer[at : at + LENGTH_BYTES], "little")
    if length > FRAME_BYTES_MAX:
        raise SnapshotUnusable("a frame is too long", length=length)
    end = at + LENGTH_BYTES + length
    return end if len(buffer) >= end else None
