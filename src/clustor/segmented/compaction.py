"""Key compaction: of every key only the newest record is kept, and a tombstone for a while.

Batches stay opaque: the caller's `keys_of` says which keys a batch holds, and a batch goes when
none of its records is wanted any more. A batch that is kept may still hold superseded records;
whoever reads in order sees the newer one later, so nothing is wrong by that. But a tombstone may
only go when no older record of its key is left anywhere, not even inside such a batch.

A job reads closed files in bounded pieces, writes new ones that nobody knows, and commits them
in one change of the metadata, in the place of the old. It has a nonce writer and file numbers of
its own, so that it may run beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeAlias

from clustor.log.steps import Delete, Plan, Step, Sync, SyncDirectory, Write
from clustor.segmented.errors import SegmentedMisuse
from clustor.segmented.files import PartitionFiles
from clustor.segmented.flush import FileWriter
from clustor.segmented.metadata import SegmentMeta
from clustor.segmented.piece import Piece
from clustor.segmented.reader import PartitionReader
from clustor.segmented.runs import PARTS_DIRECTORY, ROW_BYTES, index_file, part_file
from clustor.segmented.store import Store, StorePlan
from clustor.segmented.types import StoredBatch, TimestampMs, TopicPartitionId
from clustor.segmented.view import take_view


@dataclass(frozen=True, slots=True)
class RecordKey:
    """What compaction must know of one record in a batch. Without a key it is always kept."""

    key: bytes | None
    tombstone: bool = False


KeysOf: TypeAlias = Callable[[bytes], Sequence[RecordKey]]
"""Reads the keys out of a batch, one for each index that it takes, in order."""


def start_compaction(
    store: Store,
    partition: TopicPartitionId,
    keys_of: KeysOf,
    *,
    now: TimestampMs,
    tombstone_ms: int,
    quorum_next: int,
) -> Compaction | None:
    """Begin a job over the closed files of a partition; None where there is none to compact."""
    files = store.files(partition)
    committed = store.committed_segments(partition)
    inputs: list[SegmentMeta] = []
    for segment in files.segments:
        is_open = segment is files.segments[-1] and (files.cipher is not None or files.resumable)
        known = committed.get(segment.file_seq) == segment and segment in files.readable
        if is_open or not known or segment.next_index > quorum_next:
            break
        inputs.append(segment)
    if not inputs:
        return None
    return Compaction(store, files, inputs, keys_of, expired_before=now - tombstone_ms)


class Compaction:
    """One job. Carry out every plan of `plans()`, then `plan_commit()` and its receipt."""

    def __init__(
        self,
        store: Store,
        files: PartitionFiles,
        inputs: list[SegmentMeta],
        keys_of: KeysOf,
        *,
        expired_before: int,
    ) -> None:
        self._store = store
        self._config = store.config
        self._files = files
        self._inputs = inputs
        self._keys_of = keys_of
        self._expired_before = expired_before
        end = inputs[-1].next_index
        view = take_view(store, files.partition, end)
        self._view = replace(view, segments=tuple(inputs), pieces=(), open_index=None)
        self._writer = FileWriter(
            store.config,
            store.keys,
            store.record,
            store.sequences.file_seq,
            store.sequences.writer(),
        )
        self._output = PartitionFiles(
            files.partition, files.start_index, end, 0, [], files.definition
        )
        self._newest: dict[bytes, int] = {}
        self._lingering: set[bytes] = set()
        self._clean_next = files.clean_next
        self._finished = False

    def plans(self, reader: PartitionReader) -> Iterator[Plan]:
        """Yield the writes of the new files, in bounded pieces. Raises what reading raises."""
        self._gather(reader)
        self._inputs = [at for at in self._inputs if at.first_index < self._clean_next]
        steps: list[Step] = []
        piece: Piece | None = None
        size = 0
        for batch in self._batches(reader, self._view.start_index):
            if not self._keep(batch):
                continue
            piece = Piece() if piece is None else piece
            piece.add(batch.first_index, batch.count, batch.timestamp, batch.payload)
            size += len(batch.payload) + ROW_BYTES
            if size >= self._config.run_bytes:
                self._writer.write(self._output, piece, steps)
                piece, size = None, 0
            if _written_bytes(steps) >= self._config.compaction_chunk_bytes:
                yield tuple(steps)
                steps = []
        if piece is not None:
            self._writer.write(self._output, piece, steps)
        if self._output.segments:
            self._writer.close(self._output, steps)
        yield tuple(steps)
        self._finished = True

    @property
    def clean_next(self) -> int:
        """Below this index the job has judged every record."""
        return self._clean_next

    def plan_commit(self) -> StorePlan | None:
        """Plan to put the new files in the place of the old.

        None where retention took one of the old files meanwhile, or a key of the new ones was
        zeroized, since no file needed it yet: carry out `plan_abandon`.
        """
        if not self._finished:
            raise SegmentedMisuse("a compaction is committed when its plans are done")
        files, old = self._files, {segment.file_seq for segment in self._inputs}
        present = [at for at in files.segments if at.file_seq in old]
        if present != self._inputs or self._store.partitions.get(files.partition) is not files:
            return None
        added = tuple(self._output.segments)
        if not self._store.has_keys(added):
            return None
        files.segments = [*added, *(at for at in files.segments if at.file_seq not in old)]
        files.clean_next = max(files.clean_next, self._clean_next)
        change = self._store.change(
            files.partition,
            clean_next=files.clean_next,
            segments=added,
            removed=tuple(segment.file_seq for segment in self._inputs),
        )
        durable: list[Step] = [Sync(file) for file in self._output.unsynced]
        durable.append(SyncDirectory(PARTS_DIRECTORY))
        removals = [(files.partition, segment.file_seq) for segment in self._inputs]
        return self._store.plan_replacement(durable, [change], removals)

    def plan_abandon(self) -> Plan:
        """Plan to remove what the job has written; nobody knows it."""
        partition = self._files.partition
        steps: list[Step] = []
        for segment in self._output.segments:
            steps.append(Delete(index_file(partition, segment.file_seq)))
            steps.append(Delete(part_file(partition, segment.file_seq)))
        return tuple(steps)

    def _gather(self, reader: PartitionReader) -> None:
        """Find the newest record of every key, as far as memory allows."""
        half = self._config.compaction_keys_max // 2
        for batch in self._batches(reader, self._view.start_index):
            dirty = batch.first_index >= self._files.clean_next
            if dirty and len(self._newest) >= self._config.compaction_keys_max:
                return
            for nth, (digest, _) in enumerate(self._records(batch)):
                # What is clean needs no second look, and gives way where memory is short. But
                # a key that is known at all is known by its newest record.
                if digest and (dirty or len(self._newest) < half or digest in self._newest):
                    self._newest[digest] = batch.first_index + nth
            self._clean_next = max(self._clean_next, batch.next_index)
        self._clean_next = self._view.readable_next

    def _keep(self, batch: StoredBatch) -> bool:
        """Say whether any record of a batch is wanted, and remember what lingers in it."""
        if batch.first_index >= self._clean_next:
            return True
        superseded: list[bytes] = []
        records = self._records(batch)
        wanted = not records
        for nth, (digest, record) in enumerate(records):
            behind = self._newest.get(digest, -1) - (batch.first_index + nth)
            if behind > 0:
                superseded.append(digest)
            elif behind < 0 or not record.tombstone or not self._may_go(digest, batch):
                wanted = True
        if wanted and len(self._lingering) < self._config.compaction_keys_max:
            self._lingering.update(superseded)
        return wanted

    def _may_go(self, digest: bytes, batch: StoredBatch) -> bool:
        full = len(self._lingering) >= self._config.compaction_keys_max
        return batch.timestamp < self._expired_before and not full and digest not in self._lingering

    def _records(self, batch: StoredBatch) -> list[tuple[bytes, RecordKey]]:
        """Return the digest and the facts of each record; no digest for no key."""
        keys = self._keys_of(batch.payload)
        if len(keys) > batch.count:
            raise SegmentedMisuse(
                "more keys than indices", first_index=batch.first_index, keys=len(keys)
            )
        return [
            (b"" if at.key is None else blake2b(at.key, digest_size=16).digest(), at) for at in keys
        ]

    def _batches(self, reader: PartitionReader, from_index: int) -> Iterator[StoredBatch]:
        end = self._inputs[-1].next_index if self._inputs else from_index
        limited = replace(self._view, segments=tuple(self._inputs), readable_next=end)
        for chunk in reader.chunks(limited, from_index, self._config.run_bytes):
            yield from chunk.batches()


def _written_bytes(steps: list[Step]) -> int:
    return sum(len(step.data) for step in steps if isinstance(step, Write))
