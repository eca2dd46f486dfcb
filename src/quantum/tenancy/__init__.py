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
from quantum.tenancy.errors import (
    InvalidQuota,
    InvalidRule,
    InvalidTenantId,
    NamespaceViolation,
    TenancyError,
    TenancyMisuse,
)
from quantum.tenancy.namespace import Namespace, check_tenant_id
from quantum.tenancy.policy import AclRefusal, SharedDistribution, TenantPolicy, TopicNames
from quantum.tenancy.quotas import (
    QUOTA_MAXIMA,
    Alert,
    QuotaDecision,
    QuotaLedger,
    Quotas,
    Resource,
    Usage,
)
from quantum.tenancy.types import Principal, Verdict

__all__ = [
    "QUOTA_MAXIMA",
    "RECALCULATE_EVERY_MS",
    "AclRefusal",
    "AclRule",
    "Action",
    "Alert",
    "ClientAccess",
    "CompiledAcl",
    "ConnectionAdmission",
    "Decision",
    "Effect",
    "Ground",
    "InFlightSlots",
    "InvalidQuota",
    "InvalidRule",
    "InvalidTenantId",
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
    "TenantPolicy",
    "TokenBucket",
    "TopicNames",
    "Usage",
    "Verdict",
    "check_tenant_id",
    "compile_acl",
    "credit_hint",
]
