"""Credits and their controller: §10.6, number by number."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clustor.flow import (
    GAINS_BY_PROFILE,
    LATENCY_GAINS,
    THROUGHPUT_GAINS,
    WAN_GAINS,
    CreditLimits,
    Credits,
    FlowMisuse,
    Pid,
    PidGains,
    UnsafeGains,
    strict_only_scale,
)

KIB = 1 << 10
MIB = 1 << 20


def test_gains_and_limits_are_the_specification_s() -> None:
    assert PidGains(0.60, 0.20, 0.10) == LATENCY_GAINS
    assert PidGains(0.50, 0.15, 0.08) == THROUGHPUT_GAINS
    assert PidGains(0.40, 0.10, 0.05) == WAN_GAINS
    assert CreditLimits() == CreditLimits(4096, 64 * MIB, 16 * KIB)
    assert GAINS_BY_PROFILE["ConsistencyProfile"] is LATENCY_GAINS


def test_the_guardrail_refuses_gains_that_overshoot_in_one_sample() -> None:
    PidGains(0.5, 10.0, 0.1)
    with pytest.raises(UnsafeGains):
        PidGains(0.5, 10.01, 0.1)
    with pytest.raises(UnsafeGains):
        PidGains(-0.1, 0.1, 0.1)


def test_overload_takes_credits_and_calm_gives_them_back() -> None:
    pid = Pid(LATENCY_GAINS)
    assert pid.sample(0.5) == 1.0
    assert pid.sample(2.0) < 0.5
    for _ in range(100):
        pid.sample(2.0)
    assert pid.fraction == 0.0
    for _ in range(60):
        pid.sample(0.5)
    assert pid.fraction > 0.5, "an integral that wound up would still hold at zero"


def test_a_pressure_of_one_is_held() -> None:
    pid = Pid(WAN_GAINS)
    pid.sample(1.2)
    pid.sample(1.0)
    pid.sample(1.0)
    held = pid.fraction
    assert pid.sample(1.0) == pytest.approx(held)


def test_both_tokens_bound_what_is_under_way() -> None:
    credits_ = Credits(LATENCY_GAINS)
    assert credits_.admit(4096, 1)
    assert not credits_.admit(2, 1)
    credits_.settle(4096, 1)
    assert credits_.admit(1, 64 * MIB)
    assert not credits_.admit(1, 17 * KIB)
    assert (credits_.entry_credits, credits_.byte_credits) == (4095, 0)


def test_one_small_frame_a_tick_passes_exhausted_credits() -> None:
    credits_ = Credits(LATENCY_GAINS)
    credits_.admit(1, 64 * MIB)
    assert not credits_.admit(1, 16 * KIB + 1)
    assert not credits_.admit(2, 1 * KIB)
    assert credits_.admit(1, 16 * KIB)
    assert not credits_.admit(1, 1)
    credits_.tick(10, pressure=1.0)
    assert credits_.admit(1, 16 * KIB)


def test_what_is_under_way_can_be_measured_instead_of_counted() -> None:
    credits_left = Credits(LATENCY_GAINS, CreditLimits(4, 1_000, 0))
    assert credits_left.admit(3, 10)
    assert not credits_left.admit(2, 10)
    credits_left.measure(1, 900)
    assert (credits_left.entry_credits, credits_left.byte_credits) == (3, 100)
    assert not credits_left.admit(1, 101)
    assert credits_left.admit(1, 100)
    credits_left.measure(0, 0)
    assert credits_left.admit(4, 1_000)


def test_the_quantum_is_renewed_without_a_sample() -> None:
    credits_left = Credits(LATENCY_GAINS, CreditLimits(1, 1_000, 100))
    assert credits_left.admit(2, 10) is False
    assert [credits_left.admit(1, 10) for _ in range(3)] == [True, True, False]
    credits_left.renew_quantum()
    assert [credits_left.admit(1, 10) for _ in range(2)] == [True, False]


def test_a_hard_block_admits_not_even_the_quantum() -> None:
    credits_ = Credits(LATENCY_GAINS)
    credits_.scale(0.0)
    assert not credits_.admit(1, 1)
    credits_.scale(0.25)
    assert credits_.entry_credits == 1024


def test_samples_are_taken_every_hundred_milliseconds() -> None:
    credits_ = Credits(LATENCY_GAINS)
    credits_.tick(0, pressure=1.3)
    first = credits_.pid.fraction
    credits_.tick(99, pressure=1.3)
    assert credits_.pid.fraction == first
    credits_.tick(100, pressure=1.3)
    assert credits_.pid.fraction != first


def test_settling_more_than_was_admitted_is_our_caller_s_mistake() -> None:
    with pytest.raises(FlowMisuse):
        Credits(LATENCY_GAINS).settle(1, 1)
    with pytest.raises(FlowMisuse):
        Credits(LATENCY_GAINS).scale(1.5)


def test_strict_only_running_halves_the_credits_after_its_bound() -> None:
    assert strict_only_scale(60_000) == 1.0
    assert strict_only_scale(60_001) == 0.5


@settings(max_examples=200, deadline=None)
@given(
    pressures=st.lists(st.floats(0, 50), max_size=100),
    batches=st.lists(st.tuples(st.integers(1, 100), st.integers(0, MIB)), max_size=50),
)
def test_credits_stay_within_bounds_and_always_come_back(
    pressures: list[float], batches: list[tuple[int, int]]
) -> None:
    credits_ = Credits(THROUGHPUT_GAINS)
    for now, pressure in enumerate(pressures):
        credits_.tick(now * 100, pressure)
        assert 0.0 <= credits_.pid.fraction <= 1.0
    admitted = [batch for batch in batches if credits_.admit(*batch)]
    for batch in admitted:
        credits_.settle(*batch)
    allowed = int(4096 * credits_.pid.fraction)
    assert credits_.entry_credits == allowed
