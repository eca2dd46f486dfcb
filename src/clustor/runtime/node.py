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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from clustor import wire as w
from clustor.log.types import PartitionId
from clustor.raft.membership import Membership
from clustor.raft.types import ReplicaId
from clustor.replica import (
    NewMachine,
    NodeInflight,
    ReplicaOutput,
    ReplicaSettings,
    decode_transfer,
)
from clustor.runtime.admission import FlowNumbers
from clustor.runtime.audit.log import AuditLog
from clustor.runtime.cluster_file import ClusterFile
from clustor.runtime.containment import contained
from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.data_directory import DataDirectory, read_room
from clustor.runtime.disk import Disk
from clustor.runtime.disk.checks import DiskChecked
from clustor.runtime.disk.policy import DiskRoom
from clustor.runtime.disk.stream_lane import StreamGroup, StreamLane
from clustor.runtime.group import HostedGroup
from clustor.runtime.keys.kek_source import ReadKek
from clustor.runtime.node_parts import DutiesPort, NodeControl
from clustor.runtime.node_settings import NodeSettings
from clustor.runtime.outputs import Outputs
from clustor.runtime.peers.raft_wire import from_packet
from clustor.runtime.peers.transport import Transport
from clustor.runtime.pki.identity import NodeId, spiffe_uri
from clustor.runtime.repair.fenced_replica import FencedReplica
from clustor.runtime.repair.quarantine import QuarantineRecords
from clustor.runtime.service import GroupWatcher, NodeWatch, Service
from clustor.runtime.snapshot_trust import SnapshotTrust
from clustor.runtime.stopping import wind_down
from clustor.runtime.telemetry.loop_watch import LoopWatch
from clustor.runtime.ticks import Ticks
from clustor.streams import StreamMemory
from clustor.wall_clock import wall_clock_ms

TURN_NS_MAX: Final = 5_000_000
"""What one turn may take before the sockets have theirs again."""
TURN_BYTES_MAX: Final = 256 << 10
"""How much of one group is applied or made an entry before the others have their turn."""
FIRST_OWN_NUMBER: Final = 1_000_000  # of services that some clusters lack

journal = logging.getLogger("clustor.node")


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
        self._turn_due = self._will_flush = self._will_send = False
        self._closed = False
        self._ticks = Ticks(self, self._loop)
        self.loop_watch = LoopWatch()
        """How late this loop is, and what blocks it."""
        self.stopping = self.draining = False
        """An operator wants this node to lead nothing and to serve nobody."""
        self.duties: DutiesPort | None = None
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
        """Who must hear that a group has stopped for good; the others go on."""
        self.scrub_age_days: Callable[[PartitionId], float | None] = lambda _: None
        """How long ago the byte of a group was read that is longest ago; None: nobody watches."""
        self.audit: AuditLog | None = None
        """Where to tell what people must be able to prove; None: nowhere."""
        self.services: list[Service] = []
        self._numbered: dict[int, Service] = {}
        self.hosted_by: dict[PartitionId, Service] = {}
        self.watcher: GroupWatcher | None = None
        """Who sees what every group puts out: the control plane's service."""
        self.control: NodeControl | None = None
        """The control plane's part here; None where the cluster has none."""
        self._trust = SnapshotTrust(settings.cluster, settings.registered_keys)
        self._inflight, self._stream_memory = NodeInflight(), StreamMemory()
        self.stream_lane = StreamLane(self._loop, self._settle_streams)
        self.disk_checked: DiskChecked | None = None
        """What is known of the disk that everything here lies on."""
        self.disk_room = DiskRoom(settings.flow.disk, settings.log_config.segment_bytes)
        self.read_room: Callable[[Path], tuple[int, int] | None] = read_room
        """How the size of a disk and what is free of it are asked for."""
        self._outputs = Outputs(
            self, self._loop, settings.profile.replication.snapshot_bytes_per_second_max
        )
        self._rejoin_epochs = data.take_rejoin()
        if not self._rejoin_epochs:
            data.require_state()
        self.quarantines = QuarantineRecords(data.root)

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
    def read_kek(self) -> ReadKek:
        """Returns the key that opens this node's ring."""
        return self._data.read_kek

    @property
    def identity(self) -> str:
        """Who this node is to others, as its certificate says it."""
        return spiffe_uri(self.cluster.id, self.node_id)

    # Beginning and end.

    def serve(self, service: Service, number: int | None = None) -> int:
        """Add a service, and return the number by which `send_service` knows it on every node.

        Services that every node has count up; one that some clusters lack brings its number.
        """
        if number is None:
            number = sum(1 for each in self._numbered if each < FIRST_OWN_NUMBER)
        assert number not in self._numbered, number
        self.services.append(service)
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
        self.hosted_by[partition] = service
        self.touch(group)
        return group

    async def start(self) -> None:
        """Listen, dial the peers, and let time pass."""
        self._loop.add_reader(self.disk.fileno(), self._on_disk)
        await self.transport.listen(self.settings.peer_listen or self.settings.entry.peer)
        for entry in self.cluster.nodes:
            if entry.id != self.node_id:
                self.transport.connect(entry.id, entry.peer)
        for group in self.groups.values():
            self.touch(group)
        self._ticks.start()

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
            Membership(voters=voters) if mine in voters else None,
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
        self.stream_lane.forget(group)
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
            trusted_keys=self._trust.keys,
            log_config=self.settings.log_config,
            io_writer_mode=self.disk.mode,
            node_inflight=self._inflight,
            stream_config=self.settings.stream_config,
            stream_memory=self._stream_memory,
            cadence=self.settings.cadence,
            wall_ms=wall_clock_ms,
            measuring_clock=time.perf_counter,
        )

    def adopt_cluster(self, cluster: ClusterFile) -> None:
        """Learn which nodes there are now: speak to new ones, and no longer to those that left."""
        before = {entry.id for entry in self.cluster.nodes}
        self.cluster = cluster
        self._trust.adopt(cluster)
        for entry in cluster.nodes:
            if entry.id not in before and entry.id != self.node_id:
                self.transport.connect(entry.id, entry.peer)
        for gone in before - {entry.id for entry in cluster.nodes}:
            self.transport.disconnect(gone)
        if self.watcher is not None:
            self.watcher.on_cluster_changed()

    def trust_registered(self, keys: Iterable[str]) -> None:
        """Believe these SnapshotManifestKeys too: the control plane registered them."""
        self._trust.register(keys)

    def _draw(self, low: int, high: int) -> int:
        """Draw from `low` to `high`, both of them too; every heartbeat asks, so it is quick."""
        return low + int(self._random.random() * (high - low + 1))

    async def stop(self) -> None:
        """Hand leadership over, let what was begun end, and close; bounded (clustor §14.3)."""
        self.stopping = True
        await wind_down(self)
        self._close_turns()
        await self.transport.close()
        for group in self.groups.values():
            if group.idle:
                group.close()
        self.stream_lane.close()
        self._data.close()

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

    def _close_turns(self) -> None:
        self._turn_due = True  # none comes any more: what was open is closed behind them
        self._closed = True
        self._ticks.stop()
        self._loop.remove_reader(self.disk.fileno())

    # Inputs.

    def touch(self, group: HostedGroup) -> None:
        """Let the group give its output at the end of this turn."""
        if group.paused:
            return
        if group not in self._touched:
            self._touched[group] = None
        self.turn_soon()

    def touch_news(self, group: HostedGroup) -> None:
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

    def flush_soon(self) -> None:
        """Let what was staged for clients or peers leave: with this turn, if it is still to."""
        if not self._will_flush:
            self.turn_soon()

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
        if not isinstance(body, w.SnapshotTransfer):
            message = from_packet(packet)
            if message is not None:
                group.replica.receive(message)
                self.touch_news(group)
            return
        try:
            transfer = decode_transfer(bytes(body.data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            journal.warning("node %d sent a transfer that cannot be read", peer)
            return
        group.replica.receive_transfer(ReplicaId(peer), transfer)
        self.touch(group)

    def _on_lost(self, peer: NodeId) -> None:
        for service in self.services:
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
            self.touch_news(group)
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
            for service in self.services:
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
                service = self.hosted_by[group.partition_id]
                streams = group.replica.streams
                news = ReplicaOutput(stream_news=streams.take_news() if streams else set())
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
        self._will_flush = self._will_send = True
        for service in self.services:
            service.prepare()
        touched, self._touched = self._touched, {}
        waits = self.disk.is_quick and len(touched) == 1
        outputs = [(group, group.replica.take(plan_later=waits)) for group in touched]
        if not waits:
            self._write(outputs)
        for group, output in outputs:
            try:
                self._outputs.carry_out(group, output)
            except Exception as error:  # noqa: BLE001  # what it has told clients is not known now
                group.replica.fence(error)
            if output.more:
                self.touch(group)
            if group.replica.is_behind:
                self._behind[group] = None
        if self._outputs.pace.waiting:
            self._outputs.send_paced(self.now_ms())
        self._will_flush = False
        for service in self.services:
            service.flush()
        self._will_send = False
        self.transport.flush()
        if waits:
            self._write(outputs)

    def _write(self, outputs: list[tuple[HostedGroup, ReplicaOutput]]) -> None:
        for group, output in outputs:
            works = output.disk + group.replica.take_disk()
            if not works:
                continue
            try:
                if group.submit(works, alone=len(outputs) == 1) and group.replica.has_news:
                    self._touched[group] = None
            except Exception as error:  # noqa: BLE001  # what is written is not known now
                group.replica.fence(error)

    def send_service(self, number: int, peer: NodeId, data: bytes) -> None:
        """Let bytes leave for a peer's service with this turn; they may be lost, or come late.

        What one node sends to one service of a peer arrives in order, or a part of it not at all.
        """
        route = w.PacketRoute(
            w.PartitionId(number),
            w.ReplicaId(self.node_id),
            w.ReplicaId(peer),
            w.Term(0),
            w.DurabilityModeEpoch(0),
        )
        self.transport.send(peer, w.Packet(route, w.ServiceMessage(data)))
        if not self._will_send:
            self.turn_soon()

    def admin_address(self, replica: ReplicaId | None) -> str:
        """Return where clients reach that replica's node, or nothing."""
        for entry in self.cluster.nodes:
            if replica is not None and entry.node_id == replica:
                return str(entry.admin)
        return ""
