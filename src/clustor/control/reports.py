"""What nodes say of themselves: how full they are, what they host, and how old that word is."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, Reading, find
from clustor.control.nodes import NodeLoad, NodeReport, NodeSpec
from clustor.control.rbac import Authority
from clustor.control.types import MILLION, Count, Name, Text, WriterMode

REPORT_PERIOD_MS: Final = 10_000
REPORT_STALE_MS: Final = 3 * REPORT_PERIOD_MS
"""A node that was silent for so long says nothing about now: part of the log's meaning."""
SETTLED_UTILIZATION: Final = 10_000  # a hundredth: less is no news


class ReportNode(Command, frozen=True, kw_only=True):
    """Say what a node runs and carries: version, writer, features of its build, and its load."""

    node_id: Count
    version: Text
    io_writer_mode: WriterMode
    features: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)]
    load: NodeLoad | None = None  # None: not measured


def on_report_node(draft: Draft, authority: Authority, command: ReportNode) -> dict[str, Any]:
    authority.require_node(command.node_id)
    held = draft.need(NodeSpec, command.node_id)
    fresh = msgspec.structs.replace(
        held,
        version=command.version,
        io_writer_mode=command.io_writer_mode,
        features=tuple(sorted(set(command.features))),
    )
    if fresh != held:
        draft.put(fresh)
    if command.load is not None:
        draft.put(NodeReport(node_id=command.node_id, reported_at=draft.now_ms, load=command.load))
    return {}


def is_stale(report: NodeReport, now_ms: int) -> bool:
    """Say whether a report is too old to count."""
    return now_ms - report.reported_at > REPORT_STALE_MS


def measured(draft: Draft, node_id: int) -> int:
    """Return how full a node said it is, in millionths; nothing known counts as empty."""
    report = draft.find(NodeReport, node_id)
    if report is None or is_stale(report, draft.now_ms):
        return 0
    return report.load.utilization


def is_silent(draft: Draft, node_id: int) -> bool:
    """Say whether a node that used to report does not any more; one that never did is no case."""
    report = draft.find(NodeReport, node_id)
    return report is not None and is_stale(report, draft.now_ms)


# The node's side.


def utilization_of(disk_bytes: int, disk_free_bytes: int) -> int:
    """Return the used share of a disk, in millionths."""
    if disk_bytes <= 0:
        return 0
    used = min(max(disk_bytes - disk_free_bytes, 0), disk_bytes)
    return used * MILLION // disk_bytes


def report_is_due(store: Reading, wanted: ReportNode, now_ms: int) -> bool:
    """Say whether a node must report: it is time, or what it runs or how full it is changed.

    Not before the node is registered: its word would be refused.
    """
    spec = find(store, NodeSpec, wanted.node_id)
    if spec is None:
        return False
    held = find(store, NodeReport, wanted.node_id)
    if held is None or wanted.load is None or now_ms - held.reported_at >= REPORT_PERIOD_MS:
        return True
    said = (spec.version, spec.io_writer_mode, spec.features)
    if said != (wanted.version, wanted.io_writer_mode, tuple(sorted(set(wanted.features)))):
        return True
    return abs(held.load.utilization - wanted.load.utilization) >= SETTLED_UTILIZATION
