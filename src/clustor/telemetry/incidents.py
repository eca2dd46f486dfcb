"""Incidents: alerts that belong together, told once, and never as a storm (§13.1).

Alerts of one class that come within a few seconds are one incident of several partitions; only
what is safety-critical is told for each partition by itself.

Within a window of ten minutes a node tells of no more incidents than its storm guard allows,
but for those of a safety-critical class. The same incident is not told twice within a cooldown;
what is held back is counted, so that silence never looks like peace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

WINDOW_MS: Final = 600_000
COOLDOWN_MS: Final = 300_000
PARTITIONS_PER_INCIDENT: Final = 250
PER_WINDOW_MIN: Final = 5
CORRELATE_MS: Final = 5_000
PARTITIONS_MAX: Final = 32
KEPT_MAX: Final = 256
KEYS_MAX: Final = 4_096


class IncidentClass(StrEnum):
    """What an incident is about."""

    GROUP_FAILED = "GroupFailed"
    LOG_DAMAGED = "LogDamaged"
    COMMITTED_CONFLICT = "CommittedConflict"
    PROOF_CONFLICT = "ControlPlaneProofConflict"
    EPOCH_CONFLICT = "DurabilityModeEpochConflict"
    STRICT_FALLBACK_DEMOTED = "StrictFallbackDemoted"
    CLOCK_GUARD_ALARM = "ClockGuardAlarm"
    DEVICE_STALLED = "DeviceStalled"
    STRUCTURAL_LAG = "StructuralLag"
    LEADER_LOST = "LeaderLost"
    MEMBERSHIP_ROLLED_BACK = "MembershipRolledBack"
    IO_WRITER_DOWNGRADED = "IoWriterDowngraded"
    LEASE_GAP_EXCEEDED = "LeaseGapExceeded"
    QUEUE_FULL = "QueueFull"  # of a session, and publishers wait for it


SAFETY_CRITICAL: Final = frozenset(
    (
        IncidentClass.GROUP_FAILED,
        IncidentClass.LOG_DAMAGED,
        IncidentClass.COMMITTED_CONFLICT,
        IncidentClass.PROOF_CONFLICT,
        IncidentClass.EPOCH_CONFLICT,
    )
)
"""These are about what was acknowledged: no guard holds them back, only the cooldown does."""


@dataclass(slots=True)
class Incident:
    """One incident. `partitions` are those whose alerts it correlates."""

    number: int
    kind: IncidentClass
    at_ms: int
    partitions: list[int]
    facts: Mapping[str, str]
    repeats: int = 0
    """Equal alerts that came within the cooldown."""
    last_ms: int = 0
    partitions_left_off: int = 0

    def join(self, partition: int, now_ms: int) -> None:
        """Take another partition's alert in."""
        self.last_ms = now_ms
        if len(self.partitions) < PARTITIONS_MAX:
            self.partitions.append(partition)
        else:
            self.partitions_left_off += 1

    @property
    def safety_critical(self) -> bool:
        return self.kind in SAFETY_CRITICAL


class AlertOutcome(StrEnum):
    """What was done about an alert."""

    TOLD = "Told"
    REPEATED = "Repeated"  # within the cooldown of an equal one
    JOINED = "Joined"  # it belongs to an incident that was told a moment ago
    HELD_BACK = "HeldBack"  # by the storm guard


def incident_max_per_window(active_partitions: int) -> int:
    """Return §13.1's bound."""
    return max(PER_WINDOW_MIN, -(-active_partitions // PARTITIONS_PER_INCIDENT))


@dataclass(slots=True)
class IncidentLog:
    """The machine: alerts in, verdicts out. Time is given and may stand still."""

    cooldown_ms: int = COOLDOWN_MS
    window_ms: int = WINDOW_MS
    incidents: deque[Incident] = field(default_factory=lambda: deque(maxlen=KEPT_MAX))
    held_back_total: int = 0
    told_total: int = 0
    _told_at: deque[int] = field(default_factory=deque)
    _newest: dict[tuple[IncidentClass, int], Incident] = field(default_factory=dict)
    _latest: dict[IncidentClass, Incident] = field(default_factory=dict)

    def alert(
        self,
        kind: IncidentClass,
        partition: int,
        now_ms: int,
        *,
        active_partitions: int,
        facts: Mapping[str, str] | None = None,
    ) -> AlertOutcome:
        """Take an alert about a partition (0: about the node)."""
        known = self._newest.get((kind, partition))
        if known is not None and now_ms - known.at_ms < self.cooldown_ms:
            known.repeats, known.last_ms = known.repeats + 1, now_ms
            return AlertOutcome.REPEATED
        if self._joins(kind, partition, now_ms):
            return AlertOutcome.JOINED
        if kind not in SAFETY_CRITICAL and not self._has_room(now_ms, active_partitions):
            self.held_back_total += 1
            return AlertOutcome.HELD_BACK
        self._tell(kind, partition, now_ms, facts or {})
        return AlertOutcome.TOLD

    def _joins(self, kind: IncidentClass, partition: int, now_ms: int) -> bool:
        latest = self._latest.get(kind)
        if kind in SAFETY_CRITICAL or latest is None or now_ms - latest.at_ms >= CORRELATE_MS:
            return False
        latest.join(partition, now_ms)
        self._remember(kind, partition, latest)
        return True

    def _has_room(self, now_ms: int, active_partitions: int) -> bool:
        told = self._told_at
        while told and now_ms - told[0] >= self.window_ms:
            told.popleft()
        return len(told) < incident_max_per_window(active_partitions)

    def _tell(
        self, kind: IncidentClass, partition: int, now_ms: int, facts: Mapping[str, str]
    ) -> None:
        self.told_total += 1
        if kind not in SAFETY_CRITICAL:
            self._told_at.append(now_ms)
        incident = Incident(self.told_total, kind, now_ms, [partition], facts, last_ms=now_ms)
        self.incidents.append(incident)
        self._latest[kind] = incident
        self._remember(kind, partition, incident)

    def _remember(self, kind: IncidentClass, partition: int, incident: Incident) -> None:
        if len(self._newest) >= KEYS_MAX:
            oldest = min(self._newest, key=lambda each: self._newest[each].at_ms)
            del self._newest[oldest]
        self._newest[kind, partition] = incident

    def page(self, *, after: int = 0, limit: int = 100) -> list[Incident]:
        """Return incidents behind a number, the oldest first."""
        return [each for each in self.incidents if each.number > after][:limit]
