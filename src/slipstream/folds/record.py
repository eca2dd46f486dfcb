"""The value record of the on-disk backends: `[ver_len][version][value]`."""

from __future__ import annotations

from slipstream.errors import Corrupted, Misuse
from slipstream.types import KvEntry, VersionToken


def encode_record(value: bytes, version: VersionToken) -> bytes:
    """Put a version in front of its value."""
    return bytes([len(version.raw)]) + version.raw + value


def decode_record(key: str, record: bytes) -> KvEntry:
    """Read what `encode_record` wrote."""
    try:
        size = record[0]
        return KvEntry(key, record[1 + size :], VersionToken(record[1 : 1 + size]))
    except (IndexError, Misuse) as error:
        raise Corrupted("a fold's record is not one", key=key) from error
