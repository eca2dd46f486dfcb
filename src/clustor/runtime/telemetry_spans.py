"""OpenTelemetry spans of batches, snapshots and elections; nothing at all unless it is asked for.

`QUANTUM_OTEL=1` turns it on, with the optional package `opentelemetry-sdk`. There is never a span
for a message: a batch is one entry of the log with everything that waited. One batch in a hundred
has one, and every batch for a minute after an incident (quantumqtt §16).
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from clustor.raft.types import Role
from clustor.replica import Applied, ReplicaOutput

if TYPE_CHECKING:
    from clustor.runtime.hosted_group import HostedGroup

VARIABLE: Final = "QUANTUM_OTEL"
BATCHES_PER_SPAN: Final = 100
ALERT_SECONDS: Final = 60.0
_OPEN_MAX: Final = 256
_TEXT_MAX: Final = 256

journal = logging.getLogger("clustor.telemetry")


class SpanExporter(Protocol):
    """Where finished spans go: `opentelemetry.sdk.trace.export.SpanExporter` is one."""

    def export(self, spans: Any, /) -> Any: ...


class Spans:
    """The spans of one node. Made only where they are wanted."""

    def __init__(self, tracer: Any, *, batches_per_span: int = BATCHES_PER_SPAN) -> None:
        self._tracer = tracer
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
            facts = {"index": int(applied.index), "requests": len(applied.request_ids)}
            self._span("clustor.raft.batch", group, began_ns, now_ns, facts)

    def _role(self, group: HostedGroup, role: Role, reason: str, now_ns: int) -> None:
        core = group.replica.group.core
        if core.leader_id is None:
            self._leaderless.setdefault(group, now_ns)
            return
        began_ns = self._leaderless.pop(group, now_ns)
        facts = {"role": str(role), "reason": reason[:_TEXT_MAX], "leader": int(core.leader_id)}
        self._span("clustor.raft.election", group, began_ns, now_ns, facts)

    def _snapshot(self, group: HostedGroup, now_ns: int) -> None:
        installing = group.replica.group.core.installing
        if installing is not None:
            self._installing.setdefault(group, now_ns)
        elif group in self._installing:
            began_ns = self._installing.pop(group)
            facts = {"base_index": int(group.replica.group.core.log.base_index)}
            self._span("clustor.snapshot.install", group, began_ns, now_ns, facts)

    def _span(
        self, name: str, group: HostedGroup, began_ns: int, ended_ns: int, facts: dict[str, Any]
    ) -> None:
        term = int(group.replica.group.core.hard.term)
        facts |= {"partition_id": int(group.partition_id), "term": term}
        span = self._tracer.start_span(name, attributes=facts, start_time=began_ns)
        span.end(end_time=ended_ns)


def spans_from_environment(node_id: int) -> Spans | None:
    """Return spans if the environment asks for them and the package is there."""
    if os.environ.get(VARIABLE) != "1":
        return None
    try:
        return new_spans(node_id, _console_exporter())
    except ImportError:
        journal.warning("%s=1, but opentelemetry-sdk is not installed: no spans", VARIABLE)
        return None


def new_spans(
    node_id: int, exporter: Any, *, batches_per_span: int = BATCHES_PER_SPAN, simple: bool = False
) -> Spans:
    """Make spans that go to an exporter, in batches; `simple`: one by one. Raises ImportError."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

    resource = Resource.create({"service.name": "quantum", "service.instance.id": str(node_id)})
    provider = TracerProvider(resource=resource)
    processor = SimpleSpanProcessor(exporter) if simple else BatchSpanProcessor(exporter)
    provider.add_span_processor(processor)
    return Spans(provider.get_tracer("clustor"), batches_per_span=batches_per_span)


def _console_exporter() -> Any:
    """Return the OTLP exporter if it is installed, else one that writes to standard error."""
    import sys

    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # type: ignore[import-not-found,unused-ignore]
            OTLPSpanExporter,
        )
    except ImportError:
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    return OTLPSpanExporter()
