"""A node's telemetry over real replicas: it says what they do, and asking changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from clustor.raft.election import CampaignClause
from clustor.raft.errors import MembershipRefused
from clustor.raft.membership import Change, ChangeKind, Membership
from clustor.raft.reconfiguration import MembershipRequest, Preflight
from clustor.raft.types import ReplicaId, RoutingEpoch
from clustor.replica import Replica
from clustor.runtime.containment import contained
from clustor.runtime.telemetry.spans import Spans
from clustor.telemetry import (
    IncidentClass,
    MetricFamily,
    WhyQuestion,
    rehearse_failover,
    rehearse_move,
)
from clustor.telemetry.tracing import Span
from tests.clustor.replica.harness import PARTITION, Cluster, put
from tests.clustor.runtime.telemetry_stage import NUMBERS, Stage
from tests.clustor.runtime.waiting import until

STALLED = CampaignClause.DEVICE_STALLED
QUESTIONS = [str(question) for question in WhyQuestion]


class KeptSpans(list[Span]):
    """Where spans go in a test."""

    def add(self, span: Span) -> None:
        self.append(span)


def staged(size: int = 3, **changes: object) -> Stage:
    stage = Stage(Cluster(size, **changes))  # type: ignore[arg-type]
    stage.cluster.leader()
    stage.run(1_000)
    return stage


async def test_every_node_of_a_calm_cluster_is_ready() -> None:
    stage = staged()
    stage.run(3_000)
    for node in (1, 2, 3):
        code, body = stage.get(node, "/readyz")
        assert code == 200, body
        assert body["ready"] and body["partition_ready_ratio"] == 1.0
        assert body["definition_bundle_id"] is None
        assert "control plane" in body["absent"]["definition_bundle_id"]
    assert len({stage.get(node, "/readyz")[1]["readiness_digest"] for node in (1, 2, 3)}) == 1


async def test_a_lost_quorum_ends_readiness_everywhere_and_its_return_brings_it_back() -> None:
    stage = staged()
    leader = stage.leader()
    away = [node for node in (1, 2, 3) if node != leader]
    stage.cluster.cut_off = {ReplicaId(node) for node in away}
    stage.run(1_500)
    for node in (1, 2, 3):
        code, body = stage.get(node, "/readyz")
        assert code == 503
        assert body["reasons"] == {"NoLeader": 1}
    code, why = stage.get(leader, f"/groups/{PARTITION}/why/WhyNotLeader")
    assert why["clause"] == "NoQuorum"
    assert why["involved"]["ids"] == [f"replica-{node}" for node in away]
    stage.cluster.cut_off = set()
    stage.run(5_000)
    assert all(stage.get(node, "/readyz")[0] == 200 for node in (1, 2, 3))


async def test_a_leader_whose_followers_disks_stand_still_is_not_ready() -> None:
    """Heartbeats go on and nobody is deposed: only a write that waits shows it."""
    stage = staged()
    leader = stage.cluster.leader()
    assert stage.get(leader.id, "/readyz")[0] == 200
    stuck = [node for node in stage.cluster.nodes.values() if node is not leader]
    stage.cluster.propose(leader, (1, put("a", "1")))
    for _ in range(NUMBERS.unsettled_ms_max // 100 + 15):
        held = [(node, list(node.works)) for node in stuck]
        stage.cluster.now_ms += 100
        for node in stage.cluster.nodes.values():
            stage.cluster.tell(node)
            node.up.tick(stage.cluster.now_ms)
            stage.cluster.turn(node)
        while stage.cluster.mail or leader.works:
            if leader.works:
                stage.cluster.work(leader)
            if stage.cluster.mail:
                stage.cluster.deliver()
        assert all(len(node.works) >= len(works) for node, works in held)
        for node in stage.cluster.nodes.values():
            stage._show(node)
    assert leader.up.leads, "it hears its followers"
    code, body = stage.get(leader.id, "/readyz")
    assert code == 503
    assert set(body["reasons"]) & {"ProofTooOld", "WriteRefused"}


async def test_a_group_at_rest_writes_nothing_and_stays_ready() -> None:
    stage = staged()
    leader = stage.cluster.leader()
    stage.cluster.propose(leader, (1, put("a", "1")))
    stage.run(300)
    before = leader.up.group.core.log.last_index
    stage.run(10 * NUMBERS.unsettled_ms_max)
    assert leader.up.group.core.log.last_index == before
    assert all(stage.get(node, "/readyz")[0] == 200 for node in (1, 2, 3))


async def test_the_scrape_is_read_by_prometheus_own_parser() -> None:
    stage = staged()
    leader = stage.cluster.leader()
    for number in range(5):
        stage.cluster.propose(leader, (2 * number, put("a", "1")), (2 * number + 1, put("b", "2")))
        stage.run(50)
    text = await stage.scrape(leader.id)
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["clustor_raft_requests_total", ()] == 10
    assert found["clustor_raft_batches_total", ()] == 5
    assert found["clustor_raft_role", (("role", "Leader"),)] == 1
    assert found["clustor_raft_elections_won_total", ()] >= 0
    assert found["clustor_raft_commit_latency_ms_count", ()] >= 5
    assert found["metrics_schema_version", ()] == 1


async def test_detail_is_one_series_for_each_group_and_name() -> None:
    stage = staged()
    text = await stage.scrape(1, "/metrics?detail=groups&limit=10")
    assert f'clustor_raft_group_term{{partition="{PARTITION}"}}' in text
    assert "metrics_detail_groups_left_off 0" in text
    behind = await stage.scrape(1, f"/metrics?detail=groups&after={PARTITION}")
    assert "clustor_raft_group_term" not in behind


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("/metrics?detail=tenants", 400),
        ("/metrics?detail=groups&after=x", 400),
        ("/groups/99/why", 404),
        (f"/groups/{PARTITION}/why/WhyNot", 404),
        (f"/groups/{PARTITION}/dry-run/explode", 404),
        (f"/groups/{PARTITION}/dry-run/move", 400),
        (f"/groups/{PARTITION}/dry-run/move?add=x", 400),
        (f"/groups/{PARTITION}/dry-run/failover?to=x", 400),
        ("/incidents?after=x", 400),
        ("/livez", 200),
    ],
)
async def test_bad_questions_get_an_answer_too(target: str, code: int) -> None:
    stage = Stage(Cluster(1))
    assert stage.get(1, target)[0] == code


async def test_pages_of_others_are_left_to_others() -> None:
    stage = Stage(Cluster(1))
    assert stage.telemetry[1].get("/status") is None
    assert stage.telemetry[1].get("/v1/broker/status") is None


async def test_all_six_questions_are_answered_at_once_and_one_by_one() -> None:
    stage = staged()
    _, answers = stage.get(1, f"/groups/{PARTITION}/why")
    assert [each["question"] for each in answers] == QUESTIONS
    traces = set()
    for question in QUESTIONS:
        code, answer = stage.get(1, f"/groups/{PARTITION}/why/{question}")
        assert (code, answer["question"]) == (200, question)
        traces.add(answer["decision_trace_id"])
    assert len(traces) == len(QUESTIONS), "each decision has a trace of its own"
    assert stage.telemetry[1].why(PARTITION, "WhyCreditHint") is not None
    assert stage.telemetry[1].why(PARTITION, "WhyNothing") is None
    assert stage.telemetry[1].why(12345, "WhyCreditHint") is None


@pytest.mark.parametrize("seed", range(6))
async def test_asking_changes_nothing_and_agrees_with_the_gates(seed: int) -> None:
    """Two clusters, one asked all the time, end up equal; and clauses say what the gates do."""
    print(f"seed {seed}")
    ends = []
    for asks in (False, True):
        rng = random.Random(seed)
        cluster = Cluster(3, seed=seed)
        stage = Stage(cluster)
        for _ in range(25):
            if rng.random() < 0.4:
                cluster.cut_off = {ReplicaId(n) for n in rng.sample((1, 2, 3), rng.randrange(3))}
            stage.run(100)
            for node in cluster.nodes.values():
                election = node.up.group.election
                clause = election.campaign_clause()
                if asks:
                    stage.get(node.id, f"/groups/{PARTITION}/why")
                    stage.get(node.id, f"/groups/{PARTITION}/dry-run/failover")
                    stage.get(node.id, f"/groups/{PARTITION}/dry-run/snapshot")
                    stage.get(node.id, "/readyz")
                    await stage.scrape(node.id)
                    assert (clause is None) == election.may_campaign()
        cores = [node.up.group.core for node in cluster.nodes.values()]
        ends.append([(c.hard.term, c.log.last_index, c.commit_index, c.role) for c in cores])
    assert ends[0] == ends[1]


@pytest.mark.parametrize("wait_ms", [0, 2_000])
@pytest.mark.parametrize("target", [1, 2, 3, 9])
async def test_a_rehearsed_failover_is_refused_exactly_as_the_real_one(
    target: int, wait_ms: int
) -> None:
    cluster = Cluster(3)
    leader = cluster.leader()
    cluster.run(wait_ms)
    reachable = {1, 2, 3} - {int(leader.id)}
    numbers = Stage(cluster).nodes[leader.id].groups[PARTITION].admission.numbers.lag
    report = rehearse_failover(leader.up, ReplicaId(target), reachable, numbers)
    refused = leader.up.transfer(ReplicaId(target))
    assert report.refused == (None if refused is None else str(refused.reason))
    assert {each.name for each in report.guardrails} >= {"min_leader_term_ms", "target_lag_entries"}


MOVES = {
    "a voter more": (Change(ChangeKind.ADD_VOTER, ReplicaId(4)), 1, True),
    "a voter less": (Change(ChangeKind.REMOVE, ReplicaId(3)), 1, True),
    "an old epoch": (Change(ChangeKind.ADD_VOTER, ReplicaId(4)), 0, True),
    "nothing changes": (Change(ChangeKind.ADD_VOTER, ReplicaId(2)), 1, True),
    "does not survive": (Change(ChangeKind.REMOVE, ReplicaId(3)), 1, False),
}


@pytest.mark.parametrize(("change", "epoch", "survives"), MOVES.values(), ids=MOVES.keys())
async def test_a_rehearsed_move_is_refused_exactly_as_the_real_one(
    change: Change, epoch: int, survives: bool
) -> None:
    cluster = Cluster(3, spares=1)
    leader = cluster.leader()
    cluster.run(100)
    verdict = Preflight(0.1, survives, b"d" * 32)
    request = MembershipRequest((change,), RoutingEpoch(epoch), verdict)
    numbers = Stage(cluster).nodes[leader.id].groups[PARTITION].admission.numbers.lag
    report = rehearse_move(leader.up, request, numbers)
    before = leader.up.group.core.config
    assert leader.up.group.leadership.reconfiguration.phase == "Idle", "nothing began"
    if report.refused is None:
        leader.up.change_membership(request)
        assert report.after is not None
        return
    with pytest.raises(MembershipRefused) as refused:
        leader.up.change_membership(request)
    assert report.refused == str(refused.value)
    assert leader.up.group.core.config == before


async def test_a_rehearsed_snapshot_begins_when_the_real_one_does() -> None:
    stage = staged()
    leader = stage.cluster.leader()
    stage.cluster.propose(leader, (1, put("a", "1")))
    stage.run(200)
    _, report = stage.get(leader.id, f"/groups/{PARTITION}/dry-run/snapshot")
    assert report["would_begin"]
    covers = leader.up.applied_index
    leader.up.emit_snapshot()
    stage.cluster.turn(leader)
    _, report = stage.get(leader.id, f"/groups/{PARTITION}/dry-run/snapshot")
    assert (report["would_begin"], report["refused"]) == (False, "AnotherIsUnderWay")
    _, why = stage.get(leader.id, f"/groups/{PARTITION}/why/WhySnapshotBlocked")
    assert why["holds"] and why["clause"] == "AnotherIsUnderWay"
    stage.cluster.settle()
    assert leader.up.catalog.newest is not None
    assert leader.up.catalog.newest.manifest.base_index >= covers


async def test_a_stalled_disk_is_an_incident_and_a_why() -> None:
    stage = staged()
    leader = stage.cluster.leader()
    for _ in range(4):
        leader.up.group.fsync_sample(5_000.0)
    stage.cluster.turn(leader)
    stage.run(50)
    _, why = stage.get(leader.id, f"/groups/{PARTITION}/why/WhyDiskBlocked")
    assert (why["holds"], why["reason"]) == (True, "WALDevice")
    _, page = stage.get(leader.id, "/incidents")
    assert str(IncidentClass.DEVICE_STALLED) in {each["class"] for each in page["incidents"]}


async def test_losing_a_leader_is_an_incident_and_never_having_had_one_is_none() -> None:
    stage = Stage(Cluster(3))
    stage.cluster.cut_off = {ReplicaId(2), ReplicaId(3)}
    stage.run(2_000)
    assert stage.get(1, "/incidents")[1]["incidents"] == []
    stage.cluster.cut_off = set()
    stage.run(2_000)
    stage.cluster.cut_off = {ReplicaId(node) for node in (1, 2, 3)}
    stage.run(2_000)
    for node in (1, 2, 3):
        classes = [each["class"] for each in stage.get(node, "/incidents")[1]["incidents"]]
        assert classes.count("LeaderLost") <= 1
    everyone = [stage.get(node, "/incidents")[1]["incidents"] for node in (1, 2, 3)]
    assert any(everyone)


async def test_spans_are_of_batches_and_elections_never_of_messages() -> None:
    kept = KeptSpans()
    stage = Stage(Cluster(1), Spans(kept, batches_per_span=2))
    stage.run(1_000)
    leader = stage.cluster.leader()
    for number in range(6):
        commands = [(100 * number + n, put("k", "v")) for n in range(50)]
        stage.cluster.propose(leader, *commands)
        stage.run(20)
    batches = [each for each in kept if each.name == "clustor.raft.batch"]
    assert len(batches) == 3, "one in two batches, however many messages they hold"
    for span in batches:
        assert span.attributes["requests"] == 50
        assert span.began_ns <= span.ended_ns
    elections = [each for each in kept if each.name == "clustor.raft.election"]
    assert elections and elections[0].attributes["leader"] == 1
    assert len({each.trace_id for each in kept}) == len(kept), "each is a trace of its own"


async def test_after_an_incident_every_batch_has_a_span() -> None:
    kept = KeptSpans()
    spans = Spans(kept, batches_per_span=1_000)
    stage = Stage(Cluster(1), spans)
    stage.run(1_000)
    leader = stage.cluster.leader()
    stage.cluster.propose(leader, (1, put("k", "v")))
    stage.run(20)
    assert not [each for each in kept if "batch" in each.name]
    spans.alerted()
    stage.cluster.propose(leader, (2, put("k", "v")))
    stage.run(20)
    assert [each for each in kept if "batch" in each.name]


async def test_nobody_tells_of_batches_unless_somebody_wants_it() -> None:
    assert Stage(Cluster(1)).telemetry[1].spans is None


async def test_a_node_that_did_not_look_yet_is_not_ready() -> None:
    stage = Stage(Cluster(1))
    code, body = stage.get(1, "/readyz")
    assert (code, body["mode"]) == (503, "Starting")


async def test_voters_that_hang_are_named_though_they_are_connected() -> None:
    stage = staged()
    stage.hang = True
    stage.cluster.cut_off = {ReplicaId(2), ReplicaId(3)}
    stage.run(3_000)
    _, answer = stage.get(1, f"/groups/{PARTITION}/why/WhyNotLeader")
    assert answer["clause"] == "NoAnswers"
    assert "node 2, node 3 can be reached and did not answer" in answer["sentence"]


BARS: dict[str, tuple[Callable[[Replica], object], CampaignClause | None]] = {
    "stalled": (lambda r: setattr(r.group.core, "device_stalled", True), STALLED),
    "damaged": (lambda r: setattr(r.group.core, "damaged", (1, 1)), CampaignClause.DAMAGED),
    "installing": (lambda r: setattr(r.group.core, "installing", 9), CampaignClause.INSTALLING),
    "rejoining": (lambda r: r.group.core.set_hard(rejoin_epoch=1), CampaignClause.REJOINING),
    "no voter": (
        lambda r: setattr(r.group.core, "config", Membership(voters=frozenset({ReplicaId(9)}))),
        CampaignClause.NOT_A_VOTER,
    ),
    "holding off": (lambda r: r.group.election.hold_off(), CampaignClause.HOLDING_OFF),
    "barred": (lambda r: r.group.fallback.bar(None, r.group.core.now_ms), CampaignClause.BARRED),
    "nothing": (lambda _: None, None),
}


@pytest.mark.parametrize(("bar", "clause"), BARS.values(), ids=BARS.keys())
async def test_every_bar_of_a_campaign_has_its_clause(
    bar: Callable[[Replica], object], clause: CampaignClause | None
) -> None:
    cluster = Cluster(3)
    follower = next(n for n in cluster.nodes.values() if n is not cluster.leader())
    bar(follower.up)
    election = follower.up.group.election
    assert election.campaign_clause() is clause
    assert election.may_campaign() is (clause is None)


async def test_a_page_that_cannot_be_made_is_answered_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contained, "raising", False)

    def broken() -> Iterator[MetricFamily | None]:
        yield None
        raise ZeroDivisionError

    stage = Stage(Cluster(1))
    stage.telemetry[1].sources.append(broken)
    answer = stage.telemetry[1].get("/metrics")
    assert callable(answer)
    given: list[tuple[int, object]] = []
    answer(lambda code, content: given.append((code, content)))
    await until(lambda: bool(given), "the page is answered")  # it lets others have the loop
    assert [code for code, _ in given] == [500]
    stage.telemetry[1].more.append(lambda _path, _query: 1 // 0)  # type: ignore[arg-type,return-value]
    assert stage.get(1, "/another")[0] == 500
    assert stage.get(1, "/livez")[0] == 200
