"""A copy of an audit log that is taken while it grows, crashes and rotates: each line, once."""

from __future__ import annotations

import random

import pytest

from clustor.log.steps import DeleteFile, FileName, Plan
from clustor.security import (
    ANCHOR_FILE,
    NOTHING,
    AuditFollower,
    AuditReader,
    AuditTruncated,
    AuditUnreadable,
    LineDigest,
    digest_of,
    file_name,
    file_numbers,
    plan_open,
    plan_trim,
    read_anchor,
    verify_lines,
)
from clustor.sim.disk import SimDisk
from tests.clustor.security.audit_logs import KEY, KEY_ID, TRUSTED, event
from tests.clustor.security.test_audit_files import SMALL_FILE, opened


class Copy:
    """Where runs go. It has no memory but its lines, as an object store has none but its names."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._follower: AuditFollower | None = None

    def forget(self) -> None:
        """Die, and come back."""
        self._follower = None

    def follow(self, disk: SimDisk, run_bytes: int = 1) -> bool:
        """Take one run; False: there is none."""
        if self._follower is None:
            digest = digest_of(self.lines[-1]) if self.lines else NOTHING
            self._follower = AuditFollower("log", len(self.lines), LineDigest(digest))
        run = self._follower.take_run(disk, run_bytes=run_bytes)
        if run is None:
            return False
        self._follower.advance(run)
        self.lines += run.data.splitlines()
        assert run.last == len(self.lines), "no gap, and nothing twice"
        return True


def grown(disk: SimDisk, *, seals: int = 3, file_bytes_max: int = 1 << 20) -> None:
    journal = opened(disk, file_bytes_max=file_bytes_max)
    for number in range(seals):
        disk.execute(journal.plan_append([event(number), event(number)], 9, seal=True))


def test_runs_end_at_seals_and_what_is_not_signed_stays() -> None:
    disk, copy = SimDisk(), Copy()
    grown(disk)
    journal = opened(disk)
    disk.execute(journal.plan_append([event(7)], 9, seal=False))
    while copy.follow(disk):
        verdict = verify_lines(copy.lines, TRUSTED, require_signed=True)
        assert verdict.is_intact, verdict
    log = list(AuditReader(disk).lines())
    assert copy.lines == log[: len(copy.lines)]
    assert len(log) - len(copy.lines) == 2, "a file's head and an event that no seal covers"
    disk.execute(journal.plan_append([], 9, seal=True))
    assert copy.follow(disk) and copy.lines == list(AuditReader(disk).lines())


def test_one_run_takes_all_that_fits() -> None:
    disk, copy = SimDisk(), Copy()
    grown(disk, seals=5)
    assert copy.follow(disk, run_bytes=1 << 20)
    assert not copy.follow(disk)
    assert copy.lines == list(AuditReader(disk).lines())


def test_what_is_sealed_but_not_anchored_is_not_taken() -> None:
    """Its seal may be in memory alone: after a power cut the log would go on without it."""
    disk, copy = SimDisk(), Copy()
    journal = opened(disk)
    disk.execute(journal.plan_append([event(1)], 9, seal=True))
    disk.execute(journal.plan_append([event(2)], 9, seal=True)[:2])  # the lines, not the anchor
    assert copy.follow(disk, run_bytes=1 << 20)
    assert len(copy.lines) == read_anchor(disk).sequence < len(list(AuditReader(disk).lines()))
    assert not copy.follow(disk)


@pytest.mark.parametrize("seed", range(60))
def test_no_crash_of_either_makes_a_gap_a_second_copy_or_another_history(seed: int) -> None:
    rng = random.Random(seed)
    disk, copy = SimDisk(reorder_directory_ops=rng.random() < 0.5), Copy()
    for _ in range(5):
        journal, plan = plan_open(
            disk, KEY.sign, KEY_ID, new_log_id="log", at_ms=5, file_bytes_max=SMALL_FILE
        )
        for number in range(rng.randrange(1, 10)):
            disk.execute(plan)
            if rng.random() < 0.5:
                copy.follow(disk, run_bytes=rng.choice([1, 2_000, 1 << 20]))
            if rng.random() < 0.2:
                copy.forget()
            events = [event(100 * number + each) for each in range(rng.randrange(1, 5))]
            plan = journal.plan_append(events, 9, seal=rng.random() < 0.5)
        disk = _looked_at_and_cut(disk, plan, copy, rng)
        copy.forget()
    last = opened(disk)
    disk.execute(last.plan_append([event(1)], 9, seal=True))
    while copy.follow(disk, run_bytes=2_000):
        pass
    assert copy.lines == list(AuditReader(disk).lines()), seed
    assert verify_lines(copy.lines, TRUSTED, require_signed=True).is_intact, seed


def _looked_at_and_cut(disk: SimDisk, plan: Plan, copy: Copy, rng: random.Random) -> SimDisk:
    """Take a run in the middle of a plan, before the power is cut right there."""
    point = rng.choice(list(disk.copy().crash_points(plan)))
    if file_numbers(point) and ANCHOR_FILE in point.names(""):
        copy.follow(point)
    return point.random_crash(rng)


def test_a_log_put_back_to_an_older_state_is_seen() -> None:
    disk, copy = SimDisk(), Copy()
    grown(disk)
    older = disk.copy()
    journal = opened(disk)
    disk.execute(journal.plan_append([event(9)], 9, seal=True))
    while copy.follow(disk):
        pass
    with pytest.raises(AuditTruncated):
        copy.follow(older)


def test_another_history_of_the_same_length_is_seen() -> None:
    disk, copy = SimDisk(), Copy()
    grown(disk, seals=1)
    other = disk.copy()
    for each, number in ((disk, 1), (other, 2)):
        journal = opened(each)
        each.execute(journal.plan_append([event(number)], 9, seal=True))
    while copy.follow(disk):
        pass
    with pytest.raises(AuditUnreadable):
        copy.follow(other)
    copy.forget()
    opened(other)
    with pytest.raises(AuditUnreadable):
        copy.follow(other)


def test_a_copy_begins_with_what_there_is_and_tells_of_what_was_removed_before_it_came() -> None:
    disk = SimDisk()
    for _ in range(4):
        grown(disk)
    follower = AuditFollower("log")
    first = file_numbers(disk)[0]
    disk.execute((DeleteFile(FileName(file_name(first))),))
    run = follower.take_run(disk)
    assert run is not None and run.first > 1 and follower.missed is None
    follower.advance(run)
    grown(disk)
    grown(disk)
    disk.execute(tuple(DeleteFile(FileName(file_name(n))) for n in file_numbers(disk)[:-1]))
    behind = follower.take_run(disk)
    assert behind is not None
    assert follower.missed == (run.last + 1, behind.first - 1)


def test_nothing_is_trimmed_that_is_young_or_not_exported_or_needed_for_a_restart() -> None:
    disk, follower = SimDisk(), AuditFollower("log")
    for _ in range(4):
        grown(disk)
    every = file_numbers(disk)
    assert plan_trim(disk, before_ms=5, exported=None) == []  # heads are of the moment 5
    assert plan_trim(disk, before_ms=6, exported=None) == every[:-1]
    assert plan_trim(disk, before_ms=6, exported=0) == []
    run = follower.take_run(disk, run_bytes=1)
    while run is not None:
        follower.advance(run)
        going = plan_trim(disk, before_ms=6, exported=follower.through)
        kept = disk.copy()
        kept.execute(tuple(DeleteFile(FileName(file_name(number))) for number in going))
        again = AuditFollower("log", follower.through, follower.digest)
        following = again.take_run(kept, run_bytes=1)
        assert following is None or following.first == follower.through + 1
        assert again.missed is None
        opened(kept)  # a restart finds what it needs
        run = follower.take_run(disk, run_bytes=1)
    assert plan_trim(disk, before_ms=6, exported=follower.through) == every[:-1]
