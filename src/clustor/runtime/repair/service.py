"""Repair of damaged replicas by their peers, one partition at a time, while the others serve.

    NeedsRepair ─ a CRC failed: read again, three times, with growing pauses
    Quarantined ─ told to the control plane; peers are asked where the group stands
    Rejoining   ─ empty, without a vote; the damaged files are set aside under their names
    Removing    ─ the leader is asked to remove the replica: what it said before counts no more
    Removed     ─ the leader is asked to take it in: log or snapshot come from there
    Repaired    ─ the control plane has acknowledged it, and the record goes

What may be concluded when is in `clustor.replica.readmission`. Each phase is durable before what
it says is begun, so a node that dies anywhere goes on where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from clustor.control import (
    ClearQuarantine,
    Placement,
    Quarantine,
    QuarantineCause,
    Refused,
    ReportQuarantine,
    find,
)
from clustor.log.errors import AuthenticationFailed, ChecksumMismatch, LogError
from clustor.log.health import PartitionHealth, PartitionState
from clustor.log.types import PartitionId
from clustor.raft.errors import DataLost, MembershipRefused
from clustor.raft.reconfiguration import ReconfigurationPhase
from clustor.raft.types import ReplicaId
from clustor.replica import (
    ReadmissionStep,
    RepairPhase,
    ReplicaDamaged,
    ReplicaError,
    ReplicaOutput,
    VoteStanding,
    is_checksum_fault,
    plan_readmission,
    plan_rejoin_epoch,
)
from clustor.replica.readmission import believed_leader
from clustor.runtime.containment import contained
from clustor.runtime.control.placement_requests import placement_for
from clustor.runtime.control.records import CONTROL_PARTITION
from clustor.runtime.errors import ControlUnavailable
from clustor.runtime.group import HostedGroup, QuarantineView
from clustor.runtime.members import WantedChange, change_members
from clustor.runtime.pki.identity import NodeId
from clustor.runtime.repair.fenced_groups import FencedGroups
from clustor.runtime.repair.quarantine import DETAIL_CHARACTERS_MAX, QuarantineRecord
from clustor.runtime.repair.wire import (
    Readmit,
    StandingAsked,
    StandingTold,
    decode_repair,
    encode_repair,
)
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node

REPAIR_SERVICE: Final = 1_000_000_001
_LOOK_TICKS: Final = 5
_REPORT_AGAIN_MS: Final = 5_000
_ROUND_MS_MAX: Final = 2_000
_CAUSE: Final = QuarantineCause.INTEGRITY

journal = logging.getLogger("clustor.node")


class _Repair:
    """One replica of this node that is not believed."""

    def __init__(self, group: HostedGroup) -> None:
        self.group = group
        self.health = PartitionHealth()
        self.round = 0
        self.asked = 0
        """How many peers were asked in this round, and when it ends at the latest."""
        self.round_ends_ms = 0
        self.standings: dict[ReplicaId, VoteStanding] = {}
        self.reported = False
        self.is_known = False
        """Whether this node's copy of the control plane has shown the quarantine."""
        self.report_due_ms = 0
        self.is_busy = False
        """Whether something of it runs beside the loop: one thing at a time."""


class RepairService:
    """Repairs what is damaged here, and helps peers whose groups are led here."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self._number = node.serve(self, REPAIR_SERVICE)
        self._repairs: dict[PartitionId, _Repair] = {}
        self._placing: set[PartitionId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticks = 0
        # Never one of an earlier life: an answer to that would be older than the fence.
        self._round = node.now_ms() * 1_000
        self._told: set[tuple[PartitionId, NodeId]] = set()
        self._fenced = FencedGroups(node, self._spawn)

    # What the node calls.

    def prepare(self) -> None:
        """Nothing is proposed."""

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """No group is hosted."""

    def flush(self) -> None:
        """Messages leave with the turn."""

    def on_peer_lost(self, peer: NodeId) -> None:
        """Whoever does not answer does not count."""

    def on_tick(self) -> None:
        self._ticks += 1
        if self._ticks % _LOOK_TICKS == 0:
            self._look()

    def close(self) -> None:
        """Let go of what runs beside the loop; a later start goes on with it."""
        for task in list(self._tasks):
            task.cancel()

    # Which replicas are not believed.

    def _look(self) -> None:
        self._fenced.look()
        records = self._node.quarantines
        for partition in (*records.take_damaged(), *records.partitions()):
            group = self._node.groups.get(partition)
            if group is not None and partition not in self._repairs:
                self._begin(group)
        for repair in list(self._repairs.values()):
            if not repair.is_busy and not repair.group.paused:
                self._go_on(repair)

    def _begin(self, group: HostedGroup) -> None:
        repair = self._repairs[group.partition_id] = _Repair(group)
        record = self._node.quarantines.find(group.partition_id)
        if record is None:
            self._judge(repair, group.damage or AuthenticationFailed(str(group.replica.failed)))
            return
        repair.health.on_fault(AuthenticationFailed(record.detail), record.since_ms)
        journal.error("group %d is in quarantine: %s", group.partition_id, record.view())

    def _judge(self, repair: _Repair, fault: Exception) -> None:
        """Take in that a reading failed: a CRC is read again, anything else is quarantined."""
        crc = is_checksum_fault(fault)
        kind: type[LogError] = ChecksumMismatch if crc else AuthenticationFailed
        repair.health.on_fault(kind(str(fault)), self._node.now_ms())
        group, detail = repair.group, str(fault)[:DETAIL_CHARACTERS_MAX]
        if repair.health.state is PartitionState.NEEDS_REPAIR:
            state = str(PartitionState.NEEDS_REPAIR)
            group.quarantine = QuarantineView(state, _CAUSE.value, detail, wall_clock_ms())
            journal.warning("group %d: read again soon: %s", group.partition_id, detail)
            return
        number = int(group.partition_id)
        record = QuarantineRecord(number, _CAUSE.value, detail, wall_clock_ms())
        group.quarantine = self._node.quarantines.write(record).view()
        journal.error("group %d is in quarantine: %s", group.partition_id, detail)
        self._audit(group, "QuarantineEntered", detail)

    def _audit(self, group: HostedGroup, what: str, detail: str) -> None:
        if self._node.audit is not None:
            term = int(group.replica.group.core.hard.term)
            self._node.audit.group_did(what, group.partition_id, self._node.node_id, term, detail)

    # One step at a time.

    def _go_on(self, repair: _Repair) -> None:
        if repair.health.state is PartitionState.NEEDS_REPAIR:
            due_ms = repair.health.retry_at_ms
            if due_ms is not None and self._node.now_ms() >= due_ms:
                self._beside(repair, self._read_again(repair))
            return
        if not repair.reported and self._is_reportable(repair):
            self._beside(repair, self._report(repair))
            return
        replica = repair.group.replica
        if replica.failed is not None and self._is_resumed(repair):
            repair.reported = repair.is_known = False
            self._beside(repair, self._read_again(repair))
            return
        if replica.failed is not None:
            self._rejoin(repair)
        elif replica.ready:
            self._readmit(repair)
        heard = len(repair.standings) >= repair.asked
        if heard or self._node.now_ms() >= repair.round_ends_ms:
            self._ask_peers(repair)

    def _beside(self, repair: _Repair, work: Coroutine[Any, Any, None]) -> None:
        repair.is_busy = True
        self._spawn(self._released(repair, work))

    async def _released(self, repair: _Repair, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            repair.is_busy = False

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # the quarantine stays, and nobody is told that it is over
            contained.caught("duty", "a step of a repair", error)

    def _is_resumed(self, repair: _Repair) -> bool:
        """Say whether an operator has ended the quarantine without a rebuild (break-glass).

        What is on disk is then read again, and believed if it can be.
        """
        control, group = self._node.control, repair.group
        if control is None or not group.idle or group.is_recorded:
            return False
        held = find(control.cache, Quarantine, int(group.partition_id), int(self._node.node_id))
        repair.is_known = repair.is_known or held is not None
        return repair.is_known and held is None

    async def _read_again(self, repair: _Repair) -> None:
        group = repair.group
        try:
            replica = await self._loop.run_in_executor(None, group.reopened, self._node.now_ms())
        except (DataLost, ReplicaDamaged) as error:
            self._judge(repair, error)
            return
        if repair.health.state is PartitionState.NEEDS_REPAIR:
            repair.health.on_repaired()
        journal.warning("group %d: it reads well again", group.partition_id)
        self._node.quarantines.forget(group.partition_id)
        group.quarantine = None
        del self._repairs[group.partition_id]
        self._node.replace_replica(group, replica)

    # To the control plane.

    def _is_reportable(self, repair: _Repair) -> bool:
        """Say whether there is somebody to tell; the control plane's own group tells later."""
        control = self._node.control
        if control is None:
            repair.reported = True
            return False
        number, node = int(repair.group.partition_id), int(self._node.node_id)
        repair.reported = find(control.cache, Quarantine, number, node) is not None
        if repair.reported or self._node.now_ms() < repair.report_due_ms:
            return False
        return control.group.replica.leader_id is not None

    async def _report(self, repair: _Repair) -> None:
        control, view = self._node.control, repair.group.quarantine
        assert control is not None and view is not None
        command = ReportQuarantine(
            partition_id=int(repair.group.partition_id),
            node_id=int(self._node.node_id),
            cause=_CAUSE,
            detail=view.detail,
        )
        try:
            answer = await control.call_for_node(command)
        except ControlUnavailable:
            return  # with the next look
        repair.reported = not isinstance(answer, Refused)
        repair.report_due_ms = self._node.now_ms() + _REPORT_AGAIN_MS
        journal.info("group %d: the quarantine is reported: %s", command.partition_id, answer)

    # Without a vote, and empty.

    def _rejoin(self, repair: _Repair) -> None:
        group, me = repair.group, ReplicaId(self._node.node_id)
        epoch = plan_rejoin_epoch(repair.standings, me)
        if epoch is None or not group.idle or group.is_recorded:
            return
        try:
            replica = group.rejoined(epoch, self._node.now_ms())
        except (ReplicaError, DataLost) as error:
            journal.error("group %d stays in quarantine: %s", group.partition_id, error)
            return
        journal.warning("group %d: begins anew, without a vote", group.partition_id)
        self._node.replace_replica(group, replica)
        repair.standings.clear()
        repair.asked = 0

    # Out of the group, and in again.

    def _readmit(self, repair: _Repair) -> None:
        group, me = repair.group, ReplicaId(self._node.node_id)
        core = group.replica.group.core
        record = self._node.quarantines.find(group.partition_id)
        assert record is not None
        if record.phase is RepairPhase.QUARANTINED:
            record = self._enter(group, record, RepairPhase.REJOINING)
        found = believed_leader(repair.standings)
        if found is None or (self._node.control is not None and not repair.reported):
            return
        number, leader = found
        durable = core.local_wal_durable_index
        step = plan_readmission(
            leader, me, record.phase, rejoining=core.hard.rejoining, durable=durable
        )
        if step is ReadmissionStep.REMOVE:
            self._enter(group, record, RepairPhase.REMOVING)
            self._order(group, "remove", number, leader)
        elif step is ReadmissionStep.ADD:
            self._enter(group, record, RepairPhase.REMOVED)
            self._order(group, "add", number, leader)
        elif step is ReadmissionStep.DONE:
            words = f"rebuilt from node {number} through index {durable}; old files in set-aside/"
            self._beside(repair, self._finish(repair, words))
        elif step is ReadmissionStep.GONE:
            self._beside(repair, self._finish(repair, "the group has removed this replica"))

    def _order(
        self,
        group: HostedGroup,
        kind: Literal["add", "remove"],
        to: ReplicaId,
        leader: VoteStanding,
    ) -> None:
        epoch = int(leader.routing_epoch)
        self._tell(NodeId(to), Readmit(int(group.partition_id), kind, epoch))

    def _enter(
        self, group: HostedGroup, record: QuarantineRecord, phase: RepairPhase
    ) -> QuarantineRecord:
        if record.phase is phase:
            return record
        record = self._node.quarantines.write(msgspec.structs.replace(record, phase=phase))
        group.quarantine = record.view()
        journal.info("group %d: repair: %s", group.partition_id, phase)
        return record

    async def _finish(self, repair: _Repair, evidence: str) -> None:
        group, control = repair.group, self._node.control
        if control is not None:
            command = ClearQuarantine(
                partition_id=int(group.partition_id),
                node_id=int(self._node.node_id),
                evidence=evidence,
            )
            try:
                await control.call_as_steward(command)  # refused: an operator cleared it before
            except ControlUnavailable:
                return
        self._node.quarantines.forget(group.partition_id)
        group.quarantine = None
        del self._repairs[group.partition_id]
        journal.warning("group %d is repaired: %s", group.partition_id, evidence)
        self._audit(group, "QuarantineLeft", evidence)

    # Between nodes.

    def _ask_peers(self, repair: _Repair) -> None:
        """Begin a new round: only what was asked for after the last step counts for the next."""
        self._round += 1
        repair.round = self._round
        repair.standings.clear()
        repair.round_ends_ms = self._node.now_ms() + _ROUND_MS_MAX
        asked = StandingAsked(int(repair.group.partition_id), repair.round)
        peers = list(self._node.transport.connected())
        repair.asked = len(peers)
        for peer in peers:
            self._tell(peer, asked)

    def _tell(self, peer: NodeId, message: StandingAsked | StandingTold | Readmit) -> None:
        self._node.send_service(self._number, peer, encode_repair(message))

    def on_peer_data(self, peer: NodeId, data: bytes) -> None:
        try:
            message = decode_repair(data)
        except msgspec.DecodeError:
            journal.warning("node %d sent what is no message of this version", peer)
            return
        if isinstance(message, StandingTold):
            repair = self._repairs.get(PartitionId(message.partition_id))
            if repair is not None and repair.round == message.round:
                repair.standings[ReplicaId(peer)] = message.standing()
            return
        group = self._node.groups.get(PartitionId(message.partition_id))
        if group is None or not group.replica.ready or group.replica.group.core.hard.rejoining:
            return  # a replica that may have forgotten something vouches for nothing
        if isinstance(message, StandingAsked):
            told = StandingTold.of(message.partition_id, message.round, standing_of(group))
            self._tell(peer, told)
        elif group.replica.leads:
            self._on_readmit(peer, group, message)

    def _on_readmit(self, peer: NodeId, group: HostedGroup, message: Readmit) -> None:
        """Order what a peer asks for itself; with a control plane only if that knows of it."""
        if message.routing_epoch != group.replica.group.core.hard.routing_epoch:
            return
        partition, control = group.partition_id, self._node.control
        reason = f"node {peer} repairs its replica"
        kind = message.kind
        wanted = WantedChange(kind, int(peer), reason if kind == "remove" else "")
        if control is None:
            self._change(group, wanted)
            return
        if find(control.state(), Quarantine, int(partition), int(peer)) is None:
            if (partition, peer) not in self._told:
                self._told.add((partition, peer))
                journal.warning("group %d: node %d reported no quarantine", partition, peer)
        elif partition == CONTROL_PARTITION:
            self._change(group, wanted)
        elif partition not in self._placing:
            self._placing.add(partition)
            self._spawn(self._place(partition, wanted))

    def _change(self, group: HostedGroup, wanted: WantedChange) -> None:
        control = self._node.control
        try:
            change_members(group, wanted, None if control is None else control.epoch_above(group))
        except MembershipRefused as error:
            journal.info("group %d: the repair waits: %s", group.partition_id, error.reason)
            return
        self._node.touch(group)

    async def _place(self, partition: PartitionId, wanted: WantedChange) -> None:
        control = self._node.control
        assert control is not None
        try:
            held = find(control.state(), Placement, int(partition))
            command = None if held is None else placement_for(held, wanted)
            if command is not None:
                answer = await control.call_as_steward(command)
                journal.info("group %d: %s for a repair: %s", partition, wanted.kind, answer)
        except (MembershipRefused, ControlUnavailable) as error:
            journal.info("group %d: the repair waits: %s", partition, error)
        finally:
            self._placing.discard(partition)


def standing_of(group: HostedGroup) -> VoteStanding:
    """Say how a healthy replica's group stands, as far as this replica knows."""
    raft = group.replica.group
    core = raft.core
    idle = not core.leads or raft.leadership.reconfiguration.phase is ReconfigurationPhase.IDLE
    config = core.config
    return VoteStanding(
        term=core.hard.term,
        leads=group.replica.leads,
        settled=idle and core.config_index <= core.commit_index and not config.is_joint,
        proven=core.leads and core.wal_committed_index > 0,
        routing_epoch=core.hard.routing_epoch,
        commit_index=core.commit_index,
        voters=config.all_voters,
        others=config.learners | config.learners_next | config.observers,
    )
