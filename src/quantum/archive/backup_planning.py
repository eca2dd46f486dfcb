"""Which backup is due, which one was cut short, and which may go. Pure.

All that is known is in the store: what is there by its names, so that whichever node looks next
decides the same, however the one before it ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class StoredBackup:
    """What the store has of one backup. Made in this order: scheduled, recorded, verified."""

    made_ms: int
    """When it began: all that was acknowledged before is in it."""
    is_recorded: bool = True
    is_verified: bool = False
    """Whether it was read back and applied again after it had been written down."""
    is_scheduled: bool = False
    """Whether a schedule made it, and may let it go. What people make stays."""


@dataclass(frozen=True, slots=True)
class BackupSchedule:
    """How often, and how long. A backup is kept while either number asks for it."""

    interval_ms: int
    keep_count: int = 30
    keep_ms: int = 0

    def __post_init__(self) -> None:
        assert self.interval_ms > 0 and self.keep_count > 0 and self.keep_ms >= 0, self


@dataclass(frozen=True, slots=True)
class BackupPlan:
    """What is to be done now, in this order."""

    verify_ms: int | None
    """This one was written down, and whoever did it ended before it was verified."""
    is_due: bool
    due_ms: int
    """When the next one is due; 0 where there is none yet."""
    expired: tuple[int, ...]
    """These may go, the oldest first; never the newest that was verified."""


def newest_verified(stored: Iterable[StoredBackup], now_ms: int) -> StoredBackup | None:
    """Return the newest whole backup; one of the future is a clock's mistake and is left alone."""
    whole = (each for each in stored if each.is_recorded and each.is_verified)
    return max((each for each in whole if each.made_ms <= now_ms), default=None)


def plan_backups(
    stored: Iterable[StoredBackup],
    schedule: BackupSchedule,
    now_ms: int,
    given_up: Collection[int] = (),
) -> BackupPlan:
    """Decide by what is there; `given_up` were read back and are not what they should be."""
    known = [each for each in stored if each.made_ms <= now_ms]
    newest = newest_verified(known, now_ms)
    since_ms = -1 if newest is None else newest.made_ms
    open_ms = (
        each.made_ms
        for each in known
        if each.is_scheduled and each.is_recorded and not each.is_verified
        if each.made_ms > since_ms and each.made_ms not in given_up
    )
    due_ms = 0 if newest is None else newest.made_ms + schedule.interval_ms
    return BackupPlan(
        verify_ms=max(open_ms, default=None),
        is_due=now_ms >= due_ms,
        due_ms=due_ms,
        expired=() if newest is None else _expired(known, newest, schedule, now_ms),
    )


def _expired(
    known: list[StoredBackup], newest: StoredBackup, schedule: BackupSchedule, now_ms: int
) -> tuple[int, ...]:
    """Return what no number asks for. What was never finished is worth nothing behind a whole one;
    what is newer than the newest whole one may still become whole."""
    ours = [each for each in known if each.is_scheduled and each.made_ms <= newest.made_ms]
    whole = sorted((each for each in ours if each.is_verified and each.is_recorded), reverse=True)
    kept = {each.made_ms for each in whole[: schedule.keep_count]}
    kept |= {each.made_ms for each in whole if now_ms - each.made_ms < schedule.keep_ms}
    gone = tuple(sorted(each.made_ms for each in ours if each.made_ms not in kept))
    assert newest.made_ms not in gone, "the newest that was verified is never let go"
    return gone
