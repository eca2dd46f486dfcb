"""How many partitions a tenant needs at the least (quantum §12; quantumqtt §2.1.1, §14.2). Pure.

In a production cluster a tenant of the tier Production has three, and as many as its quotas ask
for: one for each 50,000 clients, one for each 500 publishes a second. Defaults do not count: they
bound a tenant, and say nothing of its size. A development cluster asks for nothing.
"""

from __future__ import annotations

from typing import Final

from clustor.control import ClusterConfig, DraftReading, TenantSpec, TenantTier, find
from clustor.control.tenants import TENANT_PARTITIONS_MAX, QuotaPolicy

PRODUCTION_PRGS_MIN: Final = 3
SESSIONS_PER_PRG: Final = 50_000
PUBLISHES_PER_PRG: Final = 500
"""In a second."""


def prgs_for(connections_max: int, publish_rate_max: int) -> int:
    """Return over how many partitions such a tenant is spread; 0 says nothing of its size."""
    by_sessions = -(-connections_max // SESSIONS_PER_PRG)
    by_rate = -(-publish_rate_max // PUBLISHES_PER_PRG)
    return min(TENANT_PARTITIONS_MAX, max(PRODUCTION_PRGS_MIN, by_sessions, by_rate))


def prgs_least(store: DraftReading, tenant_id: str) -> int:
    """Return how many partitions a tenant has at the least, as far as the control plane knows."""
    spec, config = find(store, TenantSpec, tenant_id), find(store, ClusterConfig, "config")
    if spec is None or config is None or config.development:
        return 1
    if spec.tier is not TenantTier.PRODUCTION:
        return 1
    unset = QuotaPolicy(tenant_id=tenant_id)
    quotas = find(store, QuotaPolicy, tenant_id) or unset
    connections = quotas.connections_max
    is_said = connections != unset.connections_max  # a change of others leaves the default there
    return prgs_for(connections if is_said else 0, quotas.publish_rate_max)
