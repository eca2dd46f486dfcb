"""Scheduled backups of a real archive, step by step: what is made, said, repaired and let go."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clustor.log.types import Entry, EntryKind, LogIndex, Term
from clustor.replica.batch import encode_batch
from clustor.telemetry import MetricFamily
from quantum.archive import AppliedWith, ArchiveUnreachable
from quantum.archive.backup_planning import BackupSchedule, StoredBackup
from quantum.archive.backups import (
    Backup,
    BackupPoint,
    find_backups,
    read_backup,
    record_drill,
    write_backup,
)
from quantum.archive.objects import DirectoryObjects
from quantum.archive.roots import ArchiveRoots
from quantum.broker.commands import Elapse, encode_command
from quantum.node.backup_lane import BackupClocks, BackupLane
from tests.quantum.lake.archive.boxes import FIRST_MS, LogBox, keys_at

MINUTE_MS = 60_000
DAY_MS = 86_400_000


class Killed(Exception):
    """The process ends here."""


class Store(DirectoryObjects):
    """A directory that can be away, or the last thing that a process wrote to."""

    away = False
    dies_before = ""
    dies_after = ""
    dies_deleting = ""
    takes_nothing = False

    def names(self, prefix: str) -> list[str]:
        if self.away:
            raise ArchiveUnreachable("the store is away")
        return super().names(prefix)

    def create(self, name: str, data: bytes) -> bool:
        if self.takes_nothing:
            raise ArchiveUnreachable("the store takes nothing", object=name)
        if self.dies_before and name.endswith(self.dies_before):
            raise Killed
        made = super().create(name, data)
        if self.dies_after and name.endswith(self.dies_after):
            raise Killed
        return made

    def delete(self, name: str) -> None:
        super().delete(name)
        if self.dies_deleting and name.endswith(self.dies_deleting):
            raise Killed


class Port:
    """A node of which the test says who it is and how far its archive is."""

    def __init__(self) -> None:
        self.leads = True
        self.index = {"dev/0": 20}
        self.there = {"dev/0": 20}

    def carries_out(self) -> bool:
        return self.leads

    def committed(self) -> dict[str, int]:
        return self.index

    def archived(self) -> dict[str, int]:
        return self.there


class Bench:
    """A node's schedule, once a minute, and the clocks that it sees."""

    def __init__(self, box: LogBox, root: Path, *, keep: int = 3) -> None:
        self.root, self.objects = root, Store(root)
        self.port = Port()
        self.box, self.keep = box, keep
        self.now_ms = FIRST_MS + DAY_MS
        self.taken_in = 0
        self.restart()

    def restart(self) -> None:
        """Begin as a process does: nothing is remembered, everything is in the store."""
        self.objects.dies_before = self.objects.dies_after = self.objects.dies_deleting = ""
        self.lane = BackupLane(
            self.port,
            ArchiveRoots(self.objects, DirectoryObjects(self.root / "_groups")),
            self.box.keys,
            BackupSchedule(MINUTE_MS, keep_count=self.keep),
            BackupClocks(lambda: self.now_ms, lambda: self.now_ms / 1_000, self.pace),
            patience_seconds=120,
        )

    def pace(self, size: int) -> None:
        self.taken_in += size

    def after(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1_000)
        self.lane.turn()

    def stored(self) -> list[StoredBackup]:
        return list(find_backups(self.objects).backups)

    def whole(self) -> list[int]:
        return [each.made_ms for each in self.stored() if each.is_recorded and each.is_verified]

    def says(self, name: str) -> Any:
        return self.lane.status()[name]

    def metric(self, name: str) -> float:
        families = [each for each in self.lane.families() if isinstance(each, MetricFamily)]
        (found,) = (each.series[0][1] for each in families if each.name == name)
        return float(found)


def entry(index: int) -> Entry:
    payload = encode_batch([encode_command(Elapse(FIRST_MS + index))])
    return Entry(Term(1), LogIndex(index), payload, EntryKind.DATA)


def archived(box: LogBox, root: Path, first: int, last: int) -> None:
    box.append([entry(index) for index in range(first, last + 1)])
    box.seal()
    archiver = box.archiver(DirectoryObjects(root))
    archiver.applied_with = lambda: AppliedWith(1, 1_000, 64 << 20)
    archiver.step(box.view(), box.opened.storage, FIRST_MS)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as box:
        archived(box, tmp_path / "archive", 1, 20)
        yield Bench(box, tmp_path / "archive")


def test_the_first_is_made_at_once_and_the_next_after_the_interval(bench: Bench) -> None:
    bench.after(0)
    first_ms = bench.now_ms
    assert bench.stored() == [
        StoredBackup(first_ms, is_recorded=True, is_verified=True, is_scheduled=True)
    ]
    found = read_backup(bench.objects, None, bench.box.keys)
    assert [(each.prg, each.index) for each in found.points] == [("dev/0", 20)]
    assert bench.taken_in > 0, "it was slowed down by what it took in"
    bench.after(59)
    assert bench.whole() == [first_ms]
    assert (bench.says("state"), bench.says("due_ms")) == ("waiting", first_ms + MINUTE_MS)
    bench.after(1)
    assert bench.whole() == [first_ms, first_ms + MINUTE_MS]


def test_it_waits_until_the_archive_has_what_was_committed_when_it_began(bench: Bench) -> None:
    bench.port.index = {"dev/0": 30}
    bench.after(0)
    began_ms = bench.now_ms
    bench.port.index = {"dev/0": 40}
    bench.after(5)
    assert (bench.stored(), bench.says("state")) == ([], "backing up")
    assert "dev/0" in bench.says("reason")
    archived(bench.box, bench.objects._root, 21, 30)
    bench.port.there = {"dev/0": 30}
    bench.after(5)
    assert bench.whole() == [began_ms], "its name is when it began, not when it was done"
    assert read_backup(bench.objects, began_ms, bench.box.keys).points[0].index == 30


def test_an_archive_that_does_not_follow_is_a_failure_and_tried_again(bench: Bench) -> None:
    bench.port.index = {"dev/0": 21}
    bench.after(0)
    bench.after(121)
    assert (bench.says("state"), bench.says("failures")) == ("retrying", 1)
    assert "lacks entries of dev/0" in bench.says("reason")
    bench.port.index = {"dev/0": 20}
    bench.after(5)
    assert len(bench.whole()) == 1


def test_a_failure_is_said_once_counted_and_tried_again_ever_slower(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.after(0)
    began_ms = bench.now_ms
    bench.objects.away = True
    with caplog.at_level(logging.WARNING, "quantum.backup"):
        for _ in range(200):
            bench.after(1)
    assert 5 <= bench.metric("quantum.backup_failures_total") <= 10, "1, 2, 4, 8 … seconds apart"
    assert [each.message for each in caplog.records] == ["no backup yet: the store is away"]
    assert bench.metric("quantum.backup_age_seconds") == (bench.now_ms - began_ms) / 1_000
    bench.objects.away = False
    bench.after(300)
    assert bench.whole() == [began_ms, bench.now_ms]
    bench.objects.away = True
    with caplog.at_level(logging.WARNING, "quantum.backup"):
        bench.after(70)
    assert len(caplog.records) == 2, "it is said again after a success"


def test_a_failure_that_names_another_backup_each_time_is_said_once_too(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.objects.takes_nothing = True
    with caplog.at_level(logging.WARNING, "quantum.backup"):
        for _ in range(30):
            bench.after(1)
    assert bench.says("failures") >= 4
    assert len(caplog.records) == 1, [each.message for each in caplog.records]


@pytest.mark.parametrize("step", ["scheduled", "json", "verified"])
@pytest.mark.parametrize("when", ["dies_before", "dies_after"])
def test_killed_at_any_step_the_next_start_ends_with_a_whole_backup(
    bench: Bench, step: str, when: str
) -> None:
    setattr(bench.objects, when, f".{step}")
    with pytest.raises(Killed):
        bench.after(0)
    killed_ms = bench.now_ms
    bench.restart()
    bench.after(10)
    was_written = (step, when) not in {
        ("scheduled", "dies_before"),
        ("scheduled", "dies_after"),
        ("json", "dies_before"),
    }
    assert bench.whole() == [killed_ms if was_written else bench.now_ms]
    bench.after(60)
    bench.after(1)
    assert all(each.is_recorded and each.is_verified for each in bench.stored()), "nothing is left"


def test_a_node_that_does_not_carry_it_out_makes_nothing_and_knows_the_age(bench: Bench) -> None:
    other = Bench(bench.box, bench.objects._root)
    other.port.leads = False
    other.after(0)
    assert (other.stored(), other.says("state")) == ([], "following")
    bench.after(0)
    other.after(30)
    assert other.says("age_seconds") == 30
    other.port.leads = True
    other.after(0)
    assert len(other.whole()) == 1, "the one before made one half a minute ago"
    other.after(30)
    assert len(other.whole()) == 2


def test_as_many_are_kept_as_are_asked_for_and_those_of_people(bench: Bench) -> None:
    for _ in range(5):
        bench.after(60)
    kept = bench.whole()
    bench.after(1)
    assert bench.whole() == kept[-3:]
    mark = bench.objects._root / "_backups" / f"{kept[-3]:015d}.scheduled"
    mark.unlink()  # as one that `quantum backup create` made
    for _ in range(5):
        bench.after(60)
    bench.after(1)
    assert kept[-3] in bench.whole() and len(bench.whole()) == 4


@pytest.mark.parametrize("part", ["verified", "json", "scheduled"])
def test_killed_while_one_is_let_go_the_rest_of_it_goes_later(bench: Bench, part: str) -> None:
    for _ in range(4):
        bench.after(60)
    bench.objects.dies_deleting = f".{part}"
    with pytest.raises(Killed):
        bench.after(1)
    bench.restart()
    bench.after(1)
    bench.after(1)
    assert len(bench.whole()) == len(bench.stored()) == 3
    left = {path.name[:15] for path in (bench.objects._root / "_backups").iterdir()}
    assert left == {f"{made_ms:015d}" for made_ms in bench.whole()}


def test_one_whose_log_is_gone_does_not_keep_the_next_from_being_made(bench: Bench) -> None:
    bench.objects.dies_after = ".json"
    with pytest.raises(Killed):
        bench.after(0)
    record = bench.objects._root / "_backups" / f"{bench.now_ms:015d}.json"
    bench.restart()
    later = record.with_name(f"{bench.now_ms + 1_000:015d}.json")
    taken = read_backup(bench.objects, None, bench.box.keys)
    (point,) = taken.points
    beyond = BackupPoint(point.prg, 999, point.digest)
    write_backup(
        bench.objects,
        Backup(bench.now_ms + 1_000, (beyond,), taken.mac_epoch),
        bench.box.keys,
    )
    later.with_suffix(".scheduled").write_bytes(b"{}")
    bench.after(2)
    assert "ends before that entry" in bench.says("reason")
    bench.after(2)
    assert len(bench.whole()) == 1


def test_one_that_is_altered_before_it_is_verified_never_counts(bench: Bench) -> None:
    bench.objects.dies_after = ".json"
    with pytest.raises(Killed):
        bench.after(0)
    spoilt_ms = bench.now_ms
    bench.restart()
    record = bench.objects._root / "_backups" / f"{spoilt_ms:015d}.json"
    record.write_bytes(record.read_bytes().replace(b'"index":20', b'"index":19'))
    bench.after(1)
    assert (bench.whole(), bench.says("failures")) == ([], 1)
    assert "MAC" in bench.says("reason")
    bench.after(2)
    assert bench.whole() == [bench.now_ms]
    bench.after(1)
    assert [each.made_ms for each in bench.stored()] == bench.whole()


def test_a_drill_is_found_beside_the_backups(bench: Bench) -> None:
    bench.after(0)
    assert bench.says("drilled_ms") is None
    for at in (5, 7):
        record_drill(bench.objects, at, {"drilled_ms": at})
    bench.after(10)
    assert bench.says("drilled_ms") == 7
    assert len(bench.stored()) == 1, "and is none"


def test_without_any_the_age_is_that_of_the_schedule(bench: Bench) -> None:
    bench.port.leads = False
    bench.after(0)
    bench.after(90)
    assert bench.metric("quantum.backup_age_seconds") == 90
    assert bench.says("verified_ms") is None
    assert bench.metric("quantum.backup_interval_seconds") == 60
