"""Which backup is due, which was cut short, which may go: a table of what a store may hold."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from quantum.archive.backup_planning import (
    BackupPlan,
    BackupSchedule,
    StoredBackup,
    newest_verified,
    plan_backups,
)

HOUR = 3_600_000
DAY = 24 * HOUR
NOW = 1_000 * DAY
HOURLY = BackupSchedule(HOUR, keep_count=2)


def whole(age: int) -> StoredBackup:
    """One that the schedule made and verified, so long ago."""
    return StoredBackup(NOW - age, is_verified=True, is_scheduled=True)


def written(age: int) -> StoredBackup:
    """One that was written down by the schedule, and not verified."""
    return StoredBackup(NOW - age, is_scheduled=True)


def marked(age: int) -> StoredBackup:
    """One of which only the mark is there."""
    return StoredBackup(NOW - age, is_recorded=False, is_scheduled=True)


def by_hand(age: int) -> StoredBackup:
    return StoredBackup(NOW - age, is_verified=True)


@dataclass(frozen=True)
class Case:
    stored: list[StoredBackup]
    due: bool
    verify: int | None = None
    """The age of the one to verify."""
    expired: list[int] = field(default_factory=list)
    """Ages, the oldest first."""
    schedule: BackupSchedule = HOURLY
    given_up: frozenset[int] = frozenset()


CASES = {
    "nothing is there": Case([], due=True),
    "the newest is young": Case([whole(HOUR - 1)], due=False),
    "the newest is an interval old": Case([whole(HOUR)], due=True),
    "one by hand counts for what is due": Case([whole(3 * HOUR), by_hand(1)], due=False),
    "one of an earlier release says nothing": Case([StoredBackup(NOW - 1)], due=True),
    "one was cut short before it was verified": Case([written(10)], due=True, verify=10),
    "one was cut short behind a whole one": Case(
        [whole(HOUR - 10), written(5)], due=False, verify=5
    ),
    "of two that were cut short, the newest": Case([written(20), written(10)], due=True, verify=10),
    "one is not what it should be": Case(
        [whole(2 * HOUR), written(10)], due=True, given_up=frozenset({NOW - 10})
    ),
    "one was cut short before it was written down": Case([marked(10)], due=True),
    "what was never finished goes behind a whole one": Case(
        [marked(30), written(20), whole(10)], due=False, expired=[30, 20]
    ),
    "what is newer than the whole one may still become whole": Case(
        [whole(20), marked(10)], due=False
    ),
    "as many stay as are to be kept": Case(
        [whole(4 * HOUR), whole(3 * HOUR), whole(2 * HOUR), whole(HOUR)],
        due=True,
        expired=[4 * HOUR, 3 * HOUR],
    ),
    "younger than the days that are kept stay, too": Case(
        [whole(9 * DAY), whole(6 * DAY), whole(5 * DAY), whole(DAY)],
        due=True,
        expired=[9 * DAY],
        schedule=BackupSchedule(DAY, keep_count=1, keep_ms=7 * DAY),
    ),
    "the newest whole one stays, however old": Case(
        [whole(900 * DAY)], due=True, schedule=BackupSchedule(HOUR, keep_count=1)
    ),
    "the newest whole one stays beside newer ones that are not": Case(
        [whole(90 * DAY), written(3), written(2), written(1)],
        due=True,
        verify=1,
        schedule=BackupSchedule(HOUR, keep_count=1),
    ),
    "what people made is never let go": Case(
        [by_hand(9 * DAY), by_hand(8 * DAY), by_hand(7 * DAY), whole(0)], due=False
    ),
    "one by hand takes nobody's place": Case(
        [whole(3 * HOUR), whole(2 * HOUR), by_hand(HOUR)], due=True
    ),
    "one of the future is a clock's mistake": Case(
        [whole(HOUR), StoredBackup(NOW + DAY, is_verified=True, is_scheduled=True)], due=True
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_store_and_what_is_to_be_done(case: Case) -> None:
    plan = plan_backups(case.stored, case.schedule, NOW, case.given_up)
    newest = newest_verified(case.stored, NOW)
    assert plan == BackupPlan(
        verify_ms=None if case.verify is None else NOW - case.verify,
        is_due=case.due,
        due_ms=0 if newest is None else newest.made_ms + case.schedule.interval_ms,
        expired=tuple(NOW - age for age in case.expired),
    )


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_there_the_newest_whole_one_and_what_people_made_stay(seed: int) -> None:
    rng = random.Random(seed)
    stored = {
        made_ms: StoredBackup(made_ms, *(rng.random() < 0.7 for _ in range(3)))
        for made_ms in rng.sample(range(NOW - 50 * DAY, NOW + 5 * DAY, HOUR), rng.randrange(40))
    }
    schedule = BackupSchedule(HOUR, rng.randrange(1, 6), rng.choice((0, 3 * DAY)))
    plan = plan_backups(stored.values(), schedule, NOW)
    newest = newest_verified(stored.values(), NOW)
    gone = [stored[made_ms] for made_ms in plan.expired]
    assert newest not in gone
    assert all(each.is_scheduled and newest and each < newest for each in gone)
    left = [each for each in stored.values() if each not in gone]
    assert newest_verified(left, NOW) == newest
    again = plan_backups(left, schedule, NOW)
    assert (again.expired, again.is_due) == ((), plan.is_due)
    ours = [each for each in stored.values() if each.is_scheduled and each.made_ms <= NOW]
    kept = [each for each in ours if each.is_verified and each.is_recorded and each not in gone]
    had = [each for each in ours if each.is_verified and each.is_recorded]
    assert len(kept) >= min(schedule.keep_count, len(had))
