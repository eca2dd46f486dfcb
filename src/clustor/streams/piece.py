"""Batches in memory on their way into a run, held so that ten thousand partitions cost no more.

One long buffer for each partition would be copied again and again while it grows, a little at a
time, among ten thousand others. Here a batch is two slices of its log entry, until there are enough
of them to be joined into a *block*: every byte is moved once, into memory of just its size, and a
collector that walks the heap finds a few objects for each partition. This module is hot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np

from clustor.streams.runs import ROW, ROW_BYTES

FRESH_MAX: Final = 32  # two for each batch
BLOCK_BYTES_MIN: Final = 16 << 10  # a batch of this length is a block, with what was before it


class BatchPiece:
    """Consecutive batches, in the form in which a run holds them: rows of a table, and bytes."""

    __slots__ = ("_data", "_firsts", "_tables", "fresh")

    def __init__(self) -> None:
        self.fresh: list[bytes] = []
        """The newest batches: a row, its bytes, a row, its bytes; few, and none is long."""
        self._firsts: list[int] = []  # of each block its first index, its table and its bytes
        self._tables: list[bytes] = []
        self._data: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self.fresh or self._tables)

    def add_row(self, row: bytes, payload: bytes) -> None:
        """Add a batch behind the others, by its row of the table."""
        self.fresh += (row, payload)
        if len(self.fresh) >= FRESH_MAX or len(payload) >= BLOCK_BYTES_MIN:
            self.settle()

    def add_block(self, table: bytes, data: bytes) -> None:
        """Add batches behind the others that stand together already; none is nothing."""
        self.settle()
        if table:
            self._firsts.append(ROW.unpack_from(table)[0])
            self._tables.append(table)
            self._data.append(data)

    def frozen(self) -> BatchPiece:
        """Return what this holds now, which nothing changes any more; no batch is copied."""
        twin = BatchPiece()
        twin.fresh = self.fresh[:]
        twin._firsts, twin._tables, twin._data = self._firsts[:], self._tables[:], self._data[:]
        return twin

    def settle(self) -> None:
        """Join what was added last into a block."""
        if self.fresh:
            fresh, self.fresh = self.fresh, []
            self.add_block(b"".join(fresh[0::2]), b"".join(fresh[1::2]))

    @property
    def first_index(self) -> int:
        if self._firsts:
            return self._firsts[0]
        return int(ROW.unpack(self.fresh[0])[0])

    @property
    def next_index(self) -> int:
        row = self.fresh[-2] if self.fresh else self._tables[-1][-ROW_BYTES:]
        first, count, _, _ = ROW.unpack(row)
        return int(first + count)

    @property
    def batch_count(self) -> int:
        return self.table_bytes // ROW_BYTES

    @property
    def max_timestamp(self) -> int:
        return int(np.frombuffer(self._table(), "<i8")[2::3].max())

    @property
    def table_bytes(self) -> int:
        return sum(map(len, self._tables)) + len(self.fresh) // 2 * ROW_BYTES

    @property
    def size_bytes(self) -> int:
        """What this takes in memory, and in a run beside its head and its tag."""
        return sum(map(len, chain(self._tables, self._data, self.fresh)))

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield `(first_index, count, length, timestamp)` of each batch; no payload is touched."""
        for table in chain(self._tables, self.fresh[0::2]):
            yield from ROW.iter_unpack(table)

    def plaintext(self) -> bytes:
        """Return what a run seals: the table, then the bytes of the batches."""
        return b"".join((*self._tables, *self.fresh[0::2], *self._data, *self.fresh[1::2]))

    def cut(self, run_bytes: int) -> Iterator[BatchPiece]:
        """Yield pieces of about `run_bytes` each; nearly always there is one."""
        size = self.size_bytes
        if size <= run_bytes:
            yield self
            return
        part, size = BatchPiece(), 0
        for table, data in self._blocks(0):
            if size + len(table) + len(data) <= run_bytes:
                part.add_block(table, data)
                size += len(table) + len(data)
                continue
            start = begin = position = 0
            for nth, (_, _, length, _) in enumerate(ROW.iter_unpack(table)):
                if size and size + length + ROW_BYTES > run_bytes:
                    part.add_block(table[start : nth * ROW_BYTES], data[begin:position])
                    yield part
                    part, size, start, begin = BatchPiece(), 0, nth * ROW_BYTES, position
                size += length + ROW_BYTES
                position += length
            part.add_block(table[start:], data[begin:])
        yield part

    def part(self, from_index: int, bytes_max: int) -> BatchPiece | None:
        """Return the batches from the one that holds `from_index`, until `bytes_max` is full.

        None where there is none. Whole blocks are shared, not copied.
        """
        if not self or from_index >= self.next_index:
            return None
        found, room = BatchPiece(), bytes_max
        for table, data in self._blocks(from_index):
            if room <= 0 and found:
                break
            block = _within(table, data, from_index, room)
            room -= len(block[0]) + len(block[1])
            found.add_block(*block)
        return found

    def newest(self, bytes_max: int) -> BatchPiece:
        """Return the newest whole blocks within `bytes_max`: all of this, or less, or none."""
        self.settle()
        if self.size_bytes <= bytes_max:
            return self
        twin, room, first = BatchPiece(), bytes_max, len(self._tables)
        while (
            first
            and (room := room - len(self._tables[first - 1]) - len(self._data[first - 1])) >= 0
        ):
            first -= 1
        twin._firsts, twin._tables = self._firsts[first:], self._tables[first:]
        twin._data = self._data[first:]
        return twin

    def _table(self) -> bytes:
        return b"".join((*self._tables, *self.fresh[0::2]))

    def _blocks(self, from_index: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the blocks from the one that holds `from_index`, and what is none yet."""
        start = max(bisect_right(self._firsts, from_index) - 1, 0)
        for nth in range(start, len(self._tables)):
            yield self._tables[nth], self._data[nth]
        if self.fresh:
            yield b"".join(self.fresh[0::2]), b"".join(self.fresh[1::2])


def _within(table: bytes, data: bytes, from_index: int, bytes_max: int) -> tuple[bytes, bytes]:
    """Return the rows of a block from the one that holds an index until `bytes_max` is full."""
    first: int = ROW.unpack_from(table)[0]
    if first >= from_index and len(table) + len(data) <= bytes_max:
        return table, data
    start = begin = position = size = 0
    for nth, (first, count, length, _) in enumerate(ROW.iter_unpack(table)):
        if first + count <= from_index:
            start, begin = (nth + 1) * ROW_BYTES, position + length
        elif size and size >= bytes_max:
            return table[start : nth * ROW_BYTES], data[begin:position]
        else:
            size += length + ROW_BYTES
        position += length
    return table[start:], data[begin:]
