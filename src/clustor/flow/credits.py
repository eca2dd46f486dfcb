"""Credits in two tokens, entries and bytes: what may be under way at once."""

from __future__ import annotations

from dataclasses import dataclass

from clustor.flow.errors import FlowMisuse
from clustor.flow.pid import SAMPLE_PERIOD_MS, Pid, PidGains

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CreditLimits:
    """§10.6's numbers."""

    entry_credit_max: int = 4096
    byte_credit_max: int = 64 * MIB
    quantum_bytes_max: int = 16 * KIB


STRICT_ONLY_BACKPRESSURE_MS = 60_000
"""For how long a leader may run in forced Strict mode before its credits are halved (§6.3)."""


def strict_only_scale(
    strict_only_runtime_ms: int, bound_ms: int = STRICT_ONLY_BACKPRESSURE_MS
) -> float:
    """Return the share of credits that is left to a leader that a stale cache holds in Strict."""
    return 0.5 if strict_only_runtime_ms > bound_ms else 1.0


class Credits:
    """Admits writes while they fit the credits; both tokens come back when writes settle.

    Once per tick one frame of at most `quantum_bytes_max` is admitted although the credits are
    exhausted: a throttled client is slow, never stuck. Only a hard block admits nothing.

    Who can count what is under way by itself calls `measure` instead of `settle`.
    """

    def __init__(self, gains: PidGains, limits: CreditLimits = CreditLimits()) -> None:  # noqa: B008 — frozen
        self.pid = Pid(gains)
        self.limits = limits
        self._scale = 1.0
        self._entries = 0
        self._bytes = 0
        self._quantum_spent = False
        self._sample_due_ms: int | None = None
        self._allow()

    def tick(self, now_ms: int, pressure: float) -> None:
        """Let time pass: the quantum is there again, and a sample is taken when one is due."""
        self._quantum_spent = False
        if self._sample_due_ms is None:
            self._sample_due_ms = now_ms
        # A late tick catches up by a few samples: what it missed is not known any better.
        for _ in range(10):
            if now_ms < self._sample_due_ms:
                break
            self.pid.sample(pressure)
            self._sample_due_ms += SAMPLE_PERIOD_MS
        else:
            self._sample_due_ms = now_ms + SAMPLE_PERIOD_MS
        self._allow()

    def renew_quantum(self) -> None:
        """Let one small frame pass again, whatever the credits are: once per tick."""
        self._quantum_spent = False

    def scale(self, factor: float) -> None:
        """Take a share of the credits away: lag classes, strict-only running, a hard block."""
        if not 0.0 <= factor <= 1.0:
            raise FlowMisuse("a share outside 0…1", factor=factor)
        self._scale = factor
        self._allow()

    def _allow(self) -> None:
        share = self.pid.fraction * self._scale
        self._entries_allowed = int(self.limits.entry_credit_max * share)
        self._bytes_allowed = int(self.limits.byte_credit_max * share)

    @property
    def entry_credits(self) -> int:
        """How many more entries may be under way now; negative after credits were reduced."""
        return self._entries_allowed - self._entries

    @property
    def byte_credits(self) -> int:
        return self._bytes_allowed - self._bytes

    def admit(self, entries: int, size_bytes: int) -> bool:
        """Take credits for a batch, or refuse it and take none."""
        if (
            self._entries + entries > self._entries_allowed
            or self._bytes + size_bytes > self._bytes_allowed
        ) and not self._spend_quantum(entries, size_bytes):
            return False
        self._entries += entries
        self._bytes += size_bytes
        return True

    def _spend_quantum(self, entries: int, size_bytes: int) -> bool:
        small = entries == 1 and size_bytes <= self.limits.quantum_bytes_max
        if self._scale == 0.0 or self._quantum_spent or not small:
            return False
        self._quantum_spent = True
        return True

    def settle(self, entries: int, size_bytes: int) -> None:
        """Give credits back: a batch was acknowledged, refused or given up."""
        if entries > self._entries or size_bytes > self._bytes:
            raise FlowMisuse("more was settled than admitted", entries=entries, bytes=size_bytes)
        self._entries -= entries
        self._bytes -= size_bytes

    def measure(self, entries: int, size_bytes: int) -> None:
        """Take what is under way now, as its owner counts it."""
        self._entries = entries
        self._bytes = size_bytes
