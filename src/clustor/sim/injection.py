"""The faults of a scenario, carried out on a cluster when their time has come."""

from __future__ import annotations

from functools import partial
from random import Random

from clustor.log.ledger import LEDGER_FILE
from clustor.log.metadata import METADATA_FILE
from clustor.log.segment import WAL_DIRECTORY, segment_seq_of
from clustor.log.steps import FileName
from clustor.log.types import DekEpoch
from clustor.raft.types import ReplicaId
from clustor.replica import HARD_STATE_FILE
from clustor.sim.chance import generator
from clustor.sim.disk import SimDisk
from clustor.sim.driver import ReplicaDriver, SimNode, World
from clustor.sim.network import NodeId, SimLink
from clustor.sim.scenario import DAMAGE, MS, Fault, FaultKind, Scenario
from clustor.sim.timeline import Microseconds
from clustor.snapshot.layout import CHUNKS_DIRECTORY, SNAPSHOT_DIRECTORY, is_manifest_directory
from clustor.streams.metadata import STREAMS_DIRECTORY

_BAD_LINK = SimLink(
    latency_min=Microseconds(500),
    latency_max=Microseconds(40_000),
    tail_ppm=50_000,
    tail_max=Microseconds(300_000),
    loss_ppm=200_000,
    duplicate_ppm=100_000,
    reorder_ppm=200_000,
)


class Injection:
    """Injects each fault once, and heals everything when told."""

    def __init__(self, cluster: World, scenario: Scenario) -> None:
        self._cluster = cluster
        self._scenario = scenario
        self.over = False
        for fault in scenario.faults:
            cluster.later(fault.at, partial(self._inject, fault))

    def heal(self) -> None:
        """End every fault: links, disks, control plane; and start what is down."""
        cluster = self._cluster
        self.over = True
        cluster.network.heal()
        for source in cluster.nodes:
            for destination in cluster.nodes:
                cluster.network.set_link(NodeId(source), NodeId(destination), SimLink())
        for control in cluster.controls:
            control.down_until = cluster.timeline.now
        for node in cluster.nodes.values():
            for seat in node.seats:
                seat.slow_until = seat.stalled_until = cluster.timeline.now
                seat.fails_next_sync = False
                seat.disk.limit_room(None)
            if any(seat.damaged_by is not None for seat in node.seats):
                cluster.stop_if_up(node, power_lost=False)  # a start reads everything
            cluster.start(node)

    def _inject(self, fault: Fault) -> None:
        if self.over:
            return
        rng = generator(fault.salt)
        if self._do(fault.kind, rng):
            self._cluster.count(f"fault {fault.kind}")
            self._cluster.trace("fault", fault.kind, fault.salt)

    def _do(self, kind: FaultKind, rng: Random) -> bool:
        """Carry a fault out; False when there is nothing that it could hit."""
        if kind in DAMAGE:
            return self._damage(kind, rng)
        match kind:
            case FaultKind.KILL | FaultKind.POWER_LOSS | FaultKind.POWER_LOSS_OF_ALL:
                return self._stop(kind, rng)
            case FaultKind.SLOW_DISK | FaultKind.STALLED_DISK:
                return self._delay_disk(kind, rng)
            case FaultKind.SYNC_ERROR:
                self._seat(rng).fails_next_sync = True
                return True
            case FaultKind.DISK_FULL:
                return self._fill_disk(rng)
            case FaultKind.PARTITION | FaultKind.ONE_WAY | FaultKind.ISOLATED_LEADER:
                return self._cut(kind, rng)
            case FaultKind.BAD_LINKS:
                return self._bad_links(rng)
            case FaultKind.CLOCK_JUMP:
                self._node(rng).offset_ms += rng.choice((-400, 50, 400, 5_000))
                return True
            case FaultKind.CLOCK_RATE:
                self._node(rng).rate_ppm += rng.choice((-50_000, 50_000, 200_000))
                return True
            case FaultKind.CONTROL_OUTAGE:
                return self._silence_control(rng)
            case FaultKind.MEMBERSHIP:
                return self._change_members(rng)
            case FaultKind.TRANSFER:
                return self._transfer(rng)
            case FaultKind.KEY_ROTATION:
                return self._rotate_keys(rng)
            case FaultKind.SNAPSHOT:
                return self._emit(rng)
            case _:
                raise AssertionError(kind)

    # Whom it hits.

    def _node(self, rng: Random) -> SimNode:
        return self._cluster.nodes[rng.choice(sorted(self._cluster.nodes))]

    def _seat(self, rng: Random) -> ReplicaDriver:
        return rng.choice(self._node(rng).seats)

    # Processes and disks.

    def _stop(self, kind: FaultKind, rng: Random) -> bool:
        cluster = self._cluster
        power_lost = kind is not FaultKind.KILL
        if kind is FaultKind.POWER_LOSS_OF_ALL:
            nodes = list(cluster.nodes.values())
        else:
            nodes = [self._node(rng)]
        for node in nodes:
            if node.up:
                wait = rng.choice((1 * MS, 100 * MS, 800 * MS)) + rng.randrange(20 * MS)
                cluster.restart_later(node, power_lost=power_lost, delay=wait)
        return True

    def _delay_disk(self, kind: FaultKind, rng: Random) -> bool:
        seat = self._seat(rng)
        until = Microseconds(self._cluster.timeline.now + rng.randint(50, 1_000) * MS)
        if kind is FaultKind.SLOW_DISK:
            seat.slow_until = until
        else:
            seat.stalled_until = until
        return True

    def _fill_disk(self, rng: Random) -> bool:
        seat = self._seat(rng)
        disk = seat.disk
        disk.limit_room(rng.randint(0, 2_000))

        def make_room() -> None:
            seat.disk.limit_room(None)

        self._cluster.later(rng.randint(100, 700) * MS, make_room)
        return True

    # Damage, on a minority only.

    def _damage(self, kind: FaultKind, rng: Random) -> bool:
        cluster = self._cluster
        seat = self._seat(rng)
        control = cluster.controls[seat.group]
        hit = {
            node.id
            for node in cluster.nodes.values()
            if node.seats[seat.group].damaged_by is not None or node.id in control.needs_reset
        }
        voters = control.wanted | self._voters(seat.group)
        small = (min(len(voters), len(control.wanted)) - 1) // 2
        if len(hit | {seat.replica_id}) > small or self._members_in_flux(seat.group):
            return False
        if kind is FaultKind.DISK_LOST:
            self._stop_node(seat.node, rng)
            seat.disk = SimDisk(reorder_directory_ops=self._scenario.reorder_directory_ops)
            seat.damaged_by = kind
            return True
        file = self._file_to_damage(seat.disk, kind, rng)
        if file is None or not seat.disk.size(file):
            return False
        seat.disk.flip_bit(file, rng.randrange(seat.disk.size(file)), rng.randrange(8))
        seat.damaged_by = kind
        if rng.random() < 0.7:
            self._stop_node(seat.node, rng)
        return True

    def _voters(self, group: int) -> set[ReplicaId]:
        leader = self._cluster.leader(group)
        return set(leader.running.group.core.config.voters) if leader is not None else set()

    def _members_in_flux(self, group: int) -> bool:
        """While members change, who is a minority of what is not certain: spare them then."""
        leader = self._cluster.leader(group)
        if leader is None:
            return True
        config = leader.running.group.core.config
        wanted = self._cluster.controls[group].wanted
        return bool(config.outgoing) or config.voters != wanted

    def _stop_node(self, node: SimNode, rng: Random) -> None:
        if node.up:
            self._cluster.stop(node, power_lost=rng.random() < 0.5)
        self._cluster.later(rng.randint(10, 500) * MS, lambda: self._cluster.start(node))

    def _file_to_damage(self, disk: SimDisk, kind: FaultKind, rng: Random) -> FileName | None:
        match kind:
            case FaultKind.FLIP_IN_LOG:
                names = disk.names(WAL_DIRECTORY)
                files = [f"{WAL_DIRECTORY}/{n}" for n in names if segment_seq_of(n) is not None]
            case FaultKind.FLIP_IN_LEDGER:
                present = disk.names(WAL_DIRECTORY)
                files = [LEDGER_FILE] if LEDGER_FILE.rpartition("/")[2] in present else []
            case FaultKind.FLIP_IN_SNAPSHOT:
                files = [f"{CHUNKS_DIRECTORY}/{name}" for name in disk.names(CHUNKS_DIRECTORY)]
                for name in disk.names(SNAPSHOT_DIRECTORY):
                    below = f"{SNAPSHOT_DIRECTORY}/{name}"
                    if is_manifest_directory(name):
                        files += [f"{below}/{file}" for file in disk.names(below)]
                    elif name == "authorization.log":
                        files.append(below)
            case FaultKind.FLIP_IN_METADATA:
                present = disk.names("")
                files = [f for f in (HARD_STATE_FILE, METADATA_FILE) if f in present]
                streams = set(disk.names(STREAMS_DIRECTORY)) & {"store", "metadata.log"}
                files += [f"{STREAMS_DIRECTORY}/{name}" for name in sorted(streams)]
            case _:
                files = []
        return FileName(rng.choice(files)) if files else None

    # The network.

    def _cut(self, kind: FaultKind, rng: Random) -> bool:
        cluster = self._cluster
        ids = sorted(cluster.nodes)
        if kind is FaultKind.ISOLATED_LEADER:
            leader = cluster.leader(rng.randrange(self._scenario.groups))
            side = {leader.replica_id if leader is not None else rng.choice(ids)}
        else:
            side = set(rng.sample(ids, rng.randint(1, max(1, len(ids) // 2))))
        others = [other for other in ids if other not in side]
        ways = [(a, b) for a in sorted(side) for b in others]
        if kind is not FaultKind.ONE_WAY:
            ways += [(b, a) for a, b in ways]
        elif rng.random() < 0.5:
            ways = [(b, a) for a, b in ways]
        for source, destination in ways:
            cluster.network.cut(NodeId(source), NodeId(destination))

        def mend() -> None:
            for source, destination in ways:
                cluster.network.mend(NodeId(source), NodeId(destination))

        cluster.later(rng.choice((100, 500, 1_500)) * MS, mend)
        return True

    def _bad_links(self, rng: Random) -> bool:
        cluster = self._cluster
        ids = sorted(cluster.nodes)
        ways = [(a, b) for a in ids for b in ids if a != b and rng.random() < 0.5]
        for source, destination in ways:
            cluster.network.set_link(NodeId(source), NodeId(destination), _BAD_LINK)

        def mend() -> None:
            link = SimLink() if self.over else self._scenario.link
            for source, destination in ways:
                cluster.network.set_link(NodeId(source), NodeId(destination), link)

        cluster.later(rng.choice((200, 1_000)) * MS, mend)
        return True

    # The control plane and the operator.

    def _silence_control(self, rng: Random) -> bool:
        until = Microseconds(self._cluster.timeline.now + rng.choice((300, 1_500, 6_000)) * MS)
        for control in self._cluster.controls:
            control.down_until = max(control.down_until, until)
        return True

    def _change_members(self, rng: Random) -> bool:
        control = rng.choice(self._cluster.controls)
        spare = sorted(set(self._cluster.nodes) - control.wanted)
        grow = bool(spare) and (rng.random() < 0.6 or len(control.wanted) <= 3)
        if grow:
            control.wanted.add(rng.choice(spare))
        if (not grow and len(control.wanted) > 3) or (grow and rng.random() < 0.5):
            control.wanted.discard(rng.choice(sorted(control.wanted)))
        return grow or len(control.wanted) >= 3

    def _transfer(self, rng: Random) -> bool:
        group = rng.randrange(self._scenario.groups)
        leader = self._cluster.leader(group)
        if leader is None:
            return False
        voters = sorted(leader.running.group.core.config.voters)
        leader.running.transfer(rng.choice(voters))
        leader.turn()
        return True

    def _rotate_keys(self, rng: Random) -> bool:
        keys = self._cluster.keys
        epoch = keys.dek_epoch + 1
        keys.add_dek(DekEpoch(epoch), bytes([epoch % 256]) * 32)
        return self._emit(rng)

    def _emit(self, rng: Random) -> bool:
        seat = self._seat(rng)
        if seat.replica is None or not seat.replica.ready:
            return False
        seat.replica.emit_snapshot()
        seat.turn()
        return True
