"""WhyDurabilityMode: from a group's mode, and the one that is placed, to a sentence.

A seventh question beside the six of clustor §13.2, in the same envelope: who ordered Group-Fsync
must be able to see which clause of §9.3 refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clustor.log.group_fsync import GroupFsyncClause
from clustor.log.types import DurabilityMode
from clustor.telemetry.why import Guardrail, Why, WhyQuestion

NO_CLAUSE: Final = "None"


@dataclass(frozen=True, slots=True)
class ModeReading:
    """The mode of one replica's group; `clause` is the leader's own, and None where it follows."""

    leads: bool
    leader_id: int | None
    mode: DurabilityMode
    epoch: int
    placed_mode: DurabilityMode | None  # None: the control plane says nothing of this group
    placed_epoch: int
    clause: GroupFsyncClause | None
    clamped: bool  # the leader writes in Strict whatever the log's mode is
    recorded_clause: str = ""  # what the last leader told the control plane


_REMEDIES: Final = {
    GroupFsyncClause.PROFILE: "choose a profile that has Group-Fsync",
    GroupFsyncClause.FEATURE_GATE: "open the gate GroupFsync: `quantum admin features set`",
    GroupFsyncClause.STRICT_FALLBACK: "wait for the control plane's proof of this term",
    GroupFsyncClause.CACHE_NOT_FRESH: "bring the control plane back",
    GroupFsyncClause.DOWNGRADE_BACKOFF: "wait: batches overran their limits a while ago",
    GroupFsyncClause.BLOCKING_WRITER: "repair or replace the voter that writes without io_uring",
    GroupFsyncClause.DEVICE_LATENCY: "look at the leader's disk: its syncs are slow",
    GroupFsyncClause.QUARANTINED: "close the GroupFsyncQuarantine incident",
}


def explain_mode(facts: ModeReading) -> Why:
    """Say why a group does not have the mode that is placed, or that it does."""
    clause, sentence, remedy = _words(facts)
    return Why(
        WhyQuestion.DURABILITY_MODE,
        clause != NO_CLAUSE,
        clause,
        sentence,
        remedy,
        (Guardrail("durability_mode_epoch", facts.epoch, facts.placed_epoch),),
        (),
        (("durability_mode", spelled(facts.mode)), ("clamped_to_strict", facts.clamped)),
    )


def spelled(mode: DurabilityMode) -> str:
    """Spell a mode as the specification does."""
    return "Group-Fsync" if mode is DurabilityMode.GROUP_FSYNC else "Strict"


def _words(facts: ModeReading) -> tuple[str, str, str]:
    now = f"the group is in {spelled(facts.mode)} (epoch {facts.epoch})"
    if facts.placed_mode is None or facts.placed_epoch <= facts.epoch:
        if facts.clamped and facts.mode is DurabilityMode.GROUP_FSYNC:
            clause = facts.clause or GroupFsyncClause.STRICT_FALLBACK
            sentence = f"{now}, and its leader writes in Strict all the same: {clause}"
            return clause.value, sentence, _REMEDIES.get(clause, "")
        return NO_CLAUSE, now, ""
    wanted = f"{spelled(facts.placed_mode)} (epoch {facts.placed_epoch}) is placed, but {now}"
    if not facts.leads:
        leader = "nobody leads it" if facts.leader_id is None else f"node {facts.leader_id} leads"
        said = facts.recorded_clause or "NotLeader"
        return said, f"{wanted}: {leader}, and it told the control plane {said}", "ask its leader"
    if facts.placed_mode is DurabilityMode.STRICT or facts.clause in (None, GroupFsyncClause.NONE):
        return "FenceUnderWay", f"{wanted}: the fence is on its way", "wait a moment"
    assert facts.clause is not None
    return facts.clause.value, f"{wanted}: {facts.clause} forbids it", _REMEDIES[facts.clause]
