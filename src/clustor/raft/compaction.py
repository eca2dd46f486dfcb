"""How far a log may be deleted (C5): never above an authorised snapshot, never what is needed."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.log.types import LogIndex


@dataclass(frozen=True, slots=True)
class CompactionState:
    snapshot_base_index: LogIndex  # of the newest authorised snapshot
    learner_slack_floor: LogIndex  # what learners still read from the log; 0 without any
    quorum_applied_index: LogIndex
    quorum_sm_durable_index: LogIndex


def compaction_floor(state: CompactionState) -> LogIndex:
    """Return the highest index that may be deleted, 0 when nothing may."""
    base = state.snapshot_base_index
    if state.quorum_sm_durable_index < base:
        return LogIndex(0)
    return LogIndex(
        min(base, max(state.learner_slack_floor, min(state.quorum_applied_index, base)))
    )
