"""What can go wrong with flow control.

FlowError
├── UnsafeGains     gains that break the controller's guardrail
└── FlowMisuse      credits returned that were never taken, time that went backwards
"""

from __future__ import annotations


class FlowError(Exception):
    """Root of the room's errors: a sentence for people, and `facts` for machines."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.facts = facts

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.reason} ({details})" if details else self.reason


class UnsafeGains(FlowError):
    """Gains with which the controller would overshoot in a single sample."""


class FlowMisuse(FlowError):
    """Our caller broke the order or the meaning of the inputs."""
