"""In-flight slots: C13 and the formula of §13.3."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantum.tenancy import InFlightSlots, LeaderLoad, TenancyMisuse, credit_hint

loads = st.builds(LeaderLoad, st.integers(0, 1500), st.integers(0, 1000))


@pytest.mark.parametrize(
    ("base", "utilization", "factor", "slots"),
    [
        (100, 0, 1000, 100),
        (100, 500, 1000, 75),
        (100, 1000, 1000, 50),
        (100, 1400, 1000, 50),
        (100, 0, 500, 50),
        (100, 1000, 500, 25),
        (1024, 250, 800, 716),
        (1, 1000, 1, 1),
        (100, 0, 0, 0),
    ],
)
def test_the_formula(base: int, utilization: int, factor: int, slots: int) -> None:
    assert credit_hint(base, LeaderLoad(utilization, factor)) == slots


@given(st.integers(1, 1024), loads)
def test_the_formula_is_the_specification_s_within_rounding(base: int, load: LeaderLoad) -> None:
    headroom = max(0.0, 1 - load.queue_utilization / 1000)
    exact = base * (0.5 + 0.5 * headroom) * load.follower_factor / 1000
    assert exact - 1 - 1e-9 < credit_hint(base, load) <= max(exact + 1e-9, 1)


@pytest.mark.parametrize(
    ("client", "policy", "start", "ceiling"),
    [
        (65_535, 1024, 10, 1024),
        (65_535, 4096, 10, 1024),
        (100, 50, 10, 50),
        (3, 1024, 3, 3),
        (1, 1, 1, 1),
    ],
)
def test_a_session_starts_with_ten_within_every_limit(
    client: int, policy: int, start: int, ceiling: int
) -> None:
    slots = InFlightSlots(client, policy)
    assert (slots.window, slots.ceiling) == (start, ceiling)


@given(st.integers(1, 65_535), st.integers(1, 2000), st.lists(loads, max_size=30))
def test_the_window_is_never_over_the_lowest_limit(
    client: int, policy: int, seen: list[LeaderLoad]
) -> None:
    slots = InFlightSlots(client, policy)
    for load in seen:
        before = slots.window
        assert slots.recalculate(load) <= min(client, policy, 1024)
        assert slots.window <= max(1, 2 * before)
        assert (slots.window == 0) == (load.follower_factor == 0)


def test_it_grows_step_by_step_and_shrinks_at_once() -> None:
    slots, calm = InFlightSlots(65_535), LeaderLoad(0)
    assert [slots.recalculate(calm) for _ in range(8)] == [20, 40, 80, 160, 320, 640, 1024, 1024]
    assert slots.recalculate(LeaderLoad(1000, 100)) == 51
    assert slots.recalculate(LeaderLoad(0, 0)) == 0
    assert slots.recalculate(calm) == 1


def test_slots_are_taken_and_settled() -> None:
    slots = InFlightSlots(2)
    assert [slots.take() for _ in range(3)] == [True, True, False]
    slots.recalculate(LeaderLoad(1000, 1))
    assert (slots.window, slots.free) == (1, 0)
    slots.settle()
    assert not slots.take(), "still one more than the window would let in"
    slots.settle()
    assert slots.free == 1
    with pytest.raises(TenancyMisuse):
        slots.settle()


def test_what_has_no_meaning_is_refused() -> None:
    for client, policy in ((0, 1), (1, 0)):
        with pytest.raises(TenancyMisuse):
            InFlightSlots(client, policy)
    for load in (LeaderLoad(-1), LeaderLoad(0, -1), LeaderLoad(0, 1001)):
        with pytest.raises(TenancyMisuse):
            credit_hint(10, load)
