"""ChunkedList: a long list cut into self-describing chunks, and put together again (§7.1).

A chunk is `total_count:u32, chunk_offset:u32, chunk_len:u16, chunk_flags:u8`, then `chunk_len`
items, each behind a 32-bit length, then `chunk_crc32c:u32` over all of that if the flag
`has_crc` is set. Offsets count items. Chunks may arrive in any order and more than once.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from crc32c import crc32c

from .errors import (
    WireBodyTooLarge,
    WireBodyTooShort,
    WireChunkCrcMismatch,
    WireChunkDuplicateItem,
    WireChunkMissing,
    WireChunkMissingCrc,
    WireChunkOverlap,
    WireChunkReassemblyAborted,
    WireError,
    WireMisuse,
    WireUnknownField,
)
from .types import KIB, MIB, Buffer

CHUNK_ITEMS_MAX = 1024
CHUNK_BYTES_MAX = 64 * KIB
REASSEMBLY_BYTES_MAX = 8 * MIB
TOTAL_COUNT_MAX = 1_000_000
# The specification bounds bytes and items; this bounds the bookkeeping of a peer that sends
# one item per chunk. A full list needs 977 chunks.
REASSEMBLY_CHUNKS_MAX = 16 * KIB
HAS_CRC = 0x01

_HEADER = struct.Struct("<IIHB")
_U32 = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class ItemChunk:
    """A checked chunk; `items` holds the encoded items, lengths included."""

    total_count: int
    chunk_offset: int
    chunk_len: int
    items: bytes


def encode_chunks(items: Sequence[Buffer], *, has_crc: bool = True) -> Iterator[bytes]:
    """Cut `items` into as few chunks as the limits allow; an empty list is one empty chunk.

    Raises WireMisuse for a list that no peer could put together again.
    """
    _check_list(items)
    room = CHUNK_BYTES_MAX - _HEADER.size - (_U32.size if has_crc else 0)
    offset, parts, held = 0, list[Buffer](), 0
    for place, item in enumerate(items):
        size = _U32.size + len(item)
        if place - offset == CHUNK_ITEMS_MAX or held + size > room:
            yield _encode_chunk(len(items), offset, place - offset, parts, has_crc=has_crc)
            offset, parts, held = place, [], 0
        parts += (_U32.pack(len(item)), item)
        held += size
    yield _encode_chunk(len(items), offset, len(items) - offset, parts, has_crc=has_crc)


def _check_list(items: Sequence[Buffer]) -> None:
    if len(items) > TOTAL_COUNT_MAX:
        raise WireMisuse("list too long", count=len(items), limit=TOTAL_COUNT_MAX)
    longest = max(map(len, items), default=0)
    item_bytes_max = CHUNK_BYTES_MAX - _HEADER.size - 2 * _U32.size
    if longest > item_bytes_max:
        raise WireMisuse("item too long for a chunk", length=longest, limit=item_bytes_max)
    total = sum(map(len, items)) + _U32.size * len(items)
    if total > REASSEMBLY_BYTES_MAX:
        raise WireMisuse("list too large", length=total, limit=REASSEMBLY_BYTES_MAX)


def _encode_chunk(
    total_count: int, offset: int, count: int, parts: list[Buffer], *, has_crc: bool
) -> bytes:
    header = _HEADER.pack(total_count, offset, count, HAS_CRC if has_crc else 0)
    chunk = b"".join((header, *parts))
    return chunk + _U32.pack(crc32c(chunk)) if has_crc else chunk


def decode_chunk(payload: Buffer) -> ItemChunk:
    """Check one chunk by itself and return it, or raise the WireError that says what is wrong."""
    if len(payload) > CHUNK_BYTES_MAX:
        raise WireBodyTooLarge("chunk too large", length=len(payload), limit=CHUNK_BYTES_MAX)
    if len(payload) < _HEADER.size:
        raise WireBodyTooShort("the chunk ends inside its header", length=len(payload))
    total_count, offset, count, flags = _HEADER.unpack_from(payload)
    _check_header(total_count, offset, count, flags)
    end = _items_end(payload, count)
    _check_tail(payload, end, has_crc=bool(flags & HAS_CRC))
    return ItemChunk(total_count, offset, count, bytes(payload[_HEADER.size : end]))


def _check_header(total_count: int, offset: int, count: int, flags: int) -> None:
    if flags & ~HAS_CRC:
        raise WireUnknownField("unknown chunk flags", chunk_flags=flags)
    if count > CHUNK_ITEMS_MAX:
        raise WireBodyTooLarge("too many items in a chunk", count=count, limit=CHUNK_ITEMS_MAX)
    if total_count > TOTAL_COUNT_MAX:
        raise WireChunkReassemblyAborted("list too long", total=total_count, limit=TOTAL_COUNT_MAX)
    if offset + count > total_count:
        raise WireChunkReassemblyAborted(
            "chunk passes the end of its list", offset=offset, count=count, total=total_count
        )
    if count == 0 and total_count:
        raise WireBodyTooShort("chunk without items", offset=offset, total=total_count)


def _items_end(payload: Buffer, count: int) -> int:
    end = _HEADER.size
    try:
        for _ in range(count):
            end += _U32.size + _U32.unpack_from(payload, end)[0]
    except struct.error:
        end = len(payload) + 1
    if end > len(payload):
        raise WireBodyTooShort("the chunk ends inside its items", length=len(payload))
    return end


def _check_tail(payload: Buffer, end: int, *, has_crc: bool) -> None:
    tail = len(payload) - end
    if has_crc and tail < _U32.size:
        raise WireChunkMissingCrc("the chunk ends before its checksum", length=len(payload))
    if tail != (_U32.size if has_crc else 0):
        raise WireUnknownField("bytes after the chunk", length=tail)
    if has_crc:
        carried, computed = _U32.unpack_from(payload, end)[0], crc32c(bytes(payload[:end]))
        if carried != computed:
            raise WireChunkCrcMismatch("chunk checksum", carried=carried, computed=computed)


class Reassembly:
    """Put one ChunkedList together; holds at most 8 MiB of items.

    The first error ends it: what was held is dropped, and every later call raises
    WireChunkReassemblyAborted.
    """

    __slots__ = ("_aborted", "_chunks", "_held_bytes", "_held_count", "_offsets", "_total_count")

    def __init__(self) -> None:
        self._chunks: dict[int, ItemChunk] = {}  # by chunk_offset; their item ranges are disjoint
        self._offsets: list[int] = []  # the keys of _chunks, ascending
        self._total_count: int | None = None  # None until the first chunk
        self._held_count = 0
        self._held_bytes = 0
        self._aborted = False

    @property
    def is_complete(self) -> bool:
        """Whether every item has arrived."""
        return not self._aborted and self._held_count == self._total_count

    @property
    def held_bytes(self) -> int:
        """How many bytes of items are held now."""
        return self._held_bytes

    def add(self, payload: Buffer) -> None:
        """Take one chunk; an exact repetition changes nothing."""
        self._check_alive()
        try:
            self._add(decode_chunk(payload))
        except WireError:
            self._abort()
            raise

    def finish(self) -> list[bytes]:
        """Return the list. Raises WireChunkMissing if the stream ended too early."""
        self._check_alive()
        try:
            self._check_complete()
            items = [item for offset in self._offsets for item in _split(self._chunks[offset])]
            if len(set(items)) != len(items):
                raise WireChunkDuplicateItem(
                    "an item stands twice in the list", duplicates=len(items) - len(set(items))
                )
        finally:
            self._abort()
        return items

    def _check_alive(self) -> None:
        if self._aborted:
            raise WireChunkReassemblyAborted("the list was ended or broken before")

    def _abort(self) -> None:
        self._aborted = True
        self._chunks.clear()
        self._offsets.clear()
        self._held_bytes = 0

    def _add(self, chunk: ItemChunk) -> None:
        if self._total_count not in (None, chunk.total_count):
            raise WireChunkReassemblyAborted(
                "chunks disagree on the list", first=self._total_count, now=chunk.total_count
            )
        if self._chunks.get(chunk.chunk_offset) == chunk:
            return
        place = self._place_of(chunk)
        held_bytes = self._held_bytes + len(chunk.items)
        if held_bytes > REASSEMBLY_BYTES_MAX or len(self._chunks) >= REASSEMBLY_CHUNKS_MAX:
            raise WireChunkReassemblyAborted(
                "list too large", bytes=held_bytes, chunks=len(self._chunks) + 1
            )
        self._total_count = chunk.total_count
        self._chunks[chunk.chunk_offset] = chunk
        self._offsets.insert(place, chunk.chunk_offset)
        self._held_count += chunk.chunk_len
        self._held_bytes = held_bytes

    def _place_of(self, chunk: ItemChunk) -> int:
        """Find where the chunk goes among its neighbours, or raise WireChunkOverlap."""
        start, end = chunk.chunk_offset, chunk.chunk_offset + chunk.chunk_len
        place = bisect_left(self._offsets, start)
        for other in self._offsets[max(0, place - 1) : place + 1]:
            if other < end and start < other + self._chunks[other].chunk_len:
                raise WireChunkOverlap("two chunks claim one item", offset=start, other=other)
        return place

    def _check_complete(self) -> None:
        missing_from = 0
        for offset in self._offsets:
            if offset != missing_from:
                break
            missing_from += self._chunks[offset].chunk_len
        if missing_from != self._total_count:
            raise WireChunkMissing(
                "the list ended with items missing", offset=missing_from, total=self._total_count
            )


def _split(chunk: ItemChunk) -> Iterator[bytes]:
    start = 0
    for _ in range(chunk.chunk_len):
        (length,) = _U32.unpack_from(chunk.items, start)
        start += _U32.size + length
        yield chunk.items[start - length : start]
