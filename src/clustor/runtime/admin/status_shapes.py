"""The shapes of `GET /status`: what a node says of itself, its groups and the control plane."""

from __future__ import annotations

import msgspec


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
