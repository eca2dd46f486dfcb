"""The control batch that ends a transaction in one partition: built at apply, by every replica.

Its bytes are Kafka's record batch of version 2 with one record: whoever reads the partition meets
the marker where the transaction ended.
"""

from __future__ import annotations

import struct
from typing import Final

import crc32c

_OUTSIDE: Final = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, checksum
_INSIDE: Final = struct.Struct(">hiqqqhii")  # attributes … record count
_KEY: Final = struct.Struct(">hh")  # version, abort or commit
_VALUE: Final = struct.Struct(">hi")  # version, the coordinator's epoch
_ATTRIBUTES: Final = 0x30  # transactional, control
_MAGIC: Final = 2
_LENGTH_FROM: Final = 12  # base offset and length are not counted
HEADER_BYTES: Final = _OUTSIDE.size + _INSIDE.size

BASE_AND_LENGTH: Final = struct.Struct(">qi")
LAST_DELTA_AT: Final = 23
_EPOCH: Final = struct.Struct(">i")
_DELTA: Final = struct.Struct(">i")


def control_batch(
    offset: int, now_ms: int, producer_id: int, epoch: int, term: int, *, commit: bool
) -> bytes:
    """Build the marker of a transaction's end."""
    key, value = _KEY.pack(0, commit), _VALUE.pack(0, 0)
    # Attributes, time and offset deltas of 0, key, value, no headers; lengths are zigzag varints.
    record = b"\0\0\0" + bytes((len(key) << 1,)) + key + bytes((len(value) << 1,)) + value + b"\0"
    inside = _INSIDE.pack(_ATTRIBUTES, 0, now_ms, now_ms, producer_id, epoch, -1, 1)
    covered = inside + bytes((len(record) << 1,)) + record
    length = _OUTSIDE.size + len(covered) - _LENGTH_FROM
    return _OUTSIDE.pack(offset, length, term, _MAGIC, crc32c.crc32c(covered)) + covered


def placed_batch(tag: bytes, batch: memoryview, offset: int, term: int) -> bytes:
    """Return a batch as it is stored, behind `tag`: its place stands outside of its checksum."""
    return b"".join(
        (tag, offset.to_bytes(8, "big"), batch[8:12], _EPOCH.pack(term & 0x7FFFFFFF), batch[16:])
    )


def last_delta(batch: memoryview) -> int:
    """Return how many offsets behind its first the last record of a batch is."""
    return int(_DELTA.unpack_from(batch, LAST_DELTA_AT)[0])
