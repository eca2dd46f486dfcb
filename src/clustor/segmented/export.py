"""Give away all partitions of a group as they are at one raft index, for a snapshot of Raft's.

An export takes note of everything when it is made, which copies no batch, and then reads file by
file. What is applied, flushed, retained, compacted or removed meanwhile does not show in it: files
that it still has to read are pinned, and go when it is over.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from clustor.log.types import LogIndex
from clustor.segmented.exchange import (
    EXPORT_RUN_BYTES,
    GONE_PER_FRAME,
    ExportedPartition,
    FrameWriter,
)
from clustor.segmented.files import PartitionFiles
from clustor.segmented.piece import Piece
from clustor.segmented.reader import PartitionReader
from clustor.segmented.store import Store
from clustor.segmented.view import PartitionView, take_view


@dataclass(frozen=True, slots=True)
class _Noted:
    """One partition at the moment of the export."""

    exported: ExportedPartition
    view: PartitionView


class Export(Iterator[bytes]):
    """The bytes of one export; fits `StateMachine.snapshot()`. Close it if it is left half read."""

    def __init__(self, store: Store, reader: PartitionReader) -> None:
        self.raft_index = LogIndex(store.applied_index)
        """What is exported is exactly what the entries through this one came to."""
        ordered = sorted(store.partitions)
        self._noted = [_note(store, store.partitions[at]) for at in ordered]
        self._gone = sorted(store.gone)
        self._group = store.record.group
        segments = (segment for noted in self._noted for segment in noted.view.segments)
        pin = store.pins.pin(frozenset(segment.dek_epoch for segment in segments))
        # Whoever forgets to close a half-read export must not keep its files for ever.
        self._unpin = weakref.finalize(self, store.pins.unpin, pin)
        self._frames = self._read(reader)

    def __next__(self) -> bytes:
        """Return the next bytes: a run at the most. Raises what reading raises."""
        try:
            return next(self._frames)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let the files go that were kept for this export."""
        self._frames.close()
        self._unpin()

    def _read(self, reader: PartitionReader) -> Generator[bytes, None, None]:
        frames = FrameWriter()
        yield frames.begin(self._group, self.raft_index)
        batches = 0
        for noted in self._noted:
            yield frames.partition(noted.exported)
            for run in _runs(noted, reader):
                batches += run.batch_count
                yield frames.run(run)
        for start in range(0, len(self._gone), GONE_PER_FRAME):
            yield frames.gone(self._gone[start : start + GONE_PER_FRAME])
        yield frames.end(len(self._noted), batches)


def _note(store: Store, files: PartitionFiles) -> _Noted:
    exported = ExportedPartition(
        partition=files.partition,
        start_index=files.start_index,
        next_index=files.next_index,
        clean_next=files.clean_next,
        definition=files.definition,
    )
    return _Noted(exported, take_view(store, files.partition, files.next_index))


def _runs(noted: _Noted, reader: PartitionReader) -> Iterator[Piece]:
    """Cut a partition's batches anew, by their lengths alone."""
    waiting = Piece()
    for chunk in reader.chunks(noted.view, noted.exported.start_index, EXPORT_RUN_BYTES):
        waiting.add_block(bytes(chunk.table), bytes(chunk.payloads))
        if waiting.size_bytes > EXPORT_RUN_BYTES:
            *whole, waiting = waiting.cut(EXPORT_RUN_BYTES)
            yield from whole
    if waiting:
        yield from waiting.cut(EXPORT_RUN_BYTES)
