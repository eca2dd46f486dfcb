"""Every page of `/v1`. What is not in it does not exist."""

from __future__ import annotations

from typing import Final

from quantum.admin import (
    table_broker,
    table_cluster,
    table_explain,
    table_groups,
    table_kafka,
    table_queues,
    table_streams,
    table_tenants,
)
from quantum.admin.routes import AdminRoute

ROUTES: Final[tuple[AdminRoute, ...]] = (
    *table_cluster.CLUSTER,
    *table_cluster.NODES,
    *table_cluster.KEYS,
    *table_cluster.ROLES,
    *table_cluster.AUDIT,
    *table_cluster.LOGS,
    *table_tenants.TENANTS,
    *table_tenants.CERTIFICATES,
    *table_tenants.ROUTING,
    *table_tenants.CONFIG,
    *table_broker.BROKER,
    *table_broker.SESSIONS,
    *table_broker.MESSAGES,
    *table_explain.EXPLAIN,
    *table_streams.STREAMS,
    *table_queues.QUEUES,
    *table_kafka.KAFKA,
    *table_groups.GROUPS,
    *table_groups.PROOFS,
    *table_groups.FEATURES,
    *table_groups.OVERRIDES,
    *table_groups.FENCES,
    *table_groups.BUNDLES,
)
