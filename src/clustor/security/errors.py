"""What can go wrong in the security room.

SecurityError
├── SecurityMisuse         our caller asked for something that has no meaning
├── AuditUnreadable        the audit log on disk is not what was written: nothing is appended to it
│   └── AuditTruncated         it ends before what its anchor says was signed
├── EnrolmentRefused       a token, or what came with it, does not let this node in
├── RegistryUnreadable     the key registry or the token book cannot be read
└── RotationRefused        a key must not be rotated or zeroized now; says why
"""

from __future__ import annotations


class SecurityError(Exception):
    """Root of the room's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class SecurityMisuse(SecurityError):
    """Our caller asked for something that has no meaning."""


class AuditUnreadable(SecurityError):
    """The audit log on disk is not what was written; nobody may append to it."""


class AuditTruncated(AuditUnreadable):
    """The audit log ends before what its anchor says was signed."""


class EnrolmentRefused(SecurityError):
    """A token, or what came with it, does not let this node in; `code` says which rule."""

    def __init__(self, code: str, reason: str, **facts: object) -> None:
        super().__init__(reason, **facts)
        self.code = code


class RegistryUnreadable(SecurityError):
    """The key registry or the token book cannot be read."""


class RotationRefused(SecurityError):
    """A key must not be rotated or zeroized now."""
