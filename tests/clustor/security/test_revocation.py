"""Revocation freshness (clustor §12.1): each sentence, and every path through the machine."""

from __future__ import annotations

import random

import pytest

from clustor.security import Feed, FeedFreshness, RevocationFreshness, SecurityMisuse
from clustor.security.revocation import (
    FAIL_CLOSED_MS,
    MAX_STALENESS_MS,
    SHORT_LIVED_MS,
    WAIVER_MS_MAX,
)

LONG = SHORT_LIVED_MS + 1


def fresh(now_ms: int = 0) -> RevocationFreshness:
    machine = RevocationFreshness(now_ms)
    machine.on_feed(Feed.CRL, 0, now_ms)
    return machine


def test_before_the_first_data_nobody_is_trusted() -> None:
    machine = RevocationFreshness(0)
    assert machine.status(0).freshness is FeedFreshness.QUARANTINED
    assert not machine.permits(LONG, 0)
    assert machine.quarantines == 0
    machine.on_feed(Feed.OCSP, 0, 10)
    assert machine.permits(LONG, 10)


def test_data_older_than_300_seconds_quarantines() -> None:
    machine = fresh()
    assert machine.permits(LONG, MAX_STALENESS_MS)
    status = machine.status(MAX_STALENESS_MS + 1)
    assert status.freshness is FeedFreshness.QUARANTINED
    assert status.reason == "revocation data is too old"
    assert machine.quarantines == 1


def test_the_age_counts_from_when_the_data_was_made() -> None:
    machine = RevocationFreshness(0)
    machine.on_feed(Feed.CRL, 299_000, 1_000)
    assert machine.permits(LONG, 2_000)
    assert not machine.permits(LONG, 2_001)
    machine.on_feed(Feed.CRL, MAX_STALENESS_MS + 1, 3_000)  # it answers, with old data
    assert not machine.permits(LONG, 3_000)


def test_feeds_that_are_silent_for_600_seconds_quarantine() -> None:
    """However young the data says it is: a producer's clock ahead of ours must not help."""
    machine = RevocationFreshness(0)
    machine.on_feed(Feed.CRL, 0, 0)
    machine._produced_ms = 10 * FAIL_CLOSED_MS
    assert machine.status(FAIL_CLOSED_MS).freshness is FeedFreshness.FRESH
    assert machine.status(FAIL_CLOSED_MS + 1).reason == "no revocation feed answers"


def test_one_feed_of_two_is_enough() -> None:
    machine = fresh()
    for now in range(0, 3_000_000, 200_000):
        machine.on_feed(Feed.OCSP if now % 400_000 else Feed.CRL, 0, now)
        assert machine.permits(LONG, now + 150_000)


def test_fresh_data_ends_the_quarantine() -> None:
    machine = fresh()
    assert not machine.permits(LONG, 400_000)
    machine.on_feed(Feed.CRL, 0, 400_001)
    assert machine.status(400_001).freshness is FeedFreshness.FRESH


def test_a_waiver_helps_once_and_for_300_seconds_at_most() -> None:
    machine = fresh()
    assert not machine.permits(LONG, 400_000)
    with pytest.raises(SecurityMisuse):
        machine.on_waiver("w-1", WAIVER_MS_MAX + 1, 400_000)
    with pytest.raises(SecurityMisuse):
        machine.on_waiver("w-1", 0, 400_000)
    machine.on_waiver("w-1", WAIVER_MS_MAX, 400_000)
    assert machine.status(699_999).freshness is FeedFreshness.WAIVED
    assert machine.status(700_000).freshness is FeedFreshness.QUARANTINED
    with pytest.raises(SecurityMisuse):
        machine.on_waiver("w-1", 1_000, 700_001)
    machine.on_waiver("w-2", 1_000, 700_001)
    assert machine.permits(LONG, 700_002)


def test_short_lived_certificates_need_a_fresh_feed() -> None:
    machine = fresh()
    machine.on_waiver("w-1", 300_000, 400_000)
    assert machine.permits(SHORT_LIVED_MS + 1, 400_001)
    assert not machine.permits(SHORT_LIVED_MS, 400_001)
    machine.on_feed(Feed.CRL, 0, 400_002)
    assert machine.permits(SHORT_LIVED_MS, 400_003)


def test_fresh_data_uses_a_waiver_up() -> None:
    machine = fresh()
    machine.on_waiver("w-1", 300_000, 1_000)
    machine.on_feed(Feed.CRL, 299_000, 2_000)
    assert not machine.permits(LONG, 302_000)


def test_a_clock_that_goes_back_is_our_own_bug() -> None:
    machine = fresh(1_000)
    with pytest.raises(AssertionError):
        machine.status(999)


@pytest.mark.parametrize("seed", range(50))
def test_the_answer_changes_by_itself_only_at_the_deadline(seed: int) -> None:
    rng = random.Random(seed)
    now = 0
    machine = RevocationFreshness(now)
    for step in range(60):
        now += rng.randrange(200_000)
        match rng.randrange(4):
            case 0:
                machine.on_feed(rng.choice(list(Feed)), rng.randrange(400_000), now)
            case 1:
                machine.on_waiver(f"w-{step}", rng.randrange(1, WAIVER_MS_MAX), now)
            case _:
                pass
        before = machine.status(now).freshness
        deadline = machine.next_deadline(now)
        if deadline is None:
            assert before is FeedFreshness.QUARANTINED
            continue
        assert deadline > now
        if rng.random() < 0.5:
            assert machine.status(deadline - 1).freshness is before, seed
            assert machine.status(deadline).freshness is not before, seed
            now = deadline
