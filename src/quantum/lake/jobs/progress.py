"""What a job says while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Step:
    """One thing a job did, with its figures; `total` where the end is in sight."""

    job: str
    sentence: str
    done: int = 0
    total: int | None = None
    figures: dict[str, Any] = field(default_factory=dict)


Progress: TypeAlias = Callable[[Step], None]


def silence(_step: Step) -> None:
    """Say nothing."""
