"""What an operator orders of a node's broker: end a session, let a tenant's ring grow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clustor.runtime.errors import DataDirectoryRefused
from quantum.broker import waits_for
from quantum.node.rows import RingOrdered, RingPartition, RingView
from quantum.tenants.broker_file import GrowthRefused, grow_tenant, read_broker_file

if TYPE_CHECKING:
    from quantum.mesh.tenant import Tenant
    from quantum.node.service import BrokerService


class OrderRefused(Exception):
    """An order that stands against what is there; the sentence says what."""


class OrderFailed(Exception):
    """An order that could not be written down."""


class LedByAnother(Exception):
    """Who leads the session's partition must be asked; `leader` is None where nobody does."""

    def __init__(self, leader: int | None) -> None:
        super().__init__("another node serves this session")
        self.leader = leader


class BrokerOrders:
    """Carries orders out, durably; each is noted in the audit log with who gave it."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def kick(self, tenant: Tenant, client: bytes, who: str) -> bool:
        """End a session and disconnect its client; False: there is none. Raises LedByAnother."""
        prg = tenant.session_prg(client)
        if not prg.leading:
            raise LedByAnother(prg.leader_node)
        sessions = self._service.mqtt.tenants[tenant.name].sessions
        if not any(each.kick(client) for each in sessions):
            return False
        self._service.note_act(
            "SessionEnded", "Done", who=who, target=client.decode(), tenant=tenant.name
        )
        return True

    def grow(self, tenant: Tenant, count: int, who: str) -> RingOrdered:
        """Let a ring grow; raises OrderRefused and OrderFailed."""
        rings_file = self._service.rings_file
        if count != _prg_count(tenant) and not is_settled(tenant):
            raise OrderRefused("the change before it is not over")
        if rings_file is None or not _is_of_file(rings_file.directory, tenant):
            raise OrderRefused(
                "the control plane has its ring: set tenant_prg_count in the configuration"
            )
        try:
            voters = tenant.prgs[0].group.replica.group.core.config.voters
            entry = grow_tenant(rings_file.directory, tenant.name, count, voters)
        except GrowthRefused as refusal:
            raise OrderRefused(str(refusal)) from refusal
        except (DataDirectoryRefused, OSError) as error:
            raise OrderFailed(f"the ring could not be written down: {error}") from error
        self._service.note_act("RingGrows", "Done", who=who, target=str(count), tenant=tenant.name)
        return RingOrdered(tenant=tenant.name, prg_count=entry.prg_count, epoch=len(entry.rings))


def _is_of_file(directory: Path, tenant: Tenant) -> bool:
    """Say whether `broker.json` has every ring of a tenant."""
    entries = read_broker_file(directory).tenants
    return any(e.name == tenant.name and len(e.rings) >= len(tenant.rings) for e in entries)


def describe_ring(tenant: Tenant) -> RingView:
    """Say where a tenant's ring is, as far as this node's replicas know."""
    epoch = len(tenant.rings)
    partitions = []
    for prg in tenant.prgs:
        state = prg.broker.state
        words = list(waits_for(state))
        if state.is_open and state.routing_epoch < epoch and not words:
            words = [prg.ring.refused or "to begin"]
        partitions.append(
            RingPartition(
                partition=prg.number,
                routing_epoch=state.routing_epoch,
                prg_count=state.prg_count,
                open=state.is_open,
                leader=prg.leader_node,
                waits_for=words,
            )
        )
    return RingView(
        tenant=tenant.name,
        routing_epoch=epoch,
        prg_count=_prg_count(tenant),
        settled=is_settled(tenant),
        partitions=partitions,
    )


def _prg_count(tenant: Tenant) -> int:
    return tenant.rings[-1].prg_count if tenant.rings else len(tenant.prgs)


def is_settled(tenant: Tenant) -> bool:
    """Say whether every partition has done its part of every change."""
    epoch = len(tenant.rings)
    states = [prg.broker.state for prg in tenant.prgs]
    return all(state.routing_epoch == epoch and not waits_for(state) for state in states)
