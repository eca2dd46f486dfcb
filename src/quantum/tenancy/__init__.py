"""Tenancy: what a tenant may do, how much of it, and that it never meets another tenant."""

from quantum.tenancy.acl import (
    AclRule,
    Action,
    ClientAccess,
    CompiledAcl,
    Decision,
    Effect,
    Ground,
    compile_acl,
)
from quantum.tenancy.buckets import (
    ConnectionAdmission,
    NoisyNeighbour,
    Rate,
    RateDecision,
    RateGuard,
    RateLimit,
    Rates,
    TokenBucket,
)
from quantum.tenancy.credits import RECALCULATE_EVERY_MS, InFlightSlots, Load, credit_hint
from quantum.tenancy.description import TenantDescription, describe_tenants
from quantum.tenancy.errors import (
    InvalidQuota,
    InvalidRule,
    InvalidTenantId,
    InvalidTenants,
    NamespaceViolation,
    TenancyError,
    TenancyMisuse,
)
from quantum.tenancy.ladder import GRACE_MS, Usage
from quantum.tenancy.namespace import Namespace, check_tenant_id
from quantum.tenancy.policy import (
    AclRefusal,
    ConnectionAudit,
    FullQueues,
    SharedDistribution,
    TenantPolicy,
    TopicNames,
    Wills,
)
from quantum.tenancy.quotas import (
    QUOTA_MAXIMA,
    Alert,
    QuotaDecision,
    QuotaLedger,
    Quotas,
    Resource,
)
from quantum.tenancy.shares import HELD, Amounts, is_stale, plan_shares
from quantum.tenancy.types import Principal, Verdict

__all__ = [
    "GRACE_MS",
    "HELD",
    "QUOTA_MAXIMA",
    "RECALCULATE_EVERY_MS",
    "AclRefusal",
    "AclRule",
    "Action",
    "Alert",
    "Amounts",
    "ClientAccess",
    "CompiledAcl",
    "ConnectionAdmission",
    "ConnectionAudit",
    "Decision",
    "Effect",
    "FullQueues",
    "Ground",
    "InFlightSlots",
    "InvalidQuota",
    "InvalidRule",
    "InvalidTenantId",
    "InvalidTenants",
    "Load",
    "Namespace",
    "NamespaceViolation",
    "NoisyNeighbour",
    "Principal",
    "QuotaDecision",
    "QuotaLedger",
    "Quotas",
    "Rate",
    "RateDecision",
    "RateGuard",
    "RateLimit",
    "Rates",
    "Resource",
    "SharedDistribution",
    "TenancyError",
    "TenancyMisuse",
    "TenantDescription",
    "TenantPolicy",
    "TokenBucket",
    "TopicNames",
    "Usage",
    "Verdict",
    "Wills",
    "check_tenant_id",
    "compile_acl",
    "credit_hint",
    "describe_tenants",
    "is_stale",
    "plan_shares",
]
