"""What a node says about itself on `GET /status`: one JSON object, made to be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clustor.control import ControlMachine
from clustor.kv import KvMachine
from clustor.raft.reads import FailedClause, read_gate_predicate
from clustor.raft.reconfiguration import ReconfigurationPhase
from clustor.replica import StateMachine
from clustor.runtime.admin.status_shapes import (
    DiskStatus,
    FlowStatus,
    GroupStatus,
    MemberStatus,
    NodeAddress,
    NodeStatus,
)
from clustor.runtime.group import HostedGroup

if TYPE_CHECKING:
    from clustor.runtime.node import Node


def mode_of(node: Node) -> str:
    """Name what the node does as a whole."""
    if node.stopping:
        return "Stopping"
    return "Draining" if node.draining else "Serving"


def status_of(node: Node, pid: int) -> NodeStatus:
    """Look at everything once."""
    return NodeStatus(
        cluster_id=node.cluster.cluster_id,
        node_id=node.node_id,
        pid=pid,
        mode=mode_of(node),
        connected_to=[int(peer) for peer in node.transport.connected()],
        nodes=[
            NodeAddress(entry.node_id, str(entry.peer), str(entry.admin))
            for entry in node.cluster.nodes
        ],
        groups=[
            group_status(group)
            for group in node.groups.values()
            if node.control is None or group is not node.control.group
        ],
        control=None if node.control is None else node.control.status(),
        disk=_disk_status(node),
    )


def _disk_status(node: Node) -> DiskStatus | None:
    checked = node.disk_checked
    if checked is None:
        return None
    return DiskStatus(
        checked.picture.kind,
        checked.picture.source,
        checked.picture.write_cache,
        node.disk.mode.name,
        [f"{each.kind}: {each.detail}" for each in checked.findings],
    )


def group_status(hosted: HostedGroup) -> GroupStatus:
    """Look at one replica."""
    replica = hosted.replica
    group, core = replica.group, replica.group.core
    clause = read_gate_predicate(group.access.gate_state())
    running = "Running" if replica.ready else "Mending"
    return GroupStatus(
        partition_id=hosted.partition_id,
        replica_id=core.id,
        state=_state(hosted, running),
        role=str(core.role),
        term=core.hard.term,
        leader_id=core.leader_id,
        voters=sorted(core.config.voters),
        commit_index=core.commit_index,
        wal_committed_index=core.wal_committed_index,
        durable_index=core.local_wal_durable_index,
        applied_index=replica.applied_index,
        last_index=core.log.last_index,
        durability_mode=core.durability_mode().name,
        gate="Open" if clause is FailedClause.NONE else "Shut",
        failed_clause=str(clause),
        io_writer_mode=replica.log.io_writer_mode.name,
        syncs=hosted.syncs,
        members=_members(hosted) if core.leads else [],
        flow=_flow(hosted) if core.leads else None,
        problem=replica.failed if hosted.quarantine is None else str(hosted.quarantine),
        learners=sorted(core.config.learners),
        outgoing=sorted(core.config.outgoing),
        membership_phase=str(_phase(hosted)),
        membership_recorded=not core.leads or group.leadership.membership_acknowledged(),
        rolled_back=hosted.rolled_back,
        routing_epoch=core.hard.routing_epoch,
        rejoining=core.hard.rejoining,
        first_index=core.log.base_index + 1,
        state_digest=_state_digest(replica.machine),
        strict_fallback_state=str(group.fallback.state),
        strict_fallback_blocking_reason=str(group.fallback.blocking),
        cache_state=str(group.access.cache),
        **_snapshots(hosted),
    )


def _state(hosted: HostedGroup, running: str) -> str:
    if hosted.quarantine is not None:
        return "Quarantine"
    return running if hosted.replica.failed is None else "Failed"


def _snapshots(hosted: HostedGroup) -> dict[str, Any]:
    replica = hosted.replica
    clock, newest = replica.snapshots.clock, replica.catalog.newest
    found: dict[str, Any] = {"delta_chain_state": "" if clock is None else str(clock.chain)}
    if newest is not None:
        found["snapshot_base_index"] = newest.manifest.base_index
        found["snapshot_kind"] = newest.manifest.snapshot_kind.value
        found["delta_chain_length"] = newest.manifest.delta_chain_length
        found["snapshot_fulls"] = sum(
            each.record.parent is None for each in replica.catalog.snapshots
        )
    return found


def _state_digest(machine: StateMachine) -> str:
    """Only a store's digest is known to cost nothing."""
    if isinstance(machine, ControlMachine):
        machine = machine.kv
    return machine.digest().hex() if isinstance(machine, KvMachine) else ""


def _phase(hosted: HostedGroup) -> ReconfigurationPhase:
    """Say where the change under way stands; a change in the log counts until it is committed."""
    core = hosted.replica.group.core
    phase = (
        hosted.replica.group.leadership.reconfiguration.phase
        if core.leads
        else ReconfigurationPhase.IDLE
    )
    unsettled = phase is ReconfigurationPhase.IDLE and core.config_index > core.commit_index
    return ReconfigurationPhase.FINALIZE if unsettled else phase


def _members(hosted: HostedGroup) -> list[MemberStatus]:
    core = hosted.replica.group.core
    found = []
    for member, progress in sorted(core.progress.items()):
        if member == core.id:
            continue
        lag = hosted.admission.lag_of(member, progress)
        found.append(
            MemberStatus(
                replica_id=member,
                kind=str(progress.kind),
                match_index=progress.match_index,
                lag_entries=max(0, core.commit_index - progress.match_index),
                lag_bytes=max(0, lag.lag_bytes),
                lag_ms=lag.lag_ms,
                lag_class=str(lag.lag_class),
            )
        )
    return found


def _flow(hosted: HostedGroup) -> FlowStatus:
    admission = hosted.admission
    credits_left, verdict = admission.credits, admission.verdict
    return FlowStatus(
        lag_class=str(verdict.lag_class),
        credit_share=round(credits_left.pid.fraction * verdict.credit_scale, 3),
        entry_credits=credits_left.entry_credits,
        byte_credits=credits_left.byte_credits,
        reason=admission.reason,
        refused_total=admission.refused_total,
        pid_auto_tune_state=str(admission.tuner.state),
    )
