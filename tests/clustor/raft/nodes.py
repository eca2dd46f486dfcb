"""A machine of the simulated world: a disk that survives, and the driver of a group."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from clustor.log.types import (
    Entry,
    IoWriterMode,
    LogId,
    LogIndex,
    PartitionId,
    SegmentSeq,
    Term,
)
from clustor.raft.group import Group
from clustor.raft.hard_state import HardState
from clustor.raft.membership import Membership
from clustor.raft.memory_log import MemoryLog
from clustor.raft.output import (
    LogAppend,
    Output,
    PersistHardState,
    RepairWrite,
    SnapshotInstall,
)
from clustor.raft.types import (
    NO_INDEX,
    NO_TERM,
    HardStateStored,
    LogStored,
    ReplicaId,
    ReplicaIdentity,
    RoutingEpoch,
)

if TYPE_CHECKING:
    from tests.clustor.raft.world import World


@dataclass
class Disk:
    """What survives a crash. Operations are durable when they are done, in their order."""

    hard: HardState | None = None
    base_index: LogIndex = NO_INDEX
    base_term: Term = NO_TERM
    entries: list[Entry] = field(default_factory=list)
    snapshot: list[tuple[int, Entry]] = field(default_factory=list)  # applied through the base
    holds_data: bool = False
    damaged: tuple[LogIndex, LogIndex] | None = None

    def last_index(self) -> int:
        return self.base_index + len(self.entries)

    def holds(self, term: int, index: int) -> bool:
        if index <= self.base_index:
            return True
        at = index - self.base_index - 1
        return at < len(self.entries) and self.entries[at].term == term

    def append(self, batch: LogAppend, count: int | None = None) -> None:
        """Do a batch, or the first `count` of its entries when power goes in the middle."""
        if batch.truncate_from is not None:
            assert batch.truncate_from > self.base_index, "cut below the base"
            del self.entries[batch.truncate_from - self.base_index - 1 :]
            if self.damaged is not None and self.damaged[1] >= batch.truncate_from:
                kept = (self.damaged[0], LogIndex(batch.truncate_from - 1))
                self.damaged = kept if kept[0] <= kept[1] else None
        for entry in batch.entries[:count]:
            if entry.index <= self.base_index:
                continue
            assert entry.index == self.last_index() + 1, "a gap on disk"
            self.entries.append(entry)

    def compact(self, index: LogIndex, term: Term) -> None:
        assert index <= len(self.snapshot), "compacted what no snapshot covers"
        del self.entries[: index - self.base_index]
        self.base_index, self.base_term = index, term


class Node:
    """One machine: a disk that stays, and a group that comes and goes."""

    def __init__(self, world: World, replica_id: ReplicaId) -> None:
        self.world = world
        self.id = replica_id
        self.disk = Disk()
        self.group: Group | None = None
        self.life = 0  # counts restarts: events of an earlier life are void
        self.queue: list[tuple[str, object]] = []  # disk work that is not done
        self.busy = False
        self.stalled_until = 0
        self.paused_until = 0  # the process does not run: no ticks, messages wait
        self.applied: list[Entry] = []
        self.wiped = False
        self.bootstrap: Membership | None = None

    @property
    def up(self) -> bool:
        return self.group is not None

    def start(self, rejoin_epoch: RoutingEpoch | None = None) -> None:
        disk = self.disk
        log = MemoryLog(disk.base_index, disk.base_term, evict_entries_min=4)
        damaged = disk.damaged
        log.append([self._readable(entry) for entry in disk.entries])
        identity = ReplicaIdentity(
            self.id, PartitionId(1), LogId(b"x" * 16), holds_data=disk.holds_data
        )
        self.group = self.world.make_group(
            identity,
            now_ms=self.world.now,
            hard_state=disk.hard,
            log=log,
            applied_index=LogIndex(len(disk.snapshot)),
            bootstrap=self.bootstrap,
            rejoin_epoch=rejoin_epoch,
        )
        self.applied = [entry for _, entry in disk.snapshot]
        if damaged is not None and damaged[1] > disk.base_index:
            first = LogIndex(max(damaged[0], disk.base_index + 1))
            self.group.log_damaged(first, damaged[1])
        self.turn()

    def _readable(self, entry: Entry) -> Entry:
        damaged = self.disk.damaged
        if damaged is not None and damaged[0] <= entry.index <= damaged[1]:
            return Entry(entry.term, entry.index, b"")
        return entry

    def crash(self) -> None:
        """Lose power: of the work under way a prefix may have reached the disk."""
        rng = self.world.rng
        self.group = None
        self.life += 1
        for kind, work in self.queue[: rng.randint(0, len(self.queue))]:
            if kind == "append" and rng.random() < 0.5:
                assert isinstance(work, LogAppend)
                self.disk.append(work, rng.randint(0, len(work.entries)))
                break
            self._do(kind, work)
        self.queue.clear()
        self.busy = False

    def wipe(self) -> None:
        """Lose the disk itself; the identity, kept elsewhere, remembers that data was there."""
        held = self.disk.holds_data
        self.disk = Disk(holds_data=held)
        self.wiped = True

    # The driver: what a runtime does, without a runtime.

    def turn(self) -> None:
        group = self.group
        if group is None:
            return
        output = group.take()
        self.world.checker.on_output(self, output)
        if output.hard_state is not None:
            self._enqueue("hard", output.hard_state)
        for batch in output.appends:
            self._enqueue("append", batch)
        if output.repair is not None:
            self._enqueue("repair", output.repair)
        if output.install is not None:
            self._enqueue("install", output.install)
        for to, message in output.messages:
            self.world.send(self.id, to, message)
        for fetch in output.fetches:
            entries = self._read(fetch.first_index, fetch.last_index, fetch.bytes_max)
            self.world.later(2, self, partial(group.fetched, fetch, entries))
        self._apply(output)
        if output.compact_through is not None:
            log = group.core.log
            assert log.base_index == output.compact_through
            self.disk.compact(log.base_index, log.base_term)
        self.world.on_output(self, output)

    def _read(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        entries: list[Entry] = []
        size = 0
        for entry in self.disk.entries[max(0, first - self.disk.base_index - 1) :]:
            size += len(entry.payload) + 24
            if entry.index > last or (entries and size > bytes_max):
                break
            entries.append(entry)
        return entries

    def _apply(self, output: Output) -> None:
        group = self.group
        assert group is not None
        if output.apply:
            self.applied += output.apply
            self.world.checker.on_apply(self, output.apply)
            group.applied(output.apply[-1].index, output.apply[-1].index)
        if output.emit_snapshot is not None:
            self._enqueue("snapshot", group.core.applied_index)

    def _enqueue(self, kind: str, work: object) -> None:
        self.queue.append((kind, work))
        self._work()

    def _work(self) -> None:
        if self.busy or not self.queue:
            return
        self.busy = True
        world = self.world
        took = world.rng.randint(1, 4)
        if world.rng.random() < world.faults.slow_disk:
            took += world.rng.randint(5, 120)
        took += max(0, self.stalled_until - world.now)
        world.later(took, self, self._done)

    def _done(self) -> None:
        self.busy = False
        kind, work = self.queue.pop(0)
        self._do(kind, work)
        group = self.group
        assert group is not None
        match work:
            case PersistHardState():
                group.stored(HardStateStored(work.seq))
            case LogAppend():
                last = LogIndex(self.disk.last_index())
                term = self.disk.entries[-1].term if self.disk.entries else self.disk.base_term
                group.stored(
                    LogStored(
                        work.write_seq,
                        term,
                        last,
                        SegmentSeq(1 + last // 50),
                        IoWriterMode.FIXED_URING,
                    )
                )
            case RepairWrite():
                group.log_repaired(work.entries[-1].index)
                group.fsync_sample(1.0)
            case SnapshotInstall():
                ok = self.disk.base_index >= work.base_index
                if ok and len(self.applied) < work.base_index:
                    self.applied = [entry for _, entry in self.disk.snapshot]
                group.snapshot_installed(work, ok=ok)
            case _:
                self._emitted()
        self._work()

    def _emitted(self) -> None:
        assert self.group is not None
        self.group.snapshot_emitted(LogIndex(len(self.disk.snapshot)))

    def _do(self, kind: str, work: object) -> None:
        disk = self.disk
        match work:
            case PersistHardState():
                disk.hard = work.state
                disk.holds_data = True
            case LogAppend():
                disk.append(work)
            case RepairWrite():
                for entry in work.entries:
                    self.world.checker.on_repair(self, entry)
                if disk.damaged is not None:
                    left = (LogIndex(work.entries[-1].index + 1), disk.damaged[1])
                    disk.damaged = left if left[0] <= left[1] else None
            case SnapshotInstall():
                self._install(work)
            case _ if kind == "snapshot" and self.group is not None:
                assert isinstance(work, int)
                if work > len(disk.snapshot):
                    disk.snapshot = [(e.index, e) for e in self.applied[:work]]

    def _install(self, install: SnapshotInstall) -> None:
        source = self.world.nodes[install.source]
        covered = install.base_index <= self.disk.base_index
        if covered or len(source.applied) < install.base_index:
            return
        disk = self.disk
        keeps = disk.holds(install.base_term, install.base_index) and (
            install.base_index > disk.base_index
        )
        rest = [e for e in disk.entries if e.index > install.base_index] if keeps else []
        disk.base_index, disk.base_term, disk.entries = (
            install.base_index,
            install.base_term,
            rest,
        )
        if len(disk.snapshot) < install.base_index:
            disk.snapshot = [(e.index, e) for e in source.applied[: install.base_index]]
        if disk.damaged is not None:
            first = LogIndex(max(disk.damaged[0], install.base_index + 1))
            disk.damaged = (first, disk.damaged[1]) if first <= disk.damaged[1] else None
