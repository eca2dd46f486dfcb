"""A store on a simulated disk, the changes it was given, and a naive twin of what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from clustor.log.keys import KeyRing
from clustor.log.types import PartitionId
from clustor.sim.disk import SimDisk
from clustor.streams import (
    StoredBatch,
    StoreId,
    StreamAppend,
    StreamChange,
    StreamConfig,
    StreamDefine,
    StreamFileReader,
    StreamMemory,
    StreamPlan,
    StreamRemove,
    StreamStore,
    StreamTrim,
    create_store,
    open_store,
    take_view,
)
from tests.clustor.log.harness import new_keys

GROUP = PartitionId(9)
SMALL = StreamConfig(
    segment_bytes=900,
    run_bytes=200,
    index_interval_bytes=300,
    metadata_rewrite_bytes=1_500,
    writers_max=2,
    window_partition_bytes=300,
)

Held = dict[int, tuple[int, int, list[bytes]]]
"""Of each partition its start, its next index, and the payloads from the start on."""


@dataclass
class Twin:
    """What the changes come to, by the simplest way there is."""

    batches: dict[int, list[tuple[int, int, bytes]]] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)

    def take(self, change: StreamChange) -> None:
        match change:
            case StreamDefine():
                self.batches[change.partition], self.starts[change.partition] = [], 0
            case StreamAppend():
                batch = (change.first, change.count, change.payload)
                self.batches[change.partition].append(batch)
            case StreamTrim():
                self.starts[change.partition] = change.start
            case StreamRemove():
                del self.batches[change.partition], self.starts[change.partition]

    def next_of(self, partition: int) -> int:
        batches = self.batches[partition]
        return batches[-1][0] + batches[-1][1] if batches else 0

    def held(self) -> Held:
        return {
            at: (
                self.starts[at],
                self.next_of(at),
                [data for first, count, data in batches if first + count > self.starts[at]],
            )
            for at, batches in self.batches.items()
        }


def read_all(disk: SimDisk, keys: KeyRing, store: StreamStore, partition: int) -> list[StoredBatch]:
    """Read a partition in small bites, each with a view of its own, as a consumer would."""
    reader = StreamFileReader(disk, keys, store.config)
    index = store.files(partition).start_index
    found: list[StoredBatch] = []
    while True:
        chunks = reader.read(take_view(store, partition, index, 150), index, 150)
        if not chunks:
            return found
        found += [batch for chunk in chunks for batch in chunk.batches()]
        index = found[-1].next_index


def held(disk: SimDisk, keys: KeyRing, store: StreamStore) -> Held:
    return {
        int(at): (
            files.start_index,
            files.next_index,
            [batch.payload for batch in read_all(disk, keys, store, at)],
        )
        for at, files in store.partitions.items()
    }


class World:
    """A store that is fed with changes, one entry each."""

    def __init__(self, config: StreamConfig = SMALL, *, reorder: bool = False) -> None:
        self.keys = new_keys()
        self.disk = SimDisk(reorder_directory_ops=reorder)
        opened = create_store(GROUP, StoreId(bytes(16)), self.keys, config, memory=StreamMemory())
        self.disk.execute(opened.plan)
        self.store = opened.store
        self.config = config
        self.changes: list[StreamChange] = []
        self.twin = Twin()

    def take(self, change: StreamChange) -> None:
        self.changes.append(change)
        self.twin.take(change)
        self.store.take(len(self.changes), change)
        self.store.applied(len(self.changes))

    def define(self, *partitions: int) -> None:
        for partition in partitions:
            self.take(StreamDefine(partition))

    def append(self, partition: int, payload: bytes, count: int = 1, timestamp: int = 0) -> None:
        first = self.twin.next_of(partition)
        self.take(StreamAppend(partition, first, count, timestamp, payload))

    def carry_out(self, plan: StreamPlan) -> None:
        self.disk.execute(plan.steps)
        self.store.stored(plan.receipt)

    def held(self) -> Held:
        return held(self.disk, self.keys, self.store)

    def check_after_crash(self, disk: SimDisk) -> StreamStore:
        """Open what a crash left, let the log bring what is missing, and compare."""
        opened = open_store(disk, self.keys, self.config)
        assert opened is not None and not opened.damaged, opened
        disk.execute(opened.plan)
        store = opened.store
        durable = store.durable_raft_index
        assert durable >= self.store.durable_raft_index, "what was durable is not"
        base = max(0, durable - 3)  # a start replays from its snapshot, which is older
        for index in range(base + 1, len(self.changes) + 1):
            store.take(index, self.changes[index - 1])
            store.applied(index)
        assert held(disk, self.keys, store) == self.twin.held()
        plan = store.plan_checkpoint()
        disk.execute(plan.steps)
        store.stored(plan.receipt)
        assert held(disk, self.keys, store) == self.twin.held()
        assert store.durable_raft_index == len(self.changes)
        return store

    def draw(self, rng: Random) -> None:
        """Give it a change that a machine may decide."""
        known = sorted(self.twin.batches)
        defined = [at.partition for at in self.changes if isinstance(at, StreamDefine)]
        chance = rng.random()
        if not known or (chance < 0.1 and len(known) < 5):
            self.define(max(defined, default=-1) + 1)
            return
        partition = rng.choice(known)
        if chance < 0.13:
            self.take(StreamRemove(partition))
        elif chance < 0.25:
            start, end = self.twin.starts[partition], self.twin.next_of(partition)
            self.take(StreamTrim(partition, rng.randint(start, end)))
        else:
            payload = b"%d." % len(self.changes) * rng.choice((0, 1, 5, 40, 90))
            self.append(partition, payload, rng.randint(1, 3), len(self.changes))
