"""Backups by a schedule: when one is due, what it waits for, and why.

    wait until the archive has what is committed → apply it again → mark, write down
    → read back, apply it again, compare → mark as verified → let go of what is too old

Every step leaves only objects that the next look at the store understands, so who is killed in the
midst of it, or is followed by another node, loses no more than the work: what was written down is
verified first, and what was not is begun again.

Decides with clocks that it is given, over a port. `turn` is called from one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from clustor.log.errors import LogError
from clustor.log.keys import KeyRing
from clustor.snapshot.errors import SnapshotFailure
from clustor.telemetry import MetricFamily, counter, gauge
from quantum.archive import ArchiveDamaged, ArchiveError, ArchiveUnreachable
from quantum.archive.backup_planning import BackupSchedule, newest_verified, plan_backups
from quantum.archive.backups import (
    BackupsFound,
    delete_backup,
    find_backups,
    mark_scheduled,
    mark_verified,
    read_backup,
)
from quantum.archive.roots import ArchiveRoots
from quantum.node.archived_log import Pace
from quantum.node.backup_points import differing, keep_backup, take_backup

_RETRY_SECONDS: Final = 1.0
_RETRY_SECONDS_MAX: Final = 300.0
_LOOK_SECONDS_MAX: Final = 60.0
_SHOWN_MAX: Final = 100
_NEVER: Final = float("-inf")

journal = logging.getLogger("quantum.backup")


class BackupPort(Protocol):
    """A node and its archiver, as its schedule of backups sees them."""

    def carries_out(self) -> bool:
        """Say whether it is for this node to make backups."""

    def committed(self) -> Mapping[str, int]:
        """Return how far each log is committed, as far as this node knows."""

    def archived(self) -> Mapping[str, int]:
        """Return how far the archive has each of them."""


@dataclass(frozen=True, slots=True)
class BackupClocks:
    """The time of day, in ms; a clock that only goes forward; and how work is slowed down."""

    now_ms: Callable[[], int]
    monotonic: Callable[[], float]
    pace: Pace


@dataclass(frozen=True, slots=True)
class _Begun:
    """A backup that waits for the archive."""

    made_ms: int
    wanted: Mapping[str, int]
    since: float


class BackupLane:
    """The schedule of one node."""

    def __init__(
        self,
        port: BackupPort,
        roots: ArchiveRoots,
        keys: KeyRing,
        schedule: BackupSchedule,
        clocks: BackupClocks,
        *,
        patience_seconds: float,
    ) -> None:
        """Nothing is read yet. An archive that does not follow in `patience_seconds` fails."""
        self._port, self._roots, self._keys = port, roots, keys
        self._schedule, self._clocks = schedule, clocks
        self._patience_seconds = patience_seconds
        self._look_seconds = min(_LOOK_SECONDS_MAX, max(1.0, schedule.interval_ms / 10_000))
        self._found: BackupsFound | None = None
        self._looked_at = _NEVER
        self._begun: _Begun | None = None
        self._given_up: set[int] = set()
        self._carries_out = False
        self._began_ms = clocks.now_ms()
        self._state, self._reason = "starting", ""
        self._complaint = ""
        """What was said last of a failure; it is said once."""
        self._retry_at = _NEVER
        self._retry_seconds = _RETRY_SECONDS
        self._failures = 0
        self._verified = 0
        self._without_streams: tuple[str, ...] = ()

    def turn(self) -> None:
        """Do what is next, and turn what goes wrong into a reason and a pause."""
        now = self._clocks.monotonic()
        if now < self._retry_at:
            return
        try:
            self._turn(now)
        except (ArchiveError, LogError, SnapshotFailure, OSError) as error:
            self._try_again(error)

    def give_up(self, reason: str) -> None:
        """Make no more backups until the next start: an operator has to look."""
        self._failures += 1
        self._retry_at = float("inf")
        self._say("stopped", reason)

    def _turn(self, now: float) -> None:
        carries_out = self._port.carries_out()
        if carries_out != self._carries_out or now - self._looked_at >= self._look_seconds:
            self._look()
        self._carries_out = carries_out
        if not carries_out:
            self._begun = None
            self._say("following", "")
            return
        assert self._found is not None
        now_ms = self._clocks.now_ms()
        plan = plan_backups(self._found.backups, self._schedule, now_ms, self._given_up)
        for each in plan.expired:
            delete_backup(self._roots.tenants, each)
            journal.info("backup %d is let go", each)
        if plan.expired:
            self._look()
        if self._begun is not None:
            self._go_on(self._begun)
        elif plan.verify_ms is not None:
            self._verify(plan.verify_ms)
        elif plan.is_due:
            self._begin(_Begun(now_ms, dict(self._port.committed()), now))
        else:
            self._say("waiting", "")

    def _begin(self, begun: _Begun) -> None:
        if any(begun.wanted.values()):
            self._begun = begun
            self._go_on(begun)
        else:
            self._say("starting", "nothing is committed yet, as far as this node knows")

    def _look(self) -> None:
        self._found = find_backups(self._roots.tenants)
        self._looked_at = self._clocks.monotonic()

    def _go_on(self, begun: _Begun) -> None:
        archived = self._port.archived()
        behind = sorted(
            name for name, index in begun.wanted.items() if archived.get(name, 0) < index
        )
        if not behind:
            self._make(begun.made_ms)
        elif self._clocks.monotonic() - begun.since > self._patience_seconds:
            lacks = ", ".join(behind)
            raise ArchiveUnreachable(f"the archive lacks entries of {lacks}; see `quantum archive`")
        else:
            self._say("backing up", f"waits for the archive to have {', '.join(behind)}")

    def _make(self, made_ms: int) -> None:
        self._say("backing up", "applies the archived logs again")
        taken = take_backup(self._roots, lambda _: self._keys, made_ms, self._clocks.pace)
        mark_scheduled(self._roots.tenants, made_ms)
        keep_backup(self._roots, taken)
        self._without_streams = taken.without_streams
        self._begun = None
        self._verify(made_ms)

    def _verify(self, made_ms: int) -> None:
        self._say("verifying", f"reads backup {made_ms} back")
        try:
            backup = read_backup(self._roots.tenants, made_ms, self._keys)
            wrong = differing(self._roots, lambda _: self._keys, backup, self._clocks.pace)
        except (ArchiveUnreachable, OSError):
            raise
        except (ArchiveError, LogError, SnapshotFailure):
            self._given_up.add(made_ms)  # or no other would be made ever again
            raise
        if wrong:
            self._given_up.add(made_ms)
            raise ArchiveDamaged(f"backup {made_ms} is not what was written down: {wrong[0]}")
        mark_verified(self._roots.tenants, made_ms, self._clocks.now_ms())
        self._verified += 1
        self._complaint = ""
        self._retry_seconds = _RETRY_SECONDS
        self._look()
        self._say("waiting", "")
        journal.info("backup %d is verified: %d partitions", made_ms, len(backup.points))

    def _try_again(self, error: Exception) -> None:
        self._failures += 1
        said = str(getattr(error, "reason", error))  # facts name the backup, which is another now
        if said != self._complaint:
            self._complaint = said
            journal.warning("no backup yet: %s", error)
        self._begun = None
        self._looked_at = _NEVER
        self._retry_at = self._clocks.monotonic() + self._retry_seconds
        self._retry_seconds = min(2 * self._retry_seconds, _RETRY_SECONDS_MAX)
        self._say("retrying", str(error))

    def _say(self, state: str, reason: str) -> None:
        self._state, self._reason = state, reason

    def status(self) -> dict[str, Any]:
        """Say how the schedule stands; from any thread."""
        found = self._found or BackupsFound()
        now_ms, schedule = self._clocks.now_ms(), self._schedule
        newest = newest_verified(found.backups, now_ms)
        plan = plan_backups(found.backups, schedule, now_ms, tuple(self._given_up))
        shown = [each for each in found.backups if each.is_recorded]
        return {
            "interval_seconds": schedule.interval_ms // 1_000,
            "keep_count": schedule.keep_count,
            "keep_days": schedule.keep_ms // 86_400_000,
            "carries_out": self._carries_out,
            "state": self._state,
            "reason": self._reason,
            "verified_ms": None if newest is None else newest.made_ms,
            "age_seconds": self.age_ms() // 1_000,
            "due_ms": plan.due_ms,
            "failures": self._failures,
            "without_streams": list(self._without_streams),
            "drilled_ms": found.drilled_ms,
            "count": len(shown),
            "backups": [
                {
                    "made_ms": each.made_ms,
                    "verified": each.is_verified,
                    "scheduled": each.is_scheduled,
                }
                for each in shown[-_SHOWN_MAX:]
            ],
        }

    def age_ms(self) -> int:
        """Return how long ago the newest verified backup began; without one, the schedule."""
        now_ms = self._clocks.now_ms()
        newest = newest_verified((self._found or BackupsFound()).backups, now_ms)
        return max(0, now_ms - (self._began_ms if newest is None else newest.made_ms))

    def families(self) -> Iterator[MetricFamily | None]:
        """Give the series of the schedule."""
        yield gauge(
            "quantum.backup_age_seconds",
            self.age_ms() / 1_000,
            "Seconds since the newest verified backup began: what going back to it would lose; "
            "without any, since this node started",
        )
        yield gauge(
            "quantum.backup_interval_seconds",
            self._schedule.interval_ms / 1_000,
            "How often a backup is due; an age of more than twice this is an alert",
        )
        yield counter(
            "quantum.backup_failures_total",
            self._failures,
            "Attempts to make or verify a backup, or to look for them, that failed on this node",
        )
        yield counter(
            "quantum.backups_verified_total",
            self._verified,
            "Backups that this node made or took over, and read back whole",
        )
