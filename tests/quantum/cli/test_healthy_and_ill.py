"""Healthy looks healthy, ill looks ill: each state by each question, one cause, one next step."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from clustor.flow import CreditHint, IngestStatus, ThrottleReason
from clustor.log.types import DurabilityMode
from clustor.replica.snapshots import EmissionClause
from clustor.telemetry import (
    CreditFacts,
    DiskFacts,
    LeadingFacts,
    ModeReading,
    QuarantineFacts,
    SnapshotFacts,
    Why,
    explain_credit_hint,
    explain_credit_zero,
    explain_disk_blocked,
    explain_mode,
    explain_not_leader,
    explain_quarantined,
    explain_snapshot_blocked,
)
from quantum.cli import broker
from quantum.cli.status_table import gate_words
from quantum.cli.why import client_lines, group_lines, is_ill
from quantum.node.client_causes import ClientFacts, Ill, explain_client
from tests.clustor.telemetry.test_why import CREDITS, DISK, FINE, LEADS, LOST, SNAPSHOT

MODE = ModeReading(
    leads=True,
    leader_id=1,
    mode=DurabilityMode.STRICT,
    epoch=1,
    placed_mode=None,
    placed_epoch=0,
    clause=None,
    clamped=False,
)


@dataclass(frozen=True)
class State:
    """One node's group in some state, as each of its parts sees it."""

    leading: LeadingFacts = LEADS
    credit: CreditFacts = CREDITS
    snapshot: SnapshotFacts = SNAPSHOT
    disk: DiskFacts = DISK
    quarantine: QuarantineFacts = FINE
    mode: ModeReading = MODE
    closed: dict[str, str] = field(default_factory=dict)
    gate: tuple[str, str] = ("Open", "None")
    cause: str = ""
    """What every question must name, where it is asked about it."""

    def whys(self) -> list[Why]:
        return [
            explain_not_leader(self.leading),
            explain_credit_zero(self.credit),
            explain_credit_hint(self.credit),
            explain_snapshot_blocked(self.snapshot),
            explain_disk_blocked(self.disk),
            explain_quarantined(self.quarantine),
            explain_mode(self.mode),
        ]


FULL = replace(
    CREDITS,
    reason=ThrottleReason.DISK_HARD,
    ingest=IngestStatus.BLOCKED,
    hint=CreditHint.SHED,
    credit_share=0.0,
)
STOPPED = "the disk failed"
HEALTHY: dict[str, State] = {
    "at rest": State(),
    "written since its last proof": State(gate=("Shut", "ControlPlaneProofMismatch")),
    "a commit that is being logged": State(gate=("Shut", "IndexInequality")),
    "a snapshot is under way": State(snapshot=replace(SNAPSHOT, clause=EmissionClause.BUSY)),
    "a snapshot waits": State(snapshot=replace(SNAPSHOT, clause=EmissionClause.WAITS_FOR_QUORUM)),
    "nothing new to cover": State(snapshot=replace(SNAPSHOT, clause=EmissionClause.NOTHING_NEW)),
    "slowed a little": State(
        credit=replace(CREDITS, reason=ThrottleReason.FOLLOWER_LAG, credit_share=0.5)
    ),
    "a fence on its way": State(
        mode=replace(MODE, placed_mode=DurabilityMode.STRICT, placed_epoch=2)
    ),
}
ILL: dict[str, State] = {
    "the disk is full": State(
        credit=FULL, disk=replace(DISK, level="DiskHard", free_bytes=7), cause="bytes are free"
    ),
    "the disk hangs": State(
        credit=replace(FULL, reason=ThrottleReason.WAL_DEVICE),
        disk=replace(DISK, device_stalled=True, violations=3),
        cause="the disk counts as stalled",
    ),
    "the group has stopped": State(
        leading=replace(LOST, failed=STOPPED),
        credit=replace(CREDITS, leads=False, leader_id=None),
        snapshot=replace(SNAPSHOT, failed=STOPPED),
        disk=replace(DISK, failed=STOPPED),
        quarantine=replace(FINE, failed=STOPPED),
        cause=STOPPED,
    ),
    "in quarantine": State(
        quarantine=replace(FINE, ordered=("Administrative", "ticket 7")), cause="ticket 7"
    ),
    "too much at once": State(
        credit=replace(
            CREDITS,
            entry_credits=0,
            ingest=IngestStatus.TRANSIENT_BACKPRESSURE,
            hint=CreditHint.HOLD,
        ),
        cause="more writes are under way",
    ),
    "no quorum": State(
        leading=replace(LOST, reachable=(1,), has_quorum=False),
        credit=replace(CREDITS, leads=False, leader_id=None),
        cause="no connection to node 2, node 3",
    ),
    "the control plane is away": State(
        closed={
            "a subscription": "PERMANENT_DURABILITY: ControlPlaneUnavailable{CacheExpired}",
            "a publish": "PERMANENT_DURABILITY: ControlPlaneUnavailable{CacheExpired}",
        },
        gate=("Shut", "ControlPlaneCacheExpired"),
        cause="CacheExpired",
    ),
}
NOT_OF_A_GROUP = {"the control plane is away"}


def group_page(state: State) -> list[dict[str, Any]]:
    names = ("holds", "clause", "sentence", "remedy")
    return [
        {"question": why.question.value, **{name: getattr(why, name) for name in names}}
        for why in state.whys()
    ]


def client_page(state: State) -> dict[str, Any]:
    """A client whose partition is in this state, as its node answers."""
    serves = state.leading.leads
    facts = ClientFacts("c", "dev", 0, 1000, state.leading.leader_id, serves, serves, serves)
    facts.is_connected, facts.has_session, facts.subscriptions = serves, True, 1
    facts.closed = state.closed
    whys = {why.question.value: why for why in state.whys()}
    facts.group_sentence = whys["WhyNotLeader"].sentence
    ills = [whys[each] for each in ("WhyDiskBlocked", "WhyQuarantined", "WhyCreditZero")]
    facts.ills = [Ill(0, why.sentence, why.remedy) for why in ills if why.holds][:1]
    names = ("clause", "sentence", "remedy", "is_wrong")
    return {
        "served_here": serves,
        "connected": serves,
        "partition": 0,
        "tenant": "dev",
        "group": 1000,
        "causes": [{name: getattr(each, name) for name in names} for each in explain_client(facts)],
    }


def broker_page(state: State) -> dict[str, Any]:
    failed = state.disk.failed
    return {
        "stopped": [{"group": 1000, "cause": failed}] if failed else [],
        "disk": {"level": state.disk.level, "free_bytes": state.disk.free_bytes},
        "closed": sorted(set(state.closed.values())),
    }


@pytest.mark.parametrize("state", HEALTHY.values(), ids=HEALTHY)
class TestHealthy:
    def test_why_a_group(self, state: State) -> None:
        lines = list(group_lines(1000, {1: group_page(state)}))
        assert lines[0] == "group 1000: node 1 leads, and nothing is wrong"
        assert not any("→" in line or "Why" in line for line in lines), lines
        assert "writes are admitted (" in lines[1]

    def test_why_a_client(self, state: State) -> None:
        lines = list(client_lines("c", {1: client_page(state)}))
        assert "nothing stands in its way" in lines[1]
        assert not any("→" in line for line in lines), lines

    def test_the_status_of_a_cluster_and_of_a_broker(self, state: State) -> None:
        gate, clause = state.gate
        assert gate_words({"gate": gate, "failed_clause": clause}) == "gate open"
        assert broker._problems(broker_page(state)) == []


@pytest.mark.parametrize("name", ILL)
class TestIll:
    def test_why_a_group(self, name: str) -> None:
        if name in NOT_OF_A_GROUP:
            pytest.skip("a group's gate says it: see its status")
        state = ILL[name]
        lines = list(group_lines(1000, {1: group_page(state)}))
        assert "nothing is wrong" not in lines[0]
        causes = [line for line in lines[1:] if "→" not in line]
        steps = [line for line in lines[1:] if "→" in line]
        assert (len(causes), len(steps)) == (1, 1), lines
        assert state.cause in causes[0]

    def test_why_a_client(self, name: str) -> None:
        state = ILL[name]
        lines = list(client_lines("c", {1: client_page(state)}))
        assert "nothing stands in its way" not in "\n".join(lines)
        assert state.cause in lines[1], lines
        assert lines[2].strip().startswith("→"), lines

    def test_the_status_says_so_where_it_is_the_node_s(self, name: str) -> None:
        state = ILL[name]
        problems = broker._problems(broker_page(state))
        is_said = name in ("the disk is full", "the group has stopped", "the control plane is away")
        assert len(problems) == is_said, problems
        assert all(re.search("; (make|mend|bring)", each) for each in problems)
        gate, clause = state.gate
        shut = gate_words({"gate": gate, "failed_clause": clause})
        assert shut == ("gate open" if gate == "Open" else f"gate shut: {clause}")


def test_whatever_holds_and_is_no_daily_work_has_a_next_step() -> None:
    for name, state in ILL.items():
        for each in group_page(state):
            if is_ill(each, is_led=state.leading.leads):
                assert each["remedy"], (name, each)
