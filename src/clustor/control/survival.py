"""Would a partition survive a loss (clustor §9.9)? Asked before a move, and again while it runs.

Ratios are in millionths; at least a million is good. `Q`: voters left after the worst loss of one
zone, over the quorum; where the nodes are in fewer than three zones, after the loss of one node.
`H`: voters on Active nodes that did not fall silent, over the quorum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from clustor.control.draft import DraftReading, find, scan
from clustor.control.nodes import ClusterConfig, NodeReport, NodeSpec, NodeState
from clustor.control.placement import Placement
from clustor.control.reports import is_stale
from clustor.control.types import MILLION


def quorum_ratio(voters: tuple[int, ...], nodes: Mapping[int, NodeSpec]) -> int:
    """Return Q; `nodes` are all of the cluster."""
    zones = {node.zone for node in nodes.values()}
    lost = 1
    if len(zones) >= 3:
        lost = max(sum(nodes[v].zone == zone for v in voters if v in nodes) for zone in zones)
    return (len(voters) - lost) * MILLION // _quorum(voters)


def health_ratio(
    voters: tuple[int, ...], nodes: Mapping[int, NodeSpec], silent: Collection[int]
) -> int:
    """Return H."""
    healthy = sum(
        voter in nodes and nodes[voter].state is NodeState.ACTIVE and voter not in silent
        for voter in voters
    )
    return healthy * MILLION // _quorum(voters)


def why_no_survival(store: DraftReading, placement: Placement) -> str:
    """Say why a move that runs would not be allowed to begin now; empty: it goes on.

    One that an override allowed goes on whatever happens. A development cluster has no zones to
    lose, but voters that are gone are gone there too.
    """
    if placement.override_ref is not None:
        return ""
    voters = placement.members.voters
    nodes = {node.node_id: node for node in scan(store, NodeSpec)}
    silent = {each.node_id for each in scan(store, NodeReport) if is_stale(each)}
    health = health_ratio(voters, nodes, silent)
    if health < MILLION:
        who = ", ".join(_unwell(voters, nodes, silent))
        return f"too few of its new voters are well: H is {health / MILLION:.2f}: {who}"
    config = find(store, ClusterConfig, "config")
    quorum = quorum_ratio(voters, nodes)
    if quorum < MILLION and config is not None and not config.development:
        return f"the loss of one zone would lose its quorum: Q is {quorum / MILLION:.2f}"
    return ""


def _unwell(
    voters: tuple[int, ...], nodes: Mapping[int, NodeSpec], silent: Collection[int]
) -> Iterator[str]:
    """Name each voter that does not count, and why."""
    for voter in voters:
        if voter not in nodes:
            yield f"node {voter} is not registered"
        elif nodes[voter].state is not NodeState.ACTIVE:
            yield f"node {voter} is {nodes[voter].state.value}"
        elif voter in silent:
            yield f"node {voter} is silent"


def _quorum(voters: tuple[int, ...]) -> int:
    return len(voters) // 2 + 1
