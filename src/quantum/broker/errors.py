"""BrokerError
├── BrokerMisuse     our caller broke a rule of this room
├── UnknownCommand   the log has a command that a later release wrote
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


class UnknownCommand(BrokerError):
    """A later release wrote this command: who skips it is not what the others are any more.

    The group stops here and says so; the others go on. An upgrade of this node ends it.
    """


class SnapshotUnusable(BrokerError):
    """The bytes are no snapshot of a broker, or of a newer one."""
