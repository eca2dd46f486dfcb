"""Turning traces on for one node: where spans go, how many, and what is counted of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from clustor.runtime.errors import DataDirectoryRefused
from clustor.runtime.telemetry.node import NodeTelemetry
from clustor.runtime.telemetry.spans import Spans
from clustor.runtime.telemetry.trace_file import TRACES_DIRECTORY, TraceFile
from clustor.telemetry import MetricFamily, counter
from quantum.protocols.mqtt.session.traces import Traces
from quantum.tenants.broker_file import TracesEntry

if TYPE_CHECKING:
    from clustor.runtime.node import Node
    from quantum.node.service import BrokerService


def start_traces(
    node: Node, service: BrokerService, entry: TracesEntry | None
) -> Callable[[], None]:
    """Trace messages if a broker's description asks for it; return what ends that.

    Raises DataDirectoryRefused.
    """
    if entry is None:
        return lambda: None
    try:
        file = TraceFile(node.data_root / TRACES_DIRECTORY, int(node.node_id))
    except OSError as error:
        raise DataDirectoryRefused(
            "traces cannot be written", directory=TRACES_DIRECTORY, cause=error
        ) from error
    traces = Traces(file, time.time_ns, os.urandom, share=entry.share)
    service.trace_with(traces)
    watch = node.watch
    if isinstance(watch, NodeTelemetry):
        watch.spans = Spans(file)
        watch.on_alert = traces.alerted
        watch.sources.append(lambda: _families(traces, file))
    return file.close


def _families(traces: Traces, file: TraceFile) -> Iterator[MetricFamily | None]:
    yield counter("quantum.trace_spans_total", file.written, "Spans of messages, written")
    lost = file.dropped + traces.withheld
    text = "Spans that were not made or not written: a bound, or the disk"
    yield counter("quantum.trace_spans_dropped_total", lost, text)
