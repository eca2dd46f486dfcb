"""What nodes say of themselves: how full they are, what they host, and whether they are heard.

A node reports when something changed, so a cluster at rest writes nothing. That it lives is not
written at all: every node asks the control plane's leader for news every few seconds, and a leader
that did not hear one for long records the silence. The node's next report ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from clustor.control.calls import Command
from clustor.control.draft import Draft, DraftReading, find, scan
from clustor.control.nodes import NodeLoad, NodeReport, NodeSpec
from clustor.control.rbac import CallerAuthority
from clustor.control.types import MILLION, Count, Name, Text, WriterMode

SILENT_MS: Final = 30_000
"""Who was not heard for so long is recorded as silent, by whoever leads the control plane."""
SETTLED_UTILIZATION: Final = 10_000  # a hundredth: less is no news


class ReportNode(Command, frozen=True, kw_only=True):
    """Say what a node runs and carries: version, writer, features of its build, and its load."""

    node_id: Count
    version: Text
    io_writer_mode: WriterMode
    features: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)]
    load: NodeLoad | None = None  # None: not measured


def on_report_node(draft: Draft, authority: CallerAuthority, command: ReportNode) -> dict[str, Any]:
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


class ReportSilence(Command, frozen=True, kw_only=True):
    """Record that a node is not heard any more: its last report counts no longer."""

    node_id: Count


def on_report_silence(
    draft: Draft, authority: CallerAuthority, command: ReportSilence
) -> dict[str, Any]:
    del authority
    draft.need(NodeSpec, command.node_id)
    held = draft.find(NodeReport, command.node_id)
    if held is not None and not held.silent:
        draft.put(msgspec.structs.replace(held, silent=True))
    return {}


def is_stale(report: NodeReport) -> bool:
    """Say whether a report counts no more: its node is not heard."""
    return report.silent is True


def measured(draft: Draft, node_id: int) -> int:
    """Return how full a node said it is, in millionths; nothing known counts as empty."""
    report = draft.find(NodeReport, node_id)
    if report is None or is_stale(report):
        return 0
    return report.load.utilization


def is_silent(draft: Draft, node_id: int) -> bool:
    """Say whether a node that used to report does not any more; one that never did is no case."""
    report = draft.find(NodeReport, node_id)
    return report is not None and is_stale(report)


# The node's side.


def utilization_of(disk_bytes: int, disk_free_bytes: int) -> int:
    """Return the used share of a disk, in millionths."""
    if disk_bytes <= 0:
        return 0
    used = min(max(disk_bytes - disk_free_bytes, 0), disk_bytes)
    return used * MILLION // disk_bytes


def report_is_due(store: DraftReading, wanted: ReportNode) -> bool:
    """Say whether a node must report: it counts as silent, or what it runs or holds changed.

    Not before the node is registered: its word would be refused.
    """
    spec = find(store, NodeSpec, wanted.node_id)
    if spec is None:
        return False
    held = find(store, NodeReport, wanted.node_id)
    if held is None or is_stale(held):
        return True
    said = (spec.version, spec.io_writer_mode, spec.features)
    if said != (wanted.version, wanted.io_writer_mode, tuple(sorted(set(wanted.features)))):
        return True
    if wanted.load is None:
        return False
    hosted = (held.load.groups_hosted, held.load.groups_led)
    if hosted != (wanted.load.groups_hosted, wanted.load.groups_led):
        return True
    return abs(held.load.utilization - wanted.load.utilization) >= SETTLED_UTILIZATION


def newly_silent(
    store: DraftReading, heard_ms: Mapping[int, int], since_ms: int, now_ms: int
) -> list[ReportSilence]:
    """Return what a leader records of nodes that it hears no more.

    `heard_ms` is when it last heard each; it counts from `since_ms`, when it began to listen.
    """
    return [
        ReportSilence(node_id=each.node_id)
        for each in scan(store, NodeReport)
        if not is_stale(each)
        and now_ms - max(since_ms, heard_ms.get(each.node_id, since_ms)) > SILENT_MS
    ]
