"""What the log must keep: quorum and durability of every outstanding entry of every partition.

`min_required` is kept by a heap that holds a lower bound for each partition with outstanding
entries. A bound only ever rises, so it is refreshed when it comes to the top and not before:
an acknowledgement or a checkpoint of ten thousand partitions touches no heap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush, heapreplace, nsmallest

from clustor.segmented.acks import AckRuns, AckVector
from clustor.segmented.envelope import Row
from clustor.segmented.errors import EntryOutOfOrder, SegmentedMisuse, UnknownPartition
from clustor.segmented.history import History
from clustor.segmented.outstanding import Outstanding
from clustor.segmented.quorum import (
    PolicyRegistry,
    Predicate,
    QuorumPolicy,
    Replicas,
    is_met_by_majority,
    predicate_of,
)
from clustor.segmented.types import Batch, PartitionLogIndex, ReplicaId, TopicPartitionId


class AckOutcome(StrEnum):
    """What became of an acknowledgement. None of these is an error."""

    TAKEN = "Taken"
    STALE = "Stale"  # a duplicate, or older than what is known
    STRANGER = "Stranger"  # from no member
    UNKNOWN_ENTRY = "UnknownEntry"  # of nothing that is outstanding here
    CROWDED = "Crowded"  # too many runs in this partition: to be said again later


class HoldReason(StrEnum):
    """Why the log must keep an entry."""

    QUORUM = "PendingQuorum"
    APPLY = "PendingApply"  # not durable in the partition's own file yet


@dataclass(frozen=True, slots=True)
class Hold:
    """A partition that holds the log back: since which entry, since when, for how many bytes."""

    partition: TopicPartitionId
    raft_index: int
    since: int  # the time that the caller gave with that entry
    held_bytes: int  # of envelopes, from that entry to the end of the log
    reason: HoldReason


class Tracker:
    """The quorum state of a group. Entries come in order of raft index."""

    def __init__(self, replicas: Replicas, registry: PolicyRegistry, *, ack_runs_max: int) -> None:
        self._replicas = replicas
        self._registry = registry
        self._ack_runs_max = ack_runs_max
        self._partitions: dict[int, Outstanding] = {}
        self._heap: list[tuple[int, int]] = []
        self._vector = AckVector(replicas)
        self._policies: list[QuorumPolicy] = []
        self._predicates: list[Predicate] = []
        self._class_indices: list[int] = []  # the vector's quorum for each policy
        self._history = History()
        self._committed_index = 0
        self._covered_index = 0
        self._unjoined: set[int] = set()  # partitions ahead of a log that ends before that index

    @property
    def covered_index(self) -> int:
        """Entries through this one are in the partitions already, though the log ended before it.

        Such a log came to its end by a crash in the middle of an installation; its entries come
        again, and may even replace some that Raft never committed. 0 for a log that is whole.
        """
        return self._covered_index

    @property
    def last_index(self) -> int:
        """The raft index of the last entry that was noted."""
        return self._history.last_index

    # Partitions

    def define(
        self, partition: TopicPartitionId, policy: QuorumPolicy, next_index: int, quorum_next: int
    ) -> None:
        """Track a partition from `next_index`, which its files have reached. Or change its policy.

        Raises UnknownPolicy.
        """
        slot = self._slot(policy)
        known = self._partitions.get(partition)
        if known is None:
            self._partitions[partition] = Outstanding(slot, next_index, quorum_next)
        else:
            known.policy_slot = slot

    def check_policy(self, policy: QuorumPolicy) -> None:
        """Raise UnknownPolicy for a custom policy that nobody registered."""
        predicate_of(policy, self._replicas, self._registry)

    def start_behind(self, raft_index: int) -> None:
        """Begin with the entry behind `raft_index` (recovery)."""
        self._history.last_index = raft_index

    def expect_again(self, covered_index: int) -> None:
        """Let the partitions be ahead of a log that ends before `covered_index` (recovery)."""
        self._covered_index = covered_index
        self._unjoined = set(self._partitions)

    def resume(self, partition: int, first: int, quorum_next: int) -> None:
        """Track a partition from the first of its entries that the log still holds (recovery).

        What the log no longer holds was on a quorum and durable here, or it would hold it.
        """
        self.partition(partition).resume(first, quorum_next)
        self._unjoined.discard(partition)

    def partition(self, partition: int) -> Outstanding:
        known = self._partitions.get(partition)
        if known is None:
            raise UnknownPartition("no such partition", partition=partition)
        return known

    def forget(self, partition: TopicPartitionId) -> None:
        """Stop tracking a partition that is removed; nothing of it is needed any more."""
        self.partition(partition)
        del self._partitions[partition]

    # Entries

    def next_indices(self, batches: Iterable[Batch]) -> list[int]:
        """Return the index that each batch takes if they are appended next, in this order."""
        partitions = self._partitions
        upcoming: dict[int, int] = {}
        firsts: list[int] = []
        for batch in batches:
            partition = batch.partition
            first = upcoming.get(partition)
            if first is None:
                known = partitions.get(partition)
                first = self.partition(partition).next_index if known is None else known.next_index
            firsts.append(first)
            upcoming[partition] = first + batch.count
        return firsts

    def appended(self, raft_index: int, rows: Sequence[Row], log_bytes: int, now: int) -> None:
        """Track the batches of one log entry. Changes nothing where it raises."""
        if raft_index <= self._history.last_index:
            raise SegmentedMisuse(
                "log entries come in order", index=raft_index, last=self._history.last_index
            )
        self._history.append(raft_index, log_bytes, now)
        try:
            self._append_rows(raft_index, rows)
        except (UnknownPartition, EntryOutOfOrder):
            self.cut(raft_index)
            raise

    def _append_rows(self, raft_index: int, rows: Sequence[Row]) -> None:
        partitions = self._partitions
        for partition, first, count, _, _ in rows:
            known = partitions.get(partition)
            if known is None:
                raise UnknownPartition("no such partition", partition=partition, index=raft_index)
            if raft_index <= self._covered_index:
                self._join(partition, known, first)
            if first != known.next_index:
                raise EntryOutOfOrder(
                    "a batch does not continue its partition",
                    partition=partition,
                    first=first,
                    expected=known.next_index,
                    raft_index=raft_index,
                )
            known.firsts.append(first)
            known.rafts.append(raft_index)
            known.next_index = first + count
            if not known.queued:
                known.queued = True
                heappush(self._heap, (raft_index, partition))

    def _join(self, partition: int, known: Outstanding, first: int) -> None:
        """Take the first entry of a partition that is ahead of the log as the log gives it."""
        if partition in self._unjoined and first < known.next_index:
            known.next_index = first
        self._unjoined.discard(partition)

    def cut(self, from_index: int) -> None:
        """Void every entry from `from_index` on, and what was acknowledged of them (C17)."""
        self._history.cut(from_index)
        self._vector.cut(from_index)
        for known in self._partitions.values():
            known.cut(from_index)
        self._class_indices = [min(at, from_index - 1) for at in self._class_indices]
        self._committed_index = min(self._committed_index, from_index - 1)
        if from_index <= self._covered_index:
            # Void entries of a partition may have been needed by nobody and forgotten already,
            # so what replaces them is taken as the log gives it.
            self._unjoined = set(self._partitions)
        self._rebuild_heap()

    def durable(self, partition: TopicPartitionId, next_index: int) -> None:
        """Note that the partition's files hold everything below `next_index` durably."""
        known = self._partitions.get(partition)
        if known is not None:
            known.durable(next_index)

    # Acknowledgements

    def set_members(self, members: Iterable[ReplicaId]) -> None:
        """Change the membership. What was a quorum stays one; what is pending is judged anew."""
        self._replicas.set_members(members)
        self._vector.forget_strangers()
        self._predicates = [
            predicate_of(policy, self._replicas, self._registry) for policy in self._policies
        ]
        self._advance_classes()

    def committed(self, raft_index: int) -> None:
        """Note that Raft has committed through `raft_index`: a majority has it durably.

        That settles every policy which asks for no more. A replica that does not lead hears of
        little else, and would keep its log for ever.
        """
        through = min(raft_index, self._history.last_index)
        self._committed_index = max(self._committed_index, through)
        self._advance_classes()

    def acknowledge_through(self, replica: ReplicaId, raft_index: int) -> AckOutcome:
        """Note that a replica has the log durably through `raft_index`.

        It counts only as far as our own log reaches: what a replica has beyond that is not what
        we are going to append there.
        """
        if not self._replicas.bit(replica):
            return AckOutcome.STRANGER
        if not self._vector.advance(replica, min(raft_index, self._history.last_index)):
            return AckOutcome.STALE
        self._advance_classes()
        return AckOutcome.TAKEN

    def acknowledge(
        self,
        replica: ReplicaId,
        partition: TopicPartitionId,
        first: PartitionLogIndex,
        last: PartitionLogIndex,
    ) -> AckOutcome:
        """Note that a replica has some entries of one partition, in any order."""
        bit = self._replicas.bit(replica)
        if not bit:
            return AckOutcome.STRANGER
        known = self._partitions.get(partition)
        if known is None or first > last or first >= known.next_index:
            return AckOutcome.UNKNOWN_ENTRY
        if last < known.quorum_next:
            return AckOutcome.STALE
        acks = known.acks or AckRuns()
        if len(acks) >= self._ack_runs_max:
            return AckOutcome.CROWDED
        acks.add(bit, max(first, known.quorum_next), min(last, known.next_index - 1))
        known.acks = acks
        self._satisfy(known)
        return AckOutcome.TAKEN

    def quorum_next(self, partition: int) -> PartitionLogIndex:
        """Return the first index of a partition that no quorum has."""
        known = self.partition(partition)
        self._satisfy(known)
        return PartitionLogIndex(known.quorum_next)

    # What the log must keep

    def min_required(self) -> int | None:
        """Return the lowest raft index that any partition needs, None where nothing is needed."""
        heap = self._heap
        while heap:
            bound, partition = heap[0]
            actual = self._required(partition)
            if actual is None:
                heappop(heap)
            elif actual > bound:
                heapreplace(heap, (actual, partition))
            else:
                return bound
        return None

    def holds(self, limit: int = 10) -> list[Hold]:
        """Say which partitions hold the log back, the worst first."""
        found = ((self._required(at, dequeue=False), at) for _, at in self._heap)
        pending = ((raft, at) for raft, at in found if raft is not None)
        return [self._hold(raft, at) for raft, at in nsmallest(limit, pending)]

    def _hold(self, raft_index: int, partition: int) -> Hold:
        known = self._partitions[partition]
        waits_for_quorum = known.quorum_next <= known.durable_next
        return Hold(
            partition=TopicPartitionId(partition),
            raft_index=raft_index,
            since=self._history.time_of(raft_index),
            held_bytes=self._history.bytes_from(raft_index),
            reason=HoldReason.QUORUM if waits_for_quorum else HoldReason.APPLY,
        )

    def retire_history(self, before_index: int) -> None:
        """Forget the sizes and times of entries that the log no longer needs."""
        self._history.drop_before(before_index)

    def _rebuild_heap(self) -> None:
        # What comes in the place of void entries may stand before a bound that they had.
        self._heap = []
        for partition, known in self._partitions.items():
            required = known.min_required()
            known.queued = required is not None
            if required is not None:
                heappush(self._heap, (required, partition))

    def _required(self, partition: int, *, dequeue: bool = True) -> int | None:
        known = self._partitions.get(partition)
        if known is None:
            return None
        self._satisfy(known)
        actual = known.min_required()
        if actual is None and dequeue:
            known.queued = False
        return actual

    def _satisfy(self, known: Outstanding) -> None:
        slot = known.policy_slot
        known.satisfy(self._predicates[slot], self._vector, self._class_indices[slot])

    def _slot(self, policy: QuorumPolicy) -> int:
        if policy not in self._policies:
            predicate = predicate_of(policy, self._replicas, self._registry)
            self._policies.append(policy)
            self._predicates.append(predicate)
            self._class_indices.append(self._quorum_index(policy, predicate))
        return self._policies.index(policy)

    def _advance_classes(self) -> None:
        # Never back: a quorum that was once there has been promised to a client.
        self._class_indices = [
            max(before, self._quorum_index(policy, predicate))
            for before, policy, predicate in zip(
                self._class_indices, self._policies, self._predicates, strict=True
            )
        ]

    def _quorum_index(self, policy: QuorumPolicy, predicate: Predicate) -> int:
        """Return through where the whole log is on a policy's quorum."""
        acknowledged = self._vector.quorum_index(predicate)
        if is_met_by_majority(policy, self._replicas):
            return max(acknowledged, self._committed_index)
        return acknowledged
