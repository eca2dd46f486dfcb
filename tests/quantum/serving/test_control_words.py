"""What a broker makes of the control plane's records: tables of words, and the plan of rings."""

from __future__ import annotations

import pytest

from clustor.control import (
    AclAction,
    AclEffect,
    AclRule,
    Command,
    CreateTenant,
    DeleteTenant,
    Members,
    PlacePartition,
    Scope,
    ScopeKind,
    SetAcls,
    SetConfiguration,
    SetQuotas,
    SetRoutingMap,
    UpdateTenant,
    TenantTier,
)
from clustor.log.types import PartitionId
from quantum.serving.broker_file import BrokerFile, Ring, TenantEntry
from quantum.serving.control_words import (
    TenantWord,
    connect_rules,
    describe,
    joined_sizes,
    tenant_word,
)
from quantum.serving.groups import group_of
from quantum.serving.tenant_records import FIRST_CONTROLLED_ORDINAL, tenant_records
from quantum.tenancy import (
    AclRefusal,
    Principal,
    Quotas,
    RateLimit,
    TenantDescription,
    TenantPolicy,
    describe_tenants,
)
from quantum.types import ClientId
from tests.clustor.control.plane import Plane
