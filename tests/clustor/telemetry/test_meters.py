"""Counting: what equals a bound is below it, and only a leader's own term is timed."""

from __future__ import annotations

import pytest

from clustor.telemetry import CommitClock, Histogram, NodeMeters
from clustor.telemetry.meters import UNCOMMITTED_MAX


@pytest.mark.parametrize(
    ("value", "bucket"), [(0.0, 0), (1.0, 0), (1.0001, 1), (2.0, 1), (4.0, 2), (4.1, 3)]
)
def test_bounds_are_inclusive(value: float, bucket: int) -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    histogram.observe(value)
    assert histogram.counts == [int(each == bucket) for each in range(4)]
    assert histogram.total == value


def test_a_quantile_is_a_bound_or_unknown() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 0.5, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.quantile(0.5) == 1.0
    assert histogram.quantile(0.75) == 2.0
    assert histogram.quantile(1.0) is None


def test_bounds_must_ascend() -> None:
    with pytest.raises(AssertionError):
        Histogram((1.0, 1.0))


def test_the_fixed_buckets_are_the_specifications() -> None:
    meters = NodeMeters()
    assert list(meters.fsync_latency_ms.bounds) == [
        0.25,
        0.5,
        1,
        2,
        4,
        6,
        8,
        10,
        15,
        20,
        30,
        40,
        60,
        80,
        100,
    ]
    assert list(meters.commit_latency_ms.bounds) == [
        0.5,
        1,
        2,
        4,
        6,
        8,
        10,
        15,
        20,
        30,
        40,
        60,
        80,
        100,
    ]
    assert list(meters.apply_batch_latency_ms.bounds) == [0.25, 0.5, 1, 2, 4, 6, 8, 10]
    assert list(meters.transfer_seconds.bounds) == [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_a_commit_is_timed_from_the_append_to_the_quorums_fsync() -> None:
    histogram = Histogram((1.0, 10.0))
    clock = CommitClock(histogram)
    clock.looked(3, 10, 10, 0.0)  # the term begins: what was there is not timed
    clock.looked(3, 12, 10, 1.000)
    clock.looked(3, 13, 11, 1.001)
    assert histogram.count == 0
    clock.looked(3, 13, 12, 1.005)
    assert histogram.counts == [0, 1, 0]
    assert histogram.total == pytest.approx(5.0)
    clock.looked(3, 13, 13, 1.006)
    assert histogram.count == 2


def test_a_lost_term_is_not_timed() -> None:
    histogram = Histogram((1.0,))
    clock = CommitClock(histogram)
    clock.looked(3, 10, 10, 0.0)
    clock.looked(3, 11, 10, 1.0)  # it never learns what became of this one
    clock.looked(5, 20, 20, 9.0)
    clock.looked(5, 21, 21, 9.1)
    assert histogram.count == 1
    assert histogram.total == pytest.approx(0.0)


def test_what_is_timed_at_once_is_bounded() -> None:
    histogram = Histogram((1.0,))
    clock = CommitClock(histogram)
    clock.looked(1, 0, 0, 0.0)
    for index in range(1, 2 * UNCOMMITTED_MAX):
        clock.looked(1, index, 0, 0.0)
    clock.looked(1, 2 * UNCOMMITTED_MAX, 2 * UNCOMMITTED_MAX, 1.0)
    assert histogram.count == UNCOMMITTED_MAX
