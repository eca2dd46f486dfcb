"""What bounds a transfer: the bandwidth budgets and the import buffer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clustor.snapshot.bandwidth import (
    PEER_BYTES_PER_SECOND,
    Budget,
    grant,
    node_bytes_per_second,
    observer_bytes_per_second,
)
from tests.clustor.snapshot.support import patient

GIB = 2**30


def test_the_caps_are_those_of_the_text() -> None:
    assert PEER_BYTES_PER_SECOND == 128 * 2**20
    assert node_bytes_per_second(10**9) == 700_000_000
    assert node_bytes_per_second(12 * 10**9) == GIB
    assert observer_bytes_per_second(1000) == 100


def test_at_ninety_percent_it_pauses_until_sixty() -> None:
    peer, node = Budget(1000), Budget(10**6)
    assert grant(peer, node, 0, 899) == 899
    assert grant(peer, node, 0, 1) == 1  # below 90 %: goes on
    assert grant(peer, node, 0, 1) == 0  # 90 % used
    assert grant(peer, node, 299, 1) == 0  # 60.1 % used
    assert grant(peer, node, 300, 500) == 400  # 60 %: the rest of the bucket
    assert grant(peer, node, 300, 1) == 0


def test_the_node_cap_holds_for_all_peers_together() -> None:
    node = Budget(1000)
    peers = [Budget(600), Budget(600), Budget(600)]
    assert [grant(peer, node, 0, 500) for peer in peers] == [500, 500, 0]
    assert peers[2].used_bytes == 0


def test_a_clock_that_goes_back_refills_nothing() -> None:
    peer, node = Budget(1000), Budget(10**6)
    assert grant(peer, node, 5000, 1000) == 1000
    assert grant(peer, node, 1000, 1) == 0
    assert grant(peer, node, 5001, 1) == 0


@patient
@given(
    st.integers(1, 5000),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 3000)), min_size=1, max_size=60),
)
def test_no_second_carries_more_than_the_rate_twice_and_the_long_run_no_more_than_it(
    rate: int, asks: list[tuple[int, int]]
) -> None:
    peer, node, now_ms, sent = Budget(rate), Budget(10**9), 0, 0
    for pause_ms, wanted in asks:
        now_ms += pause_ms
        granted = grant(peer, node, now_ms, wanted)
        assert 0 <= granted <= wanted
        sent += granted
        assert sent <= rate + rate * now_ms // 1000  # a full bucket and what refilled it


@patient
@given(st.integers(1000, 10**6))
def test_a_pause_always_ends(rate: int) -> None:
    peer, node = Budget(rate), Budget(10**9)
    assert grant(peer, node, 0, rate) == rate
    assert grant(peer, node, 401, rate) > 0
