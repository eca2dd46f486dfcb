"""Four of the explanations: from the facts of a group to its sentence, clause and numbers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from clustor import wire as w
from clustor.raft.election import CampaignClause
from clustor.replica.snapshots import EmissionClause
from clustor.telemetry.why import Guardrail, Why, WhyQuestion, replica_names

_NAMED_MAX: Final = 5
_ROUNDS: Final = 2  # elections that may fail before silence is a cause
_ELECTIONS: Final = 10  # those before a slow disk is one
_SYNCS: Final = 20  # of a few groups that elect at once

# WhyNotLeader.


@dataclass(frozen=True, slots=True)
class LeadingFacts:
    """Who leads, as this replica knows; `clause` is what its own election stops at."""

    term: int
    leads: bool
    leader_id: int | None
    failed: str | None
    ready: bool
    clause: CampaignClause | None
    voters: Collection[int]
    reachable: Collection[int]
    """Of the voters, this replica among them: to whom there is a connection now."""
    quorum: int
    has_quorum: bool
    """The group's own count over `reachable`."""
    has_answers: bool
    """The same over who answered its last campaign."""
    silent: Collection[int]
    """Of the voters: who did not answer it."""
    leaderless_ms: int
    election_ms_max: int
    sync_ms: int = 0
    """What a sync of this disk took lately."""
    widened_to: tuple[int, int] | None = None
    """From what the election timeout is drawn while this node itself is late (C19)."""
    lateness_ms: int = 0


_CAMPAIGN: Final = {
    CampaignClause.BARRED: (
        "it led through an outage of the control plane and may not campaign yet",
        "wait until the control plane is back, or until nobody has led for two minutes",
    ),
    CampaignClause.NOT_A_VOTER: ("it is no voter", "add it to the voters if it should lead"),
    CampaignClause.REJOINING: (
        "its data was lost, and it has no vote until it is a member anew",
        "remove the node from the group and add it again",
    ),
    CampaignClause.DAMAGED: (
        "its log has damaged entries",
        "let the others repair it, or look at `quantum log verify`",
    ),
    CampaignClause.INSTALLING: ("it installs a snapshot", "wait until the snapshot is in"),
    CampaignClause.DEVICE_STALLED: ("its disk is stalled", "look at the disk"),
    CampaignClause.CLOCK_ALARM: (
        "this machine's clock jumped or runs away",
        "look at the time service of this machine; it may lead again once the clock is steady",
    ),
    CampaignClause.HOLDING_OFF: ("it gave up leading a moment ago", "wait a moment"),
}


def explain_not_leader(facts: LeadingFacts) -> Why:
    """Say why this replica does not lead, or that it does."""
    away = tuple(sorted(set(facts.voters) - set(facts.reachable)))
    clause, sentence, remedy, reason = _not_leader(facts, away)
    return Why(
        WhyQuestion.NOT_LEADER,
        not facts.leads,
        clause,
        sentence,
        remedy,
        (
            Guardrail("leaderless_ms", facts.leaderless_ms, facts.election_ms_max),
            Guardrail("voters_reachable", len(facts.reachable), facts.quorum),
        ),
        replica_names(away),
        (("reason", reason), ("leader_replica_id", facts.leader_id)),
    )


def _not_leader(
    facts: LeadingFacts, away: tuple[int, ...]
) -> tuple[str, str, str, w.NotLeaderReason | None]:
    reasons = w.NotLeaderReason
    if facts.leads:
        return "None", f"this replica leads in term {facts.term}", "", None
    if facts.failed is not None:
        sentence = f"its replica has stopped: {facts.failed}"
        return "Failed", sentence, "mend the cause and start the node anew", reasons.QUARANTINED
    if not facts.ready:
        return (
            "Mending",
            "it still mends what its last stop left",
            "wait a moment",
            reasons.FOLLOWER,
        )
    if facts.leader_id is not None:
        sentence = f"replica {facts.leader_id} leads in term {facts.term}, and this one follows"
        return "Follower", sentence, "", reasons.FOLLOWER
    if not facts.has_quorum:
        sentence = (
            f"nobody leads: {len(facts.reachable)} of {len(facts.voters)} voters can be reached "
            f"from here and {facts.quorum} are needed; no connection to {_names(away)}"
        )
        return "NoQuorum", sentence, f"start {_names(away)}", reasons.CANDIDATE
    if facts.clause is not None:
        because, remedy = _CAMPAIGN[facts.clause]
        barred = facts.clause is CampaignClause.BARRED
        reason = reasons.STRICT_FALLBACK_BARRED if barred else reasons.FOLLOWER
        return str(facts.clause), f"nobody leads, and this one may not: {because}", remedy, reason
    if _is_too_slow_to_elect(facts):
        sentence = (
            f"nobody leads for {facts.leaderless_ms} ms: a vote counts when it is on disk, "
            f"a sync takes {facts.sync_ms} ms here, and elections begin anew "
            f"within {facts.election_ms_max} ms"
        )
        remedy = "give the nodes a quicker disk, or raise `patience` in every node's cluster.json"
        return "DiskTooSlow", sentence, remedy, reasons.CANDIDATE
    if not facts.has_answers and facts.leaderless_ms > _ROUNDS * facts.election_ms_max:
        sentence = (
            f"nobody leads for {facts.leaderless_ms} ms: {_names(facts.silent)} "
            "can be reached and did not answer the last campaign"
        )
        remedy = f"look whether {_names(facts.silent)} hang or are overloaded"
        return "NoAnswers", sentence, remedy, reasons.CANDIDATE
    if facts.widened_to is not None:
        low, high = facts.widened_to
        sentence = (
            f"nobody leads for {facts.leaderless_ms} ms: this node is late itself "
            f"({facts.lateness_ms} ms), so it asks for votes only after {low} to {high} ms"
        )
        remedy = "give the node more processor or a quicker disk; see clustor_loop_lag_ms"
        return "ElectionsWidened", sentence, remedy, reasons.CANDIDATE
    sentence = f"nobody leads for {facts.leaderless_ms} ms; an election is under way"
    return "ElectionUnderWay", sentence, "wait a moment", reasons.CANDIDATE


def _is_too_slow_to_elect(facts: LeadingFacts) -> bool:
    """Say whether the disk is why elections do not end: it serves all groups of the node."""
    lasts = facts.leaderless_ms > _ELECTIONS * facts.election_ms_max
    return lasts and facts.sync_ms * _SYNCS > facts.election_ms_max


def _names(members: Collection[int]) -> str:
    """Name a few; the envelope's list has more."""
    shown = [f"node {member}" for member in sorted(members)[:_NAMED_MAX]]
    left_off = len(members) - len(shown)
    return ", ".join([*shown, f"{left_off} more"] if left_off else shown) or "nobody"


# WhySnapshotBlocked.


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """What an emission would stop at now; `clause` is the emission's own."""

    clause: EmissionClause | None
    failed: str | None
    strict_fallback: bool
    applied_index: int
    newest_base: int
    compacted_through: int
    quorum_applied_index: int
    blocked_since_ms: int
    """When this clause was first seen, on the wall clock."""


_EMISSION: Final = {
    EmissionClause.BUSY: ("another snapshot is emitted, installed or collected", "wait for it"),
    EmissionClause.INSTALLING: ("a snapshot of a peer is being installed", "wait for it"),
    EmissionClause.WAITS_FOR_QUORUM: (
        "the newest snapshot waits until a quorum has applied what it covers",
        "bring the followers that are behind back",
    ),
}


def explain_snapshot_blocked(facts: SnapshotFacts) -> Why:
    """Say why no snapshot can be emitted now, or that one can."""
    clause, sentence, remedy, reason = _snapshot_words(facts)
    return Why(
        WhyQuestion.SNAPSHOT_BLOCKED,
        facts.failed is not None or facts.clause in _EMISSION,
        clause,
        sentence,
        remedy,
        (
            Guardrail("applied_index", facts.applied_index, facts.newest_base),
            Guardrail("quorum_applied_index", facts.quorum_applied_index, facts.newest_base),
            Guardrail("compacted_through", facts.compacted_through, facts.newest_base),
        ),
        (),
        (("reason", reason), ("since_ms", facts.blocked_since_ms)),
    )


def _snapshot_words(
    facts: SnapshotFacts,
) -> tuple[str, str, str, w.SnapshotBlockedReason | None]:
    if facts.failed is not None:
        words = f"its replica has stopped: {facts.failed}"
        return "Failed", words, "start it anew", w.SnapshotBlockedReason.QUARANTINED
    if facts.clause in _EMISSION:
        because, remedy = _EMISSION[facts.clause]
        importing = facts.clause is EmissionClause.INSTALLING
        reason = w.SnapshotBlockedReason.IMPORT_BUFFER if importing else None
        return str(facts.clause), because, remedy, reason
    covered = f"the newest snapshot covers {facts.newest_base}, applied is {facts.applied_index}"
    delta = "; incremental ones are refused by strict fallback" if facts.strict_fallback else ""
    if facts.clause is EmissionClause.NOTHING_NEW:
        return str(facts.clause), f"there is nothing new to cover: {covered}{delta}", "", None
    return "None", f"a full snapshot can be emitted: {covered}{delta}", "", None


# WhyDiskBlocked.


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """What the disk's own gates say."""

    failed: str | None
    device_stalled: bool
    write_age_ms: int
    """For how long the oldest write under way has waited."""
    latency_ms_max: int
    violations: int
    violations_max: int
    free_bytes: int
    required_bytes: int
    """What the next segment reserves; without this much room it is refused."""
    io_writer_mode: str
    level: str = "None"
    """What the node's disk policy says: DiskSoft gives fewer credits, DiskHard none."""


def explain_disk_blocked(facts: DiskFacts) -> Why:
    """Say why writes wait for the disk, or that they do not."""
    clause, sentence, remedy, reason = _disk_words(facts)
    blocks = (w.ThrottleReasonCode.DISK_HARD, w.ThrottleReasonCode.WAL_DEVICE)
    return Why(
        WhyQuestion.DISK_BLOCKED,
        reason in blocks,
        clause,
        sentence,
        remedy,
        (
            Guardrail("device_violations", facts.violations, facts.violations_max),
            Guardrail("free_bytes", facts.free_bytes, facts.required_bytes),
            Guardrail("write_age_ms", facts.write_age_ms, facts.latency_ms_max),
        ),
        (),
        (
            ("reason", reason),
            ("free_bytes", facts.free_bytes),
            ("required_bytes", facts.required_bytes),
        ),
    )


def _disk_words(facts: DiskFacts) -> tuple[str, str, str, w.ThrottleReasonCode | None]:
    if facts.failed is not None:
        words = f"its replica has stopped: {facts.failed}"
        return (
            "Failed",
            words,
            "mend the disk and start the node anew",
            w.ThrottleReasonCode.DISK_HARD,
        )
    if facts.level == "DiskHard":
        words = f"only {facts.free_bytes} bytes are free: writes are refused before the log fails"
        return "DiskHard", words, "free some room: writes come back", w.ThrottleReasonCode.DISK_HARD
    if facts.device_stalled:
        words = f"the disk counts as stalled: {facts.violations} syncs took over its bound"
        return "DeviceStalled", words, "look at the disk", w.ThrottleReasonCode.WAL_DEVICE
    if facts.write_age_ms > facts.latency_ms_max:
        words = f"a write has been waiting for the disk for {facts.write_age_ms} ms"
        return "WriteOutstanding", words, "look at the disk", w.ThrottleReasonCode.WAL_DEVICE
    if facts.level == "DiskSoft":
        words = f"only {facts.free_bytes} bytes are free: a quarter of the credits is given"
        return "DiskSoft", words, "free some room", w.ThrottleReasonCode.DISK_SOFT
    if facts.free_bytes < facts.required_bytes:
        words = (
            f"{facts.free_bytes} bytes are free, and the next segment "
            f"reserves {facts.required_bytes}: writes go on until then"
        )
        return "NoRoomForSegment", words, "free some room", w.ThrottleReasonCode.DISK_SOFT
    words = f"the disk takes writes in mode {facts.io_writer_mode}; {facts.free_bytes} bytes free"
    return "None", words, "", None


# WhyQuarantined.


@dataclass(frozen=True, slots=True)
class QuarantineFacts:
    """Whether the partition is out of service here, and since when this node knows it."""

    failed: str | None
    log_state: str
    damaged: tuple[int, int] | None
    repair_mode: bool
    since_ms: int
    ordered: tuple[str, str] | None = None
    """The control plane's own record of it: its cause, and what it says."""
    repair: tuple[str, str] | None = None
    """How far this node's repair of its replica is, and what was found."""


def explain_quarantined(facts: QuarantineFacts) -> Why:
    """Say why the partition is out of service here, or that it is not."""
    clause, sentence, remedy, reason = _quarantine_words(facts)
    return Why(
        WhyQuestion.QUARANTINED,
        reason is not None,
        clause,
        sentence,
        remedy,
        (),
        (),
        (("reason", reason), ("since_ms", facts.since_ms)),
    )


_REPAIR_WORDS: Final = {
    "NeedsRepair": "a checksum failed, and it is read again, three times",
    "Quarantined": "it neither votes nor acknowledges, and waits for a majority of its peers",
    "Rejoining": "it began anew without a vote, and its old files are set aside",
    "Removing": "its group removes it, so that what it said before counts no more",
    "Removed": "its group takes it in again and sends what it lacks",
    "Repaired": "it is whole, and the control plane is told",
}
_FENCED: Final = "Fenced"
"""No repair: its machine fell over an error of our own, and its bytes are what was written."""
_APPLY_FAULT: Final = w.QuarantineReasonCode.APPLY_FAULT
_REPAIRS_ITSELF: Final = "wait: it repairs itself, and the others serve meanwhile"
_REPAIR_REMEDIES: Final = {
    "Quarantined": "let a majority of the other replicas run; keep the disk for analysis",
}

_QUARANTINE_CAUSES: Final = {each.spelling: each for each in w.QuarantineReasonCode}


def _quarantine_words(
    facts: QuarantineFacts,
) -> tuple[str, str, str, w.QuarantineReasonCode | None]:
    integrity = w.QuarantineReasonCode.INTEGRITY
    if facts.repair_mode:
        words = "the node runs in repair mode: partitions are read-only"
        return (
            "RepairMode",
            words,
            "start it without --repair",
            w.QuarantineReasonCode.ADMINISTRATIVE,
        )
    if facts.repair is not None:
        phase, detail = facts.repair
        if phase == _FENCED:
            remedy = "mend the cause, then `quantum admin quarantines resume`, or start it anew"
            return phase, f"its replica has stopped: {detail}", remedy, _APPLY_FAULT
        words = f"its bytes are not what was written ({detail}): {_REPAIR_WORDS[phase]}"
        return phase, words, _REPAIR_REMEDIES.get(phase, _REPAIRS_ITSELF), integrity
    if facts.ordered is not None:
        cause, detail = facts.ordered
        words = f"the control plane holds it in quarantine ({cause}): {detail}"
        reason = _QUARANTINE_CAUSES.get(cause, integrity)
        return "Quarantined", words, "clear it with evidence of a rebuilt log", reason
    if facts.failed is not None:
        words = f"its replica has stopped for good: {facts.failed}"
        return "Failed", words, "mend the cause and start the node anew", integrity
    if facts.log_state != "Healthy":
        words = f"its log is {facts.log_state}"
        return facts.log_state, words, "look at `quantum log verify`", integrity
    if facts.damaged is not None:
        first, last = facts.damaged
        words = f"it serves, and asks its peers for the damaged entries {first} to {last}"
        return "Repairing", words, "", None
    return "None", "the partition is in service", "", None
