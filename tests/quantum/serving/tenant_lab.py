"""The lab with several tenants, identities, policies, and lines that can be left unread."""

from __future__ import annotations

from dataclasses import dataclass

from quantum.broker import Broker
from quantum.edge.ports import ConnectionPeer, Transport
from quantum.mesh.tenant import Tenant
from quantum.protocols.mqtt.session.limits import MqttLimits
from quantum.protocols.mqtt.session.tenant_sessions import TenantSessions
from quantum.tenancy import TenantDescription, describe_tenants
from quantum.tenants.broker_file import TenantEntry
from tests.quantum.serving.lab import Lab, LabLine, LabReplica, LabService

TICK_MS = 10


class TenantLab(Lab):
    """A broker with the tenants of a description, numbered in its order."""

    def __init__(
        self,
        tenants: dict[str, dict[str, object]],
        limits: MqttLimits | None = None,
        *,
        prgs: int = 3,
    ) -> None:
        self._described = describe_tenants({"tenants": tenants})
        super().__init__(limits, prgs=prgs)

    async def _new_service(self, limits: MqttLimits, prgs: int) -> LabService:
        service = LabService(self.node, limits)
        for ordinal, (name, description) in enumerate(self._described.items()):
            service.add_tenant(TenantEntry(name, prgs), ordinal).obey(description)
        return service

    def tenant(self, name: str) -> Tenant:
        return self.service.tenants[name]

    def clients(self, name: str) -> TenantSessions:
        """Return a tenant's clients, as MQTT knows them."""
        return self.service.mqtt.tenants[name]

    def describe(self, tenants: dict[str, dict[str, object]]) -> None:
        """Put another policy in force."""
        for name, description in describe_tenants({"tenants": tenants}).items():
            self.tenant(name).obey(description)
        self.settle()

    def forget(self, name: str) -> None:
        """Let a tenant have no rules any more."""
        self.tenant(name).obey(TenantDescription())

    def replicas(self, name: str) -> list[LabReplica]:
        mine = {id(prg.group) for prg in self.tenant(name).prgs}
        return [group.replica for group in self.node.groups if id(group) in mine]

    def stick(self, name: str, *, stuck: bool) -> None:
        """Let a tenant's disks stop to answer, or answer again."""
        for replica in self.replicas(name):
            replica.is_stuck = stuck
        if not stuck:
            self.node.is_due = True
            self.settle()

    def machines(self, name: str) -> list[Broker]:
        return [prg.broker for prg in self.tenant(name).prgs]

    def tick(self, milliseconds: int) -> None:
        """Let a short time pass, tick by tick."""
        for _ in range(milliseconds // TICK_MS):
            self.node.clock_ms += TICK_MS
            self.service.on_tick()
            self.settle()

    def turn(self) -> None:
        """Let one turn of the loop happen, and no more; as in a node, it was asked for first."""
        later, self.service.later = self.service.later, []
        self._turn()
        for call in later:
            call()

    def door(self, tenant: str, identity: str | None = None) -> Door:
        """Return where a tenant's clients come in, with whom their certificate names."""
        return Door(self, tenant, identity, tenant)


@dataclass
class Door:
    lab: TenantLab
    tenant: str
    identity: str | None = None
    named_tenant: str | None = None

    def dial(self) -> TenantLine:
        return TenantLine(self)


class TenantLine(LabLine):
    """A line of one tenant's client. What it sends while nobody reads waits in the network."""

    def __init__(self, door: Door) -> None:
        super().__init__(door.lab)
        self._door = door
        self._tenant_lab = door.lab
        self.unread = bytearray()
        self.is_paused = False

    def send(self, data: bytes) -> None:
        self.put(data)
        self._tenant_lab.settle()

    def put(self, data: bytes) -> None:
        """Send without letting anything else happen."""
        if not self._is_open:
            self._is_open = True
            transport: Transport = "tcp" if self._door.identity is None else "tls"
            self.handler.opened(
                self,
                ConnectionPeer(
                    transport,
                    "lab",
                    self._door.tenant,
                    self._door.identity,
                    named_tenant=self._door.named_tenant,
                ),
            )
        if self.is_paused:
            self.unread += data
        elif not self.is_closed:
            self.handler.received(data)

    def pause_reading(self) -> None:
        assert not self.is_paused, "paused twice"
        self.is_paused = True

    def resume_reading(self) -> None:
        assert self.is_paused, "resumed without a pause"
        self.is_paused = False
        if self.unread:
            self._tenant_lab.service.soon(self._read_on)

    def _read_on(self) -> None:
        if not self.is_paused and not self.is_closed:
            data, self.unread = bytes(self.unread), bytearray()
            self.handler.received(data)
