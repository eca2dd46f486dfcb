"""All partitions of a group on one disk: what to write, and what is then durable.

Batches that are applied wait in memory. A *flush* writes them into the partitions' files without
a sync, to free the memory. A *checkpoint* flushes, syncs the files and commits the new state in
one batch of the metadata log. Only that counts: what was written behind the last checkpoint is
void after a crash, and is applied again from the group's log, which is not cut before.

Like `clustor.log.Log`, the store plans and a disk carries out: plans are executed whole and in
the order they were given, each receipt is handed back in that order, and a plan that fails ends
the store (`fence`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from clustor.log.keys import KeyRing
from clustor.log.steps import (
    Delete,
    FileName,
    Plan,
    Step,
    Sync,
    SyncDirectory,
    SyncFiles,
    Write,
    plan_replace,
)
from clustor.segmented.config import SegmentedConfig
from clustor.segmented.envelope import HEAD_BYTES as ENVELOPE_HEAD_BYTES
from clustor.segmented.envelope import ROW_BYTES as ENVELOPE_ROW_BYTES
from clustor.segmented.envelope import Row, payloads_start
from clustor.segmented.errors import (
    EntryOutOfOrder,
    SegmentedFenced,
    SegmentedMisuse,
    UnknownPartition,
)
from clustor.segmented.files import PartitionFiles
from clustor.segmented.flush import FileWriter
from clustor.segmented.metadata import (
    METADATA_FILE,
    Definition,
    MetadataImage,
    PartitionChange,
    SegmentMeta,
    StoreRecord,
    batches_of,
    encode_metadata,
    fold,
)
from clustor.segmented.nonces import Sequences
from clustor.segmented.piece import BLOCK_BYTES_MIN, FRESH_MAX
from clustor.segmented.pins import Pins
from clustor.segmented.runs import PARTS_DIRECTORY, ROW_BYTES, index_file, part_file
from clustor.segmented.types import TopicPartitionId

QuorumNext = Callable[[int], int]
"""Says through where a quorum has a partition; the tracker knows."""


@dataclass(slots=True)
class Receipt:
    """To be handed back once its plan was carried out whole."""

    number: int
    readable: list[tuple[PartitionFiles, tuple[SegmentMeta, ...], int]] = field(
        default_factory=list
    )
    """Partitions whose files change, their files then, and below which index memory lets go."""
    durable: list[tuple[TopicPartitionId, int]] = field(default_factory=list)
    durable_raft_index: int | None = None


@dataclass(frozen=True, slots=True)
class StorePlan:
    """Steps for a disk, and the receipt that they earn."""

    steps: Plan
    receipt: Receipt


class Store:
    """The planner of one group's partition files. Pure: it holds no file and knows no time."""

    def __init__(
        self,
        config: SegmentedConfig,
        keys: KeyRing,
        record: StoreRecord,
        image: MetadataImage,
        partitions: dict[int, PartitionFiles],
    ) -> None:
        self.config = config
        self.record = record
        self.keys = keys
        self.sequences = Sequences(record.incarnation)
        self.partitions = partitions
        self.fenced: SegmentedFenced | None = None
        self.applied_index = image.durable_raft_index
        self.durable_raft_index = image.durable_raft_index
        self._planned_raft_index = image.durable_raft_index
        self._image = image
        self._metadata_bytes = image.good_bytes
        self._rewritten_bytes = 0
        self._writer = FileWriter(
            config, keys, record, self.sequences.file_seq, self.sequences.writer()
        )
        self.tail_bytes = 0  # what waits in memory to be flushed
        self._tails: dict[int, PartitionFiles] = {}
        # The first raft index of each partition that is not in a checkpoint. Partitions enter
        # in the order of that index, so the first one is the one that holds the log back most.
        self._dirty: dict[int, int] = {}
        self._names_changed = False
        self.pins = Pins()
        self._out: deque[Receipt] = deque()
        self._receipts = 0

    # Partitions

    @property
    def gone(self) -> set[int]:
        """The partitions that were removed; their ids are never used again."""
        return self._image.gone

    def quorum_persisted(self, partition: int) -> int:
        """Return below which index a checkpoint knew the partition to be on a quorum."""
        return self._image.partitions[partition].quorum_next

    def dek_epochs(self) -> set[int]:
        """The key epochs that some file still needs; no other may be zeroized."""
        needed = {
            segment.dek_epoch
            for files in self.partitions.values()
            for segment in (*files.segments, *files.readable)
        }
        return needed | self.pins.dek_epochs()

    def has_keys(self, segments: Iterable[SegmentMeta]) -> bool:
        """Say whether files that are still to be committed could be read afterwards."""
        return {segment.dek_epoch for segment in segments} <= set(self.keys.dek_epochs())

    def files(self, partition: int) -> PartitionFiles:
        found = self.partitions.get(partition)
        if found is None:
            raise UnknownPartition("no such partition", partition=partition)
        return found

    def plan_define(self, definitions: dict[TopicPartitionId, Definition]) -> StorePlan:
        """Plan new partitions, or other policies for old ones. Batches come after its receipt."""
        self.check_open()
        changes = []
        for partition, definition in definitions.items():
            if partition in self._image.gone:
                raise SegmentedMisuse("a removed partition's id is used again", partition=partition)
            known = self.partitions.get(partition)
            if known is None:
                known = PartitionFiles(partition, 0, 0, 0, [], definition)
                self.partitions[partition] = known
                changes.append(PartitionChange(partition, 0, 0, 0, 0, definition=definition))
            else:
                known.definition = definition
                changes.append(self.change(partition, definition=definition))
        return self._planned([], self._receipt(), changes)

    def plan_remove(self, partition: TopicPartitionId) -> StorePlan:
        """Plan the end of a partition and of all of its files."""
        self.check_open()
        files = self.files(partition)
        steps: list[Step] = []
        for segment in files.segments:
            steps += _delete(partition, segment.file_seq)
        del self.partitions[partition]
        if self._tails.pop(partition, None) is not None:
            self.tail_bytes -= files.tail.size_bytes
        self._dirty.pop(partition, None)
        change = PartitionChange(partition, 0, 0, 0, 0, gone=True)
        return self._planned([], self._receipt(), [change], steps)

    # Batches

    def apply(self, raft_index: int, rows: Sequence[Row], payload: bytes) -> None:
        """Take the batches of a committed entry; what a partition has already is passed over.

        Raises UnknownPartition or EntryOutOfOrder; the batches before that one were taken, and
        taking them again does nothing.
        """
        self.check_open()
        partitions = self.partitions
        end = payloads_start(rows)
        row_end = ENVELOPE_HEAD_BYTES
        for partition, first, count, length, _ in rows:
            position, end = end, end + length
            row_end += ENVELOPE_ROW_BYTES
            files = partitions.get(partition)
            if files is None or files.next_index != first:
                self._check_known(partition, files, first, count, raft_index)
                continue
            files.next_index = first + count
            fresh = files.tail.fresh
            if not fresh:
                self._wait(partition, files, raft_index)
            # A run's row is an envelope's row without the partition, so it is copied as it is.
            fresh.append(payload[row_end - ROW_BYTES : row_end])
            fresh.append(payload[position:end])
            if len(fresh) >= FRESH_MAX or length >= BLOCK_BYTES_MIN:
                files.tail.settle()
            self.tail_bytes += length + ROW_BYTES
        self.applied_index = max(self.applied_index, raft_index)

    def _wait(self, partition: int, files: PartitionFiles, raft_index: int) -> None:
        """Note that a partition has something to be flushed."""
        if partition not in self._tails:
            self._tails[partition] = files
            self._dirty.setdefault(partition, raft_index)

    def _check_known(
        self, partition: int, files: PartitionFiles | None, first: int, count: int, raft_index: int
    ) -> None:
        """Raise unless a batch may be passed over: of a removed partition, or already there."""
        if files is None:
            if partition not in self._image.gone:
                raise UnknownPartition("no such partition", partition=partition)
        elif first + count > files.next_index:
            raise EntryOutOfOrder(
                "a batch does not continue its partition",
                partition=partition,
                first=first,
                expected=files.next_index,
                raft_index=raft_index,
            )

    # Plans

    def plan_flush(self) -> StorePlan:
        """Plan to write everything that waits in memory; nothing becomes durable by it."""
        self.check_open()
        steps: list[Step] = []
        receipt = self._receipt()
        for files in self._tails.values():
            self._flush(files, steps, receipt)
        self._tails = {}
        return StorePlan(tuple(steps), receipt)

    def plan_checkpoint(
        self, quorum_next: QuorumNext, partitions_max: int | None = None
    ) -> StorePlan:
        """Plan to make partitions durable: all that are not, or those that hold the log most."""
        self.check_open()
        steps: list[Step] = []
        unsynced: list[FileName] = []
        receipt = self._receipt()
        changes: list[PartitionChange] = []
        for partition in list(islice(self._dirty, partitions_max)):
            del self._dirty[partition]
            files = self.partitions[partition]
            if self._tails.pop(partition, None) is not None:
                self._flush(files, steps, receipt)
            unsynced += files.unsynced
            files.unsynced = {}
            changes.append(self._checkpoint(files, quorum_next(partition)))
            receipt.durable.append((files.partition, files.next_index))
        if unsynced:
            steps.append(SyncFiles(tuple(unsynced)))
        if self._names_changed:
            steps.append(SyncDirectory(PARTS_DIRECTORY))
            self._names_changed = False
        covered = next(iter(self._dirty.values())) - 1 if self._dirty else self.applied_index
        self._planned_raft_index = max(self._planned_raft_index, covered)
        return self._planned(steps, receipt, changes)

    def plan_replacement(
        self,
        steps: list[Step],
        changes: Sequence[PartitionChange],
        removals: Iterable[tuple[TopicPartitionId, int]],
    ) -> StorePlan:
        """Plan a commit of other files in the place of some; retention and compaction do.

        `steps` make the new files durable, the changes commit, and only then the old ones go.
        """
        self.check_open()
        receipt = self._receipt()
        for change in changes:
            files = self.files(change.partition)
            receipt.readable.append((files, tuple(files.segments), 0))
        gone: list[Step] = []
        for partition, file_seq in removals:
            gone += _delete(partition, file_seq)
        return self._planned(steps, receipt, changes, gone)

    def plan_rewrite(
        self, durable_raft_index: int, changes: Sequence[PartitionChange]
    ) -> StorePlan:
        """Plan a new metadata log, which alone may vouch for less than the one before it."""
        self.check_open()
        receipt = self._receipt()
        self._image.durable_raft_index = self._planned_raft_index = durable_raft_index
        receipt.durable_raft_index = durable_raft_index
        for change in changes:
            fold(self._image, change)
        return StorePlan(self._plan_rewrite(), receipt)

    def stored(self, receipt: Receipt) -> list[tuple[TopicPartitionId, int]]:
        """Take note that a plan was carried out; return what became durable by it."""
        if not self._out or self._out[0] is not receipt:
            raise SegmentedMisuse("receipts come in the order of their plans")
        self._out.popleft()
        for files, segments, next_index in receipt.readable:
            files.readable = segments
            files.in_flight = [piece for piece in files.in_flight if piece.next_index > next_index]
        if receipt.durable_raft_index is not None:
            self.durable_raft_index = receipt.durable_raft_index
        return receipt.durable

    def fence(self, reason: str, **facts: object) -> None:
        """Refuse every further plan: a step failed, and what is on disk is not known."""
        if self.fenced is None:
            self.fenced = SegmentedFenced(reason, **facts)

    def check_open(self) -> None:
        """Raise SegmentedFenced once the store may plan no more."""
        if self.fenced is not None:
            raise self.fenced

    def _receipt(self) -> Receipt:
        self._receipts += 1
        receipt = Receipt(self._receipts)
        self._out.append(receipt)
        return receipt

    def _flush(self, files: PartitionFiles, steps: list[Step], receipt: Receipt) -> None:
        piece = files.take_tail()
        self.tail_bytes -= piece.size_bytes
        files_before = len(files.segments)
        self._writer.write(files, piece, steps)
        self._names_changed |= len(files.segments) > files_before
        receipt.readable.append((files, tuple(files.segments), piece.next_index))

    def _checkpoint(self, files: PartitionFiles, quorum_next: int) -> PartitionChange:
        touched, files.touched = files.touched, set()
        return PartitionChange(
            partition=files.partition,
            start_index=files.start_index,
            next_index=files.next_index,
            quorum_next=quorum_next,
            clean_next=files.clean_next,
            segments=tuple(at for at in files.segments if at.file_seq in touched),
        )

    def change(
        self,
        partition: int,
        *,
        start_index: int | None = None,
        clean_next: int | None = None,
        segments: tuple[SegmentMeta, ...] = (),
        removed: tuple[int, ...] = (),
        definition: Definition | None = None,
    ) -> PartitionChange:
        """Say what changes of a partition beside its checkpoint, which stays as it is."""
        known = self._image.partitions[partition]
        return PartitionChange(
            partition=partition,
            start_index=known.start_index if start_index is None else start_index,
            next_index=known.next_index,
            quorum_next=known.quorum_next,
            clean_next=known.clean_next if clean_next is None else clean_next,
            segments=segments,
            removed=removed,
            definition=definition,
        )

    def committed_segments(self, partition: int) -> dict[int, SegmentMeta]:
        """Return the files that the metadata names, as it names them."""
        return self._image.partitions[partition].segments

    def _planned(
        self,
        steps: list[Step],
        receipt: Receipt,
        changes: Sequence[PartitionChange],
        after: Sequence[Step] = (),
    ) -> StorePlan:
        """Finish a plan with its commit point, and what may only happen behind that."""
        before = self._image.durable_raft_index
        receipt.durable_raft_index = self._image.durable_raft_index = self._planned_raft_index
        for change in changes:
            fold(self._image, change)
        if self._metadata_bytes > self.config.metadata_rewrite_bytes + 2 * self._rewritten_bytes:
            commit = self._plan_rewrite()
        else:
            commit = self._plan_batches(before, changes)
        return StorePlan((*steps, *commit, *self.pins.due(after)), receipt)

    def _plan_batches(self, before: int, changes: Sequence[PartitionChange]) -> Plan:
        steps: list[Step] = []
        image = self._image
        for batch in batches_of(image.next_batch_seq, before, image.durable_raft_index, changes):
            # Synced one by one: a whole batch behind a torn one would look like damage.
            steps += (Write(METADATA_FILE, self._metadata_bytes, batch), Sync(METADATA_FILE))
            self._metadata_bytes += len(batch)
            image.next_batch_seq += 1
        return tuple(steps)

    def _plan_rewrite(self) -> Plan:
        data = encode_metadata(self._image)
        self._metadata_bytes = self._rewritten_bytes = len(data)
        return plan_replace(METADATA_FILE, data)


def _delete(partition: TopicPartitionId, file_seq: int) -> Plan:
    return (Delete(index_file(partition, file_seq)), Delete(part_file(partition, file_seq)))
