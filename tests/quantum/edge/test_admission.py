"""The door and the wheel, without a socket or a clock."""

from __future__ import annotations

import random

import pytest

from quantum.edge.admission import AdmissionLimits, AdmissionVerdict, EdgeAdmission, RateBucket
from quantum.edge.deadlines import DeadlineWheel, Slot


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = RateBucket(8.0, 3, now=100.0)
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(100.12)
    assert bucket.take(100.125)
    assert not bucket.take(100.125)
    assert [bucket.take(200.0) for _ in range(4)] == [True, True, True, False]


def test_a_clock_that_goes_back_gives_and_takes_nothing() -> None:
    bucket = RateBucket(8.0, 1, now=100.0)
    assert bucket.take(100.0)
    assert not bucket.take(50.0)
    assert bucket.take(50.125)


def test_who_comes_too_early_waits_its_turn_in_order() -> None:
    door: EdgeAdmission[str] = EdgeAdmission(AdmissionLimits(10, 1.0, 1, 2), now=0.0)
    assert [door.arrive(name, 0.0) for name in "abcd"] == [
        AdmissionVerdict.ENTER,
        AdmissionVerdict.WAIT,
        AdmissionVerdict.WAIT,
        AdmissionVerdict.TURN_AWAY,
    ]
    assert door.release(0.5) == []
    assert door.release(1.0) == ["b"]
    assert door.arrive("e", 2.0) is AdmissionVerdict.WAIT, "nobody overtakes who waits"
    assert door.release(2.0) == ["c"]
    assert door.present == 4


def test_who_waits_may_leave() -> None:
    door: EdgeAdmission[str] = EdgeAdmission(AdmissionLimits(10, 1.0, 1, 2), now=0.0)
    for name in "abc":
        door.arrive(name, 0.0)
    door.leave("b")
    door.leave("a")
    assert door.present == 1
    assert door.release(1.0) == ["c"]
    door.leave("c")
    assert door.present == 0


@pytest.mark.parametrize("turns", [1, 2, 7])
def test_a_deadline_holds_for_its_whole_turns_and_no_longer(turns: int) -> None:
    wheel: DeadlineWheel[str] = DeadlineWheel(7)
    wheel.arm("a", turns)
    for _ in range(turns):
        assert wheel.turn() == set()
    assert wheel.turn() == {"a"}
    assert len(wheel) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_wheel_and_a_list_of_deadlines_agree(seed: int) -> None:
    rng = random.Random(seed)
    wheel: DeadlineWheel[int] = DeadlineWheel(9)
    model: dict[int, tuple[int, Slot]] = {}
    for turn in range(300):
        for _ in range(rng.randrange(4)):
            turns = rng.randint(1, 9)
            name = rng.randrange(10**9)
            model[name] = (turn + turns, wheel.arm(name, turns))
        if model and rng.random() < 0.5:
            name = rng.choice(list(model))
            wheel.cancel(name, model.pop(name)[1])
        due = {name for name, (when, _) in model.items() if when == turn}
        assert wheel.turn() == due
        for name in due:
            del model[name]
        assert len(wheel) == len(model)
