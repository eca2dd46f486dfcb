"""How far a partition's log may leave its node, for archives and feeds. Pure.

Both are observers (clustor §6.1, §10.3.2): they see what is committed and durable on a quorum as
far as this replica can vouch for it, and nothing while the gates are closed.
"""

from __future__ import annotations

from dataclasses import dataclass

from clustor.log.types import DurabilityMode, LogIndex
from clustor.replica import Replica


@dataclass(frozen=True, slots=True)
class OutflowFacts:
    """What a replica knows at a moment."""

    ready: bool
    leads: bool
    has_leader: bool
    strict: bool
    """Whether every replica syncs before it acknowledges: committed is durable on a quorum."""
    commit_index: LogIndex
    wal_committed_index: LogIndex
    local_wal_durable_index: LogIndex
    control_plane_heard: bool
    observers_allowed: bool


@dataclass(frozen=True, slots=True)
class Outflow:
    """Entries through `through` may leave; `refusal` says why nothing may, for now."""

    through: int
    refusal: str = ""


def facts_of(replica: Replica) -> OutflowFacts:
    group = replica.group
    core, access = group.core, group.access
    return OutflowFacts(
        ready=replica.ready,
        leads=core.leads,
        has_leader=core.leader_id is not None,
        strict=core.hard.durability_mode is DurabilityMode.STRICT,
        commit_index=core.commit_index,
        wal_committed_index=core.wal_committed_index,
        local_wal_durable_index=core.local_wal_durable_index,
        control_plane_heard=access.control.cache_age_ms(core.now_ms) is not None,
        observers_allowed=group.replication.observers_allowed,
    )


def outflow(facts: OutflowFacts) -> Outflow:
    """Decide what may leave now; a refusal is never for good."""
    if not facts.ready:
        return Outflow(0, "this replica is not ready, or has stopped")
    if facts.control_plane_heard and not facts.observers_allowed:
        return Outflow(0, "strict fallback, or the control plane was not heard lately")
    if facts.leads:
        if not facts.wal_committed_index:
            return Outflow(0, "the leader has no quorum in its term yet")
        return Outflow(min(facts.wal_committed_index, facts.local_wal_durable_index))
    if not facts.has_leader:
        return Outflow(0, "no leader is known: nobody vouches for what is committed")
    if not facts.strict:
        return Outflow(0, "under Group-Fsync only the leader knows what is durable on a quorum")
    return Outflow(min(facts.commit_index, facts.local_wal_durable_index))
