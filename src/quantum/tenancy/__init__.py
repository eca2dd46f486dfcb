"""Tenancy: what a tenant may do, how much of it, and that it never meets another tenant."""

from quantum.tenancy.acl import (
    AclRule,
    Action,
    CompiledAcl,
    Decision,
    Effect,
    Ground,
    compile_acl,
)
from quantum.tenancy.errors import (
    InvalidQuota,
    InvalidRule,
    InvalidTenantId,
    NamespaceViolation,
    TenancyError,
    TenancyMisuse,
)
from quantum.tenancy.types import Principal, Verdict

__all__ = [
    "AclRule",
    "Action",
    "CompiledAcl",
    "Decision",
    "Effect",
    "Ground",
    "InvalidQuota",
    "InvalidRule",
    "InvalidTenantId",
    "NamespaceViolation",
    "Principal",
    "TenancyError",
    "TenancyMisuse",
    "Verdict",
    "compile_acl",
]
