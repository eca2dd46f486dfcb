"""A node: one loop, one disk and one transport for all the groups that it hosts.

A turn of the loop: everything that was ready has been read; every group that something happened
to gives its output once; its plans go to the disk, its messages to the peers in one write each,
its replies to the clients in one write each. Nothing here decides anything: the replicas do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from clustor import wire as w
from clustor.log import KeyRing, LogConfig
from clustor.log.types import PartitionId
from clustor.raft.membership import Configuration
from clustor.raft.output import RoleChange
from clustor.raft.profiles import CONSISTENCY_PROFILE, Profile
from clustor.raft.types import ReplicaId, Role
from clustor.replica import (
    ChunkSent,
    DiskRead,
    DiskWork,
    NewMachine,
    NodeInflight,
    ReplicaOutput,
    ReplicaSettings,
    StreamsSent,
    Transfer,
    decode_transfer,
    encode_transfer,
)
from clustor.runtime.admission import FlowNumbers
from clustor.runtime.audit.log import AuditDesk
from clustor.runtime.cluster_file import ClusterFile, NodeEntry
from clustor.runtime.containment import contained
from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.data_directory import DataDirectory, read_room
from clustor.runtime.disk import Disk
from clustor.runtime.disk.checks import DiskChecked
from clustor.runtime.disk.policy import DiskRoom
from clustor.runtime.disk.stream_lane import StreamGroup, StreamLane
from clustor.runtime.group import HostedGroup
from clustor.runtime.members import record_membership
from clustor.runtime.peers.raft_wire import EncodedEntries, from_packet, to_packet
from clustor.runtime.peers.snapshot_pace import SnapshotPace
from clustor.runtime.peers.transport import Transport
from clustor.runtime.pki.identity import NodeId, spiffe_uri
from clustor.runtime.repair.fenced_replica import FencedReplica
from clustor.runtime.repair.quarantine import QuarantineRecords
from clustor.runtime.service import GroupWatcher, NodeWatch, Service
from clustor.runtime.telemetry.loop_watch import LoopWatch
from clustor.snapshot import CadenceProfile
from clustor.streams import StreamConfig, StreamMemory

if TYPE_CHECKING:
    from clustor.runtime.control.duties import NodeDuties
    from clustor.runtime.control.service import ControlService

TICK_SECONDS: Final = 0.010
GROUP_TICKS: Final = 3
"""Each third tick is one of the groups too: time alone changes little there, and most rest."""
LATE_SECONDS: Final = 0.020
"""A tick that comes later than this reads first what its sockets hold (C19)."""
GROUP_TICK_MS_MAX: Final = 50
"""Groups that were not ticked for longer than this are told that the node did not run."""
_READS_MIN: Final = 2
_READS_MAX: Final = 4
TURN_NS_MAX: Final = 5_000_000
"""What one turn may take before the sockets have theirs again."""
TURN_BYTES_MAX: Final = 256 << 10
"""How much of one group is applied or made an entry before the others have their turn."""
_LATENESS_MS: Final = 1_000
GRACEFUL_SHUTDOWN_TIMEOUT_MS: Final = 10_000  # clustor §14.3
COMMIT_QUIESCENCE_MS: Final = 200
_TRANSFER_MS_MAX: Final = 2_000
FIRST_OWN_NUMBER: Final = 1_000_000  # of services that some clusters lack

journal = logging.getLogger("clustor.node")


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """What a node is given when it starts."""

    cluster: ClusterFile
    node_id: NodeId
    keys: KeyRing
    signer: Ed25519PrivateKey
    profile: Profile = CONSISTENCY_PROFILE
    log_config: LogConfig = LogConfig()
    stream_config: StreamConfig = StreamConfig()
    flow: FlowNumbers = FlowNumbers()
    cadence: CadenceProfile | None = None
    registered_keys: tuple[str, ...] = ()  # SnapshotManifestKeys, beside the cluster's own

    @property
    def entry(self) -> NodeEntry:
        return self.cluster.node(self.node_id)


class Node:
    """The groups of one process. Everything happens in the thread of its loop."""

    def __init__(self, settings: NodeSettings, data: DataDirectory, disk: Disk) -> None:
        self.settings = settings
        self.cluster = settings.cluster
        self.node_id = settings.node_id
        self._data = data
        self.disk = disk
        self._loop = asyncio.get_running_loop()
        self._random = random.Random(int.from_bytes(os.urandom(16), "little"))  # noqa: S311  # timing only
        self.groups: dict[PartitionId, HostedGroup] = {}
        self._by_number: dict[int, HostedGroup] = {}
        self._touched: dict[HostedGroup, None] = {}
        self._behind: dict[HostedGroup, None] = {}  # may have put off to apply something
        self._turn_due = False
        self._closed = False
        self._ticks = 0
        self._ticking: asyncio.TimerHandle | None = None
        self._ticked = self._tick_due = time.monotonic()
        self._groups_ticked_ms = [0, 0]  # of those that follow, and of those that lead
        self._rereading = False
        self._lateness_due_ms = 0
        self.loop_watch = LoopWatch()
        """How late this loop is, and what blocks it."""
        self.stopping = False
        self.draining = False
        """An operator wants this node to lead nothing and to serve nobody."""
        self.duties: NodeDuties | None = None
        self.listeners: Callable[[], dict[str, str]] = dict
        """Where clients come in, by kind; who examines the node asks."""
        self.watch: NodeWatch | None = None
        """Who looks on; nothing here depends on it."""
        self.transport = Transport(
            self.cluster.id,
            self.node_id,
            data.pki,
            on_packet=self._on_packet,
            on_lost=self._on_lost,
            jitter=self._random.random,
        )
        self.on_group_stopped: Callable[[HostedGroup, str], None] = lambda _group, _why: None
        self.scrub_age_days: Callable[[PartitionId], float | None] = lambda _: None
        """How long ago the byte of a group was read that is longest ago; None: nobody watches."""
        """Who must hear that a group has stopped for good; the others go on."""
        self.audit: AuditDesk | None = None
        """Where to tell what people must be able to prove; None: nowhere."""
        self._services: list[Service] = []
        self._numbered: dict[int, Service] = {}
        self._hosted_by: dict[PartitionId, Service] = {}
        self._watcher: GroupWatcher | None = None
        self.control: ControlService | None = None
        """The control plane's part here; None where the cluster has none."""
        self._trusted: list[Ed25519PublicKey] = []
        self._registered_keys: tuple[str, ...] = settings.registered_keys
        self._inflight = NodeInflight()
        self._stream_memory = StreamMemory()
        self._stream_lane = StreamLane(self._loop, self._settle_streams)
        self.disk_checked: DiskChecked | None = None
        """What is known of the disk that everything here lies on."""
        self.disk_room = DiskRoom(settings.flow.disk, settings.log_config.segment_bytes)
        self.read_room: Callable[[Path], tuple[int, int] | None] = read_room
        """How the size of a disk and what is free of it are asked for."""
        self._pace = SnapshotPace(settings.profile.replication.snapshot_bytes_per_second_max)
        self._rejoin_epochs = data.take_rejoin()
        if not self._rejoin_epochs:
            data.require_state()
        self.quarantines = QuarantineRecords(data.root)
        self._trust(self.cluster)

    @property
    def pki(self) -> Path:
        """Where this node's certificate is."""
        return self._data.pki

    def now_ms(self) -> int:
        """Return the loop's monotonic clock, the only one that replicas see."""
        return int(self._loop.time() * 1000)

    @property
    def data_root(self) -> Path:
        """The node's own directory."""
        return self._data.root

    @property
    def pki_directory(self) -> Path:
        """Where this node's certificates are."""
        return self._data.pki

    @property
    def keys_directory(self) -> Path:
        """Where this node's keys are."""
        return self._data.keys

    @property
    def identity(self) -> str:
        """Who this node is to others, as its certificate says it."""
        return spiffe_uri(self.cluster.id, self.node_id)

    # Beginning and end.

    def watch_groups(self, watcher: GroupWatcher) -> None:
        """Show the control plane's service what every group puts out."""
        self._watcher = watcher

    def serve(self, service: Service, number: int | None = None) -> int:
        """Add a service, and return the number by which `send_service` knows it on every node.

        Services that every node has count up; one that some clusters lack brings its number.
        """
        if number is None:
            number = sum(1 for each in self._numbered if each < FIRST_OWN_NUMBER)
        assert number not in self._numbered, number
        self._services.append(service)
        self._numbered[number] = service
        return number

    def host(
        self,
        partition: PartitionId,
        new_machine: NewMachine,
        service: Service,
        voters: frozenset[ReplicaId] | None = None,
    ) -> HostedGroup:
        """Open a group, or make it where it never was, with the founders as its first voters."""
        group = self._open_group(partition, new_machine, voters)
        self._hosted_by[partition] = service
        self.touch(group)
        return group

    async def start(self) -> None:
        """Listen, dial the peers, and let time pass."""
        self._loop.add_reader(self.disk.fileno(), self._on_disk)
        await self.transport.listen(self.settings.entry.peer)
        for entry in self.cluster.nodes:
            if entry.id != self.node_id:
                self.transport.connect(entry.id, entry.peer)
        self._touch_all()
        self._ticked = self._tick_due = time.monotonic()
        self._groups_ticked_ms = [self.now_ms()] * 2
        self._tick()

    def _open_group(
        self, partition: PartitionId, new_machine: NewMachine, voters: frozenset[ReplicaId] | None
    ) -> HostedGroup:
        group = HostedGroup(
            self.disk, partition, self._data.state(partition), self._data.identity(partition)
        )
        if voters is None:
            voters = frozenset(map(ReplicaId, self.cluster.founders))
        mine = ReplicaId(self.node_id)
        group.open(
            self._replica_settings(new_machine),
            mine,
            Configuration(voters=voters) if mine in voters else None,
            os.urandom,
            self.now_ms(),
            flow=self._flow_of(partition),
            rejoin_epoch=self._rejoin_epochs.get(partition),
            held=self.quarantines.held(group.storage, partition),
        )
        for finding in group.replica.findings:
            journal.info("group %d: %s: %s", partition, finding.kind, finding.detail)
        group.loop_watch = self.loop_watch
        self.groups[partition] = group
        self._by_number |= dict.fromkeys(group.numbers(), group)
        group.quarantine = self.quarantines.view(partition)
        return group

    def replace_replica(self, group: HostedGroup, replica: FencedReplica) -> None:
        """Let another replica take the place of a failed one: a repair, while others serve."""
        for number in group.numbers():
            del self._by_number[number]
        self._stream_lane.forget(group)
        group.adopt(replica)
        self._by_number |= dict.fromkeys(group.numbers(), group)
        self.touch(group)

    def _flow_of(self, partition: PartitionId) -> FlowNumbers:
        """Return how a group's writes are bounded. An operator's hard block is not the control
        plane's: without it no proof stands, and nobody could be told why nothing goes on.
        """
        flow = self.settings.flow
        if partition == CONTROL_PARTITION:
            return replace(flow, structural_hard_block=False)
        return flow

    def _replica_settings(self, new_machine: NewMachine) -> ReplicaSettings:
        return ReplicaSettings(
            profile=self.settings.profile,
            keys=self.settings.keys,
            new_machine=new_machine,
            draw=self._draw,
            entropy=os.urandom,
            signer=self.settings.signer,
            trusted_keys=self._trusted,
            log_config=self.settings.log_config,
            io_writer_mode=self.disk.mode,
            node_inflight=self._inflight,
            stream_config=self.settings.stream_config,
            stream_memory=self._stream_memory,
            cadence=self.settings.cadence,
            wall_ms=_wall_ms,
            measuring_clock=time.perf_counter,
        )

    def adopt_cluster(self, cluster: ClusterFile) -> None:
        """Learn which nodes there are now: speak to new ones, and no longer to those that left."""
        before = {entry.id for entry in self.cluster.nodes}
        self.cluster = cluster
        self._trust(cluster)
        for entry in cluster.nodes:
            if entry.id not in before and entry.id != self.node_id:
                self.transport.connect(entry.id, entry.peer)
        for gone in before - {entry.id for entry in cluster.nodes}:
            self.transport.disconnect(gone)
        if self._watcher is not None:
            self._watcher.on_cluster_changed()

    def _trust(self, cluster: ClusterFile) -> None:
        """Believe the snapshots of all nodes; the replicas look at this very list."""
        keys = dict.fromkeys((*cluster.signing_keys, *self._registered_keys))
        self._trusted[:] = [Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)) for key in keys]

    def trust_registered(self, keys: Iterable[str]) -> None:
        """Believe these SnapshotManifestKeys too: the control plane registered them."""
        self._registered_keys = tuple(keys)
        self._trust(self.cluster)

    def _draw(self, low: int, high: int) -> int:
        """Draw from `low` to `high`, both of them too; every heartbeat asks, so it is quick."""
        return low + int(self._random.random() * (high - low + 1))

    async def stop(self) -> None:
        """Hand leadership over, let what was begun end, and close; bounded (clustor §14.3)."""
        self.stopping = True
        deadline_ms = self.now_ms() + GRACEFUL_SHUTDOWN_TIMEOUT_MS
        await self._hand_over(self.now_ms() + _TRANSFER_MS_MAX)
        await self._quiesce(deadline_ms)
        self._close_turns()
        await self.transport.close()
        for group in self.groups.values():
            if group.idle:
                group.close()
        self._stream_lane.close()
        self._data.close()

    async def _hand_over(self, deadline_ms: int) -> None:
        while self.now_ms() < deadline_ms:
            leading = [group for group in self.groups.values() if group.replica.leads]
            if not leading:
                return
            for group in leading:
                self.hand_over(group)
            await asyncio.sleep(2 * TICK_SECONDS)

    def hand_over(self, group: HostedGroup, but: frozenset[int] = frozenset()) -> None:
        """Hand over to the replica that is furthest; a transfer that runs is left alone."""
        core = group.replica.group.core
        reachable = [each for each in self.transport.connected() if int(each) not in but]
        others = [
            (progress.match_index, member)
            for member, progress in core.progress.items()
            if NodeId(member) in reachable and member in core.config.voters
        ]
        if others:
            group.replica.transfer(max(others)[1])
            self.touch(group)

    async def _quiesce(self, deadline_ms: int) -> None:
        """Wait until nothing was under way for a while."""
        quiet_since = self.now_ms()
        while (now := self.now_ms()) < deadline_ms:
            if not all(group.idle for group in self.groups.values()):
                quiet_since = now
            elif now - quiet_since >= COMMIT_QUIESCENCE_MS:
                return
            await asyncio.sleep(TICK_SECONDS)

    def _close_turns(self) -> None:
        self._turn_due = True  # none comes any more: what was open is closed behind them
        self._closed = True
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None
        self._loop.remove_reader(self.disk.fileno())

    # Inputs.

    def touch(self, group: HostedGroup) -> None:
        """Let the group give its output at the end of this turn."""
        if group.paused:
            return
        if group not in self._touched:
            self._touched[group] = None
        self.turn_soon()

    def _touch_news(self, group: HostedGroup) -> None:
        """Touch a group if what it was just given has left it anything to say."""
        if group not in self._touched and group.replica.has_news:
            self.touch(group)

    def pause(self, group: HostedGroup, *, paused: bool) -> None:
        """Let one group hang, or go on: a fault that tests and drills inject."""
        group.paused = paused
        if paused:
            self._touched.pop(group, None)
        else:
            self.touch(group)

    def turn_soon(self) -> None:
        """Let the turn end soon: a service staged something."""
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _touch_all(self) -> None:
        for group in self.groups.values():
            self.touch(group)

    def _tick(self) -> None:
        began_ns = time.monotonic_ns()
        self._ticking = self._loop.call_later(TICK_SECONDS, self._tick)
        now = began_ns / 1e9
        late = max(0.0, now - self._tick_due)
        self.loop_watch.ticked(late * 1000, (now - self._ticked) * 1000)
        self._ticked, self._tick_due = now, now + TICK_SECONDS
        now_ms = self.now_ms()
        self._watch_disk(now_ms)
        self._ticks += 1
        if late > LATE_SECONDS:
            self._tick_groups(leading=True)  # their heartbeats are late as it is
            self._read_first()
        elif self._ticks % GROUP_TICKS == 0:
            self._tick_groups(leading=True)
            if not self._rereading:
                self._tick_groups(leading=False)
        for service in self._services:
            contained.run("service tick", type(service).__name__, service.on_tick)
        if self._ticks % GROUP_TICKS == 0:
            self._look_around(now_ms)
            self.turn_soon()  # whatever a tick staged without a word leaves now
        self.loop_watch.ran("tick", began_ns)

    def _look_around(self, now_ms: int) -> None:
        """Let those look who look some times a second, and need no tick of their own."""
        if self.duties is not None:
            contained.run("duties", "", partial(self.duties.on_tick, now_ms))
        if self.watch is not None:
            contained.run("telemetry", "", partial(self.watch.on_tick, now_ms))

    def _read_first(self) -> None:
        """Let a late tick of those who follow wait until the sockets were read: a leader that
        spoke in time must not be judged by when we listen (C19).
        """
        if not self._rereading:
            self._rereading = True
            self._loop.call_soon(self._read_on, _READS_MAX, self.transport.bytes_received)

    def _read_on(self, reads_left: int, seen: int) -> None:
        """Go on as long as peers say more; each turn of the loop reads every socket once."""
        received = self.transport.bytes_received
        enough = received == seen and reads_left <= _READS_MAX - _READS_MIN
        if reads_left and not enough:
            self._loop.call_soon(self._read_on, reads_left - 1, received)
            return
        self._rereading = False
        self._tick_groups(leading=False)
        self.turn_soon()

    def _tick_groups(self, *, leading: bool) -> None:
        """Tick all that lead, or all others, at once: their heartbeats share a frame."""
        now_ms = self.now_ms()
        gap_ms = now_ms - self._groups_ticked_ms[leading]
        self._groups_ticked_ms[leading] = now_ms
        expected_ms = int(GROUP_TICKS * TICK_SECONDS * 1000)
        missed_ms = gap_ms - expected_ms if gap_ms > GROUP_TICK_MS_MAX else 0
        age_ms = self.disk.age_ns() // 1_000_000
        for group in self.groups.values():
            if group.paused or group.replica.leads is not leading:
                continue
            try:
                self._tick_group(group, now_ms, missed_ms, age_ms)
            except Exception as error:  # noqa: BLE001  # its word rests on its admission, too
                group.replica.fence(error)
        if now_ms >= self._lateness_due_ms:
            self._lateness_due_ms = now_ms + _LATENESS_MS
            lateness_ms = self.loop_watch.lateness_ms()
            for group in self.groups.values():
                group.replica.lateness(lateness_ms)

    def _tick_group(
        self, group: HostedGroup, now_ms: int, missed_ms: int, device_age_ms: int
    ) -> None:
        replica = group.replica
        was_behind = replica.is_behind  # a tick applies some of it, which the service must see
        replica.tick(now_ms, missed_ms=missed_ms, device_age_ms=device_age_ms)
        news = group.admission.tick(now_ms)
        if news is not None:
            journal.warning("group %d: %s", group.partition_id, news)
        if was_behind:
            self.touch(group)
        else:
            self._touch_news(group)

    def _watch_disk(self, now_ms: int) -> None:
        """Ask the disk what is free, and tell every group before one of them needs more."""
        room = self.disk_room
        if not room.is_due(now_ms):
            return
        found = self.read_room(self._data.root)
        before, level = room.level, room.take(None if found is None else found[1])
        if level is not before:
            journal.warning("the disk: %s, %s bytes are free", level, room.free_bytes)
        for group in self.groups.values():
            group.admission.use_disk(level)

    def _on_packet(self, peer: NodeId, packet: w.Packet) -> None:
        if isinstance(packet.message, w.ServiceMessage):
            service = self._numbered.get(int(packet.route.partition_id))
            if service is not None:
                service.on_peer_data(peer, bytes(packet.message.data))
            return
        group = self.groups.get(PartitionId(packet.route.partition_id))
        if group is None or int(packet.route.target_replica_id) != self.node_id or group.paused:
            return  # a group that is not here, or hangs, or an older incarnation was meant
        body = packet.message
        if isinstance(body, w.SnapshotTransfer):
            try:
                transfer = decode_transfer(bytes(body.data))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                journal.warning("node %d sent a transfer that cannot be read", peer)
                return
            group.replica.receive_transfer(ReplicaId(peer), transfer)
        else:
            message = from_packet(packet)
            if message is None:
                return
            group.replica.receive(message)
            self._touch_news(group)
            return
        self.touch(group)

    def _on_lost(self, peer: NodeId) -> None:
        for service in self._services:
            name = type(service).__name__
            contained.run("service peer lost", name, partial(service.on_peer_lost, peer))

    def _on_disk(self) -> None:
        began_ns = time.monotonic_ns()
        mode = self.disk.mode
        for completion in self.disk.completions():
            group = self._by_number[completion.partition.number]
            try:
                group.completed(completion)
            except Exception as error:  # noqa: BLE001  # what is durable is not known now
                group.replica.fence(error)
            self._touch_news(group)
        if self.disk.mode is not mode:
            journal.warning("the disk now writes in mode %s", self.disk.mode.name)
            for group in self.groups.values():
                group.use_mode(self.disk.mode)
        self.loop_watch.ran("disk", began_ns)

    def _settle_streams(self, group: StreamGroup, call: Callable[[], None]) -> None:
        assert isinstance(group, HostedGroup)
        group.answer_for(call)
        self.touch(group)

    # Outputs.

    def _turn(self) -> None:
        if self._closed:
            return
        began_ns = time.monotonic_ns()
        self._turn_due = False
        self._give_outputs()
        while self._touched and time.monotonic_ns() - began_ns < TURN_NS_MAX:
            self._give_outputs()
        if self._behind:
            self._catch_up()
            for service in self._services:
                service.flush()
        if self._touched or self._behind:
            self.turn_soon()
        self.disk.look()
        self.loop_watch.ran("turn", began_ns)

    def _catch_up(self) -> None:
        """Let every group apply what it put off, a share of it where that is much."""
        behind, self._behind = self._behind, {}
        for group in behind:
            if group.replica.catch_up(bytes_max=TURN_BYTES_MAX):
                service = self._hosted_by[group.partition_id]
                news = ReplicaOutput(stream_news=group.replica.take_stream_news())
                group.answer_for(partial(service.on_output, group, news))
            if group.replica.is_behind:
                self._behind[group] = None

    def _give_outputs(self) -> None:
        """Let every touched group give its output.

        Nothing in an output waits for anything else in it. Where this loop is going to wait for
        the disk itself, the peers get their messages first, and write while we do; otherwise the
        disk gets its work first, because to wake a peer may cost us the processor.
        """
        self.loop_watch.turns += 1
        for service in self._services:
            service.prepare()
        touched, self._touched = self._touched, {}
        waits = self.disk.is_quick and len(touched) == 1
        outputs = [(group, group.replica.take(plan_later=waits)) for group in touched]
        if not waits:
            self._write(outputs)
        for group, output in outputs:
            try:
                self._carry_out(group, output)
            except Exception as error:  # noqa: BLE001  # what it has told clients is not known now
                group.replica.fence(error)
            if output.more:
                self.touch(group)
            if group.replica.is_behind:
                self._behind[group] = None
        if self._pace.waiting:
            for partition, target, chunk in self._pace.take(self.now_ms()):
                self._send_transfer(self.groups[partition], target, chunk)
        for service in self._services:
            service.flush()
        self.transport.flush()
        if waits:
            self._write(outputs)

    def _write(self, outputs: list[tuple[HostedGroup, ReplicaOutput]]) -> None:
        for group, output in outputs:
            works = output.disk + group.replica.take_disk()
            if not works:
                continue
            try:
                self._submit(group, works, alone=len(outputs) == 1)
            except Exception as error:  # noqa: BLE001  # what is written is not known now
                group.replica.fence(error)

    def _submit(self, group: HostedGroup, works: list[DiskWork], *, alone: bool) -> None:
        if group.submit(works, alone=alone) and group.replica.has_news:
            self._touched[group] = None

    def _carry_out(self, group: HostedGroup, output: ReplicaOutput) -> None:
        if output.stream_disk:
            self._stream_lane.submit(group, output.stream_disk)
        if output.messages:
            self._send(group, output)
        for send in output.snapshot_sends:
            self._pace.allow(group.partition_id, send.replica_id, send.bytes_per_second_max)
        for target, transfer in output.transfers:
            if isinstance(transfer, ChunkSent | StreamsSent):
                self._pace.add(group.partition_id, target, transfer)
            else:
                self._send_transfer(group, target, transfer)
        for read in output.disk_reads:
            self._read(group, read)
        self._hosted_by[group.partition_id].on_output(group, output)
        group.admission.measure()
        if self.watch is not None:
            try:
                self.watch.on_output(group, output)
            except Exception as error:  # noqa: BLE001  # nothing depends on it
                contained.caught("telemetry", "", error)
        if output.delay is not None:
            began, delay = self._loop.time(), output.delay
            self._loop.call_later(
                delay.delay_ms / 1000,
                self._write_delayed,
                *(group, group.replica, delay.number, began),
            )
        if output.record_membership is not None and self._records_itself(group):
            record_membership(group, output.record_membership)
            self.touch(group)
        if self._watcher is not None and _is_notable(output):
            self._watcher.on_group(group, output)
        if output.role is not None:
            role = output.role
            self._tell_leadership(group, role)
            journal.info(
                "group %d: %s in term %d, leader %s: %s",
                *(group.partition_id, role.role, role.term, role.leader_id or "none", role.reason),
            )
        for note in output.notes:
            group.say(note)
        if output.failed is not None:
            journal.error("group %d has stopped: %s", group.partition_id, output.failed)
            if group.replica.is_damaged:
                self.quarantines.note_damage(group.partition_id)
            self.on_group_stopped(group, output.failed)

    def _tell_leadership(self, group: HostedGroup, change: RoleChange) -> None:
        """Write down that a group is led here from now on, or no more: who answered when."""
        leads = change.role is Role.LEADER
        term = change.term if leads else group.led_term
        if self.audit is not None and term and (leads or group.led_term):
            what = "LeadershipBegun" if leads else "LeadershipEnded"
            self.audit.group_did(what, group.partition_id, self.node_id, term, change.reason)
        group.led_term = change.term if leads else 0

    def _records_itself(self, group: HostedGroup) -> bool:
        """Say whether a group's own log is the record of its members: nobody else keeps one."""
        return self.control is None or group is self.control.group

    def _write_delayed(
        self, group: HostedGroup, replica: FencedReplica, number: int, began: float
    ) -> None:
        replica.write_delayed(number, (self._loop.time() - began) * 1000)
        self.touch(group)

    def _send(self, group: HostedGroup, output: ReplicaOutput) -> None:
        partition = group.partition_id
        epoch = group.replica.group.core.message_epoch
        encoded = EncodedEntries()
        for target, message in output.messages:
            packet = to_packet(partition, target, message, epoch, encoded)
            self.transport.send(NodeId(target), packet)

    def send_service(self, number: int, peer: NodeId, data: bytes) -> None:
        """Let bytes leave for a peer's service with this turn; they may be lost, or come late.

        What one node sends to one service of a peer arrives in order, or a part of it not at all.
        """
        route = w.Route(
            w.PartitionId(number),
            w.ReplicaId(self.node_id),
            w.ReplicaId(peer),
            w.Term(0),
            w.DurabilityModeEpoch(0),
        )
        self.transport.send(peer, w.Packet(route, w.ServiceMessage(data)))
        self.turn_soon()

    def _send_transfer(self, group: HostedGroup, target: ReplicaId, transfer: Transfer) -> None:
        core = group.replica.group.core
        route = w.Route(
            w.PartitionId(group.partition_id),
            w.ReplicaId(self.node_id),
            w.ReplicaId(target),
            w.Term(core.hard.term),
            w.DurabilityModeEpoch(core.message_epoch),
        )
        packet = w.Packet(route, w.SnapshotTransfer(encode_transfer(transfer)))
        self.transport.send(NodeId(target), packet)

    def _read(self, group: HostedGroup, read: DiskRead) -> None:
        """Run a job beside the loop: it is rare, and may read megabytes."""
        running = self._loop.run_in_executor(None, read.job.run, group.storage)
        replica = group.replica  # a repair may put another in its place meanwhile

        def ended(future: asyncio.Future[object]) -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, Exception):
                replica.disk_read_failed(read.token, error)
            elif not future.cancelled():
                replica.disk_read(read.token, future.result())  # fences by itself
            self.touch(group)

        running.add_done_callback(ended)

    def admin_address(self, replica: ReplicaId | None) -> str:
        """Return where clients reach that replica's node, or nothing."""
        for entry in self._entries():
            if replica is not None and entry.node_id == replica:
                return str(entry.admin)
        return ""

    def _entries(self) -> Iterable[NodeEntry]:
        return self.cluster.nodes


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _is_notable(output: ReplicaOutput) -> bool:
    """Say whether the control plane's service must see an output."""
    return (
        output.publish_proof is not None
        or output.role is not None
        or output.record_membership is not None
    )
