"""The auto-tuner: nudges the gains where a profile allows it, and goes back when they swing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from clustor.flow.pid import SAMPLE_PERIOD_S, PidGains

TUNED_PROFILES = frozenset(("Throughput", "WAN"))


class TuneState(StrEnum):
    """`flow.pid_auto_tune_state`."""

    DISABLED = "Disabled"
    OBSERVING = "Observing"
    TUNING = "Tuning"
    STABLE = "Stable"
    REVERTED = "Reverted"


@dataclass(frozen=True, slots=True)
class TunerNumbers:
    """A window is 5 s of samples; gains stay within half and one and a half of the profile's."""

    window_samples: int = 50
    swings_max: int = 12  # changes of sign of the error in one window
    error_band: float = 0.10  # what counts as swinging, and as settled
    step: float = 0.05
    factor_min: float = 0.5
    factor_max: float = 1.5
    cooldown_windows: int = 6


class AutoTuner:
    """Owns the gains in force. Oscillation brings the last stable ones back, and a pause."""

    def __init__(
        self,
        profile_name: str,
        gains: PidGains,
        numbers: TunerNumbers = TunerNumbers(),  # noqa: B008 — frozen
    ) -> None:
        self._allowed = profile_name in TUNED_PROFILES
        self._profile_gains = gains
        self._stable = gains
        self._numbers = numbers
        self._factor = 1.0
        self._stable_factor = 1.0
        self._errors: list[float] = []
        self._cooldown = 0
        self.gains = gains
        self.state = TuneState.DISABLED
        self.adjust_total = 0

    def sample(self, error: float, *, fixed_uring: bool, cache_fresh: bool) -> PidGains:
        """Take the controller's error of one sample; return the gains for the next."""
        if not (self._allowed and fixed_uring and cache_fresh):
            self._disable()
            return self.gains
        if self.state is TuneState.DISABLED:
            self.state = TuneState.OBSERVING
        self._errors.append(error)
        if len(self._errors) >= self._numbers.window_samples:
            self._judge(self._errors)
            self._errors = []
        return self.gains

    def _disable(self) -> None:
        """Without its preconditions nothing is learnt, and the profile's gains hold."""
        self.state = TuneState.DISABLED
        self._errors = []
        self._cooldown = 0
        self._factor = self._stable_factor = 1.0
        self.gains = self._stable = self._profile_gains

    def _judge(self, errors: list[float]) -> None:
        numbers = self._numbers
        if self._swings(errors) > numbers.swings_max:
            self._revert()
        elif self._cooldown > 0:
            self._cooldown -= 1
        else:
            self._learn(sum(errors) / len(errors))

    def _swings(self, errors: list[float]) -> int:
        """Count the changes of sign among errors that are large enough to matter."""
        large = [error > 0 for error in errors if abs(error) > self._numbers.error_band]
        return sum(1 for before, after in pairwise(large) if before != after)

    def _revert(self) -> None:
        self.state = TuneState.REVERTED
        self._factor = self._stable_factor
        self.gains = self._stable
        self._cooldown = self._numbers.cooldown_windows

    def _learn(self, mean_error: float) -> None:
        """Settled gains become the stable ones; a lasting overload asks for stronger ones."""
        numbers = self._numbers
        if abs(mean_error) <= numbers.error_band:
            self.state = TuneState.STABLE
            self._stable, self._stable_factor = self.gains, self._factor
            return
        if mean_error > 0:
            self.state = TuneState.OBSERVING  # idle: there is nothing to learn from it
            return
        factor = min(numbers.factor_max, self._factor + numbers.step)
        if factor != self._factor:
            self.state = TuneState.TUNING
            self.adjust_total += 1
            self._factor = factor
            self.gains = _scaled(self._profile_gains, factor)


def _scaled(gains: PidGains, factor: float) -> PidGains:
    ki = min(gains.ki * factor, 1.0 / SAMPLE_PERIOD_S)
    return PidGains(gains.kp * factor, ki, gains.kd * factor)
