"""From a running node to the facts that explanations are made of."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final, assert_never

from clustor.control.draft import find
from clustor.control.durability import DurabilityState
from clustor.control.placement import Placement
from clustor.control.quarantine import Quarantine
from clustor.flow import DurabilityStatus, hint_for, ingest_status
from clustor.log.types import DurabilityMode, PartitionId
from clustor.raft.quorum import VoteResult
from clustor.runtime.group import HostedGroup
from clustor.telemetry import (
    CreditFacts,
    DiskFacts,
    ExplanationPlace,
    LeadingFacts,
    ModeReading,
    QuarantineFacts,
    SnapshotFacts,
    Why,
    WhyQuestion,
    explain_credit_hint,
    explain_credit_zero,
    explain_disk_blocked,
    explain_mode,
    explain_not_leader,
    explain_quarantined,
    explain_snapshot_blocked,
    plain,
    question_of,
)
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node


_EXPLAINED_MAX: Final = 4_096


class GroupWhy:
    """The explanations of one node. Asking changes nothing in the groups."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asked = 0
        self._since: dict[tuple[int, str], tuple[str, int]] = {}
        """Since when a clause was seen, by group and question."""

    def why(self, group: int, question: str) -> object | None:
        """Return an explanation as JSON would have it; None: no such group or question."""
        hosted = self._node.groups.get(PartitionId(group))
        wanted = question_of(question)
        if hosted is None or wanted is None:
            return None
        place, why = self.explain(hosted, wanted)
        return plain(place, why)

    def explain(self, hosted: HostedGroup, question: WhyQuestion) -> tuple[ExplanationPlace, Why]:
        """Explain one thing about one group."""
        why, duties = self._answer(hosted, question), self._node.duties
        words = ""
        if duties is not None:
            now_ms = wall_clock_ms()
            words = duties.overrides.words_for(int(hosted.partition_id), now_ms)
        return self._place(hosted), replace(why, sentence=why.sentence + words)

    def _answer(self, hosted: HostedGroup, question: WhyQuestion) -> Why:
        match question:
            case WhyQuestion.NOT_LEADER:
                return explain_not_leader(self._leading(hosted))
            case WhyQuestion.CREDIT_ZERO:
                return explain_credit_zero(credit_facts(hosted))
            case WhyQuestion.CREDIT_HINT:
                return explain_credit_hint(credit_facts(hosted))
            case WhyQuestion.SNAPSHOT_BLOCKED:
                return explain_snapshot_blocked(self._snapshot(hosted))
            case WhyQuestion.DISK_BLOCKED:
                return explain_disk_blocked(self._disk(hosted))
            case WhyQuestion.QUARANTINED:
                return explain_quarantined(self._quarantine(hosted))
            case WhyQuestion.DURABILITY_MODE:
                return explain_mode(self._mode(hosted))
            case _:
                assert_never(question)

    def _place(self, hosted: HostedGroup) -> ExplanationPlace:
        core = hosted.replica.group.core
        self._asked += 1
        return ExplanationPlace(
            wall_clock_ms(),
            hosted.partition_id,
            core.hard.routing_epoch,
            core.hard.durability_mode_epoch,
            f"{core.id}-{core.hard.term}-{core.now_ms}-{self._asked}",
        )

    def saw(self, group: int, question: str, clause: str) -> int:
        """Return since when a clause is seen, on the wall clock; a new one is seen since now."""
        known = self._since.get((group, question))
        if known is not None and known[0] == clause:
            return known[1]
        if len(self._since) >= _EXPLAINED_MAX:
            self._since.clear()
        now_ms = wall_clock_ms()
        self._since[group, question] = (clause, now_ms)
        return now_ms

    def _leading(self, hosted: HostedGroup) -> LeadingFacts:
        replica = hosted.replica
        core = replica.group.core
        connected = {int(peer) for peer in self._node.transport.connected()}
        voters = core.config.all_voters
        reachable = {each: each == core.id or int(each) in connected for each in voters}
        drawn = replica.group.election.range
        answered = replica.group.election.answered
        answers = {each: each in answered for each in voters}
        return LeadingFacts(
            term=core.hard.term,
            leads=replica.leads,
            leader_id=core.leader_id,
            failed=replica.failed,
            ready=replica.ready,
            clause=replica.group.election.campaign_clause(),
            voters=sorted(voters),
            reachable=[each for each, is_here in sorted(reachable.items()) if is_here],
            quorum=len(core.config.voters) // 2 + 1,
            has_quorum=core.config.vote(reachable) is VoteResult.WON,
            has_answers=core.config.vote(answers) is VoteResult.WON,
            silent=sorted(set(voters) - answered),
            leaderless_ms=0 if core.leader_id else core.now_ms - core.last_leader_ms,
            election_ms_max=drawn.bounds(high_rtt=False)[1],
            sync_ms=round(replica.group.device.average_ms),
            widened_to=drawn.bounds(high_rtt=False) if drawn.is_widened else None,
            lateness_ms=drawn.measured_ms,
        )

    def _snapshot(self, hosted: HostedGroup) -> SnapshotFacts:
        replica = hosted.replica
        core = replica.group.core
        clause = replica.snapshots.emission_clause(replica.applied_index)
        newest = replica.catalog.newest
        return SnapshotFacts(
            clause=clause,
            failed=replica.failed,
            strict_fallback=replica.group.fallback.asserted,
            applied_index=replica.applied_index,
            newest_base=newest.manifest.base_index if newest is not None else 0,
            compacted_through=core.log.base_index,
            quorum_applied_index=core.quorum_applied_index,
            blocked_since_ms=self.saw(hosted.partition_id, "snapshot", str(clause)),
        )

    def _disk(self, hosted: HostedGroup) -> DiskFacts:
        replica = hosted.replica
        group = replica.group
        numbers = group.core.profile.device
        return DiskFacts(
            failed=replica.failed,
            device_stalled=group.core.device_stalled,
            write_age_ms=group.durability.oldest_write_age_ms(),
            latency_ms_max=int(numbers.latency_max_ms),
            violations=group.device.violations,
            violations_max=numbers.violations_to_stall,
            free_bytes=free_bytes(hosted),
            required_bytes=replica.settings.log_config.segment_bytes,
            io_writer_mode=replica.log.io_writer_mode.name,
            level=hosted.admission.disk.value,
        )

    def _mode(self, hosted: HostedGroup) -> ModeReading:
        replica, control = hosted.replica, self._node.control
        hard, leadership = replica.group.core.hard, replica.group.leadership
        number = int(hosted.partition_id)
        placed = None if control is None else find(control.cache, Placement, number)
        said = None if control is None else find(control.cache, DurabilityState, number)
        return ModeReading(
            leads=replica.leads,
            leader_id=replica.leader_id,
            mode=hard.durability_mode,
            epoch=hard.durability_mode_epoch,
            placed_mode=None if placed is None else DurabilityMode[placed.durability_mode.name],
            placed_epoch=0 if placed is None else placed.durability_mode_epoch,
            clause=leadership.group_fsync_clause() if replica.leads else None,
            clamped=replica.leads and leadership.must_write_strict(),
            recorded_clause="" if said is None else said.refused_clause,
        )

    def _quarantine(self, hosted: HostedGroup) -> QuarantineFacts:
        replica = hosted.replica
        damaged = replica.group.core.damaged
        control = self._node.control
        ordered = (
            None
            if control is None
            else find(control.cache, Quarantine, int(hosted.partition_id), int(self._node.node_id))
        )
        view = hosted.quarantine
        return QuarantineFacts(
            failed=replica.failed,
            repair=None if view is None else (view.phase, view.detail),
            log_state="Healthy",  # one that is not stands as a repair
            damaged=None if damaged is None else (int(damaged[0]), int(damaged[1])),
            repair_mode=False,
            since_ms=(
                view.since_ms
                if view is not None
                else ordered.since
                if ordered is not None
                else self.saw(hosted.partition_id, "quarantine", str(replica.failed))
            ),
            ordered=None if ordered is None else (ordered.cause.value, ordered.detail),
        )


def credit_facts(hosted: HostedGroup) -> CreditFacts:
    """Read what a group's admission decided at its last look."""
    admission, replica = hosted.admission, hosted.replica
    credits_left, verdict = admission.credits, admission.verdict
    lags = admission.lags() if replica.leads else {}
    return CreditFacts(
        leads=replica.leads,
        leader_id=replica.leader_id,
        reason=admission.reason,
        ingest=ingest_status(credits_left, verdict),
        hint=hint_for(credits_left, verdict),
        entry_credits=credits_left.entry_credits,
        byte_credits=credits_left.byte_credits,
        entry_credit_max=credits_left.limits.entry_credit_max,
        byte_credit_max=credits_left.limits.byte_credit_max,
        credit_share=credits_left.pid.fraction * verdict.credit_scale,
        pressures=tuple(admission.pressures.items()),
        lags=tuple((int(m), lag.lag_bytes, str(lag.lag_class)) for m, lag in sorted(lags.items())),
        lag_slack_bytes=admission.numbers.lag.slack_bytes,
        refused_total=admission.refused_total,
        hard_block=admission.numbers.structural_hard_block,
    )


def durability_status(hosted: HostedGroup) -> DurabilityStatus:
    """Say whether a leader is held in Strict, as its envelope would."""
    replica = hosted.replica
    strict = replica.leads and replica.group.leadership.must_write_strict()
    return DurabilityStatus.STRICT_ONLY if strict else DurabilityStatus.CONFIGURED


def free_bytes(hosted: HostedGroup) -> int:
    """Return how much room is left where a group's log is."""
    try:
        room = os.statvfs(hosted.directory)
    except OSError:
        return 0
    return room.f_bavail * room.f_frsize
