"""Kafka as a protocol of a node (`quantum.protocols.ports.Adapter`)."""

from __future__ import annotations

from clustor.runtime.containment import contained
from quantum.mesh.tenant import Tenant
from quantum.partition.leader import PartitionLeader
from quantum.protocols.kafka.session.connection import PLACE, KafkaConnection
from quantum.protocols.kafka.session.kafka_node import KafkaNode
from quantum.protocols.kafka.session.kafka_tenant import TenantKafka
from quantum.protocols.ports import WordHandlers


class KafkaAdapter(KafkaNode):
    """Makes connections, and gives every tenant its Kafka part.

    A client is never relayed: it is told who leads, and goes there.
    """

    @property
    def words(self) -> WordHandlers:
        return {}

    def new_connection(self) -> KafkaConnection:
        return KafkaConnection(self)

    def relayed_connection(self, _client_id: bytes) -> KafkaConnection:
        raise AssertionError("no Kafka connection is relayed")

    def host_tenant(self, tenant: Tenant) -> None:
        side = self.tenants[tenant.name] = TenantKafka(tenant, tenant.topics, self.entropy)
        tenant.sides.append(side)

    def forget_tenant(self, tenant: Tenant) -> None:
        side = self.tenants.pop(tenant.name, None)
        if side is not None:
            contained.run(PLACE, tenant.name, lambda: side.send_away("the tenant is gone"))

    def host_partition(self, leader: PartitionLeader) -> None:
        """What the log does for topics needs no part of a protocol in it."""
