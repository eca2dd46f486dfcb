"""A node's telemetry: it looks on while the node works, and answers on the admin port.

    /livez  /readyz  /metrics[?detail=groups]  /incidents
    /groups/<n>/why[/<question>]  /groups/<n>/dry-run/<move|snapshot|failover>

What is decided is decided in `clustor.telemetry`; here are the clock, the loop and the words.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import parse_qs, urlsplit

import msgspec

from clustor.control.cache import Moment
from clustor.flow import IngestStatus, LagClass, hint_for, ingest_status
from clustor.log.types import PartitionId
from clustor.raft.errors import MembershipRefused
from clustor.raft.output import Note, NoteKind, RoleChange
from clustor.raft.types import ReplicaId, Role
from clustor.replica import Applied, Refused, ReplicaOutput
from clustor.runtime.admin import Later
from clustor.runtime.admin_commands import Answer
from clustor.runtime.hosted_group import HostedGroup
from clustor.runtime.http_head import Text
from clustor.runtime.members import WantedChange, request_for
from clustor.runtime.telemetry_metrics import Detail, Source, scrape
from clustor.runtime.telemetry_spans import Spans, spans_from_environment
from clustor.runtime.telemetry_why import GroupWhy
from clustor.telemetry import (
    CONTENT_TYPE,
    CanaryNumbers,
    CanaryWatch,
    CommitClock,
    DryRun,
    DryRunReport,
    Family,
    GroupSight,
    IncidentClass,
    IncidentLog,
    NodeMeters,
    Question,
    ReadyBody,
    Verdict,
    counter,
    detail_families,
    dry_run_named,
    encode_families,
    encode_why,
    gauge,
    question_of,
    ready_body,
    rehearse_failover,
    rehearse_move,
    rehearse_snapshot,
)
from clustor.telemetry.control_report import control_members

if TYPE_CHECKING:
    from clustor.runtime.node import Node

LOOK_MS: Final = 100
STEP_SECONDS_MAX: Final = 0.005
DETAIL_GROUPS_MAX: Final = 2_500
INCIDENTS_PAGE_MAX: Final = 100
CANARY_VARIABLE: Final = "CLUSTOR_CANARY_MS"

_GROUP_PATH: Final = re.compile(r"/groups/([1-9][0-9]{0,19})/(why|dry-run)(?:/([A-Za-z_-]{1,40}))?")
_INCIDENT_OF_NOTE: Final = {
    NoteKind.LOG_DAMAGED: IncidentClass.LOG_DAMAGED,
    NoteKind.COMMITTED_CONFLICT: IncidentClass.COMMITTED_CONFLICT,
    NoteKind.CONTROL_PLANE_PROOF_CONFLICT: IncidentClass.PROOF_CONFLICT,
    NoteKind.DURABILITY_MODE_EPOCH_CONFLICT: IncidentClass.EPOCH_CONFLICT,
    NoteKind.STRICT_FALLBACK_DEMOTED: IncidentClass.STRICT_FALLBACK_DEMOTED,
    NoteKind.CLOCK_GUARD_ALARM: IncidentClass.CLOCK_GUARD_ALARM,
    NoteKind.DEVICE_STALLED: IncidentClass.DEVICE_STALLED,
    NoteKind.MEMBERSHIP_ROLLED_BACK: IncidentClass.MEMBERSHIP_ROLLED_BACK,
    NoteKind.LEASE_GAP_EXCEEDED: IncidentClass.LEASE_GAP_EXCEEDED,
}

MorePages: TypeAlias = Callable[[str, dict[str, str]], Answer | None]

journal = logging.getLogger("clustor.telemetry")


def canary_numbers() -> CanaryNumbers:
    """Return how often idle groups prove themselves; the environment may say otherwise."""
    text = os.environ.get(CANARY_VARIABLE, "")
    if text.isdigit() and int(text) >= 100:
        return CanaryNumbers(period_ms=int(text))
    return CanaryNumbers()


class _Watched:
    """What is kept for one group between its outputs."""

    __slots__ = ("clock", "installing_since", "was_led")

    def __init__(self, meters: NodeMeters) -> None:
        self.clock = CommitClock(meters.commit_latency_ms)
        self.installing_since: float | None = None
        self.was_led = False  # a leader was known once: to lose one is news


class NodeTelemetry:
    """The telemetry of one node. Nothing of the node depends on it."""

    def __init__(
        self, node: Node, numbers: CanaryNumbers | None = None, spans: Spans | None = None
    ) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self.meters = NodeMeters()
        self.canaries = CanaryWatch(numbers or canary_numbers())
        self.incidents = IncidentLog()
        self.whys = GroupWhy(node)
        self.sources: list[Source] = []
        """Who else has series: services add theirs."""
        self.more: list[MorePages] = []
        """Who else answers: a path and its query, or None."""
        self.spans = spans if spans is not None else spans_from_environment(int(node.node_id))
        self._watched: dict[HostedGroup, _Watched] = {}
        self._looked_ms = 0
        self._lag_classes: dict[HostedGroup, LagClass] = {}
        self._began = time.monotonic()

    def why(self, group: int, question: str) -> object | None:
        """Answer as `WhyPort` promises."""
        return self.whys.why(group, question)

    # What the node does.

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """See what a group put out: once for each group and turn, so it is short."""
        watched = self._watched.get(group) or self._meet(group)
        replica = group.replica
        core = replica.group.core
        now = time.perf_counter()
        if core.role is Role.LEADER:
            watched.clock.looked(core.hard.term, core.log.last_index, core.wal_committed_index, now)
        if output.replies:
            self._count_replies(output)
        if replica.apply_seconds:
            self._count_applies(replica.apply_seconds)
        if core.installing is not None or watched.installing_since is not None:
            self._time_install(watched, now, is_on=core.installing is not None)
        if output.role is not None:
            self._on_role(group, watched, output.role)
        for note in output.notes:
            self._on_note(group, note)
        if output.failed is not None:
            self._alert(IncidentClass.GROUP_FAILED, group, {"failed": output.failed})
        if self.spans is not None:
            self.spans.on_output(group, output)

    def _meet(self, group: HostedGroup) -> _Watched:
        group.meters = self.meters
        watched = self._watched[group] = _Watched(self.meters)
        return watched

    def _count_replies(self, output: ReplicaOutput) -> None:
        meters = self.meters
        for outcome in output.replies:
            if isinstance(outcome, Applied):
                meters.batches += 1
                meters.requests += len(outcome.request_ids)
                meters.batch_requests.observe(len(outcome.request_ids))
            else:
                reason = outcome.reason if isinstance(outcome, Refused) else type(outcome).__name__
                refused = meters.refused
                refused[reason] = refused.get(reason, 0) + len(outcome.request_ids)

    def _count_applies(self, seconds: list[float]) -> None:
        for each in seconds:
            self.meters.apply_batch_latency_ms.observe(each * 1000)
        seconds.clear()

    def _time_install(self, watched: _Watched, now: float, *, is_on: bool) -> None:
        if is_on and watched.installing_since is None:
            watched.installing_since = now
        elif not is_on and watched.installing_since is not None:
            self.meters.transfer_seconds.observe(now - watched.installing_since)
            watched.installing_since = None

    def _on_role(self, group: HostedGroup, watched: _Watched, change: RoleChange) -> None:
        meters = self.meters
        meters.role_changes[change.role] = meters.role_changes.get(change.role, 0) + 1
        if change.role is Role.LEADER:
            meters.elections_won += 1
        elif change.reason in ("vote lost", "pre-vote lost"):
            meters.elections_lost += 1
        if change.leader_id is not None:
            watched.was_led = True
        elif watched.was_led and change.role is Role.PRE_CANDIDATE:
            self._alert(IncidentClass.LEADER_LOST, group, {"term": str(change.term)})

    def _on_note(self, group: HostedGroup, note: Note) -> None:
        notes = self.meters.notes
        notes[note.kind] = notes.get(note.kind, 0) + 1
        if note.kind is NoteKind.STEPPED_DOWN:
            self.meters.step_downs += 1
        kind = _INCIDENT_OF_NOTE.get(note.kind)
        if kind is not None:
            self._alert(kind, group, {name: str(value) for name, value in note.facts})

    def _alert(self, kind: IncidentClass, group: HostedGroup, facts: dict[str, str]) -> None:
        partition = int(group.partition_id)
        verdict = self.incidents.alert(
            kind,
            partition,
            self._node.now_ms(),
            active_partitions=len(self._node.groups),
            facts=facts,
        )
        if verdict is Verdict.TOLD:
            extra = {"facts": {"incident": str(kind), "partition_id": partition, **facts}}
            journal.warning("incident %s of group %d", kind, partition, extra=extra)
            if self.spans is not None:
                self.spans.alerted()

    # Time.

    def on_tick(self, now_ms: int) -> None:
        """Look at every group once in a while, and let idle leaders prove that they can write."""
        if now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        groups = self._node.groups
        sights = [_sight(group) for group in groups.values()]
        for partition in self.canaries.look(sights, now_ms):
            group = groups[PartitionId(partition)]
            answer = group.replica.propose_canary()
            if isinstance(answer, str):
                self.canaries.refused(partition, answer)
            else:
                self.canaries.wrote(partition)
        for group in groups.values():
            if group.admission.verdict.lag_class is LagClass.STRUCTURAL:
                self._alert(IncidentClass.STRUCTURAL_LAG, group, {})

    # Pages.

    def get(self, target: str) -> Answer | Later | None:
        """Answer a GET, or return None for a page that is not ours."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        match parts.path:
            case "/livez":
                return 200, {"alive": True, "node_id": int(self._node.node_id)}
            case "/readyz":
                return self._readyz()
            case "/metrics":
                return self._metrics(query)
            case "/incidents":
                return self._incidents(query)
        found = _GROUP_PATH.fullmatch(parts.path)
        if found is not None:
            return self._group(found, query)
        answers = (each(parts.path, query) for each in self.more)
        return next((answer for answer in answers if answer is not None), None)

    def post(self, target: str) -> Answer | None:
        """Nothing here is ordered."""
        del target
        return None

    def _readyz(self) -> Answer:
        node = self._node
        readiness = self.canaries.readiness(map(int, node.groups), node.now_ms())
        members, absent = self._ready_members()
        mode = "Serving" if self._looked_ms else "Starting"
        mode = "Stopping" if node.stopping else mode
        body = ReadyBody(int(node.node_id), mode, members, absent)
        ready, content = ready_body(body, readiness, self.canaries.numbers)
        return (200 if ready else 503), content

    def _ready_members(self) -> tuple[dict[str, object], dict[str, str]]:
        groups = list(self._node.groups.values())
        moment = Moment(self._node.now_ms(), time.time_ns() // 1_000_000)
        control = self._node.control
        members, absent = control_members(None if control is None else control.cache, moment)
        ingest, hints = _flow_summary(groups)
        members |= {
            "epochs": _epochs(groups),
            "ingest_status": ingest,
            "credit_hints": hints,
            "io_writer_mode": self._node.disk.mode.name,
            "boot": {
                "selftest": "passed",  # a node whose vectors fail does not start
                "scrub_findings": sum(len(group.replica.findings) for group in groups),
            },
            "fixtures.bundle_version": None,
            "fixtures.bundle_age_ms": None,
            "uptime_ms": int((time.monotonic() - self._began) * 1000),
        }
        no_bundle = "this build ships no fixture bundle"
        absent |= dict.fromkeys(("fixtures.bundle_version", "fixtures.bundle_age_ms"), no_bundle)
        return members, absent

    def _metrics(self, query: dict[str, str]) -> Answer | Later:
        detail = None
        if "detail" in query:
            after, limit = query.get("after", "0"), query.get("limit", str(DETAIL_GROUPS_MAX))
            if query["detail"] != "groups" or not (after.isdigit() and limit.isdigit()):
                return 400, {"error": "detail=groups, with numbers for after and limit"}
            detail = Detail(int(after), min(int(limit), DETAIL_GROUPS_MAX))
        return lambda finish: self._scrape(detail, finish)

    def _scrape(self, detail: Detail | None, finish: Callable[[int, object], None]) -> None:
        """Read everything in steps of a few milliseconds; the groups' clocks go on between."""
        began = time.perf_counter()
        families: list[Family] = []
        work = scrape(self._node, self.meters, [self._own_families, *self.sources], detail)

        def step() -> None:
            until = time.perf_counter() + STEP_SECONDS_MAX
            for each in work:
                if each is not None:
                    families.append(each)
                elif time.perf_counter() >= until:
                    self._loop.call_soon(step)
                    return
            took = time.perf_counter() - began
            families.append(gauge("metrics.scrape_seconds", took, "To read all of this"))
            self._send(families, detail, finish)

        step()

    def _send(
        self,
        families: list[Family],
        detail: Detail | None,
        finish: Callable[[int, object], None],
    ) -> None:
        """Write what was read; a long text beside the loop: nobody changes what it is made of."""
        if detail is None:
            finish(200, Text(encode_families(families), CONTENT_TYPE))
            return

        def encode() -> bytes:
            return encode_families([*families, *detail_families(detail.readings, detail.left_off)])

        encoding = self._loop.run_in_executor(None, encode)
        encoding.add_done_callback(lambda done: finish(200, Text(done.result(), CONTENT_TYPE)))

    def _own_families(self) -> Iterator[Family]:
        log = self.incidents
        yield counter("clustor.raft.canaries_total", self.canaries.written_total, "Proofs written")
        yield counter("clustor.raft.incidents_total", log.told_total, "Incidents told")
        yield counter("clustor.raft.incidents_held_back_total", log.held_back_total, "Not told")
        hosted, now_ms = map(int, self._node.groups), self._node.now_ms()
        waiting = sum(not each.ready for each in self.canaries.readiness(hosted, now_ms))
        yield gauge("clustor.raft.groups_not_ready", waiting, "Groups without a fresh proof")

    def _incidents(self, query: dict[str, str]) -> Answer:
        after = query.get("after", "0")
        if not after.isdigit():
            return 400, {"error": "after is the number of an incident"}
        found = self.incidents.page(after=int(after), limit=INCIDENTS_PAGE_MAX)
        now_ms, wall_ms = self._node.now_ms(), time.time_ns() // 1_000_000
        rows = [
            {
                "number": each.number,
                "class": each.kind,
                "safety_critical": each.safety_critical,
                "at_ms": wall_ms - (now_ms - each.at_ms),
                "partitions": each.partitions,
                "partitions_left_off": each.partitions_left_off,
                "facts": each.facts,
                "repeats": each.repeats,
            }
            for each in found
        ]
        return 200, {"incidents": rows, "held_back_total": self.incidents.held_back_total}

    def _group(self, found: re.Match[str], query: dict[str, str]) -> Answer:
        group = self._node.groups.get(PartitionId(int(found[1])))
        if group is None:
            return 404, {"error": "no such group is hosted here", "group": int(found[1])}
        if found[2] == "why":
            return self._why(group, found[3])
        wanted = dry_run_named(found[3] or "")
        if wanted is None:
            names = [str(each) for each in DryRun]
            return 404, {"error": "no such dry run", "dry_runs": names}
        try:
            return 200, _report(group, self._rehearse(wanted, group, query))
        except (ValueError, msgspec.MsgspecError) as error:
            return 400, {"error": str(error)}

    def _why(self, group: HostedGroup, asked: str | None) -> Answer:
        if asked is None:
            pairs = (self.whys.explain(group, each) for each in Question)
            return 200, [msgspec.Raw(encode_why(place, why)) for place, why in pairs]
        question = question_of(asked)
        if question is None:
            return 404, {"error": "no such question", "questions": [str(q) for q in Question]}
        return 200, encode_why(*self.whys.explain(group, question))

    def _rehearse(self, wanted: DryRun, group: HostedGroup, query: dict[str, str]) -> DryRunReport:
        replica, numbers = group.replica, group.admission.numbers.lag
        if wanted is DryRun.SNAPSHOT:
            return rehearse_snapshot(replica)
        if wanted is DryRun.FAILOVER:
            target = ReplicaId(int(query["to"])) if "to" in query else None
            reachable = {int(peer) for peer in self._node.transport.connected()}
            return rehearse_failover(replica, target, reachable, numbers)
        kind = next((each for each in ("add", "remove") if each in query), None)
        if kind is None:
            raise ValueError("a move needs ?add=NODE or ?remove=NODE")
        change = msgspec.convert({"kind": kind, "node_id": int(query[kind])}, WantedChange)
        try:
            return rehearse_move(replica, request_for(group, change), numbers)
        except MembershipRefused as error:
            sentence = f"it would be refused: {error}"
            return DryRunReport(DryRun.MOVE_PARTITION, str(error), sentence)


def _sight(group: HostedGroup) -> GroupSight:
    replica = group.replica
    core = replica.group.core
    fsynced = min(core.commit_index, core.local_wal_durable_index)
    return GroupSight(
        int(group.partition_id),
        core.hard.term,
        leads=replica.leads,
        has_leader=core.leader_id is not None,
        ready=replica.ready or replica.failed is not None,
        failed=replica.failed,
        rejoining=core.hard.rejoining,
        proven_index=core.wal_committed_index if replica.leads else fsynced,
        ingest_blocked=group.admission.verdict.credit_scale == 0.0,
    )


def _epochs(groups: list[HostedGroup]) -> dict[str, int]:
    hard = [group.replica.group.core.hard for group in groups]
    return {
        "term_max": max((each.term for each in hard), default=0),
        "routing_epoch_max": max((each.routing_epoch for each in hard), default=0),
        "durability_mode_epoch_max": max((each.durability_mode_epoch for each in hard), default=0),
    }


def _flow_summary(groups: list[HostedGroup]) -> tuple[str, dict[str, int]]:
    """Return the worst ingest status of the groups that this node leads, and their hints."""
    order = list(IngestStatus)
    worst, hints = IngestStatus.HEALTHY, dict[str, int]()
    for group in groups:
        if group.replica.leads:
            admission = group.admission
            status = ingest_status(admission.credits, admission.verdict)
            worst = max(worst, status, key=order.index)
            hint = str(hint_for(admission.credits, admission.verdict))
            hints[hint] = hints.get(hint, 0) + 1
    return str(worst), hints


def _report(group: HostedGroup, report: DryRunReport) -> dict[str, object]:
    core = group.replica.group.core
    return {
        "schema_version": 1,
        "generated_at": time.time_ns() // 1_000_000,
        "partition_id": int(group.partition_id),
        "routing_epoch": core.hard.routing_epoch,
        "durability_mode_epoch": core.hard.durability_mode_epoch,
        "decision_trace_id": f"{core.id}-{core.hard.term}-{core.now_ms}",
        "dry_run": report.dry_run,
        "would_begin": report.refused is None,
        "refused": report.refused,
        "sentence": report.sentence,
        "guardrail_deltas": report.guardrails,
        "predicted_credit_share": report.predicted_credit_share,
        "predicted_ms": report.predicted_ms,
        "after": report.after,
    }


class RepairPages:
    """What a node in repair mode says: alive, and not ready."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id

    def get(self, target: str) -> Answer | None:
        path = urlsplit(target).path
        if path == "/livez":
            return 200, {"alive": True, "node_id": self._node_id}
        if path == "/readyz":
            reason = "the node runs in repair mode: partitions are read-only"
            return 503, {
                "ready": False,
                "mode": "Repair",
                "reasons": {"RepairMode": 1},
                "detail": reason,
                "node_id": self._node_id,
            }
        return None

    def post(self, target: str) -> Answer | None:
        """Nothing here is ordered."""
        del target
        return None
