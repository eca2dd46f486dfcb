"""All stream partitions of a group on one disk: what to write, and what is then durable.

Changes that a machine decided at apply wait in memory. A *flush* writes batches into their
partitions' files without a sync, to free the memory. A *checkpoint* flushes, syncs the files and
commits the new state in one batch of the metadata log. Only that counts: what was written behind
the last checkpoint is void after a crash, and is applied again from the group's log, which is not
cut before.

Like `clustor.log.Log`, the store plans and a disk carries out: plans are executed whole and in
the order they were given, each receipt is handed back in that order, and a plan that fails ends
the store (`fence`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from crc32c import crc32c

from clustor.log.keys import KeyRing
from clustor.log.steps import (
    DeleteFile,
    FileName,
    Plan,
    Step,
    Sync,
    SyncDirectory,
    SyncFiles,
    WriteFile,
    plan_replace,
)
from clustor.streams.changes import (
    StreamAppend,
    StreamChange,
    StreamDefine,
    StreamExtent,
    StreamRemove,
    StreamTrim,
)
from clustor.streams.config import StreamConfig
from clustor.streams.errors import StreamFenced, StreamMisuse, StreamOutOfOrder, UnknownStream
from clustor.streams.files import StreamFiles
from clustor.streams.flush import FileWriter
from clustor.streams.master import Disabled, FixedMaster
from clustor.streams.metadata import (
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
from clustor.streams.nonces import Sequences
from clustor.streams.piece import BatchPiece
from clustor.streams.pins import Pins
from clustor.streams.plans import StreamPlan, StreamReceipt
from clustor.streams.quorum import Majority
from clustor.streams.runs import PARTS_DIRECTORY, ROW, ROW_BYTES, index_file, part_file
from clustor.streams.types import StreamPartitionId
from clustor.streams.window import StreamMemory, StreamWindow


class StreamStore:
    """The planner of one group's partition files. Pure: it holds no file and knows no time."""

    def __init__(
        self,
        config: StreamConfig,
        keys: KeyRing,
        record: StoreRecord,
        image: MetadataImage,
        partitions: dict[int, StreamFiles],
        *,
        memory: StreamMemory | None = None,
    ) -> None:
        self.config = config
        self.record = record
        self.keys = keys
        self.sequences = Sequences(record.incarnation)
        self.partitions = partitions
        self.fenced: StreamFenced | None = None
        self.applied_index = image.durable_raft_index
        """Every log entry through it was taken."""
        self.durable_raft_index = image.durable_raft_index
        """Every log entry through it stands durably in the partitions."""
        self._planned_raft_index = image.durable_raft_index
        self._image = image
        self._metadata_bytes = image.good_bytes
        self._rewritten_bytes = 0
        self._writer = FileWriter(
            config, keys, record, self.sequences.file_seq, self.sequences.writer()
        )
        self._writing: OrderedDict[int, StreamFiles] = OrderedDict()  # whose cipher is kept
        self.tail_bytes = 0  # what waits in memory to be flushed
        self.uncovered_bytes = 0  # what was taken since its owner last asked for a checkpoint
        self._tails: dict[int, StreamFiles] = {}
        # The first raft index of each partition that is not in a checkpoint.
        self._dirty: dict[int, int] = {}
        self._ending: dict[int, StreamFiles] = {}  # removed, and no checkpoint says so yet
        self._names_changed = False
        self.rewritten: dict[int, list[SegmentMeta]] = {}
        """Of partitions that are rewritten: the new files, which no checkpoint names yet."""
        self.pins = Pins()
        self.window = StreamWindow(memory or StreamMemory(), config.window_partition_bytes)
        self._out: deque[StreamReceipt] = deque()
        self._receipts = 0

    # Partitions

    @property
    def gone(self) -> Mapping[int, int]:
        """The partitions that were removed, each with the raft index of that."""
        return self._image.gone

    def forget_removed(self, through: int) -> None:
        """Let go of what is known of removals: no entry through this index comes again."""
        gone = self._image.gone
        for partition in [at for at, gone_at in gone.items() if gone_at <= through]:
            if partition not in self._ending:
                del gone[partition]

    def dek_epochs(self) -> set[int]:
        """The key epochs that some file still needs; no other may be zeroized."""
        needed = {
            segment.dek_epoch
            for files in self.partitions.values()
            for segment in (*files.segments, *files.readable)
        }
        needed |= {each.dek_epoch for some in self.rewritten.values() for each in some}
        return needed | self.pins.dek_epochs()

    def files(self, partition: int) -> StreamFiles:
        found = self.partitions.get(partition)
        if found is None:
            raise UnknownStream("no such partition", partition=partition)
        return found

    # Changes

    def take(self, raft_index: int, change: StreamChange) -> None:
        """Take what the entry at `raft_index` changed; what is there already is passed over.

        Raises UnknownStream, StreamOutOfOrder or StreamMisuse for what no replay can bring:
        then the machine and its files are not of one history.
        """
        if type(change) is StreamAppend:
            self._append(raft_index, change)
        elif type(change) is StreamDefine:
            self._define(raft_index, change)
        elif type(change) is StreamTrim:
            self.trim(raft_index, change.partition, change.start)
        else:
            assert type(change) is StreamRemove
            self._remove(raft_index, change.partition)

    def applied(self, raft_index: int) -> None:
        """Take note that every change of the entries through this one was taken."""
        self.applied_index = max(self.applied_index, raft_index)

    def _define(self, raft_index: int, change: StreamDefine) -> None:
        partition = StreamPartitionId(change.partition)
        gone_at = self._image.gone.get(partition)
        if gone_at is not None or partition in self._ending:
            if gone_at is None or raft_index > gone_at:
                raise StreamMisuse("a removed partition's id is used again", partition=partition)
            return
        master = change.master.replica if isinstance(change.master, FixedMaster) else None
        definition = Definition.of(change.quorum, change.master, master)
        known = self.partitions.get(partition)
        if known is None:
            self.partitions[partition] = StreamFiles(
                partition, 0, 0, [], definition, defined_at=raft_index
            )
        elif known.definition == definition:
            return
        else:
            known.definition, known.is_told = definition, False
        self._dirty.setdefault(partition, raft_index)

    def _append(self, raft_index: int, change: StreamAppend) -> None:
        partition, payload = change.partition, change.payload
        files = self.partitions.get(partition)
        if files is None or files.next_index != change.first:
            self._check_known(partition, files, change.first + change.count, raft_index)
            return
        if change.count < 1:
            raise StreamMisuse("a batch takes at least one index", partition=partition)
        row = ROW.pack(change.first, change.count, len(payload), change.timestamp)
        files.digest = crc32c(payload, crc32c(row, files.digest))
        files.next_index = change.first + change.count
        tail = files.tail
        if tail is None:
            tail = files.tail = BatchPiece()
            self._tails[partition] = files
            self._dirty.setdefault(partition, raft_index)
        tail.add_row(row, payload)
        size = len(payload) + ROW_BYTES
        self.tail_bytes += size
        self.uncovered_bytes += size

    def trim(self, raft_index: int, partition: int, start: int) -> None:
        """Let what stands below `start` go; a start never goes back."""
        files = self.partitions.get(partition)
        if files is None:
            self._check_known(partition, None, start, raft_index)
        elif start > files.next_index:
            raise StreamOutOfOrder(
                "a trim behind the end", partition=partition, start=start, next=files.next_index
            )
        elif start > files.start_index:
            files.start_index = start
            self._dirty.setdefault(partition, raft_index)

    def _remove(self, raft_index: int, partition: int) -> None:
        files = self.partitions.pop(partition, None)
        if files is None:
            self._check_known(partition, None, 0, raft_index)
            return
        self._drop_tail(files)
        self.window.drop(files)
        self._writing.pop(partition, None)
        self._ending[partition] = files
        self._image.gone[partition] = raft_index
        self._dirty.setdefault(partition, raft_index)

    def _check_known(
        self, partition: int, files: StreamFiles | None, next_index: int, raft_index: int
    ) -> None:
        """Raise unless a change may be passed over: of a removed partition, or already there."""
        if files is None:
            gone_at = self._image.gone.get(partition)
            if gone_at is None or raft_index > gone_at:
                raise UnknownStream("no such partition", partition=partition, raft=raft_index)
        elif next_index > files.next_index:
            raise StreamOutOfOrder(
                "a batch does not continue its partition",
                partition=partition,
                given_next=next_index,
                expected=files.next_index,
                raft_index=raft_index,
            )

    def _drop_tail(self, files: StreamFiles) -> None:
        if self._tails.pop(files.partition, None) is not None and files.tail is not None:
            self.tail_bytes -= files.tail.size_bytes
            files.tail = None

    # What a peer's snapshot brings

    def define_as(
        self, raft_index: int, partition: int, definition: Definition | None, defined_at: int
    ) -> None:
        """Make a partition that a peer has; `defined_at` is no earlier than it was defined."""
        if partition not in self.partitions and partition not in self._image.gone:
            known = definition or Definition.of(Majority(), Disabled(), None)
            self.partitions[partition] = StreamFiles(
                StreamPartitionId(partition), 0, 0, [], known, defined_at=defined_at
            )
            self._dirty.setdefault(partition, raft_index)

    def skip_to(self, raft_index: int, partition: int, start: int) -> None:
        """Go on from `start` with nothing before it: whoever has the rest has trimmed the gap."""
        files = self.files(partition)
        if start <= files.next_index:
            self.trim(raft_index, partition, start)
            return
        self._drop_tail(files)
        self.window.drop(files)
        files.close_segment()
        files.start_index = start
        self.pass_over(raft_index, files, start)

    def pass_over(self, raft_index: int, files: StreamFiles, next_index: int) -> None:
        """Go on from an index with nothing between: a trim or a compaction took that."""
        files.next_index = next_index
        files.digest, files.digest_from = 0, next_index
        self._dirty.setdefault(files.partition, raft_index)

    def reconcile(self, extents: Iterable[StreamExtent], raft_index: int) -> list[int]:
        """Remove, and return, the partitions that the state at `raft_index` has no more.

        One that was defined later is not in that state yet, and stays.
        """
        listed = {extent.partition for extent in extents}
        gone = [
            files.partition
            for files in self.partitions.values()
            if files.partition not in listed and files.defined_at <= raft_index
        ]
        for partition in gone:
            self._remove(raft_index, partition)
        return list(map(int, gone))

    def lacking(self, extents: Iterable[StreamExtent]) -> list[StreamExtent]:
        """Return what a state speaks of and these partitions do not reach."""
        return [extent for extent in extents if not self._reaches(extent)]

    def _reaches(self, extent: StreamExtent) -> bool:
        if extent.partition in self._image.gone:
            return True
        files = self.partitions.get(extent.partition)
        return files is not None and files.next_index >= extent.next

    # Plans

    @property
    def is_dirty(self) -> bool:
        """Whether a checkpoint would make something durable, or delete what waited."""
        return bool(self._dirty) or self.pins.has_due

    @property
    def dirty_partitions(self) -> int:
        return len(self._dirty)

    def plan_flush(self) -> StreamPlan:
        """Plan to write everything that waits in memory; nothing becomes durable by it."""
        self.check_open()
        steps: list[Step] = []
        receipt = self._receipt()
        for files in self._tails.values():
            self._flush(files, steps, receipt)
        self._tails = {}
        return StreamPlan(tuple(steps), receipt)

    def close_file(self, files: StreamFiles) -> Plan:
        """Let the next flush of a partition begin a new file; what stands now changes no more."""
        steps: list[Step] = []
        self._writer.close(files, steps)
        return tuple(steps)

    def plan_swap(self, files: StreamFiles) -> StreamPlan:
        """Plan to make durable that a partition's files are others now (`files.swap`)."""
        assert files.swap is not None, "what is swapped was said before"
        self.window.drop(files)
        self._dirty.setdefault(files.partition, self.applied_index + 1)
        return self.plan_checkpoint(chosen=(files.partition,))

    def plan_checkpoint(
        self, partitions_max: int | None = None, *, chosen: Iterable[int] | None = None
    ) -> StreamPlan:
        """Plan to make partitions durable: all that are not, or those that wait longest."""
        self.check_open()
        steps: list[Step] = []
        after: list[Step] = []
        receipt = self._receipt()
        unsynced: list[FileName] = []
        changes: list[PartitionChange] = []
        for partition in list(islice(self._dirty, partitions_max) if chosen is None else chosen):
            del self._dirty[partition]
            ending = self._ending.pop(partition, None)
            if ending is not None:
                after += _delete(partition, ending.segments)
                gone_at = self._image.gone[partition]
                changes.append(PartitionChange(partition, gone_at=gone_at))
                continue
            files = self.partitions[partition]
            if self._tails.pop(partition, None) is not None:
                self._flush(files, steps, receipt)
            unsynced += files.unsynced
            files.unsynced = {}
            changes.append(self._checkpoint(files, receipt, after))
        if unsynced:
            steps.append(SyncFiles(tuple(unsynced)))
        if self._names_changed:
            steps.append(SyncDirectory(PARTS_DIRECTORY))
            self._names_changed = False
        covered = min(self._dirty.values()) - 1 if self._dirty else self.applied_index
        self._planned_raft_index = max(self._planned_raft_index, covered)
        return self._planned(steps, receipt, changes, after)

    def stored(self, receipt: StreamReceipt) -> None:
        """Take note that a plan was carried out whole."""
        if not self._out or self._out[0] is not receipt:
            raise StreamMisuse("receipts come in the order of their plans")
        self._out.popleft()
        for files, segments, next_index in receipt.readable:
            files.readable = segments
            for piece in files.in_flight:
                if piece.next_index <= next_index:
                    self._let_go(files, piece)
            files.in_flight = tuple(at for at in files.in_flight if at.next_index > next_index)
        for files, mark in receipt.compacted:
            files.compacted = mark
        if receipt.durable_raft_index is not None:
            self.durable_raft_index = receipt.durable_raft_index

    def _let_go(self, files: StreamFiles, piece: BatchPiece) -> None:
        """Keep what a plan has written for readers, unless the partition went on elsewhere."""
        is_here = self.partitions.get(files.partition) is files
        if is_here and piece.next_index > files.start_index:
            self.window.add(files, piece)

    def fence(self, reason: str, **facts: object) -> None:
        """Refuse every further plan: a step failed, and what is on disk is not known."""
        if self.fenced is None:
            self.fenced = StreamFenced(reason, **facts)
        self.window.close()

    def check_open(self) -> None:
        """Raise StreamFenced once the store may plan no more."""
        if self.fenced is not None:
            raise self.fenced

    def _receipt(self) -> StreamReceipt:
        self._receipts += 1
        receipt = StreamReceipt(self._receipts)
        self._out.append(receipt)
        return receipt

    def _flush(self, files: StreamFiles, steps: list[Step], receipt: StreamReceipt) -> None:
        piece = files.take_tail()
        self.tail_bytes -= piece.size_bytes
        before = files.segments[-1].file_seq if files.segments else None
        self._writer.write(files, piece, steps)
        self._names_changed |= files.segments[-1].file_seq != before
        receipt.readable.append((files, tuple(files.segments), piece.next_index))
        self._writing[files.partition] = files
        self._writing.move_to_end(files.partition)
        if len(self._writing) > self.config.writers_max:
            self._writing.popitem(last=False)[1].rest()

    def _checkpoint(
        self, files: StreamFiles, receipt: StreamReceipt, after: list[Step]
    ) -> PartitionChange:
        expired = [at for at in files.segments if at.next_index <= files.start_index]
        if expired and len(expired) == len(files.segments):
            files.close_segment()
        del files.segments[: len(expired)]
        swap, files.swap = files.swap, None
        if swap is not None:
            expired += swap.replaced
            receipt.compacted.append((files, swap.mark))
        if expired or swap is not None:
            receipt.readable.append((files, tuple(files.segments), 0))
            after += _delete(files.partition, expired)
        touched, files.touched = files.touched, {}
        definition, files.is_told = None if files.is_told else files.definition, True
        return PartitionChange(
            partition=files.partition,
            start_index=files.start_index,
            next_index=files.next_index,
            defined_at=files.defined_at,
            digest=files.digest,
            digest_from=files.digest_from,
            segments=tuple(at for at in files.segments if at.file_seq in touched),
            removed=tuple(segment.file_seq for segment in expired),
            definition=definition,
            compacted=files.compacted if swap is None else swap.mark,
        )

    def _planned(
        self,
        steps: list[Step],
        receipt: StreamReceipt,
        changes: Sequence[PartitionChange],
        after: Sequence[Step],
    ) -> StreamPlan:
        """Finish a plan with its commit point, and what may only happen behind that."""
        before = self._image.durable_raft_index
        receipt.durable_raft_index = self._image.durable_raft_index = self._planned_raft_index
        for change in changes:
            fold(self._image, change)
        if self._metadata_bytes > self.config.metadata_rewrite_bytes + 2 * self._rewritten_bytes:
            commit = self._plan_rewrite()
        else:
            commit = self._plan_batches(before, changes)
        return StreamPlan((*steps, *commit, *self.pins.due(after)), receipt)

    def _plan_batches(self, before: int, changes: Sequence[PartitionChange]) -> Plan:
        steps: list[Step] = []
        image = self._image
        for batch in batches_of(image.next_batch_seq, before, image.durable_raft_index, changes):
            # Synced one by one: a whole batch behind a torn one would look like damage.
            steps += (WriteFile(METADATA_FILE, self._metadata_bytes, batch), Sync(METADATA_FILE))
            self._metadata_bytes += len(batch)
            image.next_batch_seq += 1
        return tuple(steps)

    def _plan_rewrite(self) -> Plan:
        data = encode_metadata(self._image)
        self._metadata_bytes = self._rewritten_bytes = len(data)
        return plan_replace(METADATA_FILE, data)


def _delete(partition: int, segments: Iterable[SegmentMeta]) -> list[Step]:
    """Plan to delete files, and the index beside each."""
    steps: list[Step] = []
    for segment in segments:
        names = (index_file(partition, segment.file_seq), part_file(partition, segment.file_seq))
        steps += (DeleteFile(name) for name in names)
    return steps
