"""What a reader is given of a partition: from an index or a time, in bounded chunks, off the loop.

The loop takes a `StreamView`, which nothing changes any more; a reader in any thread reads
from it. What comes back are the very bytes that were appended: a chunk's `payloads` is a window
on the decrypted run, not copied and not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clustor.log.types import PartitionId
from clustor.streams.errors import StreamOutOfRange
from clustor.streams.files import StreamFiles
from clustor.streams.index import SparseIndex
from clustor.streams.metadata import SegmentMeta
from clustor.streams.piece import BatchPiece
from clustor.streams.runs import ROW, ROW_BYTES
from clustor.streams.store import StreamStore
from clustor.streams.types import (
    StoredBatch,
    StoreId,
    StreamIndex,
    StreamPartitionId,
    TimestampMs,
)


@dataclass(frozen=True, slots=True)
class StreamView:
    """A partition at one moment. Files may be removed later; reading then raises ViewExpired.

    Where all that is asked for is in memory, `segments` is empty: nothing is read from the disk.
    """

    group: PartitionId
    store_id: StoreId
    partition: StreamPartitionId
    start_index: int
    readable_next: int  # what stands behind may not be read yet
    segments: tuple[SegmentMeta, ...]
    pieces: tuple[BatchPiece, ...]  # in memory, in order, behind the segments; never changed
    open_index: SparseIndex | None  # of the last segment, where the writer has it

    def check(self, index: int) -> None:
        """Raise StreamOutOfRange unless `index` can be read, now or as the next one to come."""
        if not self.start_index <= index <= self.readable_next:
            raise StreamOutOfRange(
                "no such index", index=index, start=self.start_index, next=self.readable_next
            )


class StreamChunk:
    """Consecutive batches: their table, and their bytes back to back."""

    __slots__ = ("first_index", "next_index", "payloads", "table")

    def __init__(
        self, first_index: int, next_index: int, table: memoryview, payloads: memoryview
    ) -> None:
        self.first_index = first_index
        self.next_index = next_index
        self.table = table
        self.payloads = payloads

    @classmethod
    def of_piece(cls, piece: BatchPiece) -> StreamChunk:
        """Join what a piece holds."""
        plaintext, split = memoryview(piece.plaintext()), piece.table_bytes
        return cls(piece.first_index, piece.next_index, plaintext[:split], plaintext[split:])

    @property
    def size_bytes(self) -> int:
        """What the chunk takes in memory."""
        return len(self.table) + len(self.payloads)

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield `(first_index, count, length, timestamp)` of each batch."""
        return ROW.iter_unpack(self.table)

    def batches(self) -> Iterator[StoredBatch]:
        """Yield each batch with its own copy of its bytes."""
        position = 0
        for first, count, length, timestamp in self.rows():
            payload = bytes(self.payloads[position : position + length])
            yield StoredBatch(StreamIndex(first), count, TimestampMs(timestamp), payload)
            position += length

    def between(self, from_index: int, next_index: int) -> StreamChunk | None:
        """Return what reaches over `from_index` and ends by `next_index`, in whole batches."""
        if from_index <= self.first_index and self.next_index <= next_index:
            return self
        skip_rows = keep_rows = skip_bytes = keep_bytes = 0
        first = last = -1
        for row_first, count, length, _ in self.rows():
            if row_first + count <= from_index:
                skip_rows += 1
                skip_bytes += length
            elif row_first + count <= next_index:
                first = row_first if first < 0 else first
                last = row_first + count
                keep_rows += 1
                keep_bytes += length
        if not keep_rows:
            return None
        table = self.table[skip_rows * ROW_BYTES : (skip_rows + keep_rows) * ROW_BYTES]
        return StreamChunk(first, last, table, self.payloads[skip_bytes : skip_bytes + keep_bytes])


def take_view(
    store: StreamStore,
    partition: int,
    from_index: int = 0,
    bytes_max: int | None = None,
    readable_next: int | None = None,
) -> StreamView:
    """Take a view of what may be read, all of it or up to `readable_next`. Raises UnknownStream.

    Nothing is copied here, but a list of all blocks in memory unless `bytes_max` says how many.
    """
    files = store.files(partition)
    first = _first_in_memory(files)
    is_in_memory = first is not None and first <= from_index
    newest = (*files.in_flight, *((files.tail,) if files.tail is not None else ()))
    pieces = (*files.window, *newest) if is_in_memory else newest
    end = files.next_index if readable_next is None else min(readable_next, files.next_index)
    return StreamView(
        group=store.record.group,
        store_id=store.record.store_id,
        partition=files.partition,
        start_index=files.start_index,
        readable_next=end,
        segments=() if is_in_memory else _present(files),
        pieces=tuple(_parts(pieces, from_index, bytes_max)),
        open_index=None if is_in_memory else _open_index(files),
    )


def _first_in_memory(files: StreamFiles) -> int | None:
    for piece in (*files.window, *files.in_flight):
        return piece.first_index
    return files.tail.first_index if files.tail is not None else None


def _parts(
    pieces: tuple[BatchPiece, ...], from_index: int, bytes_max: int | None
) -> Iterator[BatchPiece]:
    left = bytes_max
    for piece in pieces:
        part = piece.frozen() if left is None else piece.part(from_index, left)
        if part is None:
            continue
        yield part
        if left is not None:
            left -= part.size_bytes
            if left <= 0:
                return


def _present(files: StreamFiles) -> tuple[SegmentMeta, ...]:
    return tuple(at for at in files.readable if at.next_index > files.start_index)


def _open_index(files: StreamFiles) -> SparseIndex | None:
    """Return the writer's index if it is that of the last file that can be read."""
    if not files.readable or not files.segments:
        return None
    is_open = files.readable[-1].file_seq == files.segments[-1].file_seq
    return files.index if is_open else None
