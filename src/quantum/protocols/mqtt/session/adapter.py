"""MQTT as a protocol of a node: the first of `quantum.protocols.ports.Adapter`."""

from __future__ import annotations

from quantum.broker.message import decode_record
from quantum.mesh import link
from quantum.mesh.tenant import Tenant
from quantum.partition.leader import PartitionLeader
from quantum.protocols.mqtt.session.connection import MqttConnection
from quantum.protocols.mqtt.session.mqtt_node import MqttNode
from quantum.protocols.mqtt.session.partition_sessions import PartitionSessions
from quantum.protocols.mqtt.session.tenant_sessions import TenantClient, TenantSessions
from quantum.protocols.ports import WordHandlers


class MqttAdapter(MqttNode):
    """Makes connections, and gives every tenant and partition its MQTT part."""

    @property
    def words(self) -> WordHandlers:
        return {
            link.Unlogged: self._on_unlogged,
            link.UnloggedDeliver: self._on_unlogged_deliver,
            link.UnloggedMember: self._on_unlogged_member,
            link.SlowDown: self._on_slow_down,
        }

    def new_connection(self) -> MqttConnection:
        return MqttConnection(self)

    def relayed_connection(self, client_id: bytes) -> MqttConnection:
        connection = MqttConnection(self)
        connection.arrived(client_id)
        return connection

    def host_tenant(self, tenant: Tenant) -> None:
        sessions = self.tenants[tenant.name] = TenantSessions(tenant)
        tenant.sides.append(sessions)

    def forget_tenant(self, tenant: Tenant) -> None:
        self.tenants.pop(tenant.name, None)

    def host_partition(self, leader: PartitionLeader) -> None:
        home = self.tenants[leader.tenant.name]
        assert leader.number == len(home.sessions), "partitions are hosted in order"
        sessions: PartitionSessions[TenantClient] = PartitionSessions(leader, home)
        home.sessions.append(sessions)
        leader.register(sessions)

    # What other nodes say to MQTT.

    def _led(self, life: str, number: int) -> PartitionSessions[TenantClient] | None:
        """Return the sessions of a partition that this node leads."""
        prg = self.host.find_partition(life, number)
        if prg is None or not prg.leading:
            return None
        return self.tenants[prg.tenant.name].sessions[number]

    def _on_unlogged(self, _peer: int, said: link.Unlogged) -> None:
        sessions = self._led(said.tenant, said.owner)
        if sessions is not None:
            for record in said.records:
                sessions.publish_unlogged(decode_record(record)[0])

    def _on_unlogged_deliver(self, _peer: int, said: link.UnloggedDeliver) -> None:
        sessions = self._led(said.tenant, said.prg)
        if sessions is not None:
            for record in said.records:
                sessions.leader.carry_out_behind(said.origin, decode_record(record)[0])

    def _on_unlogged_member(self, _peer: int, said: link.UnloggedMember) -> None:
        sessions = self._led(said.tenant, said.prg)
        if sessions is not None:
            message, _ = decode_record(said.record)
            sessions.deliver_to_member(said.client_id, said.epoch, said.identifier, message)

    def _on_slow_down(self, peer: int, said: link.SlowDown) -> None:
        sessions = self._led(said.tenant, said.prg)
        connection = None if sessions is None else sessions.connections.get(said.publisher)
        if sessions is not None and connection is not None:
            home = self.tenants[sessions.leader.tenant.name]
            home.slowed.on_word(peer, said.subscriber, connection, slow=said.slow)
