"""AMQP 1.0 as a protocol of a node (`quantum.protocols.ports.Adapter`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from quantum.mesh import link
from quantum.mesh.tenant import Tenant
from quantum.partition.leader import PartitionLeader
from quantum.protocols.amqp.session.amqp_node import AmqpNode
from quantum.protocols.amqp.session.client import AmqpClient
from quantum.protocols.amqp.session.partition_queues import PartitionQueues
from quantum.protocols.amqp.session.tenant_queues import TenantQueues
from quantum.protocols.amqp.session.ways import QueueWays
from quantum.protocols.ports import WordHandlers

_LANE_BYTES: Final = 12


class AmqpAdapter(AmqpNode):
    """Makes connections, and gives every tenant and partition its AMQP part."""

    @property
    def words(self) -> WordHandlers:
        return {
            link.QueueAttach: self._word(QueueWays.on_attach),
            link.QueueCredit: self._word(QueueWays.on_credit),
            link.QueueDetach: self._word(QueueWays.on_detach),
            link.QueueSettles: self._word(QueueWays.on_settles),
            link.QueueDeliveries: self._word(QueueWays.on_deliveries),
            link.QueueSettled: self._word(QueueWays.on_settled),
            link.QueueTold: self._word(QueueWays.on_told),
        }

    def _word(self, call: Callable[[QueueWays, int, Any], None]) -> Callable[[int, Any], None]:
        """Give a word of another node to the tenant that it is about."""

        def said(peer: int, word: Any) -> None:
            prg = self.host.find_partition(word.tenant, word.prg)
            home = None if prg is None else self.tenants.get(prg.tenant.name)
            if home is not None:
                call(home.ways, peer, word)

        return said

    def new_connection(self) -> AmqpClient:
        return AmqpClient(self)

    def relayed_connection(self, client_id: bytes) -> AmqpClient:  # noqa: ARG002
        """Make one like any other: AMQP's links find their leaders, connections stay."""
        return AmqpClient(self)

    def host_tenant(self, tenant: Tenant) -> None:
        name = self.entropy(_LANE_BYTES)
        ports = (lambda: self.readers, lambda: self.writer)
        home = TenantQueues(self.host, tenant, name, *ports, topics=lambda: self.topics)
        self.tenants[tenant.name] = home
        tenant.sides.append(home)

    def forget_tenant(self, tenant: Tenant) -> None:
        self.tenants.pop(tenant.name, None)

    def host_partition(self, leader: PartitionLeader) -> None:
        home = self.tenants[leader.tenant.name]
        assert leader.number == len(home.queues), "partitions are hosted in order"
        queues = PartitionQueues(leader, lambda: self.bodies, self.host.clock_ms)
        home.queues.append(queues)
        leader.register(queues)
