"""Spans of batches, snapshots and elections, where a node traces; nothing at all where it does not.

There is never a span for a message here: a batch is one entry of the log with everything that
waited. One batch in a hundred has one, and every batch for a minute after an incident (quantumqtt
§16). Spans of single messages are the broker's (`quantum.protocols.mqtt.session.traces`).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from clustor.raft.types import Role
from clustor.replica import Applied, ReplicaOutput
from clustor.telemetry.tracing import (
    NO_PARENT,
    SPAN_ID_BYTES,
    TRACE_ID_BYTES,
    Attribute,
    Span,
)

if TYPE_CHECKING:
    from clustor.runtime.group import HostedGroup

BATCHES_PER_SPAN: Final = 100
ALERT_SECONDS: Final = 60.0
_OPEN_MAX: Final = 256
_TEXT_MAX: Final = 256

Facts: TypeAlias = dict[str, Attribute]


class SpanSink(Protocol):
    """Where finished spans go."""

    def add(self, span: Span, /) -> None: ...


class Spans:
    """The spans of one node's groups. Made only where they are wanted."""

    def __init__(
        self,
        sink: SpanSink,
        *,
        batches_per_span: int = BATCHES_PER_SPAN,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._sink = sink
        self._entropy = entropy
        self._batches_per_span = batches_per_span
        self._batches = 0
        self._alert_until = 0.0
        self._appended: dict[HostedGroup, deque[tuple[int, int]]] = {}
        self._last_index: dict[HostedGroup, int] = {}
        self._leaderless: dict[HostedGroup, int] = {}
        self._installing: dict[HostedGroup, int] = {}

    def alerted(self) -> None:
        """Record every batch for a while: something is wrong."""
        self._alert_until = time.monotonic() + ALERT_SECONDS

    def on_output(self, group: HostedGroup, output: ReplicaOutput) -> None:
        """See what a group put out in this turn."""
        now_ns = time.time_ns()
        core = group.replica.group.core
        if core.role is Role.LEADER and core.log.last_index != self._last_index.get(group):
            self._last_index[group] = core.log.last_index
            appended = self._appended.setdefault(group, deque(maxlen=_OPEN_MAX))
            appended.append((core.log.last_index, now_ns))
        for outcome in output.replies:
            if isinstance(outcome, Applied):
                self._batch(group, outcome, now_ns)
        if output.role is not None:
            self._role(group, output.role.role, output.role.reason, now_ns)
        self._snapshot(group, now_ns)

    def _batch(self, group: HostedGroup, applied: Applied, now_ns: int) -> None:
        began_ns = now_ns
        appended = self._appended.get(group, deque())
        while appended and appended[0][0] <= applied.index:
            began_ns = appended.popleft()[1]
        self._batches += 1
        always = time.monotonic() < self._alert_until
        if always or self._batches % self._batches_per_span == 0:
            facts: dict[str, Attribute] = {
                "index": int(applied.index),
                "requests": len(applied.request_ids),
            }
            self._span("clustor.raft.batch", group, began_ns, now_ns, facts)

    def _role(self, group: HostedGroup, role: Role, reason: str, now_ns: int) -> None:
        core = group.replica.group.core
        if core.leader_id is None:
            self._leaderless.setdefault(group, now_ns)
            return
        began_ns = self._leaderless.pop(group, now_ns)
        facts: dict[str, Attribute] = {
            "role": str(role),
            "reason": reason[:_TEXT_MAX],
            "leader": int(core.leader_id),
        }
        self._span("clustor.raft.election", group, began_ns, now_ns, facts)

    def _snapshot(self, group: HostedGroup, now_ns: int) -> None:
        installing = group.replica.group.core.installing
        if installing is not None:
            self._installing.setdefault(group, now_ns)
        elif group in self._installing:
            began_ns = self._installing.pop(group)
            facts: dict[str, Attribute] = {
                "base_index": int(group.replica.group.core.log.base_index)
            }
            self._span("clustor.snapshot.install", group, began_ns, now_ns, facts)

    def _span(
        self,
        name: str,
        group: HostedGroup,
        began_ns: int,
        ended_ns: int,
        facts: Facts,
    ) -> None:
        """Tell of something that is over; each is the root of a trace of its own."""
        term = int(group.replica.group.core.hard.term)
        self._sink.add(
            Span(
                trace_id=self._entropy(TRACE_ID_BYTES),
                span_id=self._entropy(SPAN_ID_BYTES),
                parent_id=NO_PARENT,
                name=name,
                began_ns=began_ns,
                ended_ns=ended_ns,
                attributes=facts | {"partition_id": int(group.partition_id), "term": term},
            )
        )
