"""What can be wrong with the bytes that stream machines are given.

StreamError
├── CommandUnreadable     committed bytes that are no command of this machine: the group stops
└── SnapshotUnreadable    a snapshot of another kind, version or shape: fetch another
"""

from __future__ import annotations


class CoordinationError(Exception):
    """The root: a sentence for people in `reason`, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts


class CommandUnreadable(CoordinationError):
    """Committed bytes that are no command of this machine."""


class SnapshotUnreadable(CoordinationError):
    """A snapshot that this machine cannot be restored from."""
