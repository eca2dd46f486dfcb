"""Incidents: a storm is bounded, a repetition is counted, and safety is always told (§13.1)."""

from __future__ import annotations

import random

import pytest

from clustor.telemetry import (
    COOLDOWN_MS,
    SAFETY_CRITICAL,
    WINDOW_MS,
    AlertOutcome,
    IncidentClass,
    IncidentLog,
    incident_max_per_window,
)
from clustor.telemetry.incidents import CORRELATE_MS, PARTITIONS_MAX

LAG, STALL = IncidentClass.STRUCTURAL_LAG, IncidentClass.DEVICE_STALLED
FAILED = IncidentClass.GROUP_FAILED


@pytest.mark.parametrize(
    ("partitions", "most"), [(0, 5), (1, 5), (1250, 5), (1251, 6), (10_000, 40)]
)
def test_the_bound_is_the_specifications(partitions: int, most: int) -> None:
    assert incident_max_per_window(partitions) == most


def test_the_same_incident_is_told_again_only_after_the_cooldown() -> None:
    log = IncidentLog()
    assert log.alert(LAG, 1, 0, active_partitions=1) is AlertOutcome.TOLD
    assert log.alert(LAG, 1, COOLDOWN_MS - 1, active_partitions=1) is AlertOutcome.REPEATED
    assert log.incidents[0].repeats == 1
    assert log.alert(LAG, 1, COOLDOWN_MS, active_partitions=1) is AlertOutcome.TOLD


def test_alerts_of_one_class_at_once_are_one_incident_of_many_partitions() -> None:
    log = IncidentLog()
    assert log.alert(LAG, 1, 0, active_partitions=100) is AlertOutcome.TOLD
    for partition in range(2, 51):
        assert log.alert(LAG, partition, 10, active_partitions=100) is AlertOutcome.JOINED
    (incident,) = log.incidents
    assert incident.partitions == list(range(1, PARTITIONS_MAX + 1))
    assert incident.partitions_left_off == 50 - PARTITIONS_MAX
    assert log.alert(LAG, 30, 20, active_partitions=100) is AlertOutcome.REPEATED
    assert log.alert(LAG, 99, CORRELATE_MS, active_partitions=100) is AlertOutcome.TOLD


def storm(log: IncidentLog, kind: IncidentClass, count: int, at_ms: int) -> list[AlertOutcome]:
    """Alert about partitions one by one, far enough apart not to belong together."""
    return [
        log.alert(kind, n, at_ms + n * CORRELATE_MS, active_partitions=1) for n in range(1, count)
    ]


def test_a_storm_is_held_back_and_counted_and_the_window_moves_on() -> None:
    log = IncidentLog()
    verdicts = storm(log, LAG, 12, 0)
    assert verdicts == [AlertOutcome.TOLD] * 5 + [AlertOutcome.HELD_BACK] * 6
    assert log.held_back_total == 6
    later = WINDOW_MS + CORRELATE_MS
    assert log.alert(LAG, 77, later, active_partitions=1) is AlertOutcome.TOLD


@pytest.mark.parametrize("kind", sorted(SAFETY_CRITICAL))
def test_what_is_safety_critical_is_told_in_any_storm_for_each_partition(
    kind: IncidentClass,
) -> None:
    log = IncidentLog()
    storm(log, LAG, 12, 0)
    for partition in range(1, 9):
        assert log.alert(kind, partition, 61_000, active_partitions=1) is AlertOutcome.TOLD
    assert log.alert(kind, 1, 62_000, active_partitions=1) is AlertOutcome.REPEATED
    assert log.alert(STALL, 1, 62_000, active_partitions=1) is AlertOutcome.HELD_BACK


def test_safety_critical_ones_take_no_room_from_others() -> None:
    log = IncidentLog()
    for partition in range(20):
        log.alert(FAILED, partition, partition, active_partitions=1)
    assert storm(log, LAG, 6, 0) == [AlertOutcome.TOLD] * 5


@pytest.mark.parametrize("seed", range(50))
def test_no_window_ever_has_more_than_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    log, told, now_ms = IncidentLog(), list[int](), 0
    partitions = rng.choice([1, 100, 5_000])
    kinds = [kind for kind in IncidentClass if kind not in SAFETY_CRITICAL]
    for _ in range(2_000):
        now_ms += rng.randrange(0, 8_000)
        kind, partition = rng.choice(kinds), rng.randrange(partitions)
        if log.alert(kind, partition, now_ms, active_partitions=partitions) is AlertOutcome.TOLD:
            told.append(now_ms)
    bound = incident_max_per_window(partitions)
    for start in told:
        within = sum(start <= at_ms < start + WINDOW_MS for at_ms in told)
        assert within <= bound, f"seed {seed}"
    assert len(log.incidents) <= 256


def test_pages_go_on_behind_a_number() -> None:
    log = IncidentLog()
    storm(log, LAG, 5, 0)
    first = log.page(limit=2)
    assert [each.number for each in first] == [1, 2]
    assert [each.number for each in log.page(after=2)] == [3, 4]
