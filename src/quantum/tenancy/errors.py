"""What can go wrong with tenants.

TenancyError
├── InvalidRule          an ACL rule whose pattern is none
├── InvalidTenantId      a tenant id that is not one DNS label
├── NamespaceViolation   a client named something outside its tenant's namespace
├── InvalidQuota         a quota beyond the maximum, or below zero
└── TenancyMisuse        our caller gave back more than it took
"""

from __future__ import annotations


class TenancyError(Exception):
    """Root of the room's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class InvalidRule(TenancyError):
    """An administrator wrote an ACL rule that cannot be compiled."""


class InvalidTenantId(TenancyError):
    """A tenant id that could not be a part of a host name and of a key."""


class NamespaceViolation(TenancyError):
    """The peer named a topic outside its tenant; audited, never carried out."""


class InvalidQuota(TenancyError):
    """An operator set a quota outside its bounds."""


class TenancyMisuse(TenancyError):
    """Our caller broke the order or the meaning of the inputs."""
