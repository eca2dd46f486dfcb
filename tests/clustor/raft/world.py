"""A cluster of groups in one thread: simulated disks, network, control plane, and faults.

Everything random comes from one seeded generator, so that a seed is a whole run. The world
carries out the outputs of each group as a runtime would; what is right is judged in
`checkers.py`, which looks at disks and answers, never at a group's own opinion of itself.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from tests.clustor.raft.checkers import Checker

from clustor.log.types import Entry, IoWriterMode, LogId, LogIndex, PartitionId, SegmentSeq, Term
from clustor.raft.control_plane import ControlPlaneUpdate, VerifiedProof
from clustor.raft.errors import DataLost
from clustor.raft.group import Group
from clustor.raft.hard_state import HardState, MembershipAck
from clustor.raft.leadership import Accepted
from clustor.raft.membership import Configuration
from clustor.raft.memory_log import MemoryLog
from clustor.raft.messages import Message
from clustor.raft.output import (
    LogAppend,
    Output,
    PersistHardState,
    RepairWrite,
    SnapshotInstall,
)
from clustor.raft.profiles import (
    CONSISTENCY_PROFILE,
    MembershipNumbers,
    Profile,
    ReplicationNumbers,
)
from clustor.raft.reads import ReadGranted, ReadKind, ReadRequest
from clustor.raft.types import (
    NO_INDEX,
    NO_TERM,
    DurabilityTuple,
    HardStateStored,
    LogStored,
    ReadId,
    ReplicaId,
    ReplicaIdentity,
    Role,
    RoutingEpoch,
)

TICK_MS = 20

SMALL = replace(
    CONSISTENCY_PROFILE,
    membership=MembershipNumbers(
        catchup_index_slack=8,
        catchup_slack_bytes=512,
        catchup_timeout_ms=3_000,
        finalize_window=6,
        lag_duration_max_ms=2_000,
        rollback_grace_ms=500,
    ),
    replication=ReplicationNumbers(
        message_bytes_max=400,
        inflight_messages_max=4,
        inflight_bytes_max=1200,
        fetch_bytes_max=400,
        snapshot_log_bytes_target=1_500,
        snapshot_retry_ms=300,
    ),
)
"""The profile with limits so small that a short run meets all of them."""


@dataclass
class Faults:
    """What goes wrong, each as a chance."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_ms: int = 3
    slow_disk: float = 0.0
    crash: float = 0.0  # per node and second
    partition: float = 0.0  # per second
    stall: float = 0.0  # per node and second
    change: float = 0.0  # membership changes per second
    transfer: float = 0.0  # per second
    outage: float = 0.0  # of the control plane, per second
    wipe: bool = False
    damage: bool = False

    @staticmethod
    def drawn(rng: random.Random) -> Faults:
        def some(most: float) -> float:
            return rng.choice((0.0, most / 4, most))

        harm = rng.choice(("none", "none", "wipe", "damage"))
        return Faults(
            loss=some(0.2),
            duplicate=some(0.15),
            delay_ms=rng.choice((2, 10, 60)),
            slow_disk=some(0.3),
            crash=some(0.5),
            partition=some(1.0),
            stall=some(0.2),
            change=some(1.0),
            transfer=some(0.7),
            outage=some(0.3),
            wipe=harm == "wipe",
            damage=harm == "damage",
        )


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
        self.applied: list[Entry] = []
        self.wiped = False
        self.bootstrap: Configuration | None = None

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


class World:
    """The nodes, the network between them, the clock, the control plane and the clients."""

    def __init__(
        self,
        rng: random.Random,
        size: int,
        faults: Faults | None = None,
        *,
        spares: int = 0,
        profile: Profile = SMALL,
        group_class: type[Group] = Group,
    ) -> None:
        self.rng = rng
        self.faults = faults or Faults()
        self.profile = profile
        self.group_class = group_class
        self.now = 0
        self._events: list[tuple[int, int, Node | None, int, Callable[[], None]]] = []
        self._count = 0
        self.blocked: set[tuple[ReplicaId, ReplicaId]] = set()
        self.checker = Checker(self)
        ids = [ReplicaId(n) for n in range(1, size + spares + 1)]
        self.nodes = {replica_id: Node(self, replica_id) for replica_id in ids}
        self.control = FakeControlPlane(self)
        self.proposals = 0
        self.reads = 0
        first = Configuration(voters=frozenset(ids[:size]))
        for replica_id in ids:
            if replica_id in first.voters:
                self.nodes[replica_id].bootstrap = first
            self.nodes[replica_id].start()
            self._tick_forever(self.nodes[replica_id])

    def make_group(self, identity: ReplicaIdentity, **kwargs: object) -> Group:
        draw = random.Random(self.rng.random()).randint
        return self.group_class.start(identity, self.profile, draw, **kwargs)  # type: ignore[arg-type]  # the keywords of start, passed through

    # Time.

    def later(self, delay_ms: int, node: Node | None, action: Callable[[], None]) -> None:
        """Do something later, unless the node it belongs to has died by then."""
        self._count += 1
        life = node.life if node is not None else 0
        heapq.heappush(self._events, (self.now + delay_ms, self._count, node, life, action))

    def run(self, duration_ms: int) -> None:
        end = self.now + duration_ms
        while self._events and self._events[0][0] <= end:
            self.now, _, node, life, action = heapq.heappop(self._events)
            if node is None:
                action()
            elif node.up and node.life == life:
                action()
                node.turn()
        self.now = end

    def _tick_forever(self, node: Node) -> None:
        def tick() -> None:
            if node.group is not None:
                node.group.tick(self.now)
                node.turn()
            self.later(TICK_MS, None, tick)

        self.later(self.rng.randint(0, TICK_MS), None, tick)

    # Network.

    def send(self, sender: ReplicaId, to: ReplicaId, message: Message) -> None:
        if to not in self.nodes:
            return
        faults, rng = self.faults, self.rng
        for _ in range(2 if rng.random() < faults.duplicate else 1):
            if rng.random() >= faults.loss:
                self.later(
                    rng.randint(1, faults.delay_ms), None, lambda: self._arrive(sender, to, message)
                )

    def _arrive(self, sender: ReplicaId, to: ReplicaId, message: Message) -> None:
        node = self.nodes[to]
        if node.group is not None and (sender, to) not in self.blocked:
            node.group.receive(message)
            node.turn()

    def isolate(self, side: set[ReplicaId]) -> None:
        """Cut the network in two, both ways."""
        others = set(self.nodes) - side
        self.blocked = {(a, b) for a in side for b in others} | {
            (b, a) for a in side for b in others
        }

    # What the outside hears.

    def on_output(self, node: Node, output: Output) -> None:
        if output.publish_proof is not None:
            self.control.publish(node, output.publish_proof)
        if output.record_membership is not None:
            self.control.record_membership(output.record_membership)

    # Clients.

    def leader(self) -> Node | None:
        """Return the leader of the highest term, as a client would find it."""
        leading = [n for n in self.nodes.values() if n.group is not None and n.group.core.leads]
        return max(leading, key=lambda n: n.group.core.hard.term if n.group else 0, default=None)

    def leaders(self) -> list[Node]:
        return [n for n in self.nodes.values() if n.group is not None and n.group.core.leads]

    def propose(self, count: int = 1) -> None:
        for node in self.leaders():
            group = node.group
            assert group is not None
            payloads = [b"%d" % (self.proposals + n) for n in range(count)]
            self.proposals += count
            answer = group.propose(payloads)
            if isinstance(answer, Accepted):
                self.checker.on_accepted(node, answer, payloads)
            node.turn()

    def read(self) -> None:
        for node in self.leaders():
            self.reads += 1
            read_id = ReadId(self.reads)
            self.checker.on_read(read_id)
            assert node.group is not None
            node.group.read(ReadRequest(read_id, ReadKind.READ_INDEX, self.now + 500))
            node.turn()

    # Recovery.

    def heal(self) -> None:
        """End every fault and start every node that is down."""
        self.faults = Faults()
        self.blocked = set()
        self.control.down = False
        for node in self.nodes.values():
            node.stalled_until = 0
            if not node.up:
                self.restart(node)

    def restart(self, node: Node) -> None:
        if node.wiped and node.disk.hard is None and node.disk.holds_data:
            try:
                node.start()
            except DataLost:
                node.start(rejoin_epoch=self.control.routing_epoch)
            else:
                raise AssertionError("an empty disk was taken for a new replica")
        else:
            node.start()


class FakeControlPlane:
    """The port's other side: remembers the highest proof, counts epochs, can be down."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.down = False
        self.proof: DurabilityTuple | None = None
        self.proof_ms = 0
        self.routing_epoch = RoutingEpoch(0)
        self.ack: MembershipAck | None = None
        world.later(1, None, self._refresh)

    def publish(self, node: Node, proven: DurabilityTuple) -> None:
        def arrive() -> None:
            if not self.down and (self.proof is None or proven.rank() > self.proof.rank()):
                self.proof, self.proof_ms = proven, self.world.now
                self.tell(node)

        self.world.later(self.world.rng.randint(2, 20), None, arrive)

    def record_membership(self, membership: MembershipAck) -> None:
        if not self.down and (
            self.ack is None or membership.routing_epoch >= self.ack.routing_epoch
        ):
            self.ack = membership

    def tell(self, node: Node) -> None:
        if node.group is None:
            return
        proof = None
        if self.proof is not None:
            proof = VerifiedProof(self.proof, self.world.now - self.proof_ms)
        node.group.control_plane(ControlPlaneUpdate(proof=proof))
        if self.ack is not None:
            node.group.membership_acknowledged(self.ack)
        node.turn()

    def _refresh(self) -> None:
        if not self.down:
            for node in self.world.nodes.values():
                self.tell(node)
        self.world.later(100, None, self._refresh)


def granted(output: Output) -> list[ReadGranted]:
    return [answer for answer in output.reads if isinstance(answer, ReadGranted)]


def leads(node: Node) -> bool:
    return node.group is not None and node.group.core.role is Role.LEADER
