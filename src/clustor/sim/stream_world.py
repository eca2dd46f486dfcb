"""Streams under faults: one seed, from its clients to the verdict over every replica's files."""

from __future__ import annotations

import traceback
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from clustor.raft.durability import EVERYTHING
from clustor.raft.types import ReplicaId
from clustor.replica import (
    Applied,
    NotLeader,
    ReplicaOutput,
    RequestId,
    StateMachine,
    StreamMachine,
    apply_entry,
)
from clustor.replica.opening import prepare_open
from clustor.sim.cluster import SimCluster
from clustor.sim.driver import Crowd, SimNode
from clustor.sim.errors import PromiseBroken
from clustor.sim.judge import GroupJudge
from clustor.sim.run import SeedReport
from clustor.sim.scenario import MS, SECOND, Scenario
from clustor.sim.stream_machine import (
    REFUSED,
    SimStreamCommand,
    SimStreamMachine,
    StreamBook,
    encode_stream_command,
)
from clustor.sim.timeline import Microseconds
from clustor.streams import StreamFileReader, StreamStore, take_view, verify_stream

if TYPE_CHECKING:
    from clustor.sim.disk import SimDisk
    from clustor.sim.driver import ReplicaDriver

LIVENESS_LIMIT = 40 * SECOND
_STEP = 200 * MS
_READ_BYTES = 300
_PAYLOADS = (0, 1, 20, 60, 150, 500)


class StreamWorld(SimCluster):
    """A cluster whose groups append to streams."""

    def __init__(self, scenario: Scenario) -> None:
        self.books = [StreamBook() for _ in range(scenario.groups)]
        super().__init__(scenario)

    def _new_crowd(self) -> Crowd:
        return StreamClients(self, self.scenario, self._rng("clients"))

    def new_machine(self, group: int, judge: GroupJudge) -> StateMachine:
        return SimStreamMachine(judge, self.books[group])

    @property
    def clients(self) -> StreamClients:
        assert isinstance(self.crowd, StreamClients)
        return self.crowd


class StreamClients:
    """Some processes that define, append, trim and remove; and readers at every replica."""

    def __init__(self, world: StreamWorld, scenario: Scenario, rng: Random) -> None:
        self._world = world
        self._scenario = scenario
        self._rng = rng
        self._open: dict[RequestId, tuple[int, int, SimStreamCommand, ReplicaDriver]] = {}
        self._next_request = 1
        self._believed: dict[tuple[int, int], ReplicaId] = {}
        self._partitions = [0] * scenario.groups
        self.begun = self.answered = 0
        self.probing = False
        self.probes_answered: set[int] = set()
        for process in range(scenario.clients):
            self._later(rng.randint(200, 500), process)

    def _later(self, delay_ms: int, process: int) -> None:
        self._world.later(delay_ms * MS, lambda: self._step(process))

    def _step(self, process: int) -> None:
        if self.begun >= 3 * self._scenario.operations_max and not self.probing:
            self._later(50, process)
            return
        self.begun += 1
        group = self._rng.randrange(self._scenario.groups)
        if self.probing:
            left = [at for at in range(self._scenario.groups) if at not in self.probes_answered]
            group = left[0] if left else group
        believed = self._believed.get((process, group))
        if believed is None or self._rng.random() < 0.05:
            believed = self._rng.choice(sorted(self._world.nodes))
        seat = self._world.nodes[believed].seats[group]
        if seat.replica is None or not seat.replica.ready:
            self._believed.pop((process, group), None)
            self._later(30, process)
            return
        self._ask(process, group, seat)

    def _ask(self, process: int, group: int, seat: ReplicaDriver) -> None:
        request = RequestId(self._next_request)
        self._next_request += 1
        command = self._draw(request, group)
        self._open[request] = (process, group, command, seat)
        encoded = encode_stream_command(command)
        seat.judge.on_request(request, encoded)
        self._world.later(
            self._rng.choice((300, 1_000, 3_000)) * MS, lambda: self._give_up(request)
        )
        seat.running.propose(request, encoded)
        seat.turn()

    def _draw(self, request: int, group: int) -> SimStreamCommand:
        rng, known = self._rng, self._partitions[group]
        if known == 0 or (known < 6 and rng.random() < 0.1):
            self._partitions[group] += 1
            return SimStreamCommand(request, "define", known)
        partition = rng.randrange(known)
        chance = rng.random()
        if chance > 0.95:  # the first definition may have been lost on its way
            return SimStreamCommand(request, "define", partition)
        if chance < 0.06 and not self.probing:
            return SimStreamCommand(request, "trim", partition, rng.choice((100, 500, 900, 1000)))
        if chance < 0.07 and not self.probing:
            return SimStreamCommand(request, "remove", partition)
        payload = b"%d:" % request + bytes(rng.choice(_PAYLOADS))
        return SimStreamCommand(request, "append", partition, rng.randint(1, 4), payload)

    def _give_up(self, request: RequestId) -> None:
        asked = self._open.pop(request, None)
        if asked is not None:
            self._believed.pop(asked[:2], None)
            self._later(20, asked[0])

    # What a cluster tells its crowd.

    def on_start(self, node: SimNode) -> None:
        """Nothing to do."""

    def on_stop(self, node: SimNode) -> None:
        """Nothing to do."""

    def on_tick(self, node: SimNode) -> None:
        """Read something somewhere, now and then."""
        if self._rng.random() < 0.1:
            seat = self._rng.choice(node.seats)
            if seat.replica is not None and seat.replica.ready:
                _read_some(self._world, seat, self._rng)

    def on_output(self, seat: ReplicaDriver, output: ReplicaOutput) -> None:
        del seat
        for outcome in output.replies:
            if isinstance(outcome, Applied):
                for request, reply in zip(outcome.request_ids, outcome.replies, strict=True):
                    self._on_reply(request, reply)
                continue
            for request in outcome.request_ids:
                asked = self._open.get(request)
                self._give_up(request)
                leader = outcome.leader_id if isinstance(outcome, NotLeader) else None
                if asked is not None and leader is not None:
                    self._believed[asked[:2]] = leader

    def _on_reply(self, request: RequestId, reply: bytes) -> None:
        asked = self._open.pop(request, None)
        if asked is None:
            return
        process, group, command, seat = asked
        self._believed[process, group] = seat.replica_id
        self.answered += 1
        if self.probing:
            self.probes_answered.add(group)
        was_told = command.kind == "append" and reply != REFUSED
        if was_told and self._world.books[group].decided.get(request) != int(reply):
            raise PromiseBroken(f"request {request} was told {reply!r}")
        self._later(self._rng.randint(1, 60) + (100 if self.probing else 0), process)


# Judging.


def _reader(world: StreamWorld, disk: SimDisk, store: StreamStore) -> StreamFileReader:
    return StreamFileReader(disk, world.keys, store.config)


def _read_some(world: StreamWorld, seat: ReplicaDriver, rng: Random) -> None:
    """Read a little of some partition, from where a consumer may stand."""
    assert seat.running.streams is not None
    store = seat.running.streams.store
    if not store.partitions:
        return
    partition = rng.choice(sorted(store.partitions))
    files = store.partitions[partition]
    from_index = rng.choice((files.start_index, rng.randint(files.start_index, files.next_index)))
    view = seat.running.stream_view(partition, from_index, _READ_BYTES)
    chunks = _reader(world, seat.disk, store).read(view, from_index, _READ_BYTES)
    found = [batch for chunk in chunks for batch in chunk.batches()]
    if not found and from_index < files.next_index:
        raise PromiseBroken(f"nothing at {from_index} of {partition}, next {files.next_index}")
    world.books[seat.group].check(partition, from_index, None, found)
    world.count("stream read" if view.segments else "stream read from memory")


def check_contents(world: StreamWorld, group: int, disk: SimDisk, store: StreamStore) -> None:
    """All that a store holds is what was appended, and authentic."""
    reader = _reader(world, disk, store)
    for partition, files in store.partitions.items():
        view = take_view(store, partition)
        index = view.start_index
        while True:
            chunks = reader.read(view, index, _READ_BYTES)
            if not chunks:
                break
            found = [batch for chunk in chunks for batch in chunk.batches()]
            index = world.books[group].check(partition, index, None, found)
        if index < files.next_index:
            raise PromiseBroken(f"{partition} ends at {index}, not at {files.next_index}")
        damage = verify_stream(disk, world.keys, store.config, view)
        if damage is not None:
            raise PromiseBroken(f"{partition} is damaged: {damage.problem}")


def _extents(machine: StateMachine) -> dict[int, tuple[int, int]]:
    assert isinstance(machine, StreamMachine)
    return {at.partition: (at.start, at.next) for at in machine.stream_extents()}


def check_seat(world: StreamWorld, seat: ReplicaDriver) -> None:
    """The files are what the machine says, in memory and from the disk alone."""
    streams = seat.running.streams
    assert streams is not None
    held = {
        int(at): (files.start_index, files.next_index)
        for at, files in streams.store.partitions.items()
    }
    if held != _extents(seat.running.machine):
        raise PromiseBroken(f"{seat.replica_id} holds {held}: {_extents(seat.running.machine)}")
    check_contents(world, seat.group, seat.disk, streams.store)
    disk = seat.disk.copy()
    opened = prepare_open(seat.settings(), disk, seat.home.copy())
    assert opened.streams is not None
    disk.execute(opened.plan)
    view, machine, store = opened.view, opened.machine, opened.streams.store
    check_contents(world, seat.group, disk, store)
    assert isinstance(machine, StreamMachine)
    for entry in view.slice(view.base_index + 1, seat.running.applied_index, EVERYTHING):
        apply_entry(machine, entry)
        for change in machine.take_stream_changes():
            store.take(entry.index, change)
    check_contents(world, seat.group, disk, store)
    again = {int(at): (f.start_index, f.next_index) for at, f in store.partitions.items()}
    if again != held:
        raise PromiseBroken(f"{seat.replica_id} holds {held}, and {again} after a replay")


def _missing(world: StreamWorld) -> str:
    for group, control in enumerate(world.controls):
        leader = world.leader(group)
        if leader is None:
            return f"group {group} has no leader"
        if group not in world.clients.probes_answered:
            return f"group {group} answers no write"
        if not control.settled(leader):
            return f"group {group}: {leader.running.group.core.config}"
        floor = leader.running.applied_index
        for voter in sorted(leader.running.group.core.config.voters):
            seat = leader.peer(voter)
            if seat.replica is None or seat.replica.applied_index < floor:
                return f"group {group}: {voter} has not applied {floor}"
    return ""


def _come_to_rest(world: StreamWorld) -> None:
    world.injection.heal()
    world.clients.probing = True
    end = world.timeline.now + LIVENESS_LIMIT
    while missing := _missing(world):
        if world.timeline.now >= end:
            raise PromiseBroken(f"no life after healing: {missing}")
        world.run_until(Microseconds(world.timeline.now + _STEP))


def _judge(world: StreamWorld) -> None:
    for group, judge in enumerate(world.judges):
        leader = world.leader(group)
        assert leader is not None
        members = [leader.peer(v) for v in sorted(leader.running.group.core.config.voters)]
        digests: dict[tuple[int, int, int], int] = {}
        for seat in members:
            judge.check_acknowledged(seat.view, seat.replica_id)
            check_seat(world, seat)
            assert seat.running.streams is not None
            for at, files in seat.running.streams.store.partitions.items():
                key = (at, files.digest_from, files.next_index)
                if digests.setdefault(key, files.digest) != files.digest:
                    raise PromiseBroken(f"{seat.replica_id} has another digest of {at}")


def stream_scenario(seed: int) -> Scenario:
    """Draw what a seed means for streams: mostly small logs, so that snapshots are many."""
    drawn = Scenario.drawn(seed)
    small = min(drawn.snapshot_log_bytes, 4_000) if seed % 4 else drawn.snapshot_log_bytes
    return replace(drawn, snapshot_log_bytes=small)


def run_stream_seed(seed: int) -> SeedReport:
    return run_stream_scenario(stream_scenario(seed))


def run_stream_scenario(scenario: Scenario) -> SeedReport:
    """Run faults, then heal, then judge. Whatever is raised is a violation."""
    report = SeedReport(scenario.seed, scenario=scenario, flags="--streams ")
    world: StreamWorld | None = None
    try:
        world = StreamWorld(scenario)
        world.run_until(scenario.duration)
        _come_to_rest(world)
        _judge(world)
    except Exception as error:  # noqa: BLE001  # code that raises breaks its promise too
        report.violation = f"{type(error).__name__}: {error}"
        report.detail = "".join(traceback.format_exception(error, limit=-12))
    if world is not None:
        report.trace_hash = world.trace_hash()
        report.simulated_seconds = world.timeline.now / SECOND
        for name, count in sorted(world.counts.items()):
            kind, _, fault = name.partition(" ")
            (report.faults if kind == "fault" else report.events)[
                fault if kind == "fault" else name
            ] = count
        report.acknowledged = sum(judge.acknowledged_writes for judge in world.judges)
        report.operations = world.clients.begun
    return report
