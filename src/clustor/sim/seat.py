"""One replica on one simulated node: its two disks, its queue of disk work, its lives.

The seat is the driver of the production replica: a dull loop that carries out outputs. What it
adds is time, chance and failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from clustor.log.config import LogConfig
from clustor.log.steps import Plan, Sync, SyncFiles
from clustor.log.types import LogId, PartitionId
from clustor.raft.durability import EVERYTHING
from clustor.raft.errors import DataLost
from clustor.raft.membership import NO_MEMBERS, Configuration
from clustor.raft.types import ReplicaId
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
from clustor.sim.chance import generator
from clustor.sim.disk import SimDisk
from clustor.sim.judge import GroupJudge, LogView, PromiseBroken
from clustor.sim.nonces import NonceWitness
from clustor.sim.scenario import MS, FaultKind
from clustor.sim.timeline import Microseconds
from clustor.snapshot.cadence import CadenceProfile
from clustor.streams import StreamConfig, StreamMemory

if TYPE_CHECKING:
    from clustor.sim.cluster import SimCluster, SimNode

LOG_CONFIG = LogConfig(
    segment_bytes=4096,
    reservation_blocks=4,
    zero_ahead_bytes=512,
    fs_block_bytes=512,
    ledger_zero_ahead_bytes=256,
    ledger_rewrite_bytes=2048,
)

STREAM_CONFIG = StreamConfig(
    segment_bytes=900,
    run_bytes=200,
    index_interval_bytes=300,
    metadata_rewrite_bytes=1_500,
    flush_bytes=400,
    checkpoint_bytes=1_500,
    checkpoint_ms=300,
    checkpoint_partitions=3,
    writers_max=2,
    window_partition_bytes=300,
    fetch_bytes=300,
    fetch_partitions=2,
)


@dataclass
class Seat:
    """A replica, and what of it survives its process."""

    cluster: SimCluster
    node: SimNode
    group: int
    judge: GroupJudge
    disk: SimDisk
    home: SimDisk
    rng: Random
    replica: Replica | None = None
    life: int = 0  # counts processes: events of an earlier one are void
    view: LogView = field(default_factory=LogView)  # durable, as the judge sees it
    former: LogView | None = None  # what it held before it lost data
    members_before: deque[Configuration] = field(
        default_factory=lambda: deque([NO_MEMBERS], maxlen=2)
    )
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
    _opened: LogView = field(default_factory=LogView)  # durable once the replica is ready
    _planned: LogView = field(default_factory=LogView)
    _views: dict[int, LogView] = field(default_factory=dict)  # token → what it makes durable
    _witnesses: dict[LogId, NonceWitness] = field(default_factory=dict)
    _was_ready: bool = False
    _ever_ready: bool = False
    _bootstrap: Configuration | None = None

    @property
    def replica_id(self) -> ReplicaId:
        return self.node.id

    @property
    def running(self) -> Replica:
        assert self.replica is not None
        return self.replica

    def peer(self, replica_id: ReplicaId) -> Seat:
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
            cadence=_cadence(cluster.scenario.delta_ms),
        )

    def _new_machine(self) -> StateMachine:
        return self.cluster.new_machine(self.group, self.judge)

    def create(self, bootstrap: Configuration | None) -> None:
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
        self.view = LogView()
        control.needs_reset.add(self.replica_id)

    def _begin(self) -> None:
        self._planned = self._opened = _view_of(self.running)
        self._was_ready = False
        self.running.allow_deltas(allowed=True)
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
        view = self._next_view()
        if view is not self._planned:
            self._planned = view
            changing = next((w for w in output.disk if _changes_log(w.plan)), output.disk[0])
            self._views[changing.token] = view
        self._works += output.disk
        self._work()

    def _next_view(self) -> LogView:
        """The log as planned now; the judge's own copy, which shares what did not change."""
        log, planned = self.running.log, self._planned
        base, last = log.entries.base_index, log.last_index
        term = log.entries.term_of
        if (base, last) == (planned.base, planned.last_index) and (
            last == base or term(last) == planned.term_at(last)
        ):
            return planned
        old_last = planned.last_index
        if (
            base == planned.base
            and last > old_last
            and (old_last == base or term(old_last) == planned.term_at(old_last))
        ):
            del planned.terms[planned.length :]
            planned.terms.extend(term(index) for index in range(old_last + 1, last + 1))
            return LogView(base, planned.terms, last - base)
        return _view_of(self.running)

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


def _view_of(replica: Replica) -> LogView:
    entries, last = replica.log.entries, replica.log.last_index
    terms = [int(entries.term_of(index)) for index in range(entries.base_index + 1, last + 1)]
    return LogView(int(entries.base_index), terms, len(terms))


def _cadence(delta_ms: int) -> CadenceProfile | None:
    if not delta_ms:
        return None
    return CadenceProfile(
        full_emit_period_ms_target=5 * delta_ms,
        full_emit_period_ms_hard=20 * delta_ms,
        delta_emit_period_ms_target=delta_ms,
        delta_emit_period_ms_hard=4 * delta_ms,
        delta_chain_max=4,
    )
