"""What a node says about itself on `GET /status`: one JSON object, made to be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from clustor.control import ControlMachine
from clustor.kv import KvMachine
from clustor.raft.reads import FailedClause, read_gate_predicate
from clustor.raft.reconfiguration import Phase
from clustor.replica import StateMachine
from clustor.runtime.group import HostedGroup

if TYPE_CHECKING:
    from clustor.runtime.node import Node


class MemberStatus(msgspec.Struct, frozen=True):
    """How far the leader believes another replica to be."""

    replica_id: int
    kind: str  # voter, learner or observer
    match_index: int
    lag_entries: int
    lag_bytes: int
    lag_ms: int
    lag_class: str  # None, Transient or Structural


class FlowStatus(msgspec.Struct, frozen=True):
    """What a leader admits now, and why not more."""

    lag_class: str  # of the slowest voter; it decides the share
    credit_share: float
    entry_credits: int
    byte_credits: int
    reason: str | None
    refused_total: int
    pid_auto_tune_state: str


class GroupStatus(msgspec.Struct, frozen=True):
    """One replica of one group, as its own node sees it."""

    partition_id: int
    replica_id: int
    state: str  # Running, Mending, Failed, Quarantine, or in repair mode the log's own state
    role: str
    term: int
    leader_id: int | None
    voters: list[int]
    commit_index: int
    wal_committed_index: int  # known to leaders
    durable_index: int
    applied_index: int
    last_index: int
    durability_mode: str
    gate: str  # Open or Shut: whether a linearizable read needs no log entry
    failed_clause: str
    io_writer_mode: str
    syncs: int
    members: list[MemberStatus] = []
    flow: FlowStatus | None = None
    problem: str | None = None
    learners: list[int] = []
    outgoing: list[int] = []  # voters of the old members, while two memberships hold at once
    membership_phase: str = "Idle"  # of the change that this leader drives
    membership_recorded: bool = True  # clients are served only under a recorded membership
    rolled_back: str = ""  # why the last change that this leader began was given up
    routing_epoch: int = 0  # of the newest committed change of members
    rejoining: bool = False  # its data was lost: it has no vote until it is a member anew
    first_index: int = 1  # older entries are in a snapshot only
    state_digest: str = ""  # of a key-value store: equal for replicas of equal state
    strict_fallback_state: str = ""  # Healthy, LocalOnly or ProofPublished (clustor §9.1)
    strict_fallback_blocking_reason: str = ""
    cache_state: str = ""  # as this replica was told
    snapshot_base_index: int = 0  # what the newest snapshot covers
    snapshot_kind: str = ""  # Full or Delta; nothing where there is none
    snapshot_fulls: int = 0  # that are kept
    delta_chain_length: int = 0
    delta_chain_state: str = ""  # Healthy, GracefulCatchup or Orphaned (clustor §9.5)


class ReportStatus(msgspec.Struct, frozen=True):
    """A node's last word about itself, as this replica of the control plane has it."""

    node_id: int
    age_ms: int
    stale: bool  # it counts no more: the node is down, or cut off
    utilization: int  # in millionths


class ControlStatus(msgspec.Struct, frozen=True):
    """The control plane as one node sees it."""

    group: GroupStatus
    revision: int  # of the store, as this replica has applied it
    initialized: bool
    cache_state: str  # Fresh, Cached, Stale or Expired (clustor §14.2)
    cache_age_ms: int | None  # None: never confirmed
    cache_revision: int
    cache_saved_revision: int
    cache_expiry_total: int
    strict_fallback_state: str  # of the control plane's own group
    proofs_published: int  # of the groups that this node leads
    proofs_failed: int  # batches that came to nothing
    proofs_bad: int  # whose signature did not verify
    proofs_refused: dict[str, str]  # what became of a group's last one, where it does not stand
    calls_led: int  # that this node took as the leader
    publications_led: int
    confirmations_led: int
    reports: list[ReportStatus]


class NodeAddress(msgspec.Struct, frozen=True):
    node_id: int
    peer: str
    admin: str


class DiskStatus(msgspec.Struct, frozen=True):
    """What the node's data lies on, and what is wrong with that."""

    filesystem: str
    source: str
    write_cache: str
    io_writer_mode: str
    findings: list[str]


class NodeStatus(msgspec.Struct, frozen=True):
    """One node."""

    cluster_id: str
    node_id: int
    pid: int
    mode: str  # Serving, Stopping or Repair
    connected_to: list[int]
    nodes: list[NodeAddress]
    groups: list[GroupStatus]
    control: ControlStatus | None = None  # its own group is not among the others
    disk: DiskStatus | None = None


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
    clock, newest = replica.emission_clock, replica.catalog.newest
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


def _phase(hosted: HostedGroup) -> Phase:
    """Say where the change under way stands; a change in the log counts until it is committed."""
    core = hosted.replica.group.core
    phase = hosted.replica.group.leadership.reconfiguration.phase if core.leads else Phase.IDLE
    unsettled = phase is Phase.IDLE and core.config_index > core.commit_index
    return Phase.FINALIZE if unsettled else phase


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
