"""The log entry that carries batches of many partitions.

    magic:4 "SGE1"   batch_count:u32
    table            batch_count × partition_id:u64 partition_log_index:u64 count:u32 length:u32
                                   timestamp:i64
    payloads         the batches' bytes, in the order of the table

All little-endian. With the entry's own index, each row and its bytes are the specification's
`(raft_log_index, partition_id, partition_log_index, payload)`. A batch takes the indices
`partition_log_index … partition_log_index + count - 1`. The table stands first so that tracking
never touches the payloads. This module is hot.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from clustor.log.frame import FRAME_BODY_BYTES_MAX
from clustor.segmented.errors import MalformedEnvelope, SegmentedMisuse
from clustor.segmented.types import U64_MAX, Batch

ENVELOPE_MAGIC: Final = b"SGE1"
ENVELOPE_BYTES_MAX: Final = FRAME_BODY_BYTES_MAX - 16
ROW_BYTES: Final = 32
HEAD_BYTES: Final = 8
_COLUMNS_ROWS_MIN: Final = 32  # below this, columns cost more than they save

_HEAD: Final = struct.Struct("<4sI")
_ROW: Final = struct.Struct("<QQIIq")

Row: TypeAlias = tuple[int, int, int, int, int]
"""`(partition_id, partition_log_index, count, length, timestamp)`."""


def is_envelope(payload: bytes) -> bool:
    """Say whether a log entry carries batches; other commands never start with its magic."""
    return payload[:4] == ENVELOPE_MAGIC


def encode_envelope(batches: Sequence[Batch], first_indices: Sequence[int]) -> bytes:
    """Encode batches under the indices that they were given."""
    pack = _ROW.pack
    try:
        pieces = [
            pack(batch.partition, first, batch.count, len(batch.payload), batch.timestamp)
            for batch, first in zip(batches, first_indices, strict=True)
        ]
    except struct.error as error:
        raise SegmentedMisuse("a batch's number is out of range", cause=str(error)) from None
    if not pieces or min(batch.count for batch in batches) < 1:
        raise SegmentedMisuse("an envelope has batches, and each takes an index")
    payloads = [batch.payload for batch in batches]
    envelope = b"".join((_HEAD.pack(ENVELOPE_MAGIC, len(pieces)), *pieces, *payloads))
    if len(envelope) > ENVELOPE_BYTES_MAX:
        raise SegmentedMisuse(
            "an envelope too large", given_bytes=len(envelope), limit=ENVELOPE_BYTES_MAX
        )
    return envelope


def decode_table(payload: bytes) -> list[Row]:
    """Decode the rows of an envelope, checking all of it. Raises MalformedEnvelope."""
    if len(payload) < HEAD_BYTES:
        raise MalformedEnvelope("an envelope is cut short", given_bytes=len(payload))
    magic, batch_count = _HEAD.unpack_from(payload)
    table_end = HEAD_BYTES + batch_count * ROW_BYTES
    if magic != ENVELOPE_MAGIC or not batch_count or table_end > len(payload):
        raise MalformedEnvelope("not an envelope", batch_count=batch_count)
    table = memoryview(payload)[HEAD_BYTES:table_end]
    rows = list(_ROW.iter_unpack(table))
    lengths = _lengths(table) if batch_count >= _COLUMNS_ROWS_MIN else None
    if lengths is None:
        lengths = _lengths_row_by_row(rows)
    if table_end + lengths != len(payload):
        raise MalformedEnvelope("an envelope has another length", given_bytes=len(payload))
    return rows


def _lengths(table: memoryview) -> int | None:
    """Add the lengths up, column by column; None where a row must be looked at by itself."""
    numbers = np.frombuffer(table, "<u4").reshape(-1, 8)  # index: 2 and 3, count: 4, length: 5
    if not numbers[:, 4].all() or numbers[:, 3].max() == 2**32 - 1:
        return None
    return int(numbers[:, 5].sum(dtype=np.uint64))


def _lengths_row_by_row(rows: Sequence[Row]) -> int:
    lengths = 0
    for _, first, count, length, _ in rows:
        lengths += length
        if not count or first + count > U64_MAX:
            raise MalformedEnvelope("a batch takes impossible indices", first=first, count=count)
    return lengths


def payloads_start(rows: Sequence[Row]) -> int:
    """Say where the bytes of the first batch start."""
    return HEAD_BYTES + len(rows) * ROW_BYTES
