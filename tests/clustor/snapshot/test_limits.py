"""What bounds a transfer: the bandwidth budgets and the import buffer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clustor.snapshot import (
    PEER_BYTES_PER_SECOND,
    Budget,
    Buffered,
    BufferLimit,
    ImportBuffer,
    ImportThrottle,
    NodeBudget,
    SnapshotImportNodePressure,
    grant,
    node_buffer_bytes,
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
    assert node_buffer_bytes(16 * GIB) == 16 * GIB * 15 // 100
    assert node_buffer_bytes(1024 * GIB) == 32 * GIB


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


def test_the_buffer_counts_entries_and_bytes() -> None:
    node = NodeBudget(cap_bytes=1000)
    buffer = ImportBuffer(node, entries_max=10, bytes_max=500)
    assert buffer.admit(4, 200) == Buffered(4, 200)
    assert buffer.admit(6, 300) == Buffered(10, 500)
    refused = buffer.admit(1, 0)
    assert refused == ImportThrottle(BufferLimit.PARTITION_ENTRIES, 10, 10, 500)
    assert refused.reason == "SnapshotImport"
    buffer.release()
    assert (buffer.entries, buffer.bytes, node.used_bytes) == (0, 0, 0)


def test_each_limit_is_named() -> None:
    node = NodeBudget(cap_bytes=600)
    one = ImportBuffer(node, entries_max=10, bytes_max=500)
    other = ImportBuffer(node, entries_max=10, bytes_max=500)
    assert one.admit(1, 501) == ImportThrottle(BufferLimit.PARTITION_BYTES, 500, 0, 0)
    assert one.admit(1, 400) == Buffered(1, 400)
    assert other.admit(1, 201) == ImportThrottle(BufferLimit.NODE_BYTES, 600, 0, 0)
    assert other.admit(1, 200) == Buffered(1, 200)
    with pytest.raises(SnapshotImportNodePressure):
        ImportBuffer(node)
    one.release()
    assert node.room_bytes == 400
    ImportBuffer(node)


def test_the_defaults_are_those_of_the_text() -> None:
    buffer = ImportBuffer(NodeBudget(32 * GIB))
    assert isinstance(buffer.admit(8192, 8 * GIB), Buffered)
    assert isinstance(buffer.admit(1, 0), ImportThrottle)
    assert isinstance(buffer.admit(0, 1), ImportThrottle)


@patient
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 200)), max_size=60))
def test_the_node_budget_is_the_sum_of_its_buffers(asks: list[tuple[int, int, int]]) -> None:
    node = NodeBudget(cap_bytes=700)
    buffers = [ImportBuffer(node, entries_max=20, bytes_max=400) for _ in range(3)]
    for which, entries, size in asks:
        if entries == 0:
            buffers[which].release()
        else:
            buffers[which].admit(entries, size)
        assert node.used_bytes == sum(buffer.bytes for buffer in buffers) <= node.cap_bytes
        assert all(buffer.entries <= 20 and buffer.bytes <= 400 for buffer in buffers)
