"""A clock that jumps or runs away is told from one that is disciplined."""

from __future__ import annotations

import pytest

from clustor.telemetry.clock_guard import ClockAlarm, ClockGuard, ClockNumbers

NUMBERS = ClockNumbers()
LOOK_MS = 100


class Machine:
    """Two clocks, looked at ten times a second; the time of day gains `rate` millionths."""

    def __init__(self) -> None:
        self.guard = ClockGuard()
        self.counted_ms = 5_000
        self.wall = 1_700_000_000_000.0
        self.news: list[ClockAlarm | None] = []

    def run(self, duration_ms: int, rate: int = 0) -> None:
        for _ in range(duration_ms // LOOK_MS):
            self.counted_ms += LOOK_MS
            self.wall += LOOK_MS * (1 + rate / 1_000_000)
            if self.guard.look(self.counted_ms, int(self.wall)):
                self.news.append(self.guard.alarm)


@pytest.mark.parametrize("rate", [0, 500, -500, 2_000])
def test_a_clock_that_is_slewed_is_believed(rate: int) -> None:
    machine = Machine()
    machine.run(600_000, rate)
    assert machine.news == []


@pytest.mark.parametrize("jump_ms", [251, -251, 3_600_000, -3_600_000])
def test_a_jump_is_an_alarm_until_the_clock_was_steady(jump_ms: int) -> None:
    machine = Machine()
    machine.run(5_000)
    machine.wall += jump_ms
    machine.run(LOOK_MS)
    assert machine.guard.alarm is ClockAlarm.JUMP
    assert machine.guard.skew_ms == jump_ms
    machine.run(NUMBERS.steady_ms - LOOK_MS)
    assert machine.guard.alarm is ClockAlarm.JUMP
    machine.run(LOOK_MS)
    assert machine.news == [ClockAlarm.JUMP, None]
    machine.run(120_000)
    assert len(machine.news) == 2, "what is past does not alarm again"


def test_a_small_step_is_none() -> None:
    machine = Machine()
    machine.run(1_000)
    machine.wall += NUMBERS.jump_ms_max
    machine.run(10_000)
    assert machine.news == []


@pytest.mark.parametrize("rate", [10_000, -10_000])
def test_a_clock_that_runs_away_is_an_alarm_for_as_long_as_it_does(rate: int) -> None:
    machine = Machine()
    machine.run(60_000, rate)
    assert machine.news[0] is ClockAlarm.DRIFT
    machine.run(60_000)
    assert machine.guard.alarm is None
