"""Rates: buckets without drift, the ladder of §11.3, and admission of connections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantum.tenancy import (
    ConnectionAdmission,
    NoisyNeighbour,
    QuotaVerdict,
    Rate,
    RateGuard,
    RateLimit,
    Rates,
    TenancyMisuse,
    TokenBucket,
)

steps = st.lists(st.tuples(st.integers(-5, 700), st.integers(0, 30)), max_size=60)


@given(st.integers(1, 50), st.integers(1, 20), steps)
def test_no_interval_gets_more_than_burst_and_rate(
    rate: int, burst: int, requests: list[tuple[int, int]]
) -> None:
    bucket, now, latest = TokenBucket(rate, burst, 0), 0, 0
    taken: list[tuple[int, int]] = []
    for pause, amount in requests:
        now += pause
        latest = max(latest, now)
        if bucket.take(amount, now):
            taken.append((latest, amount))
    for first in range(len(taken)):
        total = 0
        for at, amount in taken[first:]:
            # What a taker finds is never more than a burst and what came since.
            assert total * 1000 <= burst * 1000 + rate * (at - taken[first][0])
            total += amount


@given(st.integers(1, 1000), st.integers(1, 50), st.lists(st.integers(0, 97), max_size=80))
def test_asking_often_loses_nothing(rate: int, burst: int, pauses: list[int]) -> None:
    often, once = TokenBucket(rate, burst, 0), TokenBucket(rate, burst, 0)
    often.overdraw(burst, 0)
    once.overdraw(burst, 0)
    now = 0
    for pause in pauses:
        now += pause
        often.is_full(now)
    assert often.wait_ms(burst, now) == once.wait_ms(burst, now)


@given(st.integers(1, 1000), st.integers(1, 50), st.integers(1, 80), st.integers(0, 200))
def test_the_wait_is_exact(rate: int, burst: int, amount: int, debt: int) -> None:
    for early in (0, 1):
        bucket = TokenBucket(rate, burst, 0)
        bucket.overdraw(debt, 0)
        wait = bucket.wait_ms(amount, 0)
        if wait >= early:
            assert bucket.take(amount, wait - early) == (early == 0 or wait == 0)


def test_more_than_a_burst_is_slow_and_not_stuck() -> None:
    bucket = TokenBucket(rate_per_second=10, burst=5, now_ms=0)
    assert bucket.take(20, 0)
    assert bucket.debt(0) == 15
    assert not bucket.take(1, 1599)
    assert bucket.take(1, 1600)


def test_a_clock_that_steps_back_gives_nothing() -> None:
    bucket = TokenBucket(1, 1, now_ms=10_000)
    assert bucket.take(1, 10_000)
    assert not bucket.take(1, 0)
    assert not bucket.take(1, 10_999)
    assert bucket.take(1, 11_000)


def test_nor_does_it_take_anything_away() -> None:
    bucket = TokenBucket(1, 1, now_ms=10_000)
    assert bucket.take(1, 0)


def test_a_bucket_needs_a_rate_and_a_burst() -> None:
    for rate, burst in ((0, 1), (1, 0)):
        with pytest.raises(TenancyMisuse):
            TokenBucket(rate, burst, 0)


def test_the_ladder_as_a_story() -> None:
    """Ten a second are allowed, a hundred a second come."""
    guard, now = RateGuard(RateLimit(10, 10), 0), 0
    first: dict[QuotaVerdict, int] = {}
    admitted = 0
    while now <= 61_000:
        decision = guard.ask(1, now)
        first.setdefault(decision.verdict, now)
        admitted += decision.verdict in (QuotaVerdict.ADMIT, QuotaVerdict.THROTTLE)
        now += 10
    assert first[QuotaVerdict.ADMIT] == 0
    assert first[QuotaVerdict.THROTTLE] == 110, "the burst and what came meanwhile"
    assert first[QuotaVerdict.REJECT] == 220, "one burst of debt"
    assert first[QuotaVerdict.DISCONNECT] == 110 + 60_010
    assert admitted <= 20 + 61 * 10 + 1


def test_a_throttled_sender_that_waits_is_never_rejected_before_ten_seconds() -> None:
    guard, now = RateGuard(RateLimit(10, 10), 0), 0
    verdicts = []
    while now < 9_900:
        decision = guard.ask(15, now)
        verdicts.append(decision.verdict)
        now += decision.wait_ms
    assert set(verdicts[1:]) == {QuotaVerdict.THROTTLE}


def test_only_calm_ends_an_overage() -> None:
    guard = RateGuard(RateLimit(10, 10), 0)
    for _ in range(11):
        guard.ask(1, 0)
    assert guard.ask(1, 0).verdict is QuotaVerdict.THROTTLE
    assert guard.ask(1, 1_000).verdict is QuotaVerdict.ADMIT, (
        "tokens are there, the bucket is not full"
    )
    assert guard.ask(12, 1_001).verdict is QuotaVerdict.THROTTLE
    calm = RateGuard(RateLimit(10, 10), 0)
    for _ in range(12):
        calm.ask(1, 0)
    assert calm.ask(10, 5_000).verdict is QuotaVerdict.ADMIT
    assert calm.ask(1, 61_000).verdict is QuotaVerdict.ADMIT
    assert calm.ask(11, 61_000).verdict is QuotaVerdict.THROTTLE, "a new overage, not a minute old"


def test_the_sustained_overage_of_more_than_a_minute_disconnects() -> None:
    guard, now = RateGuard(RateLimit(10, 10), 0), 0
    guard.ask(20, 0)
    while now < 60_000:
        now += 500
        guard.ask(5, now)
        guard.ask(1, now)
    decision = guard.ask(1_000, 60_600)
    assert decision.verdict is QuotaVerdict.DISCONNECT


def test_a_tenant_s_rates() -> None:
    limit = RateLimit(10, 10)
    neighbour = NoisyNeighbour(Rates(publishes=limit, publish_bytes=RateLimit(1000, 1000)), 0)
    assert neighbour.ask_publish(1, 2_000, 0).verdict is QuotaVerdict.ADMIT, (
        "a large one, from full"
    )
    both = neighbour.ask_publish(1, 1, 0)
    assert (both.verdict, both.wait_ms) == (QuotaVerdict.REJECT, 1001), "the bytes are owed"
    assert neighbour.ask(Rate.SUBSCRIBES, 10**9, 0).verdict is QuotaVerdict.ADMIT, (
        "no limit was set"
    )
    quiet = NoisyNeighbour(Rates(), 0)
    assert quiet.ask_publish(10**9, 10**12, 0).verdict is QuotaVerdict.ADMIT


def test_a_storm_of_connections_is_admitted_at_the_rate_and_half_open_ones_are_bounded() -> None:
    admission = ConnectionAdmission(RateLimit(100, 10), handshakes_max=12, now_ms=0)
    assert [admission.admit(0) for _ in range(11)] == [True] * 10 + [False]
    assert admission.wait_ms(0) == 10
    assert admission.admit(10)
    assert admission.admit(1_000)
    assert not admission.admit(2_000), "twelve are half-open"
    assert admission.wait_ms(2_000) is None
    admission.settle()
    assert admission.handshakes == 11
    assert admission.admit(2_000)
    for _ in range(12):
        admission.settle()
    with pytest.raises(TenancyMisuse):
        admission.settle()
