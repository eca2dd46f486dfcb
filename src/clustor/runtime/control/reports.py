"""A node's word about itself: what it runs, what it hosts, how full it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from clustor.control import (
    Feature,
    NodeLoad,
    ReportLag,
    ReportNode,
    WriterMode,
    utilization_of,
)
from clustor.control.command_gates import CommandGate
from clustor.flow import LagClass
from clustor.runtime.build import build
from clustor.runtime.group import HostedGroup

if TYPE_CHECKING:
    from clustor.runtime.node import Node

LOOK_SECONDS: Final = 1.0

BUILD_FEATURES: Final = (
    Feature.INCREMENTAL_SNAPSHOTS,
    Feature.OBSERVER_ADMISSION,
    Feature.PID_AUTO_TUNER,
    Feature.GROUP_FSYNC,
)
"""What the code can do; whether it does is a gate's and a profile's to say."""


def build_version() -> str:
    """Return what runs here: version, commit, Python, compiled or plain, in one word."""
    return build().label


def report_of(node: Node, version: str) -> ReportNode:
    """Gather what the node would say now, of all its groups at once."""
    return ReportNode(
        node_id=int(node.node_id),
        version=version,
        io_writer_mode=WriterMode[node.disk.mode.name],
        features=tuple(sorted(each.value for each in (*BUILD_FEATURES, *CommandGate))),
        load=_load(node),
    )


def lag_report_of(group: HostedGroup, node_id: int) -> ReportLag:
    """Gather what the leader of a group would say of a structural lag now; no followers: none."""
    admission = group.admission
    lags = {}
    if admission.verdict.lag_class is LagClass.STRUCTURAL:
        worst = admission.lags().items()
        lags = {int(member): lag for member, lag in worst if lag.lag_class is not LagClass.NONE}
    return ReportLag(
        partition_id=int(group.partition_id),
        node_id=node_id,
        term=group.replica.group.core.hard.term,
        followers=tuple(sorted(lags)),
        lag_bytes=max((lag.lag_bytes for lag in lags.values()), default=0),
    )


def _load(node: Node) -> NodeLoad | None:
    room = node.read_room(node.data_root)
    if room is None:
        return None
    disk_bytes, free_bytes = room
    return NodeLoad(
        utilization=utilization_of(disk_bytes, free_bytes),
        disk_bytes=disk_bytes,
        disk_free_bytes=free_bytes,
        groups_hosted=len(node.groups),
        groups_led=sum(group.replica.leads for group in node.groups.values()),
    )
