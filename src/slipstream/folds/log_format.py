"""The `PGSS` file format: how records are written, and how a log is read back. Pure.

Header:  b"PGSS" ++ version:u16le
Record:  crc32:u32le ++ type:u8 ++ payload       (the CRC covers type and payload)
Put:     key_len:u16le ++ key ++ value_len:u32le ++ value ++ ver_len:u8 ++ version
Delete:  key_len:u16le ++ key ++ ver_len:u8 ++ version
Cursor:  cur_len:u8 ++ cursor
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from slipstream.errors import Corrupted, InvalidFormat, Misuse
from slipstream.types import KvEntry, KvUpdate, UpdateKind, VersionToken, WatchCursor

MAGIC: Final = b"PGSS"
FORMAT_VERSION: Final = 1
HEADER: Final = MAGIC + FORMAT_VERSION.to_bytes(2, "little")
PUT: Final = 1
DELETE: Final = 2
CURSOR: Final = 3

KEY_BYTES_MAX: Final = 0xFFFF
VALUE_BYTES_MAX: Final = 0xFFFF_FFFF

_HEAD: Final = struct.Struct("<IBH")  # crc, type, key_len
_KEY_HEAD: Final = struct.Struct("<BH")  # type, key_len
_U32: Final = struct.Struct("<I")
_BYTES: Final = tuple(bytes([n]) for n in range(256))


def encode_tail(value: bytes, version: bytes) -> bytes:
    """Give what follows the key in a put; a fold in memory keeps just this."""
    if len(value) > VALUE_BYTES_MAX:
        raise Misuse("a value has at most 4 GiB", value_bytes=len(value))
    return _U32.pack(len(value)) + value + _BYTES[len(version)] + version


def decode_tail(key: str, tail: bytes) -> KvEntry:
    """Read what `encode_tail` wrote."""
    end = 4 + _U32.unpack_from(tail)[0]
    return KvEntry(key, tail[4:end], VersionToken(tail[end + 1 :]))


def encode_put(key: bytes, tail: bytes) -> bytes:
    """Give the record of a put."""
    body = _KEY_HEAD.pack(PUT, len(key)) + key + tail
    return _U32.pack(crc32(body)) + body


def encode_delete(key: bytes, version: bytes) -> bytes:
    """Give the record of a delete (a purge is one too)."""
    body = _KEY_HEAD.pack(DELETE, len(key)) + key + _BYTES[len(version)] + version
    return _U32.pack(crc32(body)) + body


def encode_cursor(cursor: WatchCursor) -> bytes:
    """Give the record of a cursor."""
    raw = cursor.encode()
    body = b"%c%c%b" % (CURSOR, len(raw), raw)
    return _U32.pack(crc32(body)) + body


def key_bytes(key: str) -> bytes:
    """Encode a key, refusing one that the format cannot say."""
    raw = key.encode()
    if len(raw) > KEY_BYTES_MAX:
        raise Misuse("a key has at most 65,535 bytes", key_bytes=len(raw))
    return raw


def encode_update(update: KvUpdate) -> bytes:
    """Give the record of one update."""
    if update.kind is UpdateKind.PUT:
        tail = encode_tail(update.value, update.version.raw)
        return encode_put(key_bytes(update.key), tail)
    return encode_delete(key_bytes(update.key), update.version.raw)


def encode_compact(entries: Mapping[bytes, bytes], cursor: WatchCursor) -> bytes:
    """Give a whole file without duplicates, sorted, so that equal folds are equal bytes."""
    parts = [HEADER]
    parts.extend(encode_put(key, entries[key]) for key in sorted(entries))
    parts.append(encode_cursor(cursor))
    return b"".join(parts)


@dataclass(slots=True)
class ReplayedLog:
    """What a log says. `entries` maps a key to its put's tail."""

    entries: dict[bytes, bytes] = field(default_factory=dict)
    cursor: WatchCursor = field(default_factory=WatchCursor)
    clean_bytes: int = len(HEADER)  # how far the file is whole; what follows is a torn tail
    records: int = 0
    compact: bool = True  # no key twice, no delete, nothing torn


def replay_log(data: bytes) -> ReplayedLog:
    """Replay a log: the last write of a key wins, deletes remove it, a torn tail is left out.

    Raises `Corrupted` for damage before the tail, `InvalidFormat` for another kind of file.
    """
    log = ReplayedLog()
    if len(data) < len(HEADER):
        if not HEADER.startswith(data):
            raise InvalidFormat("not a snapshot log")
        log.clean_bytes, log.compact = 0, False
        return log
    if data[:4] != MAGIC:
        raise InvalidFormat("not a snapshot log")
    if data[:6] != HEADER:
        raise InvalidFormat(
            "a snapshot log of an unknown version", version=int.from_bytes(data[4:6], "little")
        )
    _replay_records(data, log)
    log.compact = log.compact and log.clean_bytes == len(data)
    return log


def _replay_records(data: bytes, log: ReplayedLog) -> None:
    """Walk the records. One loop, no calls but the CRC: a million keys must load in seconds."""
    view = memoryview(data)
    size = len(data)
    entries = log.entries
    head, u32 = _HEAD.unpack_from, _U32.unpack_from
    at = log.clean_bytes
    puts = 0
    cursor_at: tuple[int, int] | None = None
    while at < size:
        if size - at < 7:
            # Too short for a key's record; only a cursor could fit, and none that we write.
            end, kind, key_end = _short_record_end(data, at)
        else:
            _, kind, key_len = head(data, at)
            key_end = at + 7 + key_len
            if kind == PUT:
                end = key_end + 4
                if end < size:
                    end += u32(data, key_end)[0]
                    end = end + 1 + data[end] if end < size else size + 1
                else:
                    end = size + 1
            elif kind == DELETE:
                end = key_end + 1 + data[key_end] if key_end < size else size + 1
            elif kind == CURSOR:
                end = at + 6 + data[at + 5]
            else:
                end = size + 1
        if end > size or crc32(view[at + 4 : end]) != u32(data, at)[0]:
            _require_torn_tail(data, at, end)
            break
        if kind == PUT:
            entries[data[at + 7 : key_end]] = data[key_end:end]
            puts += 1
        elif kind == DELETE:
            entries.pop(data[at + 7 : key_end], None)
            log.compact = False
        else:
            cursor_at = (at + 6, end)
        log.records += 1
        at = end
    log.clean_bytes = at
    log.compact = log.compact and puts == len(entries)
    if cursor_at is not None:
        log.cursor = WatchCursor.decode(data[cursor_at[0] : cursor_at[1]])


def _short_record_end(data: bytes, at: int) -> tuple[int, int, int]:
    """Give (end, type, 0) of a record in the last six bytes: an empty cursor, or nothing whole."""
    if len(data) - at == 6 and data[at + 4] == CURSOR and data[at + 5] == 0:
        return at + 6, CURSOR, 0
    return len(data) + 1, 0, 0


def _require_torn_tail(data: bytes, at: int, end: int) -> None:
    """Raise `Corrupted` unless the bad record at `at` is where an interrupted write ended.

    A record that ends before the file does, with a wrong CRC, is damage. One whose lengths reach
    the end or beyond may have damaged lengths instead: then a later cursor, which only a
    finished write leaves behind, gives it away.
    """
    if end < len(data) or _has_cursor_after(data, at + 1):
        raise Corrupted("a snapshot log is damaged in the middle", offset=at)


def _has_cursor_after(data: bytes, start: int) -> bool:
    found = data.find(b"\x03", start + 4)
    while found != -1:
        if found + 1 < len(data):
            end = found + 2 + data[found + 1]
            stated = _U32.unpack_from(data, found - 4)[0]
            if end <= len(data) and crc32(data[found:end]) == stated:
                return True
        found = data.find(b"\x03", found + 1)
    return False
