"""Routing epochs: growth, the ten minutes of grace, and refusals (§2.1.4, §2.1.5, C10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.raft import ReplicaId
from clustor.raft import RoutingEpoch as EpochNumber
from quantum.routing import (
    HashRing,
    Placement,
    PrgIndex,
    Redirect,
    RoutingEpoch,
    RoutingEpochMismatch,
    RoutingMisuse,
    Serve,
    decide_route,
    next_epoch,
    plan_prg_count,
)
from quantum.routing.epochs import REDIRECT_GRACE_MS
from quantum.types import ClientId, TenantId

NOW = 1_000_000_000


def placed(count: int) -> tuple[Placement, ...]:
    return tuple(
        tuple(ReplicaId(1 + (prg + copy) % 5) for copy in range(3)) for prg in range(count)
    )


def first(count: int = 3) -> RoutingEpoch:
    return RoutingEpoch(TenantId("acme"), EpochNumber(1), HashRing(seed=9), placed(count))


def test_the_next_epoch_counts_on_and_remembers_the_last() -> None:
    routing = next_epoch(first(), NOW, placed(4))
    assert (routing.epoch, routing.prg_count) == (2, 4)
    assert routing.ring == first().ring
    assert [one.epoch for one in routing.superseded] == [1]


@given(st.binary(min_size=1, max_size=8), st.integers(1, 8), st.integers(0, 3))
def test_a_key_stays_or_goes_to_a_new_partition(key: bytes, count: int, more: int) -> None:
    before = first(count)
    after = next_epoch(before, NOW, placed(count + more))
    was, is_now = before.session_prg(ClientId(key)), after.session_prg(ClientId(key))
    assert is_now == was or is_now >= count
    assert after.topic_prg(key) == is_now


OWNER = PrgIndex(1)
DECISIONS: dict[str, tuple[int | None, int, type]] = {
    "the epoch in force": (3, NOW, Serve),
    "just superseded": (2, NOW, Redirect),
    "the last millisecond of grace": (2, NOW + REDIRECT_GRACE_MS - 1, Redirect),
    "grace is over": (2, NOW + REDIRECT_GRACE_MS, RoutingEpochMismatch),
    "an older one, by its own time": (1, NOW, Redirect),
    "an older one, its grace over": (1, NOW + 60_000, RoutingEpochMismatch),
    "a clock that is behind": (2, NOW - 5_000, Redirect),
    "never heard of": (0, NOW, RoutingEpochMismatch),
    "from the future": (4, NOW, RoutingEpochMismatch),
    "none given": (None, NOW, RoutingEpochMismatch),
}


@pytest.mark.parametrize(("observed", "now_ms", "expected"), DECISIONS.values(), ids=DECISIONS)
def test_decisions(observed: int | None, now_ms: int, expected: type) -> None:
    second = next_epoch(first(), NOW - REDIRECT_GRACE_MS + 60_000, placed(4))
    third = next_epoch(second, NOW, placed(5))
    epoch = None if observed is None else EpochNumber(observed)
    decision = decide_route(third, epoch, OWNER, now_ms)
    assert type(decision) is expected
    if isinstance(decision, Redirect):
        assert decision == Redirect(OWNER, third.placements[1], third.epoch)
    if isinstance(decision, RoutingEpochMismatch):
        assert (decision.observed_epoch, decision.expected_epoch) == (observed, 3)
        assert decision.replicas == third.placements[1]
        assert decision.refresh_first == (observed == 4)


@given(st.lists(st.integers(0, REDIRECT_GRACE_MS), min_size=1, max_size=20), st.integers(0, 20))
def test_no_route_outlives_its_grace_however_often_epochs_follow(
    pauses: list[int], observed: int
) -> None:
    routing, now, ended = first(), NOW, {}
    for pause in pauses:
        now += pause
        ended[int(routing.epoch)] = now
        routing = next_epoch(routing, now, placed(3))
    decision = decide_route(routing, EpochNumber(observed), OWNER, now)
    redirected = observed in ended and now - ended[observed] < REDIRECT_GRACE_MS
    assert isinstance(decision, Redirect) == redirected
    assert isinstance(decision, Serve) == (observed == routing.epoch)


@pytest.mark.parametrize(
    "placements",
    [(), ((),), ((ReplicaId(1), ReplicaId(1)),), placed(1025)],
    ids=["no partition", "no replica", "a replica twice", "too many"],
)
def test_placements_without_meaning_are_refused(placements: tuple[Placement, ...]) -> None:
    with pytest.raises(RoutingMisuse):
        RoutingEpoch(TenantId("acme"), EpochNumber(1), HashRing(), placements)


def test_a_ring_does_not_shrink() -> None:
    with pytest.raises(RoutingMisuse):
        next_epoch(first(3), NOW, placed(2))


@pytest.mark.parametrize(
    ("sessions", "rate", "production", "count"),
    [
        (0, 0, False, 1),
        (0, 0, True, 3),
        (50_000, 500, False, 1),
        (50_001, 0, False, 2),
        (0, 501, False, 2),
        (1_048_576, 100, True, 21),
        (10, 10_000_000, True, 1024),
    ],
)
def test_partitions_follow_the_tenant_s_size(
    sessions: int, rate: int, production: bool, count: int
) -> None:
    assert plan_prg_count(sessions, rate, production=production) == count
