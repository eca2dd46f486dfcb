"""BrokerError
├── BrokerMisuse     our caller broke a rule of this room
└── SnapshotUnusable a snapshot that this broker cannot become
"""

from __future__ import annotations


class BrokerError(Exception):
    """The root of this room's errors; facts are attributes, never payloads."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts


class BrokerMisuse(BrokerError):
    """The caller broke a rule: an index twice, a partition to itself."""


class SnapshotUnusable(BrokerError):
    """The bytes are no snapshot of a broker, or of a newer one."""
