"""How far a log may be deleted (ruling C5): only what an authorised snapshot covers."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.log.types import LogIndex


@dataclass(frozen=True, slots=True)
class CompactionState:
    """What the floor depends on (clustor §10.8); `snapshot_base_index` is of an authorised one."""

    snapshot_base_index: LogIndex
    quorum_applied_index: LogIndex
    quorum_sm_durable_index: LogIndex
    learner_slack_floor: LogIndex | None = None


def compaction_floor(state: CompactionState) -> LogIndex:
    """Return the index below which entries may go, by ruling C5; 0 lets nothing go.

    The snapshot covers the entry at the floor too: who keeps only terms may forget it as well.
    """
    base = state.snapshot_base_index
    if state.quorum_sm_durable_index < base:
        return LogIndex(0)
    learners = state.learner_slack_floor or LogIndex(0)
    return min(base, max(learners, min(state.quorum_applied_index, base)))
