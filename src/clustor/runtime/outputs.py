"""Carry out what a replica put out, but for its writes: messages, reads, answers, and notices."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from clustor import wire as w
from clustor.log.types import PartitionId
from clustor.raft.output import RoleChange
from clustor.raft.types import ReplicaId, Role
from clustor.replica import (
    ChunkSent,
    DiskRead,
    ReplicaOutput,
    StreamsSent,
    Transfer,
    encode_transfer,
)
from clustor.runtime.audit.log import AuditLog
from clustor.runtime.containment import contained
from clustor.runtime.disk.stream_lane import StreamLane
from clustor.runtime.group import HostedGroup
from clustor.runtime.members import record_membership
from clustor.runtime.node_parts import NodeControl
from clustor.runtime.peers.raft_wire import EncodedEntries, to_packet
from clustor.runtime.peers.snapshot_pace import SnapshotPace
from clustor.runtime.peers.transport import Transport
from clustor.runtime.pki.identity import NodeId
from clustor.runtime.repair.fenced_replica import FencedReplica
from clustor.runtime.repair.quarantine import QuarantineRecords
from clustor.runtime.service import GroupWatcher, NodeWatch, Service

journal = logging.getLogger("clustor.node")


class OutputNode(Protocol):
    """What an output reaches of the node."""

    node_id: NodeId
    groups: dict[PartitionId, HostedGroup]
    hosted_by: dict[PartitionId, Service]
    transport: Transport
    stream_lane: StreamLane
    quarantines: QuarantineRecords
    watch: NodeWatch | None
    watcher: GroupWatcher | None
    audit: AuditLog | None
    control: NodeControl | None

    @property
    def on_group_stopped(self) -> Callable[[HostedGroup, str], None]:
        """Who must hear that a group has stopped for good; the others go on."""

    def touch(self, group: HostedGroup) -> None:
        """Let the group give its output at the end of this turn."""


class Outputs:
    """Takes what replicas put out to where it belongs; snapshots leave at their pace."""

    def __init__(
        self, node: OutputNode, loop: asyncio.AbstractEventLoop, snapshot_bytes_per_second_max: int
    ) -> None:
        self._node = node
        self._loop = loop
        self.pace = SnapshotPace(snapshot_bytes_per_second_max)

    def send_paced(self, now_ms: int) -> None:
        """Send the chunks of snapshots whose time has come."""
        for partition, target, chunk in self.pace.take(now_ms):
            self._send_transfer(self._node.groups[partition], target, chunk)

    def carry_out(self, group: HostedGroup, output: ReplicaOutput) -> None:
        if output.stream_disk:
            self._node.stream_lane.submit(group, output.stream_disk)
        if output.messages:
            self._send(group, output)
        for send in output.snapshot_sends:
            self.pace.allow(group.partition_id, send.replica_id, send.bytes_per_second_max)
        for target, transfer in output.transfers:
            if isinstance(transfer, ChunkSent | StreamsSent):
                self.pace.add(group.partition_id, target, transfer)
            else:
                self._send_transfer(group, target, transfer)
        for read in output.disk_reads:
            self._read(group, read)
        self._node.hosted_by[group.partition_id].on_output(group, output)
        group.admission.measure()
        if self._node.watch is not None:
            try:
                self._node.watch.on_output(group, output)
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
            self._node.touch(group)
        if self._node.watcher is not None and _is_notable(output):
            self._node.watcher.on_group(group, output)
        if output.role is not None:
            role = output.role
            tell_leadership(self._node.audit, self._node.node_id, group, role)
            journal.info(
                "group %d: %s in term %d, leader %s: %s",
                *(group.partition_id, role.role, role.term, role.leader_id or "none", role.reason),
            )
        for note in output.notes:
            group.say(note)
        if output.failed is not None:
            journal.error("group %d has stopped: %s", group.partition_id, output.failed)
            if group.replica.is_damaged:
                self._node.quarantines.note_damage(group.partition_id)
            self._node.on_group_stopped(group, output.failed)

    def _records_itself(self, group: HostedGroup) -> bool:
        """Say whether a group's own log is the record of its members: nobody else keeps one."""
        return self._node.control is None or group is self._node.control.group

    def _write_delayed(
        self, group: HostedGroup, replica: FencedReplica, number: int, began: float
    ) -> None:
        replica.write_delayed(number, (self._loop.time() - began) * 1000)
        self._node.touch(group)

    def _send(self, group: HostedGroup, output: ReplicaOutput) -> None:
        partition = group.partition_id
        epoch = group.replica.group.core.message_epoch
        encoded = EncodedEntries()
        for target, message in output.messages:
            packet = to_packet(partition, target, message, epoch, encoded)
            self._node.transport.send(NodeId(target), packet)

    def _send_transfer(self, group: HostedGroup, target: ReplicaId, transfer: Transfer) -> None:
        core = group.replica.group.core
        route = w.PacketRoute(
            w.PartitionId(group.partition_id),
            w.ReplicaId(self._node.node_id),
            w.ReplicaId(target),
            w.Term(core.hard.term),
            w.DurabilityModeEpoch(core.message_epoch),
        )
        packet = w.Packet(route, w.SnapshotTransfer(encode_transfer(transfer)))
        self._node.transport.send(NodeId(target), packet)

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
            self._node.touch(group)

        running.add_done_callback(ended)


def _is_notable(output: ReplicaOutput) -> bool:
    """Say whether the control plane's service must see an output."""
    return (
        output.publish_proof is not None
        or output.role is not None
        or output.record_membership is not None
    )


def tell_leadership(
    audit: AuditLog | None, node_id: NodeId, group: HostedGroup, change: RoleChange
) -> None:
    """Write down that a group is led here from now on, or no more: who answered when."""
    leads = change.role is Role.LEADER
    term = change.term if leads else group.led_term
    if audit is not None and term and (leads or group.led_term):
        what = "LeadershipBegun" if leads else "LeadershipEnded"
        audit.group_did(what, group.partition_id, node_id, term, change.reason)
    group.led_term = change.term if leads else 0
