"""Write a partition's files anew, with less in them, and put them in the place of the old ones.

What is in a file that was closed changes no more, so a thread reads it while the partition goes on.
The new files are no files of the store before one checkpoint names them and drops the old ones: a
crash leaves the state before or after. Indices stay as they were; those of records that are gone
are gaps.
"""

from __future__ import annotations

from clustor.log.steps import DeleteFile, Plan, Step, SyncDirectory, SyncFiles
from clustor.streams.files import SegmentSwap, StreamFiles
from clustor.streams.flush import FileWriter
from clustor.streams.metadata import CompactionMark, SegmentMeta
from clustor.streams.piece import BatchPiece
from clustor.streams.plans import StreamPlan
from clustor.streams.runs import PARTS_DIRECTORY, index_file, part_file
from clustor.streams.store import StreamStore


class StreamRewrite:
    """New files for all that a partition has in closed ones. The loop owns it.

    The caller goes through `segments` in order: each is kept as it is, or what is left of it is
    written. Plans are carried out in the order in which they are given.
    """

    def __init__(self, store: StreamStore, files: StreamFiles) -> None:
        self._store = store
        self._files = files
        self.partition = files.partition
        self.segments = tuple(at for at in files.segments if at.next_index > files.start_index)
        self._made: list[SegmentMeta] = []
        """What shall stand in the place of `segments`, in order."""
        self._out = StreamFiles(files.partition, 0, 0, [], files.definition)
        self._taken = 0  # of the files that were written, into `_made`
        sequences = store.sequences
        self._writer = FileWriter(
            store.config, store.keys, store.record, sequences.file_seq, sequences.writer()
        )
        store.rewritten[files.partition] = self._out.segments

    def keep(self, segment: SegmentMeta) -> Plan:
        """Leave a file as it is."""
        steps = self._close()
        self._made.append(segment)
        return steps

    def write(self, piece: BatchPiece) -> Plan:
        """Plan what is left of some batches."""
        steps: list[Step] = []
        self._writer.write(self._out, piece, steps)
        return tuple(steps)

    def _close(self) -> Plan:
        steps: list[Step] = []
        self._writer.close(self._out, steps)
        self._made += self._out.segments[self._taken :]
        self._taken = len(self._out.segments)
        return tuple(steps)

    def finish(self, mark: CompactionMark) -> StreamPlan | None:
        """Plan the commit, while no other plan is out; None where the partition is another now."""
        steps = [*self._close(), SyncFiles(tuple(self._out.unsynced))]
        steps.append(SyncDirectory(PARTS_DIRECTORY))
        files, store = self._files, self._store
        store.rewritten.pop(self.partition, None)
        if store.partitions.get(self.partition) is not files:
            return None
        old = {each.file_seq for each in self.segments}
        made = {each.file_seq for each in self._made}
        present = {each.file_seq for each in files.segments}  # a trim may have taken some
        new = [at for at in self._made if at.file_seq not in old or at.file_seq in present]
        others = [at for at in files.segments if at.file_seq not in old]
        replaced = [at for at in files.segments if at.file_seq in old - made]
        files.segments = sorted((*others, *new), key=lambda at: at.first_index)
        files.touched.update(dict.fromkeys(at.file_seq for at in self._out.segments))
        files.swap = SegmentSwap(replaced, mark)
        plan = store.plan_swap(files)
        return StreamPlan((*steps, *plan.steps), plan.receipt)

    def abandon(self) -> Plan:
        """Plan to delete what was written: nothing takes the place of anything."""
        self._store.rewritten.pop(self.partition, None)
        names = (index_file, part_file)
        written = self._out.segments
        return tuple(
            DeleteFile(name(self.partition, at.file_seq)) for at in written for name in names
        )


def begin_rewrite(store: StreamStore, partition: int) -> tuple[Plan, StreamRewrite] | None:
    """Close the file that is written on, and begin; None where there is no such partition.

    No plan of the store is out, and no other rewrite of the partition is under way.
    """
    files = store.partitions.get(partition)
    if files is None or partition in store.rewritten:
        return None
    steps = store.close_file(files) if files.segments else ()
    return steps, StreamRewrite(store, files)
