"""A disk that fills: fewer credits, then none, each with its name, and all of it comes back."""

from __future__ import annotations

import json

import pytest

from clustor.flow import ThrottleReason
from clustor.runtime.disk.policy import LOOK_MS, DiskLevel, DiskNumbers, DiskRoom
from tests.clustor.runtime.test_admission import Stage

ROOM, SOFT, HARD = DiskLevel.ROOM, DiskLevel.SOFT, DiskLevel.HARD
SEGMENT = 100


def room() -> DiskRoom:
    return DiskRoom(DiskNumbers(soft_segments=4, hard_segments=2), SEGMENT)


STORIES: dict[str, list[tuple[int | None, DiskLevel]]] = {
    "it fills": [(1_000, ROOM), (400, ROOM), (399, SOFT), (200, SOFT), (199, HARD), (0, HARD)],
    "it is full at once": [(0, HARD)],
    "it comes back with a margin": [(0, HARD), (249, HARD), (250, SOFT), (499, SOFT), (500, ROOM)],
    "all of it is freed at once": [(0, HARD), (10_000, ROOM)],
    "no flapping at a bound": [(199, HARD), (201, HARD), (199, HARD), (399, SOFT), (401, SOFT)],
    "a disk that does not say": [(0, HARD), (None, HARD), (10_000, ROOM), (None, ROOM)],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_levels(story: list[tuple[int | None, DiskLevel]]) -> None:
    disk = room()
    assert [disk.take(free) for free, _ in story] == [level for _, level in story]


def test_the_disk_is_asked_once_a_period() -> None:
    disk = room()
    asked = [now for now in range(0, 3 * LOOK_MS, 10) if disk.is_due(now)]
    assert asked == [0, LOOK_MS, 2 * LOOK_MS]


def test_a_full_disk_refuses_every_write_by_name_and_comes_back() -> None:
    stage = Stage()
    assert stage.offer(5) == 5
    stage.run(500)
    stage.admission.use_disk(HARD)
    assert stage.offer(5) == 0
    assert stage.reason() is ThrottleReason.DISK_HARD
    envelope = json.loads(stage.admission.refusal(1))
    assert (envelope["reason"], envelope["credit_hint"]) == ("DiskHard", "Shed")
    assert envelope["ingest_status_code"] == "Blocked"
    stage.run(500)  # time alone changes nothing
    assert stage.offer(1, size=1) == 0
    stage.admission.use_disk(ROOM)
    assert stage.reason() is None
    assert stage.offer(5) == 5


def test_a_disk_that_is_nearly_full_gives_a_quarter() -> None:
    stage = Stage()
    stage.admission.use_disk(SOFT)
    assert stage.reason() is ThrottleReason.DISK_SOFT
    taken = stage.offer(20)
    assert 0 < taken <= 6  # a quarter of twenty, and the quantum of this tick
    stage.admission.use_disk(ROOM)
    stage.run(500)
    assert stage.offer(15) == 15


def test_a_new_term_remembers_the_disk() -> None:
    stage = Stage()
    stage.admission.use_disk(HARD)
    stage.admission._rest()  # what a new leadership begins with
    assert stage.offer(1) == 0
