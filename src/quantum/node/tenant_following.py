"""Binds the tenants of a broker to its node's copy of the control plane."""

from __future__ import annotations

from collections.abc import Callable

from clustor.raft.control_plane import CacheState
from clustor.runtime.node import Node
from clustor.runtime.node_parts import NodeControl
from quantum.node.orders import is_settled
from quantum.node.service import BrokerService
from quantum.partition.gate import OperationGate
from quantum.partition.leader import PartitionLeader
from quantum.tenants.broker_file import BrokerFile
from quantum.tenants.control_words import find_quarantine
from quantum.tenants.follower import TenantKeeper
from quantum.tenants.records import record_tenants


def gates_in(node: Node, control: NodeControl) -> Callable[[PartitionLeader], OperationGate]:
    """Return what says how a partition stands that this node leads."""

    def gate_of(prg: PartitionLeader) -> OperationGate:
        group = prg.group.replica.group
        return OperationGate(
            control.cache_state(),
            group.fallback.blocking,
            group.standing_clause(),
            find_quarantine(control.cache, prg.group.partition_id, node.node_id)
            or _fence_words(group.leadership.fenced),
        )

    return gate_of


def _fence_words(fence: str) -> str:
    return f"DR fence {fence}" if fence else ""


def keep_tenants(node: Node, service: BrokerService, filed: BrokerFile) -> TenantKeeper | None:
    """Let a broker follow its node's copy of the control plane, if there is one.

    The control plane's leader is told of what the files describe, and places what is new.
    """
    control = node.control

    def settled(name: str) -> bool:
        tenant = service.tenants.get(name)
        return tenant is not None and is_settled(tenant)

    def grew(described: BrokerFile) -> None:
        if keeper is not None:
            keeper.file_grew(described)
        record_tenants(node, described, settled)

    keeper = None
    if control is not None:
        keeper = TenantKeeper(service, lambda: control.cache, node.node_id, filed)
        keeper.is_fresh = lambda: control.cache_state() is CacheState.FRESH
        keeper.look = control.on_cluster_changed
        service.keeper = keeper
        service.gate_of = gates_in(node, control)
        if node.duties is not None:
            node.duties.on_drain.append(service.set_draining)
    service.on_described = grew
    record_tenants(node, filed, settled)
    return keeper
