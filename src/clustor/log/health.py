"""Quarantine: which faults take a partition out of service, and how it comes back (§9.4).

Its scope is one partition: a neighbour on the same node is judged by its own faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from clustor.log.errors import ChecksumMismatch, LogError, LogMisuse


class PartitionState(StrEnum):
    HEALTHY = "Healthy"
    NEEDS_REPAIR = "NeedsRepair"
    QUARANTINE = "Quarantine"
    REPAIR_MODE = "RepairMode"
    DECOMMISSIONED = "Decommissioned"


class QuarantineReason(StrEnum):
    """What may still be read depends on why (clustor §11.2)."""

    INTEGRITY = "Integrity"
    ADMINISTRATIVE = "Administrative"
    APPLY_FAULT = "ApplyFault"


@dataclass(frozen=True, slots=True)
class WhyQuarantined:
    """The answer to an operator's first question."""

    reason: QuarantineReason
    since_ms: int
    detail: str


REPAIR_ATTEMPTS_MAX: Final = 3
_FIRST_RETRY_MS: Final = 1_000

_LEGAL: Final = {
    PartitionState.HEALTHY: {PartitionState.NEEDS_REPAIR, PartitionState.QUARANTINE},
    PartitionState.NEEDS_REPAIR: {PartitionState.HEALTHY, PartitionState.QUARANTINE},
    PartitionState.QUARANTINE: {PartitionState.REPAIR_MODE, PartitionState.DECOMMISSIONED},
    # Out of repair only with the control plane's acknowledgement of a rebuilt log.
    PartitionState.REPAIR_MODE: {PartitionState.HEALTHY, PartitionState.DECOMMISSIONED},
    PartitionState.DECOMMISSIONED: set[PartitionState](),
}


class PartitionHealth:
    """The state of one partition, and when a damaged one is tried again."""

    def __init__(self) -> None:
        self.state = PartitionState.HEALTHY
        self.why: WhyQuarantined | None = None
        self.retry_at_ms: int | None = None
        self._attempts = 0

    @property
    def accepts_writes(self) -> bool:
        return self.state is PartitionState.HEALTHY

    @property
    def exports_snapshots(self) -> bool:
        """Say whether its snapshots may leave: not where its bytes are in doubt."""
        if self.state is PartitionState.HEALTHY:
            return True
        return self.why is not None and self.why.reason is not QuarantineReason.INTEGRITY

    def on_fault(self, fault: LogError, now_ms: int) -> None:
        """Classify a fault: a failed CRC is tried again, three times; all else is quarantined."""
        if self.state not in (PartitionState.HEALTHY, PartitionState.NEEDS_REPAIR):
            return
        if isinstance(fault, ChecksumMismatch) and self._attempts < REPAIR_ATTEMPTS_MAX:
            self.state = PartitionState.NEEDS_REPAIR
            self.retry_at_ms = now_ms + _FIRST_RETRY_MS * 2**self._attempts
            self._attempts += 1
            return
        self.quarantine(QuarantineReason.INTEGRITY, now_ms, str(fault))

    def quarantine(self, reason: QuarantineReason, now_ms: int, detail: str) -> None:
        """Take the partition out of service."""
        if self.state is PartitionState.QUARANTINE:
            return
        self._become(PartitionState.QUARANTINE)
        self.why = WhyQuarantined(reason, now_ms, detail)
        self.retry_at_ms = None

    def on_repaired(self) -> None:
        """Return to service after a clean reading of a damaged log."""
        self._become(PartitionState.HEALTHY)
        self._attempts, self.retry_at_ms = 0, None

    def enter_repair_mode(self) -> None:
        self._become(PartitionState.REPAIR_MODE)

    def on_quarantine_cleared(self) -> None:
        """Return to service: the log was rebuilt and the control plane acknowledged it."""
        if self.state is not PartitionState.REPAIR_MODE:
            raise LogMisuse("only a partition in repair mode is cleared", state=self.state)
        self._become(PartitionState.HEALTHY)
        self.why, self._attempts = None, 0

    def decommission(self) -> None:
        self._become(PartitionState.DECOMMISSIONED)

    def _become(self, state: PartitionState) -> None:
        if state not in _LEGAL[self.state]:
            raise LogMisuse("no such change of state", state=self.state, to=state)
        self.state = state
