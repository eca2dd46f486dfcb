"""The repair service itself, on simulated disks: killed anywhere, nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clustor.kv import Key, KvMachine
from clustor.log.ledger import LEDGER_FILE
from clustor.log.steps import FileName
from clustor.log.types import LogId
from clustor.raft.errors import DataLost
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.replica import (
    Applied,
    RepairPhase,
    Replica,
    ReplicaDamaged,
    quarantined_replica,
)
from clustor.runtime.group import QuarantineView
from clustor.runtime.node import Node as RealNode
from clustor.runtime.pki.identity import NodeId
from clustor.runtime.repair.quarantine import QuarantineRecord, QuarantineRecords
from clustor.runtime.repair.service import RepairService
from clustor.runtime.repair.wire import Readmit, StandingAsked, encode_repair
from tests.clustor.replica.harness import PARTITION, TICK_MS, Cluster, Node, put


class PowerCut(Exception):
    """The process ends here: its record is durable, and what follows from it is not begun."""


class Group:
    """What the service knows as a hosted group, around a replica of the harness."""

    def __init__(self, cluster: Cluster, node: Node) -> None:
        self._cluster, self._node = cluster, node
        self.partition_id = PARTITION
        self.quarantine: QuarantineView | None = None
        self.damage: Exception | None = None
        self.paused = self.is_recorded = False
        self.rolled_back = ""

    @property
    def replica(self) -> Replica:
        return self._node.up

    @property
    def idle(self) -> bool:
        return not self._node.works

    def reopened(self, now_ms: int) -> Replica:
        node, settings = self._node, self._cluster.settings()
        return Replica.open(settings, node.disk, node.home, now_ms=now_ms)

    def rejoined(self, epoch: RoutingEpoch, now_ms: int) -> Replica:
        node = self._node
        return Replica.rejoin(
            self._cluster.settings(),
            node.disk,
            node.home,
            log_id=LogId(self._cluster.rng.randbytes(16)),
            rejoin_epoch=epoch,
            now_ms=now_ms,
        )

    def open(self, held: str | None) -> None:
        """Open as a start does: what is held or damaged is fenced."""
        cluster, node = self._cluster, self._node
        try:
            if held is not None:
                raise ReplicaDamaged(held)
            cluster.open(node)
        except (DataLost, ReplicaDamaged) as error:
            self.damage = error
            node.replica = quarantined_replica(
                Replica,
                cluster.settings(),
                replica_id=node.id,
                partition_id=PARTITION,
                log_id=LogId(cluster.rng.randbytes(16)),
                reason=str(error),
                now_ms=cluster.now_ms,
            )
            cluster.turn(node)


class Process:
    """One node's process: its records on a real disk, its service, its group."""

    def __init__(self, world: World, node: Node, root: Path) -> None:
        self.world, self.node = world, node
        self.node_id = NodeId(node.id)
        self.quarantines = QuarantineRecords(root)
        self.group = Group(world.cluster, node)
        self.groups = {PARTITION: self.group}
        self.control = self.audit = None
        self.transport = SimpleNamespace(connected=lambda: world.peers_of(node))
        self.service = RepairService(cast("RealNode", self))
        self.seen = len(node.outputs)

    def serve(self, _service: object, number: int) -> int:
        return number

    def now_ms(self) -> int:
        return self.world.cluster.now_ms

    def send_service(self, _number: int, peer: NodeId, data: bytes) -> None:
        self.world.mail.append((self.node_id, peer, data))

    def touch(self, _group: object) -> None:
        self.world.cluster.turn(self.node)

    def replace_replica(self, group: Group, replica: Replica) -> None:
        assert self.node.up.failed is not None and group.idle
        self.node.replica = replica
        group.damage = None
        self.world.cluster.turn(self.node)

    def look(self) -> None:
        """Do what a node does with what its group put out, as far as it matters here."""
        for output in self.node.outputs[self.seen :]:
            if output.failed is not None and self.node.up.is_damaged:
                self.quarantines.note_damage(PARTITION)
            if output.record_membership is not None:
                self.node.up.membership_acknowledged(output.record_membership)
        self.seen = len(self.node.outputs)
        self.service.on_tick()


class World:
    """Three processes of one group, and a client that counts what was acknowledged."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.cluster = Cluster(3, seed=seed)
        self.mail: deque[tuple[NodeId, NodeId, bytes]] = deque()
        self.processes: dict[ReplicaId, Process] = {}
        for node in self.cluster.nodes.values():
            self.processes[node.id] = Process(self, node, self._home(node))
        self.cuts = 0
        self._next = 0

    def _home(self, node: Node) -> Path:
        home = self.root / str(node.id)
        home.mkdir(exist_ok=True)
        return home

    def peers_of(self, node: Node) -> list[NodeId]:
        others = (each for each in self.cluster.nodes.values() if each is not node)
        return [NodeId(each.id) for each in others if each.replica is not None]

    async def tick(self) -> None:
        self.cluster.run(TICK_MS)
        for process in list(self.processes.values()):
            if process.node.replica is not None:
                self._look(process)
        while self.mail:
            sender, to, data = self.mail.popleft()
            process = self.processes[ReplicaId(to)]
            if process.node.replica is not None:
                process.service.on_peer_data(sender, data)
        self.cluster.settle()
        await asyncio.sleep(0)

    def _look(self, process: Process) -> None:
        try:
            process.look()
        except PowerCut:
            self.cuts += 1
            self.restart(process.node)

    def cut_when(self, process: Process, phase: RepairPhase) -> None:
        """Let the power go just after the record of a process says this."""
        write = process.quarantines.write

        def write_and_end(record: QuarantineRecord) -> QuarantineRecord:
            write(record)
            if record.phase is phase:
                raise PowerCut
            return record

        process.quarantines.write = write_and_end  # type: ignore[method-assign]

    async def until(self, holds: Callable[[], bool], what: str, ticks: int = 12_000) -> None:
        for number in range(ticks):
            if holds():
                return
            if number % 20 == 0:
                self.write()
            await self.tick()
        raise AssertionError(f"never: {what}")

    def write(self) -> None:
        """Propose something to whoever leads; `count` finds out what came of it."""
        for node in self.cluster.nodes.values():
            if node.replica is not None and node.up.leads:
                self._next += 1
                self.cluster.propose(node, (self._next, put(f"k{self._next}", "v" * 40)))
                return

    def count(self) -> set[int]:
        """Return every request that anybody was told is done."""
        nodes = self.cluster.nodes.values()
        done = [each for node in nodes for each in node.outcomes if isinstance(each, Applied)]
        return {int(number) for each in done for number in each.request_ids}

    def restart(self, node: Node) -> Process:
        """Cut the power of a node, and start it again: a new process finds what is durable."""
        self.processes[node.id].service.close()
        self.cluster.crash(node)
        process = self.processes[node.id] = Process(self, node, self._home(node))
        view = process.quarantines.view(PARTITION)
        process.group.quarantine = view
        process.group.open(process.quarantines.held(node.disk, PARTITION))
        return process

    def check(self) -> None:
        nodes = [each for each in self.cluster.nodes.values() if each.replica is not None]
        machines = [cast("KvMachine", each.up.machine) for each in nodes]
        for number in self.count():
            for machine in machines:
                assert machine.get(Key(f"k{number}".encode())) is not None, number


def segment_of(node: Node) -> FileName:
    names = [name for name in node.disk.names("wal") if name.startswith("segment")]
    return FileName("wal/" + min(name for name in names if name.endswith(".log")))


def is_whole(process: Process) -> bool:
    core = process.node.up.group.core
    return (
        process.quarantines.find(PARTITION) is None
        and process.group.quarantine is None
        and process.node.up.ready
        and not core.hard.rejoining
        and core.is_voter
    )


def is_level(world: World) -> bool:
    nodes = [each for each in world.cluster.nodes.values() if each.replica is not None]
    return len({each.up.applied_index for each in nodes}) == 1


def story(run: Callable[[], Any]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(120):
            await run()

    asyncio.run(limited())


@pytest.mark.parametrize("victim", ["follower", "leader"])
@pytest.mark.parametrize("cut", [*RepairPhase][:4], ids=str)
def test_a_node_that_dies_in_any_phase_goes_on_and_nothing_is_lost(
    cut: RepairPhase, victim: str, tmp_path: Path
) -> None:
    """A live replica is found damaged; its node dies when its record says `cut`."""

    async def run() -> None:
        world = World(tmp_path, seed=len(cut) + len(victim))
        leader = world.cluster.leader()
        others = [each for each in world.cluster.nodes.values() if each is not leader]
        node = leader if victim == "leader" else others[0]
        await world.until(lambda: len(world.count()) > 10, "writes are acknowledged")
        node.disk.flip_bit(segment_of(node), 200, 1)
        world.cut_when(world.processes[node.id], cut)
        node.up.log_damaged("a scrub found it")
        world.cluster.turn(node)
        await world.until(lambda: world.cuts == 1, f"the power goes: {cut}")
        await world.until(lambda: is_whole(world.processes[node.id]), "it is repaired")
        assert node.disk.names("set-aside"), "the damaged files are kept"
        world.cluster.crash(next(each for each in others if each is not node))
        before = len(world.count())  # now the repaired one must be counted on
        await world.until(lambda: len(world.count()) > before + 5, "writes go on")
        await world.until(lambda: is_level(world), "it has all")
        world.check()

    story(run)


def test_a_checksum_that_reads_well_again_repairs_itself_without_peers(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path, seed=5)
        await world.until(lambda: len(world.count()) > 10, "writes are acknowledged")
        leader = world.cluster.leader()
        node = next(each for each in world.cluster.nodes.values() if each is not leader)
        node.disk.flip_bit(LEDGER_FILE, 60, 1)
        process = world.restart(node)
        assert process.group.damage is not None
        await world.until(lambda: process.group.quarantine is not None, "it is in doubt")
        assert process.group.quarantine is not None
        assert process.group.quarantine.phase == "NeedsRepair"
        node.disk.flip_bit(LEDGER_FILE, 60, 1)
        await world.until(lambda: is_whole(process), "it reads well")
        await world.until(lambda: is_level(world), "it has all")
        assert not node.disk.names("set-aside")
        world.check()

    story(run)


def test_a_checksum_that_never_reads_well_is_quarantined_after_three_times(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path, seed=6)
        await world.until(lambda: len(world.count()) > 10, "writes are acknowledged")
        leader = world.cluster.leader()
        node = next(each for each in world.cluster.nodes.values() if each is not leader)
        node.disk.flip_bit(LEDGER_FILE, 60, 1)
        process = world.restart(node)
        began = world.cluster.now_ms
        await world.until(
            lambda: process.quarantines.find(PARTITION) is not None, "it is in quarantine"
        )
        assert world.cluster.now_ms - began >= 7_000, "after 1, 2 and 4 s"
        await world.until(lambda: is_whole(process), "it is repaired by its peers")
        await world.until(lambda: is_level(world), "it has all")
        world.check()

    story(run)


def test_without_a_majority_of_the_others_it_stays_where_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path, seed=7)
        await world.until(lambda: len(world.count()) > 10, "writes are acknowledged")
        leader = world.cluster.leader()
        first, second = (each for each in world.cluster.nodes.values() if each is not leader)
        for node in (first, second):
            node.up.log_damaged("both at once")
            world.cluster.turn(node)
        for _ in range(1_000):
            await world.tick()
        for node in (first, second):
            record = world.processes[node.id].quarantines.find(PARTITION)
            assert record is not None and record.phase is RepairPhase.QUARANTINED
            assert node.up.failed is not None and not node.disk.names("set-aside")

    story(run)


def test_an_order_that_comes_late_undoes_nothing(tmp_path: Path) -> None:
    """A peer's wish follows from an epoch: after another change it is not obeyed."""

    async def run() -> None:
        world = World(tmp_path, seed=8)
        await world.until(lambda: len(world.count()) > 10, "writes are acknowledged")
        leader = world.cluster.leader()
        peer = next(each for each in world.cluster.nodes.values() if each is not leader)
        service = world.processes[leader.id].service
        now = int(leader.up.group.core.hard.routing_epoch)
        service.on_peer_data(NodeId(peer.id), encode_repair(Readmit(PARTITION, "remove", now + 1)))
        assert leader.up.group.core.config.voters == frozenset(map(ReplicaId, (1, 2, 3)))
        service.on_peer_data(NodeId(peer.id), encode_repair(Readmit(PARTITION, "remove", now)))
        assert peer.id not in leader.up.group.core.config.voters
        service.on_peer_data(NodeId(peer.id), b"\xff nonsense")

    story(run)


def test_a_replica_that_may_have_forgotten_something_vouches_for_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        world = World(tmp_path, seed=9)
        node = next(each for each in world.cluster.nodes.values() if not each.up.leads)
        service, asked = (
            world.processes[node.id].service,
            encode_repair(StandingAsked(PARTITION, 1)),
        )
        service.on_peer_data(NodeId(9), asked)
        assert len(world.mail) == 1, "a healthy one answers"
        node.up.group.core.set_hard(rejoin_epoch=RoutingEpoch(0))
        service.on_peer_data(NodeId(9), asked)
        node.up.log_damaged("a scrub found it")
        service.on_peer_data(NodeId(9), asked)
        assert len(world.mail) == 1

    story(run)
