"""Take in all partitions of a group from an export: after a crash it is the old set or the new.

An import writes files that nobody knows, beside those in use, and commits by one replacement of
the metadata, which names the new ones only. Then the store is fenced and the group is recovered
anew, as after a start; that removes the old files. It draws file numbers and a nonce writer of its
own, so a store may go on with its work until the commit.

What comes in counts as being on its quorum: Raft has committed it. A policy that asks for more is
judged again for what comes behind it.
"""

from __future__ import annotations

from typing import assert_never

from clustor.log.errors import ChecksumMismatch, UnsupportedFormat
from clustor.log.steps import (
    Delete,
    FileName,
    Plan,
    Step,
    SyncDirectory,
    SyncFiles,
    plan_replace,
)
from clustor.log.types import LogIndex
from clustor.segmented.errors import SegmentedMisuse
from clustor.segmented.exchange import (
    EXPORT_VERSION,
    ExportedPartition,
    FrameKind,
    FrameReader,
    decode_numbers,
    decode_partition,
    decode_run,
)
from clustor.segmented.files import PartitionFiles
from clustor.segmented.flush import FileWriter
from clustor.segmented.metadata import (
    METADATA_FILE,
    MetadataImage,
    PartitionChange,
    encode_metadata,
    fold,
)
from clustor.segmented.runs import PARTS_DIRECTORY, index_file
from clustor.segmented.store import Store
from clustor.segmented.types import TopicPartitionId


class Import:
    """One import. Carry out every plan of `feed`, then that of `plan_commit`, then recover."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._frames = FrameReader()
        self._writer = FileWriter(
            store.config,
            store.keys,
            store.record,
            store.sequences.file_seq,
            store.sequences.writer(),
        )
        self._image = MetadataImage()
        self._raft_index: LogIndex | None = None
        self._current: tuple[ExportedPartition, PartitionFiles] | None = None
        self._unsynced: list[FileName] = []
        self._batches = 0
        self._whole = False

    @property
    def raft_index(self) -> LogIndex | None:
        """What the export holds: all entries through this one; None until its first frame came."""
        return self._raft_index

    def feed(self, data: bytes) -> Plan:
        """Take bytes of an export, cut anywhere, and plan what they add to the new files.

        Raises ChecksumMismatch or UnsupportedFormat where they cannot be believed; nothing that
        is in use has been touched then, and `plan_abandon` removes the rest.
        """
        steps: list[Step] = []
        for kind, body in self._frames.feed(data):
            if self._whole or (kind is FrameKind.BEGIN) != (self._raft_index is None):
                raise ChecksumMismatch("a frame of an export has no place", kind=kind.name)
            self._take(kind, body, steps)
        return tuple(steps)

    def plan_commit(self) -> Plan:
        """Plan to put the new partitions in the place of all old ones.

        Raises ChecksumMismatch unless the export came in whole. The store is fenced from here on:
        the group must be recovered, whatever becomes of the plan.
        """
        if not self._whole or not self._frames.is_between_frames:
            raise ChecksumMismatch("an export did not come in whole")
        self._store.check_open()
        if not all(self._store.has_keys(at.ordered()) for at in self._image.partitions.values()):
            raise SegmentedMisuse("a key that the new files are sealed under was zeroized")
        self._store.fence("an import took its place: recover the group")
        return (
            SyncFiles(tuple(self._unsynced)),
            SyncDirectory(PARTS_DIRECTORY),
            *plan_replace(METADATA_FILE, encode_metadata(self._image)),
        )

    def plan_abandon(self) -> Plan:
        """Plan to remove what was written; nobody knows it."""
        self._finish_partition()
        steps: list[Step] = [Delete(file) for file in self._unsynced]
        for known in self._image.partitions.values():
            steps += [Delete(index_file(known.partition, seq)) for seq in known.segments]
        return tuple(steps)

    def _take(self, kind: FrameKind, body: bytes, steps: list[Step]) -> None:
        match kind:
            case FrameKind.BEGIN:
                self._begin(body)
            case FrameKind.PARTITION:
                self._start_partition(decode_partition(body))
            case FrameKind.RUN:
                self._write_run(body, steps)
            case FrameKind.GONE:
                self._image.gone.update(decode_numbers(body))
            case FrameKind.END:
                self._end(body)
            case _:
                assert_never(kind)

    def _begin(self, body: bytes) -> None:
        version, group, raft_index = decode_numbers(body, 3)
        if version != EXPORT_VERSION:
            raise UnsupportedFormat("an export of a later release", version=version)
        if group != self._store.record.group:
            raise SegmentedMisuse("an export of another group", group=group)
        self._raft_index = LogIndex(raft_index)
        self._image.durable_raft_index = raft_index

    def _start_partition(self, exported: ExportedPartition) -> None:
        self._finish_partition()
        if exported.partition in self._image.partitions:
            raise ChecksumMismatch("an export has a partition twice", partition=exported.partition)
        partition = TopicPartitionId(exported.partition)
        start = exported.start_index
        files = PartitionFiles(partition, start, start, 0, [], exported.definition)
        self._current = exported, files

    def _write_run(self, body: bytes, steps: list[Step]) -> None:
        if self._current is None:
            raise ChecksumMismatch("a run of an export without a partition")
        exported, files = self._current
        piece = decode_run(body, files.next_index, exported.next_index)
        files.next_index = piece.next_index
        self._batches += piece.batch_count
        self._writer.write(files, piece, steps)

    def _finish_partition(self) -> None:
        if self._current is None:
            return
        exported, files = self._current
        self._current = None
        self._unsynced += files.unsynced
        change = PartitionChange(
            partition=exported.partition,
            start_index=exported.start_index,
            next_index=exported.next_index,
            quorum_next=exported.next_index,
            clean_next=exported.clean_next,
            segments=tuple(files.segments),
            definition=exported.definition,
        )
        fold(self._image, change)

    def _end(self, body: bytes) -> None:
        self._finish_partition()
        if decode_numbers(body, 2) != [len(self._image.partitions), self._batches]:
            raise ChecksumMismatch("an export does not hold what it counts")
        if self._image.gone & self._image.partitions.keys():
            raise ChecksumMismatch("an export has a partition that is gone")
        self._whole = True
