"""The PID controller: from how loaded the group is to how much credit it gives."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.flow.errors import UnsafeGains

SAMPLE_PERIOD_MS = 100
SAMPLE_PERIOD_S = SAMPLE_PERIOD_MS / 1000


@dataclass(frozen=True, slots=True)
class PidGains:
    """Kp, Ki (per second) and Kd (seconds); the guardrail is clustor §10.6's."""

    kp: float
    ki: float
    kd: float

    def __post_init__(self) -> None:
        if min(self.kp, self.ki, self.kd) < 0:
            raise UnsafeGains("a negative gain", gains=(self.kp, self.ki, self.kd))
        if self.ki * SAMPLE_PERIOD_S > 1.0:
            raise UnsafeGains("Ki × sample period is above 1", ki=self.ki)


LATENCY_GAINS = PidGains(0.60, 0.20, 0.10)
THROUGHPUT_GAINS = PidGains(0.50, 0.15, 0.08)
WAN_GAINS = PidGains(0.40, 0.10, 0.05)

GAINS_BY_PROFILE = {
    "ConsistencyProfile": LATENCY_GAINS,
    "ZFS": LATENCY_GAINS,
    "Throughput": THROUGHPUT_GAINS,
    "Aggregator": THROUGHPUT_GAINS,
    "WAN": WAN_GAINS,
}


class Pid:
    """One controller. `fraction` is the share of the maximal credits that is given, 0 to 1.

    The measured value is the pressure: 1.0 is exactly as much backlog as is wanted, 0 is idle,
    2.0 is twice too much. The integral is held within what it can still express, so that a long
    overload is forgotten as soon as it ends.
    """

    def __init__(self, gains: PidGains) -> None:
        self.gains = gains
        self._held = 1.0  # the integral part of the output
        self._error: float | None = None
        self.fraction = 1.0

    def sample(self, pressure: float) -> float:
        """Take one sample, a sample period after the last, and return the new fraction."""
        error = 1.0 - pressure
        self._held = _unit(self._held + self.gains.ki * error * SAMPLE_PERIOD_S)
        slope = 0.0 if self._error is None else (error - self._error) / SAMPLE_PERIOD_S
        self._error = error
        # Idleness is no reason to give more than the integral has learnt is good.
        pull = min(0.0, self.gains.kp * error + self.gains.kd * slope)
        self.fraction = _unit(self._held + pull)
        return self.fraction

    @property
    def error(self) -> float:
        return 0.0 if self._error is None else self._error


def _unit(value: float) -> float:
    return min(1.0, max(0.0, value))
