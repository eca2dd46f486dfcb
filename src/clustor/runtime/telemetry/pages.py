"""The pages of a node's telemetry: what it saw, and what its groups say when they are asked."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias
from urllib.parse import parse_qs, urlsplit

import msgspec

from clustor.control.cache import ClockReading
from clustor.flow import IngestStatus, hint_for, ingest_status
from clustor.log.types import PartitionId
from clustor.raft.errors import MembershipRefused
from clustor.raft.types import ReplicaId
from clustor.runtime.admin.commands import Answer
from clustor.runtime.admin.http import Text
from clustor.runtime.admin.ports import Later
from clustor.runtime.admin.status import mode_of
from clustor.runtime.containment import contained
from clustor.runtime.group import HostedGroup
from clustor.runtime.members import WantedChange, request_for
from clustor.runtime.telemetry.doctor import doctor_facts
from clustor.runtime.telemetry.metrics import Detail, Source, scrape
from clustor.runtime.telemetry.why import GroupWhy
from clustor.telemetry import (
    CONTENT_TYPE,
    DryRun,
    DryRunReport,
    IncidentLog,
    MetricFamily,
    NodeMeters,
    ReadinessWatch,
    ReadyBody,
    WhyQuestion,
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
from clustor.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from clustor.runtime.node import Node

MorePages: TypeAlias = Callable[[str, dict[str, str]], Answer | None]

STEP_SECONDS_MAX: Final = 0.005
DETAIL_GROUPS_MAX: Final = 2_500
INCIDENTS_PAGE_MAX: Final = 100

_GROUP_PATH: Final = re.compile(r"/groups/([1-9][0-9]{0,19})/(why|dry-run)(?:/([A-Za-z_-]{1,40}))?")
_DIGITS_MAX: Final = 18
_BROKEN: Final[Answer] = (500, {"error": "this page could not be made: see the journal"})


class WatchedNode(Protocol):
    """What was seen of a node, and who else has pages and series."""

    meters: NodeMeters
    readiness: ReadinessWatch
    incidents: IncidentLog
    whys: GroupWhy
    sources: list[Source]
    more: list[MorePages]

    @property
    def has_looked(self) -> bool: ...


class TelemetryPages:
    """Answers for one node's telemetry."""

    def __init__(self, node: Node, watch: WatchedNode) -> None:
        self._node = node
        self._watch = watch
        self._loop = asyncio.get_running_loop()
        self._began = time.monotonic()

    def get(self, target: str) -> Answer | Later | None:
        """Answer a GET, or return None for a page that is not ours.

        Whatever goes wrong here is answered: who only looks must not end what it looks at.
        """
        try:
            return self._page(target)
        except Exception as error:  # noqa: BLE001  # it is one page that cannot be made
            contained.caught("telemetry", "", error)
            return _BROKEN

    def _page(self, target: str) -> Answer | Later | None:
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        match parts.path:
            case "/livez" | "/healthz":
                return 200, {"alive": True, "node_id": int(self._node.node_id)}
            case "/readyz":
                return self._readyz()
            case "/metrics":
                return self._metrics(query)
            case "/doctor":
                return 200, doctor_facts(self._node)
            case "/incidents":
                return self._incidents(query)
        found = _GROUP_PATH.fullmatch(parts.path)
        if found is not None:
            return self._group(found, query)
        answers = (each(parts.path, query) for each in self._watch.more)
        return next((answer for answer in answers if answer is not None), None)

    def _readyz(self) -> Answer:
        node = self._node
        readiness = self._watch.readiness.readiness(map(int, node.groups), node.now_ms())
        members, absent = self._ready_members()
        mode = mode_of(node) if self._watch.has_looked else "Starting"
        body = ReadyBody(int(node.node_id), mode, members, absent)
        ready, content = ready_body(body, readiness, self._watch.readiness.numbers)
        return (200 if ready else 503), content

    def _ready_members(self) -> tuple[dict[str, object], dict[str, str]]:
        groups = list(self._node.groups.values())
        moment = ClockReading(self._node.now_ms(), wall_clock_ms())
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
                "scrub_states": _scrub_states(groups),
                "truncated_bytes": sum(group.replica.truncated_bytes for group in groups),
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
            if query["detail"] != "groups" or not (is_number(after) and is_number(limit)):
                return 400, {"error": "detail=groups, with numbers for after and limit"}
            detail = Detail(int(after), min(int(limit), DETAIL_GROUPS_MAX))
        return lambda finish: self._scrape(detail, finish)

    def _scrape(self, detail: Detail | None, finish: Callable[[int, object], None]) -> None:
        """Read everything in steps of a few milliseconds; the groups' clocks go on between."""
        began = time.perf_counter()
        families: list[MetricFamily] = []
        work = scrape(
            self._node, self._watch.meters, [self._own_families, *self._watch.sources], detail
        )

        def step() -> None:
            try:
                go_on()
            except Exception as error:  # noqa: BLE001  # it is one scrape that cannot be made
                contained.caught("telemetry", "", error)
                finish(*_BROKEN)

        def go_on() -> None:
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
        families: list[MetricFamily],
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

        def encoded(done: asyncio.Future[bytes]) -> None:
            answer = (200, Text(done.result(), CONTENT_TYPE)) if not done.exception() else _BROKEN
            finish(*answer)

        encoding.add_done_callback(encoded)

    def _own_families(self) -> Iterator[MetricFamily]:
        log = self._watch.incidents
        yield counter("clustor.raft.incidents_total", log.told_total, "Incidents told")
        yield counter("clustor.raft.incidents_held_back_total", log.held_back_total, "Not told")
        hosted, now_ms = map(int, self._node.groups), self._node.now_ms()
        waiting = sum(not each.ready for each in self._watch.readiness.readiness(hosted, now_ms))
        yield gauge("clustor.raft.groups_not_ready", waiting, "Groups that are not ready")

    def _incidents(self, query: dict[str, str]) -> Answer:
        after = query.get("after", "0")
        if not is_number(after):
            return 400, {"error": "after is the number of an incident"}
        found = self._watch.incidents.page(after=int(after), limit=INCIDENTS_PAGE_MAX)
        now_ms, wall_ms = self._node.now_ms(), wall_clock_ms()
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
        return 200, {"incidents": rows, "held_back_total": self._watch.incidents.held_back_total}

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
            pairs = (self._watch.whys.explain(group, each) for each in WhyQuestion)
            return 200, [msgspec.Raw(encode_why(place, why)) for place, why in pairs]
        question = question_of(asked)
        if question is None:
            return 404, {"error": "no such question", "questions": [str(q) for q in WhyQuestion]}
        return 200, encode_why(*self._watch.whys.explain(group, question))

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


def is_number(text: str) -> bool:
    """Say whether a text is a whole number that `int` reads, and not one of a thousand digits."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


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
        "generated_at": wall_clock_ms(),
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
        if path in ("/livez", "/healthz"):
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


def _scrub_states(groups: list[HostedGroup]) -> dict[str, int]:
    """Count the groups by what their last start, or a scrub since, made of their bytes."""
    found: dict[str, int] = {}
    for group in groups:
        state = "Healthy" if group.quarantine is None else group.quarantine.phase
        found[state] = found.get(state, 0) + 1
    return found
