"""A node's telemetry: it looks on while the node works, and answers on the admin port.

    /livez  /readyz  /metrics[?detail=groups]  /incidents
    /groups/<n>/why[/<question>]  /groups/<n>/dry-run/<move|snapshot|failover>

What is decided is decided in `clustor.telemetry`; here are the clock, the loop and the words.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from clustor.flow import LagClass
from clustor.raft.leadership import ProposalRefusal
from clustor.raft.output import Note, NoteKind, RoleChange
from clustor.raft.types import Role
from clustor.replica import Applied, Replica, ReplicaOutput, RequestsRefused
from clustor.runtime.admin.commands import Answer
from clustor.runtime.admin.ports import Later
from clustor.runtime.group import HostedGroup
from clustor.runtime.telemetry.metrics import Source
from clustor.runtime.telemetry.pages import MorePages, TelemetryPages
from clustor.runtime.telemetry.spans import Spans
from clustor.runtime.telemetry.why import GroupWhy
from clustor.telemetry import (
    AlertOutcome,
    CommitClock,
    GroupSight,
    IncidentClass,
    IncidentLog,
    NodeMeters,
    ReadinessNumbers,
    ReadinessWatch,
)

if TYPE_CHECKING:
    from clustor.runtime.node import Node

LOOK_MS_MIN: Final = 100
LOOK_MS_MAX: Final = 1_000
_LOOKS_PER_MS: Final = 10
"""A node of many groups looks less often: a look at one takes some microseconds."""

_INCIDENT_OF_NOTE: Final = {
    NoteKind.LOG_DAMAGED: IncidentClass.LOG_DAMAGED,
    NoteKind.COMMITTED_CONFLICT: IncidentClass.COMMITTED_CONFLICT,
    NoteKind.CONTROL_PLANE_PROOF_CONFLICT: IncidentClass.PROOF_CONFLICT,
    NoteKind.DURABILITY_MODE_EPOCH_CONFLICT: IncidentClass.EPOCH_CONFLICT,
    NoteKind.STRICT_FALLBACK_DEMOTED: IncidentClass.STRICT_FALLBACK_DEMOTED,
    NoteKind.CLOCK_GUARD_ALARM: IncidentClass.CLOCK_GUARD_ALARM,
    NoteKind.DEVICE_STALLED: IncidentClass.DEVICE_STALLED,
    NoteKind.MEMBERSHIP_ROLLED_BACK: IncidentClass.MEMBERSHIP_ROLLED_BACK,
}

journal = logging.getLogger("clustor.telemetry")


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
        self, node: Node, numbers: ReadinessNumbers | None = None, spans: Spans | None = None
    ) -> None:
        self._node = node
        self._loop = asyncio.get_running_loop()
        self.meters = NodeMeters()
        self.readiness = ReadinessWatch(numbers or ReadinessNumbers())
        self.incidents = IncidentLog()
        self.whys = GroupWhy(node)
        self.sources: list[Source] = []
        """Who else has series: services add theirs."""
        self.more: list[MorePages] = []
        """Who else answers: a path and its query, or None."""
        self.spans = spans
        """Who tells of batches and elections; None: nobody."""
        self.on_alert: Callable[[], None] | None = None
        """Told of every incident that people are told of."""
        self._watched: dict[HostedGroup, _Watched] = {}
        self._looked_ms = 0
        self._lag_classes: dict[HostedGroup, LagClass] = {}
        self._pages = TelemetryPages(node, self)

    @property
    def has_looked(self) -> bool:
        """Whether it has seen its groups at all."""
        return self._looked_ms > 0

    def why(self, group: int, question: str) -> object | None:
        """Answer why something waits."""
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
        if replica.applying.seconds:
            self._count_applies(replica.applying.seconds)
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
                reason = (
                    outcome.reason
                    if isinstance(outcome, RequestsRefused)
                    else type(outcome).__name__
                )
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

    def alert(self, kind: IncidentClass, group: HostedGroup, facts: dict[str, str]) -> None:
        """Take an alert of a service above."""
        self._alert(kind, group, facts)

    def _alert(self, kind: IncidentClass, group: HostedGroup, facts: dict[str, str]) -> None:
        partition = int(group.partition_id)
        verdict = self.incidents.alert(
            kind,
            partition,
            self._node.now_ms(),
            active_partitions=len(self._node.groups),
            facts=facts,
        )
        if verdict is AlertOutcome.TOLD:
            extra = {"facts": {"incident": str(kind), "partition_id": partition, **facts}}
            journal.warning("incident %s of group %d", kind, partition, extra=extra)
            if self.spans is not None:
                self.spans.alerted()
            if self.on_alert is not None:
                self.on_alert()

    # Time.

    def on_tick(self, now_ms: int) -> None:
        """Look at every group once in a while."""
        groups = self._node.groups
        pause_ms = min(LOOK_MS_MAX, max(LOOK_MS_MIN, len(groups) // _LOOKS_PER_MS))
        if now_ms - self._looked_ms < pause_ms:
            return
        self._looked_ms = now_ms
        self.readiness.look([_sight(group) for group in groups.values()], now_ms)
        for group in groups.values():
            if group.admission.verdict.lag_class is LagClass.STRUCTURAL:
                self._alert(IncidentClass.STRUCTURAL_LAG, group, {})

    # Pages.

    def get(self, target: str) -> Answer | Later | None:
        """Answer a GET, or return None for a page that is not ours."""
        return self._pages.get(target)

    def post(self, target: str) -> Answer | None:
        """Nothing here is ordered."""
        del target
        return None


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
        last_index=core.log.last_index,
        refusal=_refusal(replica),
        ingest_blocked=group.admission.verdict.credit_scale == 0.0,
        quarantine="" if group.quarantine is None else str(group.quarantine),
    )


def _refusal(replica: Replica) -> str:
    """Say why the leader of a group would refuse a write; a transfer is over in a moment."""
    refusal = replica.group.leadership.refusal() if replica.leads else None
    return "" if refusal in (None, ProposalRefusal.TRANSFERRING) else str(refusal)
