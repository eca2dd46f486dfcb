"""A cluster's status as text: what fits 80 columns, the leader's view of a group above its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

WIDTH = 80
_ROW = "  {:>4}  {:<12} {:>11} {:>11} {:>11} {:>7}  {}"
_HEADINGS = _ROW.format("node", "role", "commit", "durable", "applied", "lag", "state")


def status_lines(found: dict[str, Any]) -> Iterator[str]:
    """Give the lines of `quantum cluster status`."""
    yield f"Cluster {found['cluster_id']}"
    rows: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for node in found["nodes"]:
        for group in node.get("groups", []):
            rows.setdefault(group["partition_id"], []).append((node["node_id"], group))
    silent = [node["node_id"] for node in found["nodes"] if "error" in node]
    for partition, replicas in sorted(rows.items()):
        yield ""
        ordered = sorted(replicas, key=lambda row: row[0])
        yield from _group_lines(f"Group {partition}", ordered, silent)
    control = [(node["node_id"], node["control"]) for node in found["nodes"] if node.get("control")]
    if control:
        yield ""
        yield from _control_lines(sorted(control, key=lambda row: row[0]), silent)
    missing = [node for node in found["nodes"] if "error" in node]
    if missing:
        yield ""
    for node in missing:
        yield f"node {node['node_id']} does not answer: {node['error']}"


def _control_lines(nodes: list[tuple[int, dict[str, Any]]], silent: list[int]) -> Iterator[str]:
    """Give the control plane's own group, and how old each node's copy of it is."""
    groups = [(node_id, each["group"]) for node_id, each in nodes]
    yield from _group_lines("Control plane", groups, silent)
    yield from _folded("  copies", (_copy(node_id, each) for node_id, each in nodes))
    newest = max((each for _, each in nodes), key=lambda each: each.get("revision", 0))
    if newest.get("reports"):
        yield from _folded("  reports", map(_report, newest["reports"]))


def _report(report: dict[str, Any]) -> str:
    """Say how full a node said it is, and that it says so no more where it fell silent."""
    said = f"node {report['node_id']} {report['utilization'] / 10_000:.0f}% full"
    return f"{said}, stale: {report['age_ms'] / 1000:.0f} s" if report["stale"] else said


def _copy(node_id: int, control: dict[str, Any]) -> str:
    age_ms = control["cache_age_ms"]
    age = "never heard" if age_ms is None else f"{age_ms / 1000:.0f} s"
    return f"node {node_id} {control['cache_state']}, {age}"


def _group_lines(
    title: str, replicas: list[tuple[int, dict[str, Any]]], silent: list[int]
) -> Iterator[str]:
    """Give a group: its leader's view, a row for each replica, and one for each that is silent."""
    groups = [group for _, group in replicas]
    newest = max(groups, key=lambda group: (is_led_by(group), group["term"]))
    leads = is_led_by(newest)
    yield from _folded(title, _facts(newest, leads=leads))
    commit = max(group["commit_index"] for group in groups)
    classes = {member["replica_id"]: member["lag_class"] for member in newest["members"]}
    yield _HEADINGS.rstrip()
    for node_id, group in replicas:
        yield _ROW.format(
            *(node_id, group["role"], group["commit_index"], group["durable_index"]),
            *(group["applied_index"], max(0, commit - group["applied_index"])),
            _state(group, classes.get(node_id, "None")),
        )
    members = {*newest["voters"], *newest["outgoing"], *newest["learners"]}
    for node_id in silent:
        if node_id in members:
            yield _ROW.format(node_id, "-", "-", "-", "-", "-", "does not answer")


def is_led_by(group: dict[str, Any]) -> bool:
    """Say whether this replica leads its group: one that has stopped leads nothing."""
    return bool(group["role"] == "Leader" and group["state"] != "Failed")


def _facts(group: dict[str, Any], *, leads: bool) -> Iterator[str]:
    yield f"leader {group['leader_id']}" if leads else "no leader"
    yield f"term {group['term']}"
    yield group["durability_mode"].replace("_", "-").capitalize()
    for kind in ("voters", "outgoing", "learners"):
        if group[kind]:
            yield f"{kind} {','.join(map(str, group[kind]))}"
    if group["membership_phase"] != "Idle":
        yield f"members: {group['membership_phase']}"
    yield gate_words(group)
    flow = group["flow"]
    if flow is not None:
        yield f"credits {flow['credit_share']:.0%}"
        if flow["reason"] is not None:
            yield f"slowed: {flow['reason']}"


_BY_A_READ: Final = frozenset({"None", "ControlPlaneProofMismatch", "IndexInequality"})
"""What a read that comes mends itself: it asks for the proof of what was written since (C7)."""


def gate_words(group: dict[str, Any]) -> str:
    """Say whether a linearizable read is served: shut is what no read can open."""
    is_open = group["gate"] == "Open" or group["failed_clause"] in _BY_A_READ
    return "gate open" if is_open else f"gate shut: {group['failed_clause']}"


def _state(group: dict[str, Any], lag_class: str) -> str:
    """Say what is wrong with a replica, its own word first."""
    if group["problem"]:
        return str(group["problem"])
    if group["rejoining"]:
        return "Rejoining"
    if group["state"] == "Running" and lag_class != "None":
        return f"{lag_class} lag"
    return str(group["state"])


def _folded(first: str, facts: Iterator[str]) -> Iterator[str]:
    """Join facts to lines that are no wider than they may be."""
    line = first
    for fact in facts:
        if len(line) + 2 + len(fact) > WIDTH:
            yield line
            line = " " * (len(first) + 2) + fact
        else:
            line += "  " + fact
    yield line
