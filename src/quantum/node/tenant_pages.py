"""`/broker/tenants/…`: the rings of tenants, how far a change is, and the order to grow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from clustor.runtime.errors import DataDirectoryRefused
from quantum.broker import waits_for
from quantum.mesh.tenant import Tenant
from quantum.tenants.broker_file import GrowthRefused, grow_tenant, read_broker_file

if TYPE_CHECKING:
    from quantum.node.service import BrokerService

PREFIX: Final = "/broker/tenants"

Answer = tuple[int, object]


class TenantPages:
    """What is asked and ordered about tenants, at any node."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service

    def get(self, target: str) -> Answer | None:
        """Answer `GET /broker/tenants` and `GET /broker/tenants/<tenant>`."""
        path = urlsplit(target).path
        if path == PREFIX:
            rows = [describe(tenant) for tenant in self._service.tenants.values()]
            return 200, {"tenants": rows}
        if not path.startswith(PREFIX + "/"):
            return None
        name = unquote(path.removeprefix(PREFIX + "/"))
        tenant = self._service.tenants.get(name)
        if tenant is None:
            return 404, {"error": f"there is no tenant {name}"}
        return 200, describe(tenant)

    def post(self, target: str) -> Answer | None:
        """Carry out `POST /broker/tenants/<tenant>/prgs?count=N`: write it down, durably."""
        parts = urlsplit(target)
        if not parts.path.startswith(PREFIX + "/") or not parts.path.endswith("/prgs"):
            return None
        name = unquote(parts.path.removeprefix(PREFIX + "/").removesuffix("/prgs"))
        wanted = parse_qs(parts.query).get("count", [""])[-1]
        if not (wanted.isascii() and wanted.isdigit()) or len(wanted) > 9:
            return 400, {"error": "count must be a number"}
        return self._grow(name, int(wanted))

    def _grow(self, name: str, count: int) -> Answer:
        rings_file, tenant = self._service.rings_file, self._service.tenants.get(name)
        if tenant is None or rings_file is None:
            return 404, {"error": f"there is no tenant {name}"}
        if count != _prg_count(tenant) and not is_settled(tenant):
            return 409, {"error": "the change before it is not over", **describe(tenant)}
        if not _is_of_file(rings_file.directory, tenant):
            words = "the control plane has its ring: set tenant_prg_count in the configuration"
            return 409, {"error": words}
        try:
            voters = tenant.prgs[0].group.replica.group.core.config.voters
            entry = grow_tenant(rings_file.directory, name, count, voters)
        except GrowthRefused as refusal:
            return 409, {"error": str(refusal)}
        except (DataDirectoryRefused, OSError) as error:
            return 500, {"error": f"the ring could not be written down: {error}"}
        return 202, {"tenant": name, "prg_count": entry.prg_count, "epoch": len(entry.rings)}


def _is_of_file(directory: Path, tenant: Tenant) -> bool:
    """Say whether `broker.json` has every ring of a tenant."""
    entries = read_broker_file(directory).tenants
    return any(e.name == tenant.name and len(e.rings) >= len(tenant.rings) for e in entries)


def describe(tenant: Tenant) -> dict[str, Any]:
    """Say where a tenant's ring is, as far as this node's replicas know."""
    epoch = len(tenant.rings)
    partitions = []
    for prg in tenant.prgs:
        state = prg.broker.state
        words = waits_for(state)
        if state.is_open and state.routing_epoch < epoch and not words:
            words = [prg.ring.refused or "to begin"]
        partitions.append(
            {
                "partition": prg.number,
                "routing_epoch": state.routing_epoch,
                "prg_count": state.prg_count,
                "open": state.is_open,
                "leader": prg.leader_node,
                "waits_for": words,
            }
        )
    return {
        "tenant": tenant.name,
        "routing_epoch": epoch,
        "prg_count": _prg_count(tenant),
        "settled": is_settled(tenant),
        "partitions": partitions,
    }


def _prg_count(tenant: Tenant) -> int:
    return tenant.rings[-1].prg_count if tenant.rings else len(tenant.prgs)


def is_settled(tenant: Tenant) -> bool:
    """Say whether every partition has done its part of every change."""
    epoch = len(tenant.rings)
    states = [prg.broker.state for prg in tenant.prgs]
    return all(state.routing_epoch == epoch and not waits_for(state) for state in states)
