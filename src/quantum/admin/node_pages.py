"""Pages of this node: its groups, why they do not, how much it logs, whom it refused."""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from clustor.control import (
    DurabilityState,
    NodeReport,
    NodeSpec,
    Placement,
    ProofConflict,
    PublishedProof,
    Quarantine,
    find,
    is_stale,
    scan,
)
from clustor.runtime.telemetry.journal import JournalLevels as ProcessLevels
from quantum.admin.answers import (
    GroupView,
    ListPage,
    LogLevel,
    LogLevels,
    NodeView,
    RefusalRow,
    Refusals,
    WhyAnswer,
)
from quantum.admin.errors import not_found
from quantum.admin.page_context import PageContext
from quantum.admin.port import RefusalNote
from quantum.admin.reading import revision_of
from quantum.admin.routes import AdminRequest

REFUSALS_KEPT_MAX: Final = 1_024
REFUSAL_LINES_MAX: Final = 100  # in a window: who is refused must not fill the disk
REFUSAL_WINDOW_MS: Final = 10_000
_LEVELS: Final = ProcessLevels()

journal = logging.getLogger("quantum.audit")


class JournalLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class SetLogLevelBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a part of this node says, until it starts again."""

    level: JournalLevel
    logger: Annotated[
        str,
        msgspec.Meta(pattern=r"^(clustor|quantum|slipstream)(\.[a-z_]{1,32}){0,3}$(?!\n)"),
    ] = "quantum"


# Nodes.


def nodes(api: PageContext, asked: AdminRequest) -> ListPage[NodeView]:
    """List the nodes, each with its own last word and whether that still counts."""
    after = int(asked.values["after"] or -1)
    wanted = [each for each in scan(asked.store, NodeSpec) if each.node_id > after]
    page = wanted[: asked.values["limit"]]
    return ListPage(
        items=[_node(api, asked, each) for each in page],
        after=str(page[-1].node_id) if len(page) < len(wanted) else None,
        revision=revision_of(asked.store),
    )


def node(api: PageContext, asked: AdminRequest) -> NodeView:
    found = find(asked.store, NodeSpec, asked.values["node_id"])
    if found is None:
        raise not_found("no such NodeSpec", name=str(asked.values["node_id"]))
    return _node(api, asked, found)


def _node(api: PageContext, asked: AdminRequest, spec: NodeSpec) -> NodeView:
    report = find(asked.store, NodeReport, spec.node_id)
    now_ms = api.now_ms()
    state = "None" if report is None else "Stale" if is_stale(report) else "Fresh"
    return NodeView(
        **msgspec.structs.asdict(spec),
        report_state=state,
        report_age_ms=None if report is None else max(0, now_ms - report.reported_at),
        load=None if report is None else report.load,
    )


# Groups.


def groups(api: PageContext, asked: AdminRequest) -> ListPage[GroupView]:
    """List the groups that are placed, and those that this node hosts without a placement."""
    after = int(asked.values["after"] or -1)
    hosted = api.groups.numbers() if api.groups is not None else ()
    numbers = {each.partition_id for each in scan(asked.store, Placement)} | set(hosted)
    wanted = sorted(number for number in numbers if number > after)
    page = wanted[: asked.values["limit"]]
    return ListPage(
        items=[_group(api, asked, number) for number in page],
        after=str(page[-1]) if len(page) < len(wanted) else None,
        revision=revision_of(asked.store),
    )


def group(api: PageContext, asked: AdminRequest) -> GroupView:
    found = _group(api, asked, asked.values["partition_id"])
    if found.placement is None and found.local is None:
        raise not_found("no such group", group=found.group)
    return found


def _group(api: PageContext, asked: AdminRequest, number: int) -> GroupView:
    hosted = api.groups.status(number) if api.groups is not None else None
    published = find(asked.store, PublishedProof, number)
    return GroupView(
        group=number,
        placement=find(asked.store, Placement, number),
        durability=find(asked.store, DurabilityState, number),
        proof=published.proof if published is not None else None,
        conflict=find(asked.store, ProofConflict, number),
        quarantines=list(scan(asked.store, Quarantine, number)),
        local=dict(hosted) if hosted is not None else None,
    )


def why(api: PageContext, asked: AdminRequest) -> WhyAnswer:
    number, question = asked.values["partition_id"], asked.values["question"]
    found = api.why.why(number, question.value) if api.why is not None else None
    if found is None:
        raise not_found("this node has no replica of the group to explain", group=number)
    return WhyAnswer(group=number, question=question.value, answer=found)


# What it logs.


def log_levels(_api: PageContext, _asked: AdminRequest) -> LogLevels:
    return LogLevels(items=[_level(name) for name in _LEVELS.names()])


def set_log_level(_api: PageContext, asked: AdminRequest) -> LogLevel:
    body: SetLogLevelBody = asked.body
    _LEVELS.set(body.level.value, body.logger)
    journal.warning("%s set the level of %s to %s", asked.caller.identity, body.logger, body.level)
    return _level(body.logger)


def _level(name: str) -> LogLevel:
    return LogLevel(logger=name, level=_LEVELS.effective(name))


# Whom it refused.


class RefusalRing:
    """The newest refusals in memory; each is also a line of JSON of the logger `quantum.audit`."""

    def __init__(self) -> None:
        self._newest: deque[RefusalNote] = deque(maxlen=REFUSALS_KEPT_MAX)
        self.total = 0
        self._window = -1
        self._lines = 0

    def note(self, refusal: RefusalNote) -> None:
        self._newest.append(refusal)
        self.total += 1
        window = refusal.at // REFUSAL_WINDOW_MS
        if window != self._window:
            self._window, self._lines = window, 0
        self._lines += 1
        if self._lines <= REFUSAL_LINES_MAX:
            journal.warning("refused %s", msgspec.json.encode(refusal).decode())
        elif self._lines == REFUSAL_LINES_MAX + 1:
            journal.warning("more refusals follow: /v1/audit/refusals counts them")

    def newest(self, limit: int) -> list[RefusalNote]:
        return list(self._newest)[: -limit - 1 : -1]


def refusals(api: PageContext, asked: AdminRequest) -> Refusals:
    rows: list[Any] = [asdict(each) for each in api.refusals.newest(asked.values["limit"])]
    return Refusals(items=[RefusalRow(**row) for row in rows], total=api.refusals.total)
