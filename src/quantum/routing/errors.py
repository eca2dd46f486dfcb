"""What can go wrong in routing.

RoutingError
├── UnknownRing        an algorithm version that this build does not have
└── RoutingMisuse      our caller asked for something that has no meaning
"""

from __future__ import annotations


class RoutingError(Exception):
    """Root of the room's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class UnknownRing(RoutingError):
    """A routing epoch was made by an algorithm that is not known here: routing must stop."""


class RoutingMisuse(RoutingError):
    """Our caller broke the meaning of an argument."""
