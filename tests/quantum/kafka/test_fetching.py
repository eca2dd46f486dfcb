"""Fetch sessions, beside a naive twin."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict

import pytest

from quantum.protocols.kafka.codec import KafkaCode
from quantum.protocols.kafka.requests import (
    FetchedFacts,
    FetchKey,
    FetchPlan,
    FetchSessions,
    WantedPartition,
)

A, B, C = (b"t", 0), (b"t", 1), (b"u", 0)


def sessions(**bounds: int) -> FetchSessions:
    return FetchSessions(itertools.count(1).__next__, **bounds)


def ask(
    cache: FetchSessions,
    session: int,
    epoch: int,
    *keys: FetchKey,
    drop: tuple[FetchKey, ...] = (),
    at: int = 0,
) -> FetchPlan:
    rows = [(key, WantedPartition(0, 100)) for key in keys]
    return cache.plan(session, epoch, rows, drop, at)


def quiet(high: int = 5, *, records: bool = False, error: int = 0) -> FetchedFacts:
    return FetchedFacts(high, 0, records, error)


def test_a_session_is_made_used_and_closed() -> None:
    cache = sessions()
    assert ask(cache, 0, -1, A, B).session_id == 0
    made = ask(cache, 0, 0, A, B)
    assert (made.session_id, made.incremental, list(made.partitions)) == (1, False, [A, B])
    assert cache.select(made, {A: quiet(), B: quiet()}) == [A, B]
    plan = ask(cache, 1, 1)
    assert (plan.session_id, plan.incremental, list(plan.partitions)) == (1, True, [A, B])
    assert cache.select(plan, {A: quiet(), B: quiet()}) == []
    plan = ask(cache, 1, 2, C, drop=(A,))
    assert list(plan.partitions) == [B, C]
    assert cache.select(plan, {B: quiet(6), C: quiet()}) == [B, C]
    assert ask(cache, 1, -1, A).session_id == 0
    assert ask(cache, 1, 3).error is KafkaCode.fetch_session_id_not_found
    assert (len(cache), cache.partition_count) == (0, 0)


def test_epochs_are_checked_and_wrap() -> None:
    cache = sessions()
    ask(cache, 0, 0, A)
    for epoch in (0x7FFF, 2):
        assert ask(cache, 1, epoch).error is KafkaCode.invalid_fetch_session_epoch
    assert ask(cache, 1, 1).error is KafkaCode.none
    assert ask(cache, 1, 1).error is KafkaCode.invalid_fetch_session_epoch
    assert ask(cache, 9, 1).error is KafkaCode.fetch_session_id_not_found
    cache._sessions[1].epoch = (1 << 31) - 1
    assert ask(cache, 1, (1 << 31) - 1).error is KafkaCode.none
    assert ask(cache, 1, 1).error is KafkaCode.none, (
        "behind the largest comes 1: 0 would begin anew"
    )


def test_a_new_session_ends_the_one_it_names() -> None:
    cache = sessions()
    ask(cache, 0, 0, A)
    assert ask(cache, 1, 0, B).session_id == 2
    assert ask(cache, 1, 1).error is KafkaCode.fetch_session_id_not_found
    assert ask(cache, 77, 0, B).session_id == 3, "who names one that is gone gets one all the same"


def test_news_is_said_and_nothing_else() -> None:
    cache = sessions()
    cache.select(ask(cache, 0, 0, A), {A: quiet(5)})
    stories = [
        (quiet(5), []),
        (quiet(6), [A]),
        (quiet(6), []),
        (quiet(6, records=True), [A]),
        (FetchedFacts(6, 2, has_records=False), [A]),
        (FetchedFacts(6, 2, has_records=False), []),
        (FetchedFacts(6, 2, has_records=False, error=6), [A]),
        (FetchedFacts(6, 2, has_records=False, error=6), [A]),
        (FetchedFacts(6, 2, has_records=False), [A]),
        (FetchedFacts(6, 2, has_records=False), []),
    ]
    for epoch, (facts, said) in enumerate(stories, 1):
        assert cache.select(ask(cache, 1, epoch), {A: facts}) == said, epoch


def test_a_partition_that_is_asked_for_otherwise_is_no_news_by_itself() -> None:
    cache = sessions()
    cache.select(ask(cache, 0, 0, A, B), {A: quiet(5), B: quiet(5)})
    plan = cache.plan(1, 1, [(A, WantedPartition(77, 100))], (), 0)
    assert plan.partitions[A].fetch_offset == 77
    assert cache.select(plan, {A: quiet(5), B: quiet(5)}) == []


def test_who_had_records_comes_last_next_time() -> None:
    cache = sessions()
    cache.select(ask(cache, 0, 0, A, B, C), {A: quiet(records=True), B: quiet(), C: quiet()})
    assert list(ask(cache, 1, 1).partitions) == [B, C, A]


def test_sessions_are_bounded_and_the_idle_are_put_out() -> None:
    cache = sessions(sessions_max=2, partitions_max=4, idle_ms_min=100)
    assert [ask(cache, 0, 0, A, at=0).session_id, ask(cache, 0, 0, A, B, at=50).session_id] == [
        1,
        2,
    ]
    assert ask(cache, 0, 0, A, at=99).session_id == 0
    ask(cache, 1, 1, at=90)
    assert ask(cache, 0, 0, A, at=150).session_id == 3, "the second was idle, the first was not"
    assert ask(cache, 2, 1).error is KafkaCode.fetch_session_id_not_found
    assert ask(cache, 0, 0, A, B, C, (b"v", 0), (b"v", 1), at=900).session_id == 0
    assert (
        ask(cache, 1, 2, A, B, C, (b"v", 0), at=900).error is KafkaCode.fetch_session_id_not_found
    )
    assert (len(cache), cache.partition_count) == (1, 1)


@pytest.mark.parametrize("seed", range(60))
def test_a_session_hears_what_a_client_without_one_would(seed: int) -> None:
    """The twin is the client: what it believes from the news equals what a full answer says."""
    rng = random.Random(seed)
    cache = sessions()
    keys = [(bytes((97 + nth,)), part) for nth in range(3) for part in range(3)]
    truth = {key: FetchedFacts(0, 0, has_records=False) for key in keys}
    wanted: OrderedDict[FetchKey, None] = OrderedDict()
    believed: dict[FetchKey, tuple[int, int]] = {}
    session, epoch = 0, 0
    for _ in range(120):
        for key in rng.sample(keys, 3):
            fact = truth[key]
            high = fact.high_watermark + rng.choice([0, 0, 1])
            start = min(high, fact.log_start_offset + rng.choice([0, 0, 0, 1]))
            truth[key] = FetchedFacts(high, start, rng.random() < 0.2)
        added = rng.sample(keys, rng.randint(1 if not session else 0, 2))
        dropped = (
            [key for key in wanted if rng.random() < 0.1 and key not in added] if session else []
        )
        if rng.random() < 0.05:
            session, epoch = 0, 0
        if not session:
            added, dropped = list(wanted) or added, []
        rows = [(key, WantedPartition(0, 1)) for key in added]
        plan = cache.plan(session, epoch, rows, dropped, 0)
        assert plan.error is KafkaCode.none, seed
        wanted.update(dict.fromkeys(added))
        for key in dropped:
            del wanted[key]
            believed.pop(key, None)
        assert set(plan.partitions) == set(wanted), seed
        for key in cache.select(plan, {key: truth[key] for key in plan.partitions}):
            believed[key] = (truth[key].high_watermark, truth[key].log_start_offset)
        expected = {key: (truth[key].high_watermark, truth[key].log_start_offset) for key in wanted}
        assert believed == expected, seed
        session = plan.session_id
        epoch = epoch + 1 if session else 0
    assert cache.partition_count == sum(len(each.partitions) for each in cache._sessions.values())
