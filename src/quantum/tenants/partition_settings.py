"""The numbers under which a partition's log is applied, by replicas and by later readers."""

from __future__ import annotations

from quantum.broker import BrokerSettings
from quantum.routing.ring import HashRing
from quantum.tenants.broker_file import TenantEntry
from quantum.types import ClientId, TenantId


def broker_settings(tenant: TenantEntry, number: int) -> BrokerSettings:
    """Return the numbers under which every replica of a partition applies its log.

    How many partitions the ring has later is in the log.
    """
    ring, name = HashRing(), TenantId(tenant.name)
    return BrokerSettings(
        number,
        tenant.prgs,
        lambda topic, count: ring.topic_partition(name, topic, count),
        lambda client_id, count: ring.session_partition(name, ClientId(client_id), count),
        queue_messages_max=tenant.queue_messages_max,
        queue_bytes_max=tenant.queue_bytes_max,
        dedupe_horizon_ms=1_000 * tenant.dedupe_horizon_seconds,
    )
