"""A node's telemetry over replicas that a test moves by hand: no sockets, no files, no clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from clustor.replica import Replica, ReplicaOutput
from clustor.runtime.admin.http import Text
from clustor.runtime.admission import FlowNumbers, GroupAdmission
from clustor.runtime.group import HostedGroup, QuarantineView
from clustor.runtime.node import Node
from clustor.runtime.telemetry.loop_watch import LoopWatch
from clustor.runtime.telemetry.node import NodeTelemetry
from clustor.runtime.telemetry.spans import Spans
from clustor.telemetry import NodeMeters, ReadinessNumbers
from tests.clustor.replica import harness
from tests.clustor.replica.harness import PARTITION, TICK_MS, Cluster

NUMBERS = ReadinessNumbers(unsettled_ms_max=1_500)


@dataclass(eq=False)
class StageGroup:
    """What hosts a replica here."""

    replica: Replica
    admission: GroupAdmission
    directory: Path = Path("/")
    partition_id: int = PARTITION
    syncs: int = 0
    meters: NodeMeters | None = None
    rolled_back: str = ""
    quarantine: QuarantineView | None = None


@dataclass(eq=False)
class StageNode:
    """What telemetry asks of its node."""

    node_id: int
    cluster: Cluster
    groups: dict[int, StageGroup] = field(default_factory=dict)
    stopping: bool = False
    reaches: set[int] = field(default_factory=set)
    pki_directory: Path = Path("/nowhere")
    control: None = None
    duties: None = None
    loop_watch: LoopWatch = field(default_factory=LoopWatch)
    disk_checked: None = None
    draining: bool = False

    @property
    def transport(self) -> Any:
        return SimpleNamespace(connected=lambda: self.reaches, frames_sent=0, frames_received=0)

    @property
    def disk(self) -> Any:
        return SimpleNamespace(mode=SimpleNamespace(name="BLOCKING"))

    @property
    def settings(self) -> Any:
        return SimpleNamespace(keys=self.cluster.keys)

    def now_ms(self) -> int:
        return self.cluster.now_ms


class Stage:
    """A cluster with the telemetry of every node."""

    def __init__(self, cluster: Cluster, spans: Spans | None = None) -> None:
        self.cluster = cluster
        self.hang = False
        """Who is cut off keeps its connections, and says nothing."""
        self.nodes: dict[int, StageNode] = {}
        self.telemetry: dict[int, NodeTelemetry] = {}
        for each in cluster.nodes.values():
            node = self.nodes[each.id] = StageNode(each.id, cluster)
            node.cluster.nodes = cluster.nodes
            group = StageGroup(each.up, GroupAdmission(each.up, FlowNumbers()))
            node.groups[PARTITION] = group
            self.telemetry[each.id] = NodeTelemetry(cast("Node", node), NUMBERS, spans)
        self._seen = {each.id: len(each.outputs) for each in cluster.nodes.values()}

    def run(self, duration_ms: int) -> None:
        """Let time pass; telemetry sees every output and every tick."""
        for _ in range(duration_ms // TICK_MS):
            self.cluster.run(TICK_MS)
            for each in self.cluster.nodes.values():
                self._show(each)

    def _show(self, each: harness.Node) -> None:
        telemetry, node = self.telemetry[each.id], self.nodes[each.id]
        group = node.groups[PARTITION]
        node.reaches = {
            int(other)
            for other in self.cluster.nodes
            if other != each.id and (self.hang or not {other, each.id} & self.cluster.cut_off)
        }
        group.admission.tick(self.cluster.now_ms)
        for output in each.outputs[self._seen[each.id] :]:
            telemetry.on_output(cast("HostedGroup", group), output)
        telemetry.on_output(cast("HostedGroup", group), ReplicaOutput())
        self._seen[each.id] = len(each.outputs)
        telemetry.on_tick(self.cluster.now_ms)

    def get(self, node: int, target: str) -> tuple[int, Any]:
        """Get a page of JSON."""
        answer = self.telemetry[node].get(target)
        assert answer is not None and not callable(answer), "no such page, or one of text"
        code, content = answer
        raw = content if isinstance(content, bytes) else msgspec.json.encode(content)
        return code, msgspec.json.decode(raw)

    async def scrape(self, node: int, target: str = "/metrics") -> str:
        """Get a page that is made bit by bit."""
        answer = self.telemetry[node].get(target)
        assert callable(answer)
        given: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        answer(lambda _code, content: given.set_result(content))
        content = await given
        assert isinstance(content, Text)
        return content.body.decode()

    def leader(self) -> int:
        return int(self.cluster.leader().id)
