"""Retention keeps what was asked for, at least, and drops whole files behind it."""

from __future__ import annotations

import pytest

from quantum.broker.retention import Stretch, first_wanted, share_of

FILES = [Stretch(10, 100, 1_000), Stretch(20, 100, 2_000), Stretch(30, 50, 3_000)]

CASES: dict[str, tuple[int, int, int, int | None]] = {
    "for ever": (9_000, 0, 0, None),
    "nothing is old": (2_999, 2_000, 0, None),
    "old from the very millisecond on": (3_000, 2_000, 0, 10),
    "two are old": (4_500, 2_000, 0, 20),
    "all of it is old": (9_000, 2_000, 0, 30),
    "under the bound": (0, 0, 250, None),
    "at the bound": (0, 0, 150, 10),
    "one file more than was asked for": (0, 0, 151, None),
    "the newest stays by size": (0, 0, 1, 20),
    "what is first by either": (3_000, 2_000, 40, 20),
    "the sum of both": (4_500, 2_000, 150, 20),
}


@pytest.mark.parametrize(("now", "age", "size", "first"), CASES.values(), ids=CASES.keys())
def test_the_first_offset_that_is_wanted(now: int, age: int, size: int, first: int | None) -> None:
    assert first_wanted(FILES, now, retention_ms=age, bytes_max=size) == first


def test_nothing_is_trimmed_of_nothing() -> None:
    assert first_wanted([], 9_000, retention_ms=1, bytes_max=1) is None


@pytest.mark.parametrize(
    ("bound", "partitions", "share"), [(0, 3, 0), (90, 3, 30), (2, 3, 1)], ids=str
)
def test_partitions_share_a_bound(bound: int, partitions: int, share: int) -> None:
    assert share_of(bound, partitions) == share
