"""One partition's lane: who archives when, what it says while it waits, how long the log waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clustor.log.steps import Storage
from quantum.archive import ArchiveUnreachable, PrgArchiver, ReplicaLog, read_listing
from quantum.archive.objects import DirectoryObjects
from quantum.node.archive_lane import ArchiveSettings, Lane
from tests.quantum.lake.archive.boxes import FIRST_MS, PRG, LogBox, entries, keys_at

SETTINGS = ArchiveSettings("file:///", flush_seconds=60, hold_bytes_max=1000)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Port:
    """A log in a box; the test says who leads and how much it weighs."""

    def __init__(self, box: LogBox) -> None:
        self.box = box
        self.leads = True
        self.log_bytes = 0
        self.refusal = ""
        self.held: list[int | None] = []
        self.seals = 0

    def look(self, *, due: bool) -> tuple[ReplicaLog | None, str]:
        if self.refusal:
            return None, self.refusal
        return replace(self.box.view(), leads=self.leads, log_bytes=self.log_bytes), ""

    def look_again(self) -> None: ...

    def hold(self, through: int | None) -> None:
        self.held.append(through)

    def seal(self) -> None:
        self.seals += 1
        self.box.seal()

    @contextmanager
    def storage(self) -> Iterator[Storage]:
        yield self.box.opened.storage


class Flaky(DirectoryObjects):
    """A store that can be away."""

    away = False

    def get(self, name: str, bytes_max: int) -> bytes:
        return self._unless_away() or super().get(name, bytes_max)

    def put(self, name: str, pieces: Iterable[bytes]) -> None:
        self._unless_away()
        super().put(name, pieces)

    def names(self, prefix: str) -> list[str]:
        self._unless_away()
        return super().names(prefix)

    def _unless_away(self) -> bytes:
        if self.away:
            raise ArchiveUnreachable("the store is away")
        return b""


class Bench:
    """A lane and everything around it."""

    def __init__(self, box: LogBox, root: Path, settings: ArchiveSettings = SETTINGS) -> None:
        self.clock = Clock()
        self.port = Port(box)
        self.objects = Flaky(root)
        archiver: PrgArchiver = box.archiver(self.objects)
        self.lane = Lane(self.port, archiver, settings, clock=self.clock, now_ms=lambda: FIRST_MS)

    def run(self) -> None:
        while self.lane.turn():
            pass

    def after(self, seconds: float) -> None:
        self.clock.now += seconds
        self.run()

    def says(self, name: str) -> Any:
        return self.lane.status(self.port.box.committed)[name]

    @property
    def archived(self) -> int:
        return read_listing(DirectoryObjects(self.objects._root), PRG, None).last


@pytest.fixture
def box(tmp_path: Path) -> Iterator[LogBox]:
    with LogBox(tmp_path / "log", keys_at(tmp_path)) as found:
        found.append(entries(1, 100))
        found.seal()
        yield found


def test_a_leader_archives_and_lets_the_log_go_behind(box: LogBox, tmp_path: Path) -> None:
    bench = Bench(box, tmp_path / "archive")
    bench.run()
    assert (bench.archived, bench.port.held[-1]) == (100, 100)
    assert (bench.says("state"), bench.says("compaction_hold")) == ("up to date", "")


def test_what_is_in_the_open_segment_is_closed_after_a_while(box: LogBox, tmp_path: Path) -> None:
    bench = Bench(box, tmp_path / "archive")
    bench.run()
    box.append(entries(101, 120))
    bench.after(1)
    bench.after(59)
    assert (bench.port.seals, bench.archived) == (0, 100)
    assert "beyond index 100" in bench.says("compaction_hold")
    bench.after(2)
    bench.after(1)
    assert (bench.port.seals, bench.archived) == (1, 120)
    bench.after(600)
    assert bench.port.seals == 1, "nothing new, nothing to close"


def test_a_follower_watches_and_steps_in_when_nobody_else_does(box: LogBox, tmp_path: Path) -> None:
    bench = Bench(box, tmp_path / "archive")
    bench.port.leads = False
    bench.run()
    bench.after(119)
    assert (bench.archived, bench.says("state")) == (0, "following")
    assert bench.port.held == [], "nothing of the log may go"
    bench.after(2)
    assert bench.archived == 100
    assert bench.port.held[-1] == 100
    bench.after(3_600)
    box.append(entries(101, 120))
    bench.after(11)
    bench.after(100)
    assert (bench.archived, bench.port.seals) == (100, 0), "what is new is the leader's"
    bench.after(21)
    bench.after(1)
    assert (bench.archived, bench.port.seals) == (120, 1)


def test_a_follower_that_steps_in_brings_all_that_it_has(box: LogBox, tmp_path: Path) -> None:
    bench = Bench(box, tmp_path / "archive")
    bench.port.leads = False
    for first in (101, 201, 301):
        box.append(entries(first, first + 99))
        box.seal()
    bench.run()
    bench.after(121)
    assert bench.archived == 400


def test_a_follower_learns_how_far_the_leader_is(box: LogBox, tmp_path: Path) -> None:
    leader, follower = Bench(box, tmp_path / "archive"), Bench(box, tmp_path / "archive")
    follower.port.leads = False
    follower.run()
    leader.run()
    follower.after(11)
    assert follower.port.held == [100]


def test_a_store_that_is_away_is_asked_again_and_the_log_waits_to_a_bound(
    box: LogBox, tmp_path: Path
) -> None:
    bench = Bench(box, tmp_path / "archive")
    bench.objects.away = True
    bench.run()
    assert (bench.says("state"), bench.says("reason")) == ("retrying", "the store is away")
    assert bench.port.held == []
    bench.port.log_bytes = 1001
    bench.after(0.5)
    assert bench.port.held == [], "it pauses before it asks again"
    bench.after(1)
    assert bench.port.held == [None]
    assert "no longer waits" in bench.says("compaction_hold")
    assert bench.says("hold_released_at_ms") == FIRST_MS
    bench.objects.away = False
    bench.port.log_bytes = 0
    bench.after(120)
    assert (bench.archived, bench.port.held[-1], bench.says("state")) == (100, 100, "up to date")


def test_a_leader_gives_others_time_before_it_writes_a_gap(box: LogBox, tmp_path: Path) -> None:
    bench = Bench(box, tmp_path / "archive")
    bench.run()
    box.append(entries(101, 200))
    box.seal()
    box.append(entries(201, 300))
    box.seal()
    box.compact(201)
    bench.after(1)
    assert "101 to 200" in bench.says("reason")
    bench.after(598)
    assert bench.archived == 100
    bench.after(3)
    bench.after(1)
    listing = read_listing(bench.objects, PRG, None)
    assert (listing.last, [(gap.first, gap.last) for gap in listing.gaps]) == (300, [(101, 200)])


def test_another_history_is_left_alone_and_the_log_is_kept(box: LogBox, tmp_path: Path) -> None:
    Bench(box, tmp_path / "archive").run()
    with LogBox(tmp_path / "anew", keys_at(tmp_path)) as anew:
        anew.append(entries(1, 150, term=9))
        anew.seal()
        bench = Bench(anew, tmp_path / "archive")
        bench.run()
        assert bench.says("state") == "stopped"
        assert "another history" in bench.says("reason")
        bench.after(1_000)
    assert bench.archived == 100
    assert set(bench.port.held) <= {0}


@pytest.mark.parametrize("last", [50, 200], ids=["behind it", "ahead of it"])
def test_another_clusters_archive_is_not_written_to(box: LogBox, tmp_path: Path, last: int) -> None:
    Bench(box, tmp_path / "archive").run()
    with LogBox(tmp_path / "another", keys_at(tmp_path)) as another:
        another.append(entries(1, last))
        another.seal()
        bench = Bench(another, tmp_path / "archive")
        bench.lane.archiver.cluster = "another"
        bench.run()
    assert bench.says("state") == "stopped"
    assert "another cluster" in bench.says("reason")
    assert bench.archived == 100
    assert bench.port.held == []


def test_nothing_leaves_while_the_gate_is_closed(box: LogBox, tmp_path: Path) -> None:
    bench = Bench(box, tmp_path / "archive")
    bench.port.refusal = "no leader is known"
    bench.run()
    assert (bench.archived, bench.says("reason")) == (0, "no leader is known")
    bench.port.refusal = ""
    bench.after(1)
    assert bench.archived == 100
