"""Many partitions in one Raft group: the one machine that the runtime drives.

The way of an entry: `propose` gives its batches their indices and makes one payload of them; the
group's log takes it; `appended` starts to track it; `fsynced` and the acknowledgements of the
replicas bring its quorum; `apply`, once Raft has committed it, puts the batches into their
partitions; a checkpoint makes these durable; then `truncation_floor` passes it by.

A partition's file holds what Raft has committed, so it is never rolled back. What a partition's
own policy asks beyond that decides what may be read and acknowledged (`readable_next`), and what
the log must keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clustor.log.types import Entry, EntryKind, LogIndex
from clustor.segmented.compaction import Compaction, KeysOf, start_compaction
from clustor.segmented.envelope import Row, decode_table, encode_envelope, is_envelope
from clustor.segmented.errors import SegmentedMisuse
from clustor.segmented.export import Export
from clustor.segmented.importing import Import
from clustor.segmented.master import MasterPolicy, choose_master
from clustor.segmented.metadata import Definition
from clustor.segmented.quorum import QuorumPolicy, Replicas
from clustor.segmented.reader import PartitionReader
from clustor.segmented.retention import RetentionPolicy, plan_retention
from clustor.segmented.store import Receipt, Store, StorePlan
from clustor.segmented.tracker import AckOutcome, Hold, Tracker
from clustor.segmented.types import (
    Batch,
    PartitionLogIndex,
    ReplicaId,
    TimestampMs,
    TopicPartitionId,
)
from clustor.segmented.view import PartitionView, take_view


class SegmentedGroup:
    """The partitions of one group on one replica. Pure; see the module for its order."""

    def __init__(
        self, store: Store, tracker: Tracker, replicas: Replicas, segmented_durable_index: LogIndex
    ) -> None:
        self.store = store
        self._tracker = tracker
        self._replicas = replicas
        self._segmented_durable_index = segmented_durable_index

    # Partitions

    def plan_define(
        self, partitions: Mapping[TopicPartitionId, tuple[QuorumPolicy, MasterPolicy]]
    ) -> StorePlan:
        """Plan new partitions, or other policies; batches for them come after the receipt.

        Raises UnknownPolicy, and SegmentedMisuse for the id of a partition that was removed.
        """
        definitions: dict[TopicPartitionId, Definition] = {}
        for partition, (quorum, master_policy) in partitions.items():
            master = choose_master(master_policy, partition, self._replicas.members)
            definitions[partition] = Definition.of(quorum, master_policy, master)
            self._tracker.check_policy(quorum)
        plan = self.store.plan_define(definitions)
        for partition, (quorum, _) in partitions.items():
            self._tracker.define(partition, quorum, 0, 0)
        return plan

    def plan_remove(self, partition: TopicPartitionId) -> StorePlan:
        """Plan the end of a partition. Its id is never used again."""
        plan = self.store.plan_remove(partition)
        self._tracker.forget(partition)
        return plan

    def partitions(self) -> Iterable[TopicPartitionId]:
        """The partitions that are defined here."""
        return [files.partition for files in self.store.partitions.values()]

    def master(self, partition: TopicPartitionId) -> ReplicaId | None:
        """The partition's master, as it was last decided and will be found after a restart."""
        master = self.store.files(partition).definition.master
        return None if master is None else ReplicaId(master)

    def plan_members(self, members: Iterable[ReplicaId]) -> StorePlan | None:
        """Take a new membership, and plan to record the masters that it moves; None for none."""
        self._tracker.set_members(members)
        moved: dict[TopicPartitionId, Definition] = {}
        for files in self.store.partitions.values():
            policy = files.definition.master_policy()
            master = choose_master(policy, files.partition, self._replicas.members)
            if master != files.definition.master:
                quorum = files.definition.quorum_policy()
                moved[files.partition] = Definition.of(quorum, policy, master)
        return self.store.plan_define(moved) if moved else None

    # The log

    def propose(self, batches: Sequence[Batch]) -> bytes:
        """Give batches their indices and encode them as one log entry's payload.

        Nothing is changed: the entry must be `appended` before the next one is proposed.
        """
        return encode_envelope(batches, self._tracker.next_indices(batches))

    def appended(self, entries: Iterable[Entry], now: int) -> None:
        """Track entries that the log has taken.

        Raises MalformedEnvelope, UnknownPartition or EntryOutOfOrder for an entry that no leader
        may have written; neither that one nor any behind it is tracked.
        """
        gone = self.store.gone
        for entry in entries:
            rows = rows_of(entry)
            if gone:  # batches may have been on their way when their partition was removed
                rows = [row for row in rows if row[0] not in gone]
            self._tracker.appended(entry.index, rows, len(entry.payload), now)

    def truncated(self, from_index: LogIndex) -> None:
        """Void the tracking of a suffix that the log has truncated (C17)."""
        if self._tracker.covered_index < from_index <= self.store.applied_index:
            raise SegmentedMisuse(
                "an applied entry is never truncated",
                from_index=from_index,
                applied_index=self.store.applied_index,
            )
        self._tracker.cut(from_index)
        before = LogIndex(from_index - 1)
        self._segmented_durable_index = min(self._segmented_durable_index, before)

    @property
    def segmented_durable_index(self) -> LogIndex:
        """Through where this replica's own log is durable."""
        return self._segmented_durable_index

    def fsynced(self, replica: ReplicaId, index: LogIndex) -> None:
        """Take a receipt of our own log: durable through `index`. It strictly increases."""
        if not self._segmented_durable_index < index <= self._tracker.last_index:
            raise SegmentedMisuse(
                "segmented_durable_index strictly increases, and within the log",
                index=index,
                current=self._segmented_durable_index,
                last_index=self._tracker.last_index,
            )
        self._segmented_durable_index = index
        self._tracker.acknowledge_through(replica, index)

    def committed(self, index: LogIndex) -> None:
        """Take Raft's word that a majority has the log durably through `index`.

        Replicas that do not lead hear of no single acknowledgements; the leader may pass those on
        to `acknowledge_through` for the policies that ask for more than a majority.
        """
        self._tracker.committed(index)

    def acknowledge_through(self, replica: ReplicaId, index: LogIndex) -> AckOutcome:
        """Take a replica's word that its log is durable through `index`."""
        return self._tracker.acknowledge_through(replica, index)

    def acknowledge(
        self,
        replica: ReplicaId,
        partition: TopicPartitionId,
        first: PartitionLogIndex,
        last: PartitionLogIndex,
    ) -> AckOutcome:
        """Take a replica's word for single entries of a partition."""
        return self._tracker.acknowledge(replica, partition, first, last)

    def apply(self, entries: Iterable[Entry]) -> None:
        """Put committed entries into their partitions; what is there already is passed over."""
        for entry in entries:
            if entry.index > self._tracker.last_index:
                raise SegmentedMisuse("only what was appended is applied", index=entry.index)
            self.store.apply(entry.index, rows_of(entry), entry.payload)

    @property
    def applied_index(self) -> LogIndex:
        """Through where entries were applied; after a start, Raft applies from behind this."""
        return LogIndex(self.store.applied_index)

    # Disk

    def plan_flush(self) -> StorePlan:
        """Plan to write what waits in memory; see `Store.plan_flush`."""
        return self.store.plan_flush()

    def plan_checkpoint(self, partitions_max: int | None = None) -> StorePlan:
        """Plan to make partitions durable, so that the log may be cut; all, or the worst ones."""
        return self.store.plan_checkpoint(self._tracker.quorum_next, partitions_max)

    def plan_retention(
        self, policies: Mapping[TopicPartitionId, RetentionPolicy], now: TimestampMs
    ) -> StorePlan | None:
        """Plan to remove what these policies no longer keep."""
        return plan_retention(self.store, policies, now, self._tracker.quorum_next)

    def start_compaction(
        self,
        partition: TopicPartitionId,
        keys_of: KeysOf,
        *,
        now: TimestampMs,
        tombstone_ms: int,
    ) -> Compaction | None:
        """Begin a key compaction of a partition's closed files."""
        return start_compaction(
            self.store,
            partition,
            keys_of,
            now=now,
            tombstone_ms=tombstone_ms,
            quorum_next=self._tracker.quorum_next(partition),
        )

    # Snapshots

    def export(self, reader: PartitionReader) -> Export:
        """Give away all partitions as they are now, at `applied_index`, in bounded pieces."""
        return Export(self.store, reader)

    def start_import(self) -> Import:
        """Begin to take in an export in the place of everything that is here."""
        return Import(self.store)

    # Receipts

    def stored(self, receipt: Receipt) -> None:
        """Take note that a plan was carried out whole."""
        for partition, next_index in self.store.stored(receipt):
            self._tracker.durable(partition, next_index)

    def fence(self, reason: str, **facts: object) -> None:
        """Refuse every further plan: one failed, and only recovery can say what is on disk."""
        self.store.fence(reason, **facts)

    # Views

    def readable_next(self, partition: TopicPartitionId) -> PartitionLogIndex:
        """Return the first index that may not be read: not applied, or not on a quorum."""
        applied = self.store.files(partition).next_index
        return PartitionLogIndex(min(applied, self._tracker.quorum_next(partition)))

    def view(
        self, partition: TopicPartitionId, from_index: int = 0, bytes_max: int | None = None
    ) -> PartitionView:
        """Take a view for a `PartitionReader`, in any thread.

        What is still in memory is shared block by block: say from where and how much will be
        read where the loop has no time for more.
        """
        readable_next = self.readable_next(partition)
        return take_view(self.store, partition, readable_next, from_index, bytes_max)

    def min_required_raft_index(self) -> LogIndex:
        """Return the lowest raft index that the log must keep for any partition.

        What was not handed to `appended` yet, as in the middle of a replay, nobody has judged.
        """
        floor = min(self.store.durable_raft_index, self._tracker.last_index) + 1
        required = self._tracker.min_required()
        floor = floor if required is None else min(required, floor)
        self._tracker.retire_history(floor)
        return LogIndex(floor)

    def truncation_floor(self, snapshot_floor: LogIndex) -> LogIndex:
        """Return what to give to `Log.plan_compact`: nothing below it is needed by anyone.

        `snapshot_floor` is the caller's authorisation (clustor §9.6, C5): this room's bound never
        lets more go than that, and nothing that a partition needs.
        """
        return min(snapshot_floor, self.min_required_raft_index())

    def holds(self, limit: int = 10) -> list[Hold]:
        """Say which partitions hold the log back, the worst first."""
        return self._tracker.holds(limit)


def rows_of(entry: Entry) -> list[Row]:
    """Return the batches that a log entry carries; none for another kind of entry."""
    if entry.kind is not EntryKind.DATA or not is_envelope(entry.payload):
        return []
    return decode_table(entry.payload)
