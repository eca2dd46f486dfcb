"""Where in a partition file to start looking: sparse, by index and by time.

A closed file has a `.idx` beside it, which nobody syncs: it is checked when read, and where it is
missing or bad the heads of the runs are walked instead.

    magic:8 "SEGINDEX" version:u16 zero:u16 row_count:u32 file_seq:u64 covered_bytes:u64
    first_index:u64 × row_count, offset:u64 × row_count, max_timestamp:i64 × row_count
    crc32c:u32
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from crc32c import crc32c

from clustor.log.errors import ChecksumMismatch

_MAGIC: Final = b"SEGINDEX"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sHHIQQ")
_CRC: Final = struct.Struct("<I")


class SparseIndex:
    """A row for every so many bytes of a file.

    It only grows, and a row's offset comes first, so a reader in another thread may share it.
    """

    __slots__ = ("_firsts", "_interval_bytes", "_offsets", "_times", "covered_bytes")

    def __init__(self, interval_bytes: int, covered_bytes: int) -> None:
        self._interval_bytes = interval_bytes
        self._firsts = array("Q")
        self._offsets = array("Q")
        self._times = array("q")  # the newest time from the start of the file to the next row
        self.covered_bytes = covered_bytes

    def __len__(self) -> int:
        return len(self._firsts)

    def add(self, first_index: int, max_timestamp: int, offset: int, end_offset: int) -> None:
        """Note the next run of the file."""
        newest = max(max_timestamp, self._times[-1]) if self._times else max_timestamp
        if not self._offsets or offset - self._offsets[-1] >= self._interval_bytes:
            self._offsets.append(offset)
            self._firsts.append(first_index)
            self._times.append(newest)
        else:
            self._times[-1] = newest
        self.covered_bytes = end_offset

    def offset_of_index(self, index: int, default: int) -> int:
        """Return the offset of a run at or before the one that holds `index`."""
        at = bisect_right(self._firsts, index) - 1
        return self._offsets[at] if at >= 0 else default

    def offset_of_time(self, timestamp: int) -> int | None:
        """Return an offset before which everything is older; None where everything is."""
        at = bisect_left(self._times, timestamp)
        return self._offsets[at] if at < len(self._times) else None

    def encode(self, file_seq: int) -> bytes:
        head = _HEAD.pack(_MAGIC, _VERSION, 0, len(self._firsts), file_seq, self.covered_bytes)
        columns = [_little_endian(column) for column in (self._firsts, self._offsets, self._times)]
        body = b"".join((head, *columns))
        return body + _CRC.pack(crc32c(body))


def decode_index(
    data: bytes, file_seq: int, covered_bytes: int, interval_bytes: int
) -> SparseIndex:
    """Raises ChecksumMismatch unless this is the whole index of just this file."""
    if len(data) < _HEAD.size + 4 or crc32c(data[:-4]) != _CRC.unpack(data[-4:])[0]:
        raise ChecksumMismatch("a sparse index does not match its CRC", file_seq=file_seq)
    magic, version, _, rows, found_seq, covered = _HEAD.unpack_from(data)
    if (magic, version, found_seq, covered) != (_MAGIC, _VERSION, file_seq, covered_bytes):
        raise ChecksumMismatch("a sparse index of another file", file_seq=file_seq)
    if len(data) != _HEAD.size + rows * 24 + 4:
        raise ChecksumMismatch("a sparse index has another length", file_seq=file_seq)
    index = SparseIndex(interval_bytes, covered)
    columns = (index._firsts, index._offsets, index._times)
    for nth, column in enumerate(columns):
        start = _HEAD.size + nth * rows * 8
        column.frombytes(data[start : start + rows * 8])
        if sys.byteorder == "big":
            column.byteswap()
    return index


def _little_endian(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
