"""One replica on one simulated node: its two disks, its queue of disk work, its lives.

The seat is the driver of the production replica: a dull loop that carries out outputs. What it
adds is time, chance and failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clustor.log.keys import KeyRing
from clustor.log.steps import Plan, Sync, SyncFiles
from clustor.log.types import LogId, PartitionId
from clustor.raft.durability import EVERYTHING
from clustor.raft.errors import DataLost
from clustor.raft.membership import NO_MEMBERS, Membership
from clustor.raft.messages import Message
from clustor.raft.profiles import Profile
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.replica import (
    DiskRead,
    DiskWork,
    Home,
    Replica,
    ReplicaDamaged,
    ReplicaOutput,
    ReplicaSettings,
    StateMachine,
    StreamsSent,
    apply_entry,
    read_identity,
)
from clustor.replica.opening import prepare_open
from clustor.replica.transfer import Transfer
from clustor.sim.chance import generator
from clustor.sim.disk import SimDisk
from clustor.sim.errors import PromiseBroken
from clustor.sim.judge import GroupJudge
from clustor.sim.log_terms import LogTerms, next_view, view_of
from clustor.sim.network import Arrival, Network
from clustor.sim.nonces import NonceWitness
from clustor.sim.scenario import MS, FaultKind, Scenario
from clustor.sim.small_limits import LOG_CONFIG, STREAM_CONFIG, small_cadence
from clustor.sim.timeline import Microseconds, Timeline
from clustor.streams import StreamMemory

TICK = 20 * MS
_TICK_MAX = 50 * MS


class Crowd(Protocol):
    """Whom the groups answer."""

    def on_output(self, seat: ReplicaDriver, output: ReplicaOutput) -> None:
        """Take what a replica put out."""

    def on_start(self, node: SimNode) -> None:
        """A node's process begins; its replicas begin next."""

    def on_stop(self, node: SimNode) -> None:
        """A node's process is gone."""

    def on_tick(self, node: SimNode) -> None:
        """Time passed on a node, for its replicas too."""


class GroupControl(Protocol):
    """What a group hears of the control plane, and who should be its members."""

    down_until: Microseconds
    routing_epoch: RoutingEpoch
    wanted: set[ReplicaId]
    needs_reset: set[ReplicaId]
    """Who lost its data, and must lose its vote."""

    def on_output(self, seat: ReplicaDriver, output: ReplicaOutput) -> None:
        """Take what a replica put out."""


class World(Protocol):
    """All that is around one replica: time, chance, nodes, the network and whoever asks."""

    scenario: Scenario
    timeline: Timeline[Arrival | Callable[[], None]]
    network: Network
    profile: Profile
    keys: KeyRing
    signer: Ed25519PrivateKey
    nodes: dict[ReplicaId, SimNode]
    crowd: Crowd

    @property
    def controls(self) -> Sequence[GroupControl]:
        """The control plane, group by group."""

    def new_machine(self, group: int, judge: GroupJudge) -> StateMachine:
        """Make the machine of one replica, under the judge's eyes."""

    def leader(self, group: int) -> ReplicaDriver | None:
        """Return the seat that leads the newest term, as far as anyone believes it."""

    def later(self, delay: int, action: Callable[[], None]) -> None:
        """Do something after so many microseconds."""

    def send(self, seat: ReplicaDriver, to: ReplicaId, message: Message | Transfer) -> None:
        """Put a message on the network."""

    def trace(self, *facts: object) -> None:
        """Let something be part of the course of events."""

    def count(self, name: str) -> None:
        """Count what happened, for the run's report."""

    def start(self, node: SimNode) -> None:
        """Start every process of a node that is down."""

    def stop(self, node: SimNode, *, power_lost: bool) -> None:
        """End every process of a node."""

    def stop_if_up(self, node: SimNode, *, power_lost: bool) -> None:
        """End every process of a node that is up."""

    def restart_later(self, node: SimNode, *, power_lost: bool, delay: int | None = None) -> None:
        """Stop a node now and start it after a while; all its groups go with it."""


@dataclass
class SimNode:
    """One machine: a clock of its own, and a seat for each group."""

    cluster: World
    id: ReplicaId
    rng: Random
    seats: list[ReplicaDriver] = field(default_factory=list)
    up: bool = True
    life: int = 0
    offset_ms: int = 0
    rate_ppm: int = 0
    hangs_until: Microseconds = Microseconds(0)
    """Until then its process does not run; what arrives meanwhile waits in its sockets."""
    _latest_ms: int = 0
    _ticked: int = 0

    def now_ms(self) -> int:
        """Read the clock. It runs fast or slow and may jump, but it never goes back."""
        now = self.cluster.timeline.now
        drifted = now + now * self.rate_ppm // 1_000_000
        self._latest_ms = max(self._latest_ms, drifted // MS + self.offset_ms)
        return self._latest_ms

    def hang(self, duration: int) -> None:
        """Let the process stand still for so long, as one that gets no processor does."""
        now = self.cluster.timeline.now
        self.hangs_until = Microseconds(max(self.hangs_until, now + duration))
        self.cluster.count("hang")

    def tick(self) -> None:
        now = self.cluster.timeline.now
        gap, self._ticked = now - self._ticked, now
        missed_ms = (gap - TICK) // MS if gap > _TICK_MAX else 0
        for seat in self.seats:
            if seat.replica is not None:
                seat.replica.tick(
                    self.now_ms(), missed_ms=missed_ms, device_age_ms=seat.device_age_ms()
                )
                seat.turn()
        self.cluster.crowd.on_tick(self)


@dataclass
class ReplicaDriver:
    """A replica, and what of it survives its process."""

    cluster: World
    node: SimNode
    group: int
    judge: GroupJudge
    disk: SimDisk
    home: SimDisk
    rng: Random
    replica: Replica | None = None
    life: int = 0  # counts processes: events of an earlier one are void
    view: LogTerms = field(default_factory=LogTerms)  # durable, as the judge sees it
    former: LogTerms | None = None  # what it held before it lost data
    members_before: deque[Membership] = field(default_factory=lambda: deque([NO_MEMBERS], maxlen=2))
    """In force in this process before: the last two, the newest included."""
    lost_data: bool = False
    damaged_by: FaultKind | None = None  # why a start may be refused
    slow_until: Microseconds = Microseconds(0)
    stalled_until: Microseconds = Microseconds(0)
    fails_next_sync: bool = False
    _works: deque[DiskWork] = field(default_factory=deque)
    _stream_works: deque[DiskWork] = field(default_factory=deque)  # a lane of their own
    _busy: bool = False
    _streams_busy: bool = False
    _busy_since: int = 0
    _opened: LogTerms = field(default_factory=LogTerms)  # durable once the replica is ready
    _planned: LogTerms = field(default_factory=LogTerms)
    _views: dict[int, LogTerms] = field(default_factory=dict)  # token → what it makes durable
    _witnesses: dict[LogId, NonceWitness] = field(default_factory=dict)
    _was_ready: bool = False
    _ever_ready: bool = False
    _bootstrap: Membership | None = None

    @property
    def replica_id(self) -> ReplicaId:
        return self.node.id

    @property
    def running(self) -> Replica:
        assert self.replica is not None
        return self.replica

    def peer(self, replica_id: ReplicaId) -> ReplicaDriver:
        return self.cluster.nodes[replica_id].seats[self.group]

    def held(self, term: int, index: int) -> bool:
        """Say whether this disk holds the entry, or did before it was lost."""
        former = self.former is not None and self.former.holds(term, index)
        return former or self.view.holds(term, index)

    # Beginnings.

    def settings(self) -> ReplicaSettings:
        cluster = self.cluster
        return ReplicaSettings(
            profile=cluster.profile,
            keys=cluster.keys,
            new_machine=self._new_machine,
            draw=generator("draw", self.rng.getrandbits(64)).randint,
            entropy=self.rng.randbytes,
            signer=cluster.signer,
            trusted_keys=(cluster.signer.public_key(),),
            log_config=LOG_CONFIG,
            chunk_bytes=512,
            stream_config=STREAM_CONFIG,
            stream_memory=StreamMemory(window_bytes_max=1_000),
            cadence=small_cadence(cluster.scenario.delta_ms),
        )

    def _new_machine(self) -> StateMachine:
        return self.cluster.new_machine(self.group, self.judge)

    def create(self, bootstrap: Membership | None) -> None:
        self._bootstrap = bootstrap
        self.replica = Replica.create(
            self.settings(),
            self.disk,
            self.home,
            replica_id=self.replica_id,
            partition_id=PartitionId(self.group + 1),
            log_id=LogId(self.rng.randbytes(16)),
            bootstrap=bootstrap,
            now_ms=self.node.now_ms(),
        )
        self._begin()

    def start(self) -> None:
        """Open what the disk holds; where that is refused for a known reason, rejoin."""
        if not self._ever_ready and read_identity(self.home) is None:
            self.create(self._bootstrap)  # its creation was interrupted
            return
        try:
            self.replica = Replica.open(
                self.settings(), self.disk, self.home, now_ms=self.node.now_ms()
            )
        except (DataLost, ReplicaDamaged) as error:
            if self.damaged_by is None:
                raise PromiseBroken(f"{self.replica_id} lost data by itself: {error}") from error
            self._rejoin()
        self._begin()

    def _rejoin(self) -> None:
        control = self.cluster.controls[self.group]
        self.cluster.count("rejoin")
        self.replica = Replica.rejoin(
            self.settings(),
            self.disk,
            self.home,
            log_id=LogId(self.rng.randbytes(16)),
            rejoin_epoch=control.routing_epoch,
            now_ms=self.node.now_ms(),
        )
        self.lost_data = True
        self.former = self.view
        self.view = LogTerms()
        control.needs_reset.add(self.replica_id)

    def _begin(self) -> None:
        self._planned = self._opened = view_of(self.running)
        self._was_ready = False
        self.running.snapshots.deltas_allowed = True
        self.turn()

    def stop(self, *, power_lost: bool) -> None:
        """End the process: of the plan under way a part may have been carried out."""
        if self._busy and self._works:
            work = self._works[0]
            self._execute(work, work.plan[: self.rng.randint(0, len(work.plan))])
        if self._streams_busy and self._stream_works:
            work = self._stream_works[0]
            self._execute(work, work.plan[: self.rng.randint(0, len(work.plan))])
        if power_lost:
            self.disk = self.disk.random_crash(self.rng)
            self.home = self.home.random_crash(self.rng)
        self.replica = None
        self.life += 1
        self._works.clear()
        self._stream_works.clear()
        self._views.clear()
        self._busy = self._streams_busy = False

    def _execute(self, work: DiskWork, plan: Plan) -> OSError | None:
        disk = self.disk if work.home is Home.PARTITION else self.home
        witness = self._witnesses.setdefault(self.running.identity.log_id, NonceWitness())
        try:
            for step in plan:
                witness.watch(step)
                disk.run_step(step)
        except OSError as error:
            return error
        return None

    def device_age_ms(self) -> int:
        """Return for how long the disk has had the plan that it has not done; queues are ours."""
        return (self.cluster.timeline.now - self._busy_since) // MS if self._busy else 0

    # The loop.

    def turn(self) -> None:
        """Take what the replica wants, and carry it out."""
        has_news = self.running.has_news
        output = self.running.take(plan_later=True)
        if not has_news:
            self._check_nothing(output)
        self.judge.on_output(self, output)
        if self.members_before[-1] is not self.running.group.core.config:
            self.members_before.append(self.running.group.core.config)
        output.disk += self.running.take_disk()
        self._submit(output)
        self._stream_works += output.stream_disk
        self._work_streams()
        cluster = self.cluster
        for to, message in output.messages:
            cluster.send(self, to, message)
        for to, transfer in output.transfers:
            if isinstance(transfer, StreamsSent):
                cluster.count("streams sent" if transfer.pieces else "no streams sent")
            cluster.send(self, to, transfer)
        for read in output.disk_reads:
            self._later(self.rng.randint(50, 2 * MS), partial(self._read, read))
        cluster.crowd.on_output(self, output)
        self.running.catch_up()
        cluster.controls[self.group].on_output(self, output)
        if output.role is not None:
            cluster.trace("role", self.node.id, self.group, output.role.role, output.role.term)
        if output.failed is not None:
            cluster.trace("failed", self.node.id, self.group)
            self.cluster.restart_later(self.node, power_lost=self.rng.random() < 0.3)

    def _check_nothing(self, output: ReplicaOutput) -> None:
        """A driver leaves a replica alone that says it has no news: then nothing may wait there."""
        said = (output.messages, output.disk, output.disk_reads, output.transfers, output.replies)
        more = (output.reads, output.snapshot_sends, output.notes, output.role, output.failed)
        streams = (output.stream_disk, output.stream_news)
        if any(said) or any(more) or any(streams) or output.more or self.running.is_behind:
            raise PromiseBroken(f"{self.replica_id} had something to say, and denied it")

    def _later(self, delay: int, action: Callable[[], None]) -> None:
        life = self.life

        def run() -> None:
            if self.life == life and self.replica is not None:
                action()

        self.cluster.later(delay, run)

    def _submit(self, output: ReplicaOutput) -> None:
        if not output.disk:
            return
        view = next_view(self.running, self._planned)
        if view is not self._planned:
            self._planned = view
            changing = next((w for w in output.disk if _changes_log(w.plan)), output.disk[0])
            self._views[changing.token] = view
        self._works += output.disk
        self._work()

    def _work(self) -> None:
        if self._busy or not self._works:
            return
        self._busy = True
        now = self._busy_since = self.cluster.timeline.now
        took = self.rng.randint(100, self.cluster.scenario.disk_latency_max)
        if now < self.slow_until:
            took += self.rng.randint(5 * MS, 120 * MS)
        took += max(0, self.stalled_until - now)
        self._later(took, lambda: self._work_done(took))

    def _work_done(self, took: int) -> None:
        if self.cluster.timeline.now < self.stalled_until:
            self._later(
                self.stalled_until - self.cluster.timeline.now, lambda: self._work_done(took)
            )
            return
        self._busy = False
        work = self._works.popleft()
        self._arm_sync_failure(work)
        error = self._execute(work, work.plan)
        self.cluster.trace("disk", self.node.id, self.group, work.token, error is None)
        if error is not None:
            self._works.clear()
            self.running.disk_failed(work.token, error)
        else:
            self._durable(work)
            self.running.disk_done(work.token, took / MS)
            if not self._was_ready and self.running.ready:
                self._was_ready = self._ever_ready = True
                self.view = self._opened
                self.damaged_by = None  # all that counts was read and is good, or is new
            self._work()
        self.turn()

    def _work_streams(self) -> None:
        """Let the lane of the streams go on: it shares the disk, and waits for nobody."""
        if self._streams_busy or not self._stream_works:
            return
        self._streams_busy = True
        now = self.cluster.timeline.now
        took = self.rng.randint(100, 4 * self.cluster.scenario.disk_latency_max)
        self._later(took + max(0, self.stalled_until - now), self._streams_done)

    def _streams_done(self) -> None:
        self._streams_busy = False
        work = self._stream_works.popleft()
        self._arm_sync_failure(work)
        error = self._execute(work, work.plan)
        self.cluster.trace("streams", self.node.id, self.group, work.token, error is None)
        self.cluster.count("stream plan")
        if error is not None:
            self._stream_works.clear()
            self.running.stream_disk_failed(work.token, error)
        else:
            self.running.stream_disk_done(work.token)
        self.turn()

    def _durable(self, work: DiskWork) -> None:
        view = self._views.pop(work.token, None)
        if view is not None:
            self.view = view

    def _arm_sync_failure(self, work: DiskWork) -> None:
        if not self.fails_next_sync or work.home is not Home.PARTITION:
            return
        syncs = [step.file for step in work.plan if isinstance(step, Sync)]
        syncs += [file for step in work.plan if isinstance(step, SyncFiles) for file in step.files]
        if syncs:
            self.fails_next_sync = False
            self.disk.fail_next_sync(self.rng.choice(syncs), evict=self.rng.random() < 0.5)

    def _read(self, read: DiskRead) -> None:
        try:
            found = read.job.run(self.disk)
        except Exception as error:  # noqa: BLE001  # handed back as it is, whatever it is
            self.running.disk_read_failed(read.token, error)
        else:
            self.running.disk_read(read.token, found)
        self.turn()

    # At the end.

    def check_replay(self) -> None:
        """What the disk holds gives, replayed by itself, the very state that is in memory."""
        running = self.running
        opened = prepare_open(self.settings(), self.disk.copy(), self.home.copy())
        view = opened.view
        for entry in view.slice(view.base_index + 1, running.applied_index, EVERYTHING):
            apply_entry(opened.machine, entry)
        if opened.machine.digest() != running.machine.digest():
            raise PromiseBroken(f"replaying {self.replica_id}'s disk gives another state")

    def entries_on_disk(self) -> dict[int, tuple[int, bytes]]:
        """Read the log from the disk, without the replica."""
        opened = prepare_open(self.settings(), self.disk.copy(), self.home.copy())
        view = opened.view
        held = view.slice(view.base_index + 1, view.last_index, EVERYTHING)
        return {int(entry.index): (int(entry.term), entry.payload) for entry in held}


def _changes_log(plan: Plan) -> bool:
    return any(getattr(step, "file", "").startswith("wal/") for step in plan)
