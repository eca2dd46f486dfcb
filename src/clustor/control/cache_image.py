"""A cache as bytes: one checked blob that is written whole and replaced whole."""

from __future__ import annotations

import msgspec
from xxhash import xxh3_128_digest

from clustor.control.errors import ImageRefused
from clustor.kv import KvRecord, Revision, StoreId

_VERSION = 1
_CHECKSUM_BYTES = 16


class CacheImage(msgspec.Struct, array_like=True, forbid_unknown_fields=True, kw_only=True):
    """What survives a restart: records, the cursor behind them, and when they were confirmed."""

    version: int = _VERSION
    store_id: StoreId
    revision: Revision
    confirmed_unix_ms: int | None
    highest_epochs: tuple[int, int, int]
    records: list[KvRecord]


_decoder = msgspec.msgpack.Decoder(CacheImage)


def encode_image(image: CacheImage) -> bytes:
    body = msgspec.msgpack.encode(image)
    return xxh3_128_digest(body) + body


def decode_image(encoded: bytes) -> CacheImage:
    """Read an image back; raises ImageRefused unless it is whole, intact and of this version."""
    checksum, body = encoded[:_CHECKSUM_BYTES], encoded[_CHECKSUM_BYTES:]
    if xxh3_128_digest(body) != checksum:
        raise ImageRefused("checksum mismatch", image_bytes=len(encoded))
    try:
        image = _decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ImageRefused("not an image") from error
    if image.version != _VERSION:
        raise ImageRefused("unknown version", version=image.version, known=_VERSION)
    return image
