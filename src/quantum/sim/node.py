"""A broker on a simulated node: the real service, with the turns that a node's loop would make."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import cast

from clustor.raft.types import ReplicaId
from clustor.replica import Replica, ReplicaOutput
from clustor.runtime.group import HostedGroup
from clustor.runtime.node import Node
from clustor.sim.driver import ReplicaDriver, SimNode
from quantum.node.service import BrokerService
from quantum.sim.links import SimLinks
from quantum.tenants.broker_file import TenantEntry
from quantum.tenants.group_ids import group_of


class _Admission:
    """Flow control has tests of its own: here everything is let in."""

    def admit(self, _size_bytes: int) -> bool:
        return True


class SimGroup:
    """What the service knows as a hosted group."""

    def __init__(self, seat: ReplicaDriver, partition_id: int) -> None:
        self.seat = seat
        self.partition_id = partition_id
        self.admission = _Admission()

    @property
    def replica(self) -> Replica:
        return self.seat.running

    def answer_for(self, call: Callable[[], object]) -> bool:
        """Let an error be seen: a simulation fences nothing."""
        call()
        return True


class _Transport:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    def connected(self) -> set[ReplicaId]:
        return self._node.links.connected(self._node.sim.id)

    def is_behind(self, _peer: ReplicaId) -> bool:
        return False


class SimService(BrokerService):
    """The service, with the simulated clock and the simulated turns."""

    def __init__(self, node: BrokerNode, rng: Random) -> None:
        self._sim_node = node
        super().__init__(cast("Node", node), entropy=rng.randbytes)

    def now_ms(self) -> int:
        return self._sim_node.now_ms()

    def soon(self, call: Callable[[], None]) -> None:
        self._sim_node.later(call)


class BrokerNode:
    """One process of a broker, from its start to its end; what the service knows as its node."""

    def __init__(self, links: SimLinks, sim: SimNode, tenant: TenantEntry) -> None:
        self.links = links
        self.sim = sim
        self.node_id = sim.id
        self.transport = _Transport(self)
        self.is_over = False
        self.audit = None  # nobody looks at refusals here
        self.control = None  # all of a world are one build
        self._turn_due = False
        self._touched: dict[SimGroup, None] = {}
        self._hosted: list[SimGroup] = []  # by the seat's number
        self.service = SimService(self, sim.rng)
        self.service.add_tenant(tenant, 0)

    # What the service asks of its node.

    def now_ms(self) -> int:
        return self.sim.now_ms()

    def serve(self, _service: object) -> int:
        return 0

    def host(self, partition: int, *_how: object) -> HostedGroup:
        seat = self.sim.seats[partition - group_of(0, 0)]
        group = SimGroup(seat, partition)
        self._hosted.append(group)
        return cast("HostedGroup", group)

    def touch(self, group: HostedGroup) -> None:
        self._touched[cast("SimGroup", group)] = None
        self.turn_soon()

    def turn_soon(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.later(self._turn)

    flush_soon = turn_soon

    def send_service(self, _number: int, peer: int, data: bytes) -> None:
        self.links.send(self.sim.id, ReplicaId(peer), data)

    def later(self, call: Callable[[], None], delay: int = 0) -> None:
        """Call something of this process; not when it is over by then."""
        self.sim.cluster.later(delay, lambda: None if self.is_over else call())

    # What happens to it.

    def _turn(self) -> None:
        self._turn_due = False
        self.service.prepare()
        touched, self._touched = self._touched, {}
        for group in touched:
            if group.seat.replica is not None and not self.is_over:
                group.seat.turn()
        if not self.is_over:
            self.service.flush()

    def on_output(self, seat: ReplicaDriver, output: ReplicaOutput) -> None:
        """Take what one of the replicas put out, and end the turn soon."""
        if seat.group >= len(self._hosted):
            return  # the ring does not have it yet, as far as this node was told
        self.service.on_output(cast("HostedGroup", self._hosted[seat.group]), output)
        self.turn_soon()

    def stop(self) -> None:
        self.is_over = True
