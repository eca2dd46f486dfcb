"""Connections between simulated nodes as TCP gives them: in order, or broken for both ends.

A frame that the network would lose breaks the connection. What was on its way is gone, both ends
hear of it after a while, and the connection is made anew as soon as nothing is in its way.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from clustor.raft.types import ReplicaId
from clustor.sim.cluster import SimCluster
from clustor.sim.driver import SimNode
from clustor.sim.network import NodeId
from clustor.sim.scenario import MS
from clustor.sim.timeline import Microseconds

_LATENCY_MIN: Final = 100
_BREAKS_PPM: Final = 200
_MILLION: Final = 1_000_000


class Ends(Protocol):
    """Whom the connections belong to."""

    def arrived(self, node: ReplicaId, peer: ReplicaId, data: bytes) -> None: ...
    def lost(self, node: ReplicaId, peer: ReplicaId) -> None: ...


class SimLinks:
    """One connection between every two nodes."""

    def __init__(self, cluster: SimCluster, ends: Ends, rng: Random) -> None:
        self._cluster = cluster
        self._ends = ends
        self._rng = rng
        self._latency_max = cluster.scenario.link.latency_max
        self._breaks_ppm = rng.choice((0, _BREAKS_PPM, 20 * _BREAKS_PPM))
        self._life: dict[tuple[ReplicaId, ReplicaId], int] = {}
        """How often the connection of a pair was made or broken: it is up at odd counts."""
        self._latest: dict[tuple[ReplicaId, ReplicaId], Microseconds] = {}
        self.are_calm = False

    def connected(self, node: ReplicaId) -> set[ReplicaId]:
        """Name the peers that a node believes it can speak to."""
        return {peer for peer in self._cluster.nodes if peer != node and self._is_up(node, peer)}

    def _is_up(self, one: ReplicaId, other: ReplicaId) -> bool:
        return self._life.get(_pair(one, other), 0) % 2 == 1

    def send(self, source: ReplicaId, target: ReplicaId, data: bytes) -> None:
        """Let bytes leave; they arrive behind all that left before them, or never."""
        if not self._is_up(source, target):
            return
        if self._is_cut(source, target) or self._breaks():
            self.break_link(source, target)
            return
        life = self._life[_pair(source, target)]
        at = Microseconds(
            self._cluster.timeline.now + self._rng.randint(_LATENCY_MIN, self._latency_max)
        )
        at = max(at, self._latest.get((source, target), at))
        self._latest[source, target] = at

        def arrive() -> None:
            if self._life[_pair(source, target)] == life:
                self._ends.arrived(target, source, data)

        self._cluster.later(at - self._cluster.timeline.now, arrive)

    def _breaks(self) -> bool:
        return not self.are_calm and self._rng.randrange(_MILLION) < self._breaks_ppm

    def _is_cut(self, source: ReplicaId, target: ReplicaId) -> bool:
        network = self._cluster.network
        ways = ((source, target), (target, source))  # what is not acknowledged does not count
        return any(network.is_cut(NodeId(one), NodeId(other)) for one, other in ways)

    def break_link(self, one: ReplicaId, other: ReplicaId) -> None:
        """Break a connection; each end hears of it at a time of its own."""
        if not self._is_up(one, other):
            return
        self._life[_pair(one, other)] += 1
        delays = [self._rng.choice((1, 20, 300)) * MS + self._rng.randrange(MS) for _ in range(2)]
        for end, peer, delay in ((one, other, delays[0]), (other, one, delays[1])):
            self._cluster.later(delay, self._telling(end, peer))
        self._cluster.later(max(delays) + 1, self._dialling(one, other))

    def _telling(self, end: ReplicaId, peer: ReplicaId) -> Callable[[], None]:
        return lambda: self._ends.lost(end, peer)

    def dial(self, node: SimNode) -> None:
        """Connect a node that starts to all others that run."""
        for peer in self._cluster.nodes.values():
            if peer is not node:
                self._dialling(node.id, peer.id)()

    def _dialling(self, one: ReplicaId, other: ReplicaId) -> Callable[[], None]:
        def dial() -> None:
            nodes = self._cluster.nodes
            if self._is_up(one, other) or not (nodes[one].up and nodes[other].up):
                return  # who starts dials again
            if self._is_cut(one, other):
                self._cluster.later(self._rng.randint(20 * MS, 100 * MS), dial)
                return
            pair = _pair(one, other)
            self._life[pair] = self._life.get(pair, 0) + 1

        return dial

    def stopped(self, node: SimNode) -> None:
        """A process is gone: its peers hear of it."""
        for peer in self._cluster.nodes.values():
            if peer is not node and self._is_up(node.id, peer.id):
                self.break_link(node.id, peer.id)


def _pair(one: ReplicaId, other: ReplicaId) -> tuple[ReplicaId, ReplicaId]:
    return (one, other) if one < other else (other, one)
