"""What can go wrong in this room, outside of the refusals that a command is answered with.

ControlError
└── ImageRefused      the bytes are not a whole, intact image of a cache
"""

from __future__ import annotations


class ControlError(Exception):
    """Root of the control plane's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class ImageRefused(ControlError):
    """The bytes are not a whole, intact image of a cache; start with an empty one."""
