"""Each cause has its clause, its sentence and its numbers, in an envelope the wire can read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from clustor import wire as w
from clustor.flow import CreditHint, IngestStatus, ThrottleReason
from clustor.raft.election import CampaignClause
from clustor.replica.readmission import RepairPhase
from clustor.replica.snapshots import EmissionClause
from clustor.telemetry import (
    CreditFacts,
    DiskFacts,
    ExplanationPlace,
    LeadingFacts,
    QuarantineFacts,
    SnapshotFacts,
    Why,
    WhyQuestion,
    encode_why,
    explain_credit_hint,
    explain_credit_zero,
    explain_disk_blocked,
    explain_not_leader,
    explain_quarantined,
    explain_snapshot_blocked,
    question_of,
)

PLACE = ExplanationPlace(1_700_000_000_000, 7, 3, 2, "1-4-99-1")

LEADS = LeadingFacts(
    term=4,
    leads=True,
    leader_id=1,
    failed=None,
    ready=True,
    clause=None,
    voters=(1, 2, 3),
    reachable=(1, 2, 3),
    quorum=2,
    has_quorum=True,
    has_answers=True,
    silent=(),
    leaderless_ms=0,
    election_ms_max=300,
)
LOST = replace(LEADS, leads=False, leader_id=None, leaderless_ms=500)
NOT_LEADER: dict[str, tuple[LeadingFacts, str, str | None, str]] = {
    "leads": (LEADS, "None", None, "leads in term 4"),
    "follows": (replace(LEADS, leads=False, leader_id=2), "Follower", "Follower", "replica 2"),
    "failed": (replace(LOST, failed="the disk failed"), "Failed", "Quarantined", "disk failed"),
    "mending": (replace(LOST, ready=False), "Mending", "Follower", "mends"),
    "no quorum": (
        replace(LOST, reachable=(1,), has_quorum=False),
        "NoQuorum",
        "Candidate",
        "1 of 3 voters can be reached from here and 2 are needed; no connection to node 2, node 3",
    ),
    "silence": (
        replace(LOST, has_answers=False, silent=(2, 3), leaderless_ms=700),
        "NoAnswers",
        "Candidate",
        "node 2, node 3 can be reached and did not answer",
    ),
    "silence of a moment": (
        replace(LOST, has_answers=False, silent=(2, 3), leaderless_ms=600),
        "ElectionUnderWay",
        "Candidate",
        "under way",
    ),
    "election": (LOST, "ElectionUnderWay", "Candidate", "under way"),
    "a disk too slow for elections": (
        replace(LOST, leaderless_ms=3_001, sync_ms=16, has_answers=False, silent=(2, 3)),
        "DiskTooSlow",
        "Candidate",
        "a sync takes 16 ms here, and elections begin anew within 300 ms",
    ),
    "a slow disk, and an election like any other": (
        replace(LOST, leaderless_ms=3_000, sync_ms=16),
        "ElectionUnderWay",
        "Candidate",
        "under way",
    ),
    **{
        str(clause): (
            replace(LOST, clause=clause),
            str(clause),
            "StrictFallbackBarred" if clause is CampaignClause.BARRED else "Follower",
            "may not",
        )
        for clause in CampaignClause
    },
}


@pytest.mark.parametrize(
    ("facts", "clause", "reason", "words"), NOT_LEADER.values(), ids=NOT_LEADER.keys()
)
def test_why_not_leader(facts: LeadingFacts, clause: str, reason: str | None, words: str) -> None:
    found = written(explain_not_leader(facts))
    assert (found["clause"], found.get("reason")) == (clause, reason)
    assert words in found["sentence"]
    assert found["holds"] is not facts.leads


def test_a_follower_that_hears_its_leader_is_not_told_that_it_lacks_a_quorum() -> None:
    facts = replace(LOST, leader_id=2, reachable=(1,), has_quorum=False)
    assert explain_not_leader(facts).clause == "Follower"


CREDITS = CreditFacts(
    leads=True,
    leader_id=1,
    reason=None,
    ingest=IngestStatus.HEALTHY,
    hint=CreditHint.RECOVER,
    entry_credits=100,
    byte_credits=1_000,
    entry_credit_max=4096,
    byte_credit_max=1 << 26,
    credit_share=1.0,
    pressures=((ThrottleReason.WAL_DEVICE, 0.1), (ThrottleReason.FOLLOWER_LAG, 0.0)),
    lags=((2, 0, "None"), (3, 5_000, "Transient")),
    lag_slack_bytes=4_096,
    refused_total=0,
    hard_block=False,
)
SHORT = replace(CREDITS, entry_credits=0, ingest=IngestStatus.TRANSIENT_BACKPRESSURE)
BLOCKED = replace(CREDITS, ingest=IngestStatus.BLOCKED, hard_block=True, credit_share=0.0)
CREDIT_ZERO: dict[str, tuple[CreditFacts, bool, str, str | None]] = {
    "plenty": (CREDITS, False, "None", None),
    "slowed, not stopped": (
        replace(CREDITS, reason=ThrottleReason.FOLLOWER_LAG, credit_share=0.5),
        *(False, "None", None),
    ),
    "too much under way": (SHORT, True, "ApplyBudget", "ApplyBudget"),
    "negative credits": (replace(SHORT, entry_credits=-5), True, "ApplyBudget", "ApplyBudget"),
    "the disk": (replace(SHORT, reason=ThrottleReason.WAL_DEVICE), True, "WALDevice", "WALDevice"),
    "the quorum": (
        replace(SHORT, reason=ThrottleReason.FOLLOWER_LAG),
        *(True, "FollowerLag", "FollowerLag"),
    ),
    "an operator": (BLOCKED, True, "StructuralHardBlock", "ApplyBudget"),
    "no leader here": (replace(SHORT, leads=False, leader_id=2), False, "NotLeader", None),
}


@pytest.mark.parametrize(
    ("facts", "holds", "clause", "reason"), CREDIT_ZERO.values(), ids=CREDIT_ZERO.keys()
)
def test_why_credit_zero(facts: CreditFacts, holds: bool, clause: str, reason: str | None) -> None:
    found = written(explain_credit_zero(facts))
    assert (found["holds"], found["clause"], found.get("reason")) == (holds, clause, reason)
    assert found["entry_credits"] == str(max(0, facts.entry_credits))
    assert found["involved"]["ids"] == ["replica-3"]


@pytest.mark.parametrize(
    ("facts", "holds", "words"),
    [
        (CREDITS, False, "may send"),
        (replace(CREDITS, hint=CreditHint.HOLD), True, "keep their pace"),
        (replace(BLOCKED, hint=CreditHint.SHED), True, "send less"),
        (replace(CREDITS, leads=False, hint=CreditHint.SHED), False, "does not lead"),
    ],
)
def test_why_credit_hint(facts: CreditFacts, holds: bool, words: str) -> None:
    found = written(explain_credit_hint(facts))
    assert found["holds"] is holds
    assert words in found["sentence"]
    assert found["credit_hint"] == str(facts.hint)


SNAPSHOT = SnapshotFacts(
    clause=None,
    failed=None,
    strict_fallback=False,
    applied_index=90,
    newest_base=50,
    compacted_through=50,
    quorum_applied_index=80,
    blocked_since_ms=5,
)
SNAPSHOTS: dict[str, tuple[SnapshotFacts, bool, str | None]] = {
    "can be": (SNAPSHOT, False, None),
    "failed": (replace(SNAPSHOT, failed="damage"), True, "Quarantined"),
    "busy": (replace(SNAPSHOT, clause=EmissionClause.BUSY), True, None),
    "installing": (replace(SNAPSHOT, clause=EmissionClause.INSTALLING), True, "ImportBuffer"),
    "quorum": (replace(SNAPSHOT, clause=EmissionClause.WAITS_FOR_QUORUM), True, None),
    "nothing new": (replace(SNAPSHOT, clause=EmissionClause.NOTHING_NEW), False, None),
}


@pytest.mark.parametrize(("facts", "holds", "reason"), SNAPSHOTS.values(), ids=SNAPSHOTS.keys())
def test_why_snapshot_blocked(facts: SnapshotFacts, holds: bool, reason: str | None) -> None:
    found = written(explain_snapshot_blocked(facts))
    assert (found["holds"], found.get("reason")) == (holds, reason)
    expected = "Failed" if facts.failed else str(facts.clause)
    assert found["clause"] == expected


DISK = DiskFacts(
    failed=None,
    device_stalled=False,
    write_age_ms=3,
    latency_ms_max=100,
    violations=0,
    violations_max=3,
    free_bytes=1 << 40,
    required_bytes=1 << 30,
    io_writer_mode="FIXED_URING",
)
DISKS: dict[str, tuple[DiskFacts, bool, str, str | None]] = {
    "well": (DISK, False, "None", None),
    "failed": (replace(DISK, failed="ENOSPC"), True, "Failed", "DiskHard"),
    "stalled": (replace(DISK, device_stalled=True), True, "DeviceStalled", "WALDevice"),
    "hangs": (replace(DISK, write_age_ms=101), True, "WriteOutstanding", "WALDevice"),
    "at the bound": (replace(DISK, write_age_ms=100), False, "None", None),
    "nearly full": (replace(DISK, free_bytes=5), False, "NoRoomForSegment", "DiskSoft"),
}


@pytest.mark.parametrize(("facts", "holds", "clause", "reason"), DISKS.values(), ids=DISKS.keys())
def test_why_disk_blocked(facts: DiskFacts, holds: bool, clause: str, reason: str | None) -> None:
    found = written(explain_disk_blocked(facts))
    assert (found["holds"], found["clause"], found.get("reason")) == (holds, clause, reason)
    assert found["free_bytes"] == str(facts.free_bytes)


FINE = QuarantineFacts(None, "Healthy", None, repair_mode=False, since_ms=9)
QUARANTINES: dict[str, tuple[QuarantineFacts, str, str | None]] = {
    "in service": (FINE, "None", None),
    "failed": (replace(FINE, failed="the log is damaged"), "Failed", "Integrity"),
    "log": (replace(FINE, log_state="Quarantine"), "Quarantine", "Integrity"),
    "repair mode": (replace(FINE, repair_mode=True), "RepairMode", "Administrative"),
    "ordered": (
        replace(FINE, ordered=("Administrative", "ticket 7")),
        *("Quarantined", "Administrative"),
    ),
    "mends itself": (replace(FINE, damaged=(4, 9)), "Repairing", None),
    "fenced": (replace(FINE, repair=("Fenced", "an error of our own")), "Fenced", "ApplyFault"),
    **{
        f"repair, {phase}": (replace(FINE, repair=(phase, "entry 4")), phase, "Integrity")
        for phase in ("NeedsRepair", *RepairPhase)
    },
}


@pytest.mark.parametrize(("facts", "clause", "reason"), QUARANTINES.values(), ids=QUARANTINES)
def test_why_quarantined(facts: QuarantineFacts, clause: str, reason: str | None) -> None:
    found = written(explain_quarantined(facts))
    assert (found["clause"], found.get("reason")) == (clause, reason)
    assert found["holds"] is (reason is not None)


MIRRORED = {
    w.WhyNotLeader: explain_not_leader(NOT_LEADER["no quorum"][0]),
    w.WhyCreditZero: explain_credit_zero(SHORT),
    w.WhyCreditHint: explain_credit_hint(BLOCKED),
    w.WhySnapshotBlocked: explain_snapshot_blocked(SNAPSHOTS["installing"][0]),
    w.WhyDiskBlocked: explain_disk_blocked(DISKS["stalled"][0]),
    w.WhyQuarantinedEnvelope: explain_quarantined(QUARANTINES["failed"][0]),
}


@pytest.mark.parametrize(("kind", "why"), MIRRORED.items(), ids=[k.__name__ for k in MIRRORED])
def test_the_wire_reads_what_is_written(kind: type[w.ExplanationEnvelope], why: Why) -> None:
    """The JSON is the wire's mirror with members beside it; the same bytes come out again."""
    message = w.decode_json(kind, encode_why(PLACE, why))
    assert message.decision_trace_id == PLACE.decision_trace_id
    assert (message.partition_id, message.routing_epoch) == (7, 3)
    again = json.loads(w.encode_json(message))
    assert again.items() <= written(why).items()


def test_lists_are_pages_of_32_and_the_whole_is_below_32_kib() -> None:
    many = tuple(range(1, 3_000))
    facts = replace(LOST, voters=many, reachable=(1,), has_quorum=False, quorum=1_500)
    encoded = encode_why(PLACE, explain_not_leader(facts))
    page = json.loads(encoded)["involved"]
    assert len(page["ids"]) == 32
    assert page["truncated_ids_count"] == str(2_998 - 32)
    assert page["continuation_token"]
    assert len(encoded) <= w.EXPLAIN_BODY_BYTES_MAX


@pytest.mark.parametrize("question", list(WhyQuestion))
def test_a_question_may_be_spelled_either_way(question: WhyQuestion) -> None:
    kebab = "".join(f"-{c.lower()}" if c.isupper() else c for c in question.removeprefix("Why"))
    assert question_of(question) is question
    assert question_of(kebab.strip("-")) is question
    assert question_of("WhyNot") is None


def written(why: Why) -> Any:
    return json.loads(encode_why(PLACE, why))
