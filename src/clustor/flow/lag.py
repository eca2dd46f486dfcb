"""Lag of the slowest follower: a passing one slows writes, a structural one changes the mode."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MIB = 1 << 20


class LagClass(StrEnum):
    NONE = "None"
    TRANSIENT = "Transient"
    STRUCTURAL = "Structural"


@dataclass(frozen=True, slots=True)
class LagNumbers:
    """§10.6's thresholds. Below `slack_bytes` a follower is not behind, it is under load:
    that is the slack of §9.9, within which a learner counts as caught up."""

    slack_bytes: int = 4 * MIB
    transient_bytes_max: int = 64 * MIB
    transient_duration_ms: int = 30_000
    structural_bytes: int = 256 * MIB
    structural_stepdown_ms: int = 15_000
    transient_scale: float = 0.5
    structural_scale: float = 0.25


@dataclass(frozen=True, slots=True)
class LagVerdict:
    """What follows from the lag, all at once; the driver carries it out."""

    lag_class: LagClass
    credit_scale: float
    force_strict: bool = False
    trigger_snapshot: bool = False
    alert_control_plane: bool = False
    step_down: bool = False


def classify(lag_bytes: int, lag_duration_ms: int, numbers: LagNumbers) -> LagClass:
    """Name the class of a lag. Duration alone makes a lag structural, and so do bytes alone."""
    if lag_bytes <= numbers.slack_bytes:
        return LagClass.NONE
    beyond = (
        lag_bytes > numbers.transient_bytes_max
        or lag_duration_ms >= numbers.transient_duration_ms
        or lag_bytes >= numbers.structural_bytes
    )
    return LagClass.STRUCTURAL if beyond else LagClass.TRANSIENT


class LagWatch:
    """Follows the worst lag over time. An operator may override the step-down, or block writes."""

    def __init__(self, numbers: LagNumbers) -> None:
        self._numbers = numbers
        self._behind_since_ms: int | None = None
        self._structural_since_ms: int | None = None
        self._alerted = False
        self.structural_override = False
        self.structural_hard_block = False

    def sample(self, lag_bytes: int, now_ms: int) -> LagVerdict:
        """Take the lag of the slowest voter now and say what follows."""
        numbers = self._numbers
        if lag_bytes <= numbers.slack_bytes:
            self._behind_since_ms = None
        elif self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        since_ms = now_ms if self._behind_since_ms is None else self._behind_since_ms
        lag_class = classify(lag_bytes, now_ms - since_ms, numbers)
        if lag_class is not LagClass.STRUCTURAL:
            self._structural_since_ms = None
            self._alerted = False
            scale = numbers.transient_scale if lag_class is LagClass.TRANSIENT else 1.0
            return LagVerdict(lag_class, self._blocked(scale))
        return self._structural(now_ms)

    def _structural(self, now_ms: int) -> LagVerdict:
        numbers = self._numbers
        if self._structural_since_ms is None:
            self._structural_since_ms = now_ms
        lasted_ms = now_ms - self._structural_since_ms
        first, self._alerted = not self._alerted, True
        return LagVerdict(
            LagClass.STRUCTURAL,
            self._blocked(numbers.structural_scale),
            force_strict=True,
            trigger_snapshot=first,
            alert_control_plane=first,
            step_down=lasted_ms >= numbers.structural_stepdown_ms and not self.structural_override,
        )

    def _blocked(self, scale: float) -> float:
        return 0.0 if self.structural_hard_block else scale
