"""The four codecs of record batches, with bounded inflation: a bomb is refused, not held.

Batches pass through as they came; only who must look at records inflates them.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import Final

import cramjam

from quantum.protocols.kafka.codec.errors import CorruptBatch


class Compression(IntEnum):
    """The low three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


INFLATED_BYTES_MAX: Final = 64 << 20
_FIRST_GUESS: Final = 8  # times the compressed size; doubled until it fits or the bound is met
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = len(_XERIAL_MAGIC) + 8  # two versions follow the magic


def inflate(
    codec: Compression, data: bytes | memoryview, *, bytes_max: int = INFLATED_BYTES_MAX
) -> bytes:
    """Inflate what one batch holds. Raises CorruptBatch: damaged, or beyond `bytes_max`."""
    if codec is Compression.NONE:
        if len(data) > bytes_max:
            raise CorruptBatch("records too large", limit=bytes_max)
        return bytes(data)
    if codec is Compression.GZIP:
        return _inflate_gzip(data, bytes_max)
    if codec is Compression.SNAPPY:
        return _inflate_snappy(bytes(data), bytes_max)
    return _inflate_frames(codec, bytes(data), bytes_max)


def deflate(codec: Compression, data: bytes) -> bytes:
    """Compress as stock producers do: whole frames, and raw snappy."""
    match codec:
        case Compression.NONE:
            return data
        case Compression.GZIP:
            packer = zlib.compressobj(wbits=_GZIP_WINDOW)
            return packer.compress(data) + packer.flush()
        case Compression.SNAPPY:
            return bytes(cramjam.snappy.compress_raw(data))
        case Compression.LZ4:
            return bytes(cramjam.lz4.compress(data))
        case Compression.ZSTD:
            return bytes(cramjam.zstd.compress(data))


def _inflate_gzip(data: bytes | memoryview, bytes_max: int) -> bytes:
    """Inflate all members of a gzip stream: some producers flush into several."""
    pieces: list[bytes] = []
    room = bytes_max
    rest = bytes(data)
    while rest:
        unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW)
        try:
            pieces.append(unpacker.decompress(rest, room + 1))
        except zlib.error:
            raise CorruptBatch("records are no gzip") from None
        room -= len(pieces[-1])
        if room < 0 or unpacker.unconsumed_tail:
            raise CorruptBatch("records inflate beyond the bound", limit=bytes_max)
        if not unpacker.eof:
            raise CorruptBatch("records end within a gzip member")
        rest = unpacker.unused_data
    return b"".join(pieces)


def _inflate_snappy(data: bytes, bytes_max: int) -> bytes:
    """Inflate raw snappy (librdkafka), or the framed blocks that Java's library writes."""
    if not data.startswith(_XERIAL_MAGIC):
        return _inflate_raw_snappy(data, bytes_max)
    pieces: list[bytes] = []
    position = _XERIAL_HEADER
    while position < len(data):
        start = position + 4
        position = start + int.from_bytes(data[position:start], "big")
        if start > len(data) or position > len(data):
            raise CorruptBatch("records end within a snappy block")
        pieces.append(_inflate_raw_snappy(data[start:position], bytes_max))
        bytes_max -= len(pieces[-1])
    return b"".join(pieces)


def _inflate_raw_snappy(data: bytes, bytes_max: int) -> bytes:
    try:
        size = cramjam.snappy.decompress_raw_len(data)
        if size > bytes_max:
            raise CorruptBatch("records inflate beyond the bound", limit=bytes_max)
        out = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(data, out) if size else 0
    except (cramjam.DecompressionError, ValueError):
        raise CorruptBatch("records are no snappy") from None
    return bytes(memoryview(out)[:written])


def _inflate_frames(codec: Compression, data: bytes, bytes_max: int) -> bytes:
    """Inflate lz4 or zstd frames into a buffer that grows until they fit, or to the bound."""
    unpack = cramjam.lz4.decompress_into if codec is Compression.LZ4 else _zstd_into
    size = min(bytes_max, max(1024, len(data) * _FIRST_GUESS))
    while True:
        out = bytearray(size)
        try:
            written = unpack(data, out)
        except (cramjam.DecompressionError, ValueError) as fault:
            # The library says 'damaged' and 'no room' by the same class: only room can be given.
            if "whole buffer" not in str(fault):
                raise CorruptBatch(f"records are no {codec.name.lower()}") from None
            if size == bytes_max:
                raise CorruptBatch("records inflate beyond the bound", limit=bytes_max) from None
            size = min(bytes_max, size * 4)
            continue
        return bytes(memoryview(out)[:written])


def _zstd_into(data: bytes, out: bytearray) -> int:
    return cramjam.zstd.decompress_into(data, out)
