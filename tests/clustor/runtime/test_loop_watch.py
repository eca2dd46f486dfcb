"""The loop's own lateness: measured, named, and what is left of it for elections."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from clustor.runtime.telemetry.loop_watch import (
    ALARMING_NS,
    NAMES_MAX,
    SLOW_NS,
    LoopWatch,
    StackWatch,
)


def test_the_lateness_is_the_99th_percentile_of_ticks_and_appends_together() -> None:
    watch = LoopWatch()
    assert watch.lateness_ms() == 0
    for _ in range(98):
        watch.ticked(1.0, 10.0)
    watch.appended(30.0)
    watch.appended(70.0)
    watch.ticked(5.0, 15.0)
    watch.ticked(1.0, 10.0)
    assert watch.lateness_ms() == 75, "the slowest append since the tick before counts with it"
    assert watch.longest_gap_ms == 15.0
    for _ in range(1_000):
        watch.ticked(0.0, 10.0)
    assert watch.lateness_ms() == 0, "what was long ago is forgotten"
    assert watch.lag_ms.count == 1_100


def test_a_slow_callback_is_named_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()
    with caplog.at_level(logging.INFO, logger="clustor.loop"):
        watch.ran("quick", time.monotonic_ns() + SLOW_NS * 1_000)  # however slow this machine is
        watch.ran("turn", time.monotonic_ns() - SLOW_NS - 1)
    assert watch.slow_callbacks == {"turn": 1}
    assert "by turn" in caplog.text
    with caplog.at_level(logging.INFO, logger="clustor.loop"):
        watch.note_slow("minor", ALARMING_NS - 1)
        watch.note_slow("alarming", ALARMING_NS)
    assert [each.levelno for each in caplog.records[-2:]] == [logging.INFO, logging.WARNING]
    for number in range(2 * NAMES_MAX):
        watch.note_slow(f"name {number}", SLOW_NS)
    assert len(watch.slow_callbacks) == NAMES_MAX


def test_the_place_at_which_a_loop_hangs_is_found_while_it_hangs() -> None:
    watch = LoopWatch()
    looking = StackWatch(watch, 0.0)
    seen = threading.Event()

    def block_the_loop() -> None:
        deadline = time.monotonic() + 120
        while not looking.seen and time.monotonic() < deadline:
            seen.wait(0.001)

    block_the_loop()
    looking.stop()
    assert any("block_the_loop" in place for place in looking.seen)
