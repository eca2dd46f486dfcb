"""What can go wrong with a group.

RaftError
├── GroupMisuse        our caller asked for something that a group cannot mean
├── DataLost           this replica held data once and starts without it
├── UnsafeProfile      a profile's numbers break an inequality that safety needs
└── MembershipRefused  a configuration change that must not be made

A peer raises none of these: its bad message is answered or ignored.
"""

from __future__ import annotations


class RaftError(Exception):
    """Root of the room's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class GroupMisuse(RaftError):
    """Our caller broke the order or the meaning of the inputs."""


class DataLost(RaftError):
    """The replica's identity says that data was here, and it is not."""


class UnsafeProfile(RaftError):
    """A profile whose numbers contradict each other."""


class MembershipRefused(RaftError):
    """A configuration change that would break a quorum, a phase or a pre-check."""
