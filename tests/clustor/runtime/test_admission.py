"""A leader admits what its disk, its quorum and its followers hold; else it says why (§10.6)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clustor.flow import (
    SAMPLE_PERIOD_MS,
    CreditLimits,
    LagClass,
    LagNumbers,
    ThrottleReason,
    TuneState,
)
from clustor.flow.credits import STRICT_ONLY_BACKPRESSURE_MS
from clustor.log.types import IoWriterMode
from clustor.raft.group_fsync import QUARANTINE_FLAG
from clustor.raft.profiles import CONSISTENCY_PROFILE, THROUGHPUT, Profile
from clustor.replica import RequestId
from clustor.runtime.admission import FlowNumbers, GroupAdmission
from tests.clustor.replica.harness import TICK_MS, Cluster, Node, put

FEW = CreditLimits(entry_credit_max=20, byte_credit_max=10_000, quantum_bytes_max=200)
NEAR = LagNumbers(
    slack_bytes=1_000,
    transient_bytes_max=10_000,
    transient_duration_ms=2_000,
    structural_bytes=20_000,
    structural_stepdown_ms=1_000,
)


class Stage:
    """Three replicas, the leader's admission, and a hand on disks and mail."""

    def __init__(
        self,
        numbers: FlowNumbers | None = None,
        profile: Profile = CONSISTENCY_PROFILE,
        io_writer_mode: IoWriterMode = IoWriterMode.BLOCKING,
    ) -> None:
        self.cluster = Cluster(3, profile=profile, io_writer_mode=io_writer_mode)
        self.leader = self.cluster.leader()
        self.followers = [n for n in self.cluster.nodes.values() if n is not self.leader]
        self.admission = GroupAdmission(self.leader.up, numbers or FlowNumbers(FEW, NEAR))
        self.requests = 0
        self.cluster.run(100)
        self.look()

    def lag_class(self) -> LagClass:
        return self.admission.verdict.lag_class

    def reason(self) -> ThrottleReason | None:
        return self.admission.reason

    def look(self) -> None:
        self.admission.tick(self.cluster.now_ms)
        self.admission.measure()

    def run(self, duration_ms: int) -> None:
        """Let time pass with disks and mail that work."""
        for _ in range(duration_ms // TICK_MS):
            self.cluster.run(TICK_MS)
            self.look()

    def run_without(self, duration_ms: int, *stuck: Node) -> None:
        """Let time pass while the disks of some do nothing."""
        for _ in range(duration_ms // TICK_MS):
            self.cluster.now_ms += TICK_MS
            for node in self.cluster.nodes.values():
                self.cluster.tell(node)
                node.up.tick(self.cluster.now_ms)
                self.cluster.turn(node)
            for _ in range(20):
                while self.cluster.mail:
                    self.cluster.deliver()
                for node in self.cluster.nodes.values():
                    if node.works and node not in stuck:
                        self.cluster.work(node)
            self.look()

    def offer(self, count: int, size: int = 100) -> int:
        """Offer commands to the leader; return how many it took."""
        taken = 0
        for _ in range(count):
            self.requests += 1
            command = put(f"k{self.requests % 5}", "v" * size)
            if self.admission.admit(len(command)):
                taken += 1
                self.leader.up.propose(RequestId(self.requests), command)
        return taken

    def write(self, count: int) -> None:
        """Let so many commands through, one batch after another."""
        for _ in range(count):
            self.offer(1)
            self.cluster.turn(self.leader)
            self.cluster.settle()
            self.look()


def test_a_calm_group_admits_its_credits_at_once_and_again_when_they_are_safe() -> None:
    stage = Stage()
    assert stage.reason() is None
    assert stage.offer(30) == 21, "twenty entries, and one quantum of this tick"
    assert stage.admission.refused_total == 9
    stage.cluster.turn(stage.leader)
    stage.cluster.settle()
    stage.look()
    assert stage.offer(30) == 21


def test_bytes_are_bounded_as_entries_are() -> None:
    stage = Stage()
    taken = stage.offer(10, size=3_000)
    assert taken == 3, "three times 3 kB fit into 10 kB, and none of them is a small frame"


def test_a_slow_disk_is_the_reason_and_passes() -> None:
    patient = replace(CONSISTENCY_PROFILE, election_timeout_ms=(1_000, 2_000))  # it leads on
    stage = Stage(profile=patient)
    stage.offer(1)
    stage.cluster.turn(stage.leader)
    stage.run_without(300, stage.leader)
    assert stage.reason() is ThrottleReason.WAL_DEVICE
    assert stage.offer(30) < 18
    stage.run(5_000)
    assert stage.leader.up.leads
    assert stage.reason() is None
    assert stage.offer(30) > 18


def test_a_slow_quorum_is_the_reason_and_passes() -> None:
    stage = Stage()
    stage.offer(1)
    stage.cluster.turn(stage.leader)
    stage.run_without(600, *stage.followers)
    assert stage.reason() is ThrottleReason.FOLLOWER_LAG
    assert stage.offer(30) < 18
    stage.run(5_000)
    assert stage.reason() is None


def test_a_follower_that_falls_behind_costs_half_and_then_three_quarters() -> None:
    stage = Stage(FlowNumbers(FEW, NEAR, structural_override=True))
    away = stage.followers[0]
    stage.cluster.cut_off = {away.id}
    stage.write(15)
    stage.run(200)
    assert stage.admission.lags()[away.id].lag_class is LagClass.TRANSIENT
    assert stage.admission.verdict.credit_scale == 0.5
    assert stage.reason() is ThrottleReason.FOLLOWER_LAG
    assert stage.offer(30) <= 11
    stage.cluster.turn(stage.leader)
    stage.write(160)
    stage.run(200)
    assert stage.lag_class() is LagClass.STRUCTURAL
    assert stage.admission.verdict.credit_scale == 0.25
    assert QUARANTINE_FLAG in stage.leader.up.group.leadership.incident_flags
    assert stage.leader.up.catalog.snapshots, "a structural lag asks for a snapshot"
    stage.cluster.cut_off = set()
    stage.run(3_000)
    assert stage.lag_class() is LagClass.NONE
    assert QUARANTINE_FLAG not in stage.leader.up.group.leadership.incident_flags
    assert stage.reason() is None


def test_a_silent_follower_becomes_structural_by_time_alone() -> None:
    stage = Stage()
    away = stage.followers[0]
    stage.cluster.cut_off = {away.id}
    stage.write(15)
    stage.run(1_500)
    assert stage.lag_class() is LagClass.TRANSIENT
    stage.run(1_000)
    assert stage.lag_class() is LagClass.STRUCTURAL


@pytest.mark.parametrize("override", [False, True])
def test_a_leader_steps_down_of_a_structural_lag_unless_overridden(override: bool) -> None:
    stage = Stage(FlowNumbers(FEW, NEAR, structural_override=override))
    stage.cluster.cut_off = {stage.followers[0].id}
    stage.write(15)
    stage.run(4_000)
    assert stage.leader.up.leads == override


def test_a_hard_block_takes_nothing_and_says_so() -> None:
    stage = Stage(FlowNumbers(FEW, NEAR, structural_hard_block=True))
    assert stage.offer(5, size=1) == 0
    assert json.loads(stage.admission.refusal(1))["ingest_status_code"] == "Blocked"


def test_the_envelope_explains_itself() -> None:
    stage = Stage()
    away = stage.followers[0]
    stage.cluster.cut_off = {away.id}
    stage.write(15)
    stage.run(200)
    said = json.loads(stage.admission.refusal(1_700_000_000_000))
    assert said["reason"] == "FollowerLag"
    assert said["credit_hint"] == "Hold"
    assert said["ids"] == [f"replica-{away.id}"]
    assert int(said["retry_after_ms"]) >= 250
    assert said["durability_status_code"] == "Configured"
    assert said["partition_id"] == "7"
    assert stage.admission.refusal(5) is stage.admission.refusal(6), "one for all of a tick"


def test_others_than_the_leader_refuse_nothing() -> None:
    stage = Stage()
    follower = GroupAdmission(stage.followers[0].up, FlowNumbers(FEW, NEAR))
    follower.tick(stage.cluster.now_ms)
    assert all(follower.admit(1_000) for _ in range(100))
    assert follower.reason is None


def test_a_leader_that_the_control_plane_left_alone_for_long_gives_half_the_credits() -> None:
    stage = Stage()
    stage.cluster.control_is_down = True
    fallback = stage.leader.up.group.fallback
    fallback.local_only_since_ms = stage.cluster.now_ms
    stage.offer(1)
    stage.cluster.turn(stage.leader)
    stage.cluster.now_ms += SAMPLE_PERIOD_MS
    stage.look()
    assert stage.admission.verdict.credit_scale == 1.0
    fallback.local_only_since_ms -= STRICT_ONLY_BACKPRESSURE_MS
    stage.offer(1)
    stage.cluster.turn(stage.leader)
    stage.cluster.now_ms += SAMPLE_PERIOD_MS
    stage.look()
    assert stage.admission.verdict.credit_scale == 0.5


def test_the_tuner_waits_for_its_gate() -> None:
    """Clustor §14.2: no auto-tuner before the control plane has opened it."""
    stage = Stage(profile=THROUGHPUT, io_writer_mode=IoWriterMode.FIXED_URING)
    stage.cluster.cut_off = {stage.followers[0].id}  # a group at rest is not looked at
    states = []
    for allowed in (False, True, False):
        stage.admission.allow_tuning(allowed=allowed)
        stage.write(2)
        stage.run(200)
        states.append(stage.admission.tuner.state is TuneState.DISABLED)
    assert states == [True, False, True]


def test_a_signed_override_keeps_a_leader_for_as_long_as_it_is_active() -> None:
    stage = Stage()
    stage.admission.override_structural(active=True)
    stage.cluster.cut_off = {stage.followers[0].id}
    stage.write(250)
    stage.run(3_000)
    assert stage.lag_class() is LagClass.STRUCTURAL
    assert stage.leader.up.leads
    term = stage.leader.up.group.core.hard.term
    stage.admission.override_structural(active=False)
    stage.run(3_000)
    assert stage.leader.up.group.core.hard.term > term, "it stepped down"
