"""A cluster whose groups are a tenant's partitions, with brokers above and clients around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import msgspec

from clustor.raft.control_plane import CacheState
from clustor.raft.fallback import BlockingReason
from clustor.raft.reads import FailedClause
from clustor.raft.types import ReplicaId
from clustor.replica import ReplicaOutput
from clustor.runtime.pki.identity import NodeId
from clustor.sim.cluster import SimCluster
from clustor.sim.driver import Crowd, ReplicaDriver, SimNode
from clustor.sim.judge import GroupJudge
from clustor.sim.scenario import MS, Scenario
from clustor.sim.timeline import Microseconds
from quantum.broker import Broker, BrokerSettings
from quantum.node.orders import is_settled
from quantum.partition.gate import HEALTHY, OperationGate
from quantum.protocols.mqtt.codec import ProtocolVersion
from quantum.sim.captures import Captures
from quantum.sim.clients import SimClient, SimPublisher, SimSubscriber
from quantum.sim.links import SimLinks
from quantum.sim.node import BrokerNode
from quantum.sim.wire import ClientEnd, SimLine
from quantum.tenants.broker_file import DEVELOPMENT_TENANT, TenantEntry, TenantRing
from quantum.tenants.partition_settings import broker_settings

if TYPE_CHECKING:
    from clustor.replica import StateMachine
    from quantum.partition.leader import PartitionLeader

FRESH, EXPIRED = CacheState.FRESH, CacheState.EXPIRED

_SICK = (
    OperationGate(FRESH, BlockingReason.PROOF_MISSING, FailedClause.STRICT_FALLBACK),
    OperationGate(FRESH, BlockingReason.NONE, FailedClause.NONE, "Integrity"),
    OperationGate(EXPIRED, BlockingReason.CACHE_EXPIRED, FailedClause.CONTROL_PLANE_CACHE_EXPIRED),
)
_VERSIONS = (ProtocolVersion.V311, ProtocolVersion.V311, ProtocolVersion.V5)


class WatchedBroker(Broker):
    """The machine under the judge's eyes."""

    def __init__(self, settings: BrokerSettings, judge: GroupJudge) -> None:
        super().__init__(settings, keeps_streams=True)
        self._judge = judge

    def apply_batch(self, index: int, commands: Sequence[bytes]) -> list[bytes]:
        previous = self.applied_index
        replies = super().apply_batch(index, commands)
        self._judge.on_apply(index, previous, commands, replies, self.digest())
        return replies

    def restore(self, chunks: Iterable[bytes]) -> None:
        super().restore(chunks)
        self._judge.on_restore(self.applied_index, self.digest())

    def restore_delta(self, chunks: Iterable[bytes]) -> None:
        super().restore_delta(chunks)
        self._judge.on_restore(self.applied_index, self.digest())


class BrokerWorld(SimCluster):
    """Everything of one run. Nothing here knows what is right."""

    def __init__(
        self, scenario: Scenario, prgs: int | None = None, *, is_sickly: bool = False
    ) -> None:
        """`prgs`: how many of the groups are the ring's at first; it grows to all of them.

        `is_sickly`: partitions fall into quarantine, strict fallback and outages of the control
        plane, and recover (quantumqtt §4.6.1).
        """
        self._standings: dict[int, OperationGate] | None = {} if is_sickly else None
        rng = Random(f"broker {scenario.seed}")  # noqa: S311  # chosen for repetition
        self.tenant = TenantEntry(
            DEVELOPMENT_TENANT,
            scenario.groups if prgs is None else prgs,
            queue_messages_max=rng.choice((12, 40, 1_000)),
        )
        self._settings = [broker_settings(self.tenant, each) for each in range(scenario.groups)]
        self.brokers: dict[ReplicaId, BrokerNode] = {}
        self._lines: dict[BrokerNode, list[SimLine]] = {}
        self._client_rng = rng
        super().__init__(scenario)
        self.subscribers = [
            SimSubscriber(
                self, f"s{qos}", self._version(), self._next_rng(), topic_filter=wanted, qos=qos
            )
            for qos, wanted in ((2, "t/#"), (1, "t/+/x"))
        ]
        self.publishers = [
            SimPublisher(
                self,
                f"p{number}",
                self._version(),
                self._next_rng(),
                topics=[f"t/{number}/{name}" for name in ("x", "y", "z")],
                qos=1 + number % 2,
                limit=scenario.operations_max,
            )
            for number in range(scenario.clients)
        ]
        self.captures = Captures(self, self._rng("captures"))
        self.later(400 * MS, self._disturb)
        if is_sickly:
            self._sickness = self._rng("sickness")
            self.later(300 * MS, self._sicken)
        self.is_growing = prgs is not None
        if self.is_growing:
            self._growth = self._rng("growth")
            self.later(self._growth.randint(500 * MS, scenario.duration), self._grow)

    def _sicken(self) -> None:
        """Let one partition stand otherwise, until the faults are over."""
        standings = self._standings
        assert standings is not None
        if self.injection.over:
            standings.clear()
            return
        number = self._sickness.randrange(self.scenario.groups)
        standings[number] = self._sickness.choice((HEALTHY, *_SICK))
        self.later(self._sickness.randint(20 * MS, 400 * MS), self._sicken)

    def _standing(self, prg: PartitionLeader) -> OperationGate:
        sick = {} if self.injection.over or self._standings is None else self._standings
        return sick.get(prg.number, HEALTHY)

    def _grow(self) -> None:
        """Write a larger ring down; each node reads it when it does."""
        ring = TenantRing(self.scenario.groups)
        self.tenant = msgspec.structs.replace(self.tenant, rings=(ring,))
        for node in sorted(self.nodes):
            self.later(self._growth.randint(0, 300 * MS), partial(self._read_ring, node))

    def _read_ring(self, node: ReplicaId) -> None:
        broker = self.brokers.get(node)
        if broker is not None:
            broker.service.host(broker.service.tenants[self.tenant.name], self.tenant)

    @property
    def has_grown(self) -> bool:
        """Whether every partition, on every node, has done its part."""
        tenants = [broker.service.tenants[self.tenant.name] for broker in self.brokers.values()]
        return bool(self.tenant.rings) and all(map(is_settled, tenants))

    def _version(self) -> ProtocolVersion:
        return self._client_rng.choice(_VERSIONS)

    def _next_rng(self) -> Random:
        return Random(self._client_rng.getrandbits(64))  # noqa: S311  # chosen for repetition

    @property
    def clients(self) -> list[SimClient]:
        return [*self.subscribers, *self.publishers]

    @property
    def is_heard(self) -> bool:
        """Whether every subscriber knows that it is subscribed."""
        return all(each.is_subscribed for each in self.subscribers)

    # What a simulated cluster asks.

    def _new_judge(self, group: int) -> GroupJudge:
        return GroupJudge(group, knows_requests=False)

    def _new_crowd(self) -> Crowd:
        self.links = SimLinks(self, self, self._rng("links"))
        for node in self.nodes.values():
            self.on_start(node)
        return self

    def new_machine(self, group: int, judge: GroupJudge) -> StateMachine:
        return WatchedBroker(self._settings[group], judge)

    def on_start(self, node: SimNode) -> None:
        broker = self.brokers[node.id] = BrokerNode(self.links, node, self.tenant)
        if self._standings is not None:
            broker.service.gate_of = self._standing
        self._lines[broker] = []
        self.links.dial(node)

    def on_stop(self, node: SimNode) -> None:
        broker = self.brokers.pop(node.id)
        broker.stop()
        self.links.stopped(node)
        for line in self._lines.pop(broker):
            line.node_gone()

    @property
    def now(self) -> Microseconds:
        return self.timeline.now

    def propose(self, group: int, command: bytes, told: Callable[[bytes | None], None]) -> None:
        """Let the leader of a partition propose a command, if there is one."""
        leader = self.leader(group)
        broker = None if leader is None else self.brokers.get(leader.node.id)
        if broker is not None:
            broker.service.tenants[self.tenant.name].prgs[group].propose(command, told)
            broker.turn_soon()

    def on_tick(self, node: SimNode) -> None:
        broker = self.brokers.get(node.id)
        if broker is not None:
            broker.service.on_tick()
            broker.turn_soon()

    def on_output(self, seat: ReplicaDriver, output: ReplicaOutput) -> None:
        broker = self.brokers.get(seat.node.id)
        if broker is not None:
            broker.on_output(seat, output)

    # Connections.

    def arrived(self, node: ReplicaId, peer: ReplicaId, data: bytes) -> None:
        broker = self.brokers.get(node)
        if broker is not None:
            broker.service.on_peer_data(_node_id(peer), data)
            broker.turn_soon()

    def lost(self, node: ReplicaId, peer: ReplicaId) -> None:
        broker = self.brokers.get(node)
        if broker is not None:
            broker.service.on_peer_lost(_node_id(peer))
            broker.turn_soon()

    def dial(self, client: ClientEnd, rng: Random) -> SimLine | None:
        """Connect a client to a node that runs; None if none does."""
        if not self.brokers:
            return None
        broker = self.brokers[rng.choice(sorted(self.brokers))]
        line = SimLine(self, broker, client, self.tenant.name, rng)
        self._lines[broker].append(line)
        return line

    def _disturb(self) -> None:
        """Let a client lose its connection now and then, while there are faults."""
        if not self.injection.over:
            self._client_rng.choice(self.clients).disturb()
            self.later(self._client_rng.randint(50 * MS, 700 * MS), self._disturb)


def _node_id(replica: ReplicaId) -> NodeId:
    return NodeId(int(replica))
