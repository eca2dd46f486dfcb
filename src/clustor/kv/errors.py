"""What can go wrong with a store, outside of the replies it gives.

KvError
├── KvMisuse           our caller broke the contract of the machine
└── SnapshotRefused    the bytes are not a whole, intact snapshot of a known version
"""

from __future__ import annotations


class KvMachineError(Exception):
    """Root of the store's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class KvMisuse(KvMachineError):
    """Our caller broke the contract of the machine."""


class SnapshotRefused(KvMachineError):
    """The bytes are not a whole, intact snapshot of a known version; nothing was changed."""
