"""Dry runs: what a move, a snapshot or a failover would meet, computed by its own gates (§13.2).

Nothing is changed. `refused` is the very refusal that the order would get; the rest are the
numbers that decide how long it takes and what it costs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from clustor.flow import LagNumbers, LagWatch
from clustor.raft.errors import MembershipRefused
from clustor.raft.reconfiguration import MembershipRequest
from clustor.raft.types import ReplicaId
from clustor.replica import Replica
from clustor.telemetry.why import Guardrail


class DryRun(StrEnum):
    """The three of §13.2."""

    MOVE_PARTITION = "DryRunMovePartition"
    SNAPSHOT = "DryRunSnapshot"
    FAILOVER = "DryRunFailover"


@dataclass(slots=True)
class DryRunReport:
    """What the order would meet."""

    dry_run: DryRun
    refused: str | None
    sentence: str
    guardrails: list[Guardrail] = field(default_factory=list)
    predicted_credit_share: float = 1.0
    predicted_ms: int = 0
    after: dict[str, list[int]] | None = None


def dry_run_named(text: str) -> DryRun | None:
    """Read a name in the specification's casing, or as `move`, `snapshot` or `failover`."""
    wanted = text.lower().removeprefix("dryrun").replace("-", "")
    short = {"move": DryRun.MOVE_PARTITION}
    found = (each for each in DryRun if each.lower().removeprefix("dryrun") == wanted)
    return short.get(wanted) or next(found, None)


def rehearse_move(
    replica: Replica, request: MembershipRequest, numbers: LagNumbers
) -> DryRunReport:
    """Rehearse a change of members: would it begin, and how much has a joiner to fetch."""
    core = replica.group.core
    bounds = core.profile.membership
    behind = core.log.bytes_through(core.commit_index) - core.log.bytes_through(core.log.base_index)
    rate = core.profile.replication.snapshot_bytes_per_second_max
    report = DryRunReport(
        DryRun.MOVE_PARTITION,
        None,
        "",
        [
            Guardrail("membership.catchup_slack_bytes", behind, bounds.catchup_slack_bytes),
            Guardrail(
                "membership.catchup_index_slack",
                core.commit_index - core.log.base_index,
                bounds.catchup_index_slack,
            ),
            Guardrail("membership.catchup_timeout", behind * 1000 // rate, _timeout(replica)),
            Guardrail("membership.finalize_window", 0, bounds.finalize_window),
        ],
        predicted_credit_share=_share_at(min(behind, bounds.catchup_slack_bytes), numbers),
        predicted_ms=behind * 1000 // rate,
    )
    try:
        goal = replica.group.rehearse_membership(request)
    except MembershipRefused as error:
        report.refused = str(error)
        report.sentence = f"it would be refused: {error}"
        return report
    report.after = {"voters": sorted(goal.voters), "learners": sorted(goal.learners)}
    joins = sorted(goal.members - core.config.members)
    report.sentence = (
        f"it would begin; voters afterwards: {', '.join(map(str, sorted(goal.voters)))}"
        + (f"; {behind} bytes of log and a snapshot go to node {joins[0]} first" if joins else "")
    )
    return report


def _timeout(replica: Replica) -> int:
    return replica.group.core.profile.membership.catchup_timeout_ms


def _share_at(lag_bytes: int, numbers: LagNumbers) -> float:
    """Return the credits that a follower so far behind would leave, by the flow's own watch."""
    return LagWatch(numbers).sample(lag_bytes, 0).credit_scale


def rehearse_snapshot(replica: Replica) -> DryRunReport:
    """Rehearse the emission of a full snapshot, and how far the log could be forgotten."""
    core = replica.group.core
    clause = replica.snapshots.emission_clause(replica.applied_index)
    newest = replica.catalog.newest
    base = newest.manifest.base_index if newest is not None else 0
    fresh = core.log.bytes_through(core.applied_index) - core.log.bytes_through(core.log.base_index)
    target = core.profile.replication.snapshot_log_bytes_target
    covers = f"it would cover {replica.applied_index}; the newest covers {base}"
    return DryRunReport(
        DryRun.SNAPSHOT,
        None if clause is None else str(clause),
        covers if clause is None else f"it would not begin ({clause}); {covers}",
        [
            Guardrail("snapshot.log_bytes_target", fresh, target),
            Guardrail("snapshot.base_index", replica.applied_index, base),
            Guardrail(
                "compaction.floor", replica.group.snapshots.compaction_floor(), core.applied_index
            ),
        ],
    )


def rehearse_failover(
    replica: Replica, target: ReplicaId | None, reachable: set[int], numbers: LagNumbers
) -> DryRunReport:
    """Rehearse a transfer of the leadership, to `target` or to whoever is furthest."""
    core = replica.group.core
    chosen = target if target is not None else _furthest(replica, reachable)
    progress = core.progress.get(chosen) if chosen is not None else None
    lag = core.log.last_index - progress.match_index if progress is not None else 0
    lag_bytes = (
        core.log.bytes_total - core.log.bytes_through(progress.match_index)
        if progress is not None
        else 0
    )
    led_ms = core.now_ms - core.leader_since_ms if core.leads else 0
    report = DryRunReport(
        DryRun.FAILOVER,
        None,
        "",
        [
            Guardrail("min_leader_term_ms", led_ms, core.profile.min_leader_term_ms),
            Guardrail("target_lag_entries", lag, 0),
            Guardrail("target_lag_bytes", lag_bytes, numbers.slack_bytes),
            Guardrail("voters_reachable", len(_voters(replica, reachable)), _quorum(replica)),
            Guardrail("transfer_timeout_ms", 0, core.profile.election_timeout_ms[1]),
        ],
        predicted_credit_share=_share_at(lag_bytes, numbers),
        predicted_ms=2 * (progress.rtt_ms if progress is not None else 0),
    )
    report.refused = _failover_refusal(replica, chosen, reachable)
    report.sentence = (
        f"node {chosen} would lead; it lacks {lag} entries"
        if report.refused is None
        else f"it would be refused: {report.refused}"
    )
    return report


def _failover_refusal(
    replica: Replica, chosen: ReplicaId | None, reachable: set[int]
) -> str | None:
    if replica.leads and chosen is None:
        return "NoVoterReachable"
    refused = replica.group.leadership.transfer_refusal(chosen or replica.group.core.id)
    if refused is not None:
        return str(refused)
    return None if chosen in reachable else "TargetUnreachable"


def _voters(replica: Replica, reachable: set[int]) -> list[ReplicaId]:
    core = replica.group.core
    return sorted(v for v in core.config.voters if v == core.id or v in reachable)


def _quorum(replica: Replica) -> int:
    return len(replica.group.core.config.voters) // 2 + 1


def _furthest(replica: Replica, reachable: set[int]) -> ReplicaId | None:
    core = replica.group.core
    others = [
        (core.progress[voter].match_index, voter)
        for voter in _voters(replica, reachable)
        if voter != core.id and voter in core.progress
    ]
    return max(others)[1] if others else None
