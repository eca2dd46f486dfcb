"""Lag classes and what follows from them: §10.6."""

from __future__ import annotations

import pytest

from clustor.flow import LagClass, LagNumbers, LagWatch, classify

MIB = 1 << 20


@pytest.mark.parametrize(
    ("lag_mib", "seconds", "expected"),
    [
        (0, 100, LagClass.NONE),
        (4, 100, LagClass.NONE),
        (5, 0, LagClass.TRANSIENT),
        (64, 29.9, LagClass.TRANSIENT),
        (64, 30, LagClass.STRUCTURAL),
        (65, 0, LagClass.STRUCTURAL),
        (256, 0, LagClass.STRUCTURAL),
    ],
)
def test_classes(lag_mib: int, seconds: float, expected: LagClass) -> None:
    assert classify(lag_mib * MIB, int(seconds * 1000), LagNumbers()) is expected


def test_a_transient_lag_halves_the_credits_and_no_more() -> None:
    verdict = LagWatch(LagNumbers()).sample(10 * MIB, 0)
    assert (verdict.credit_scale, verdict.force_strict, verdict.step_down) == (0.5, False, False)


def test_a_structural_lag_has_all_its_consequences_once_and_in_time() -> None:
    watch = LagWatch(LagNumbers())
    first = watch.sample(300 * MIB, 0)
    assert first.lag_class is LagClass.STRUCTURAL
    assert (first.credit_scale, first.force_strict) == (0.25, True)
    assert first.trigger_snapshot and first.alert_control_plane and not first.step_down
    again = watch.sample(300 * MIB, 14_999)
    assert not (again.trigger_snapshot or again.alert_control_plane or again.step_down)
    assert watch.sample(300 * MIB, 15_000).step_down


def test_a_small_lag_becomes_structural_by_lasting() -> None:
    watch = LagWatch(LagNumbers())
    assert watch.sample(10 * MIB, 0).lag_class is LagClass.TRANSIENT
    assert watch.sample(10 * MIB, 29_999).lag_class is LagClass.TRANSIENT
    assert watch.sample(10 * MIB, 30_000).lag_class is LagClass.STRUCTURAL
    assert not watch.sample(10 * MIB, 44_999).step_down
    assert watch.sample(10 * MIB, 45_000).step_down


def test_catching_up_ends_it_and_a_new_lag_begins_anew() -> None:
    watch = LagWatch(LagNumbers())
    watch.sample(300 * MIB, 0)
    assert watch.sample(1 * MIB, 10_000).lag_class is LagClass.NONE
    fresh = watch.sample(300 * MIB, 20_000)
    assert fresh.trigger_snapshot and not fresh.step_down


def test_an_override_keeps_the_leader_and_a_hard_block_stops_writes() -> None:
    watch = LagWatch(LagNumbers())
    watch.structural_override = True
    watch.sample(300 * MIB, 0)
    assert not watch.sample(300 * MIB, 60_000).step_down
    watch.structural_hard_block = True
    assert watch.sample(300 * MIB, 60_001).credit_scale == 0.0
    assert watch.sample(0, 60_002).credit_scale == 0.0
