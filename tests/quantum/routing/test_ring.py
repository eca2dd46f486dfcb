"""The ring (C9): which keys move when it grows, and vectors that may never change."""

from __future__ import annotations

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from quantum.routing.errors import RoutingMisuse, UnknownRing
from quantum.routing.ring import HashRing, jump
from quantum.types import ClientId, TenantId

TENANT = TenantId("acme")


@pytest.mark.parametrize(
    ("key", "count", "place"),
    [(1, 1, 0), (42, 57, 43), (0xDEAD10CC, 1, 0), (0xDEAD10CC, 666, 361), (256, 1024, 520)],
)
def test_jump_is_the_paper_s(key: int, count: int, place: int) -> None:
    """Vectors that other implementations of the paper publish."""
    assert jump(key, count) == place


@given(st.integers(0, 2**64 - 1), st.integers(1, 2000))
def test_a_key_stays_or_moves_to_the_new_partition(key: int, count: int) -> None:
    before, after = jump(key, count), jump(key, count + 1)
    assert 0 <= before < count
    assert after in (before, count)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 64, 511])
def test_growth_moves_one_share(count: int) -> None:
    ring, keys = HashRing(), 20_000
    moved = sum(
        ring.session_partition(TENANT, ClientId(b"client-%d" % number), count)
        != ring.session_partition(TENANT, ClientId(b"client-%d" % number), count + 1)
        for number in range(keys)
    )
    share = keys / (count + 1)
    # Five standard deviations of a fair draw.
    assert abs(moved - share) < 5 * (share * (1 - 1 / (count + 1))) ** 0.5


def test_partitions_are_even() -> None:
    ring, keys, count = HashRing(seed=7), 40_000, 16
    filled = [0] * count
    for number in range(keys):
        filled[ring.topic_partition(TENANT, b"sensors/%d/temp" % number, count)] += 1
    assert all(abs(share - keys / count) < 5 * (keys / count) ** 0.5 for share in filled)


GOLDEN = {
    "a session": (0, (b"acme", b"client-1"), 582478),
    "another seed": (1, (b"acme", b"client-1"), 868561),
    "a topic": (0, (b"acme", b"sensors/1/temp"), 601280),
    "another tenant": (0, (b"zeta", b"sensors/1/temp"), 678153),
    "an empty key": (0, (b"acme", b""), 647102),
    "three parts": (0, (b"acme", b"orders", b"\x05\0\0\0"), 416554),
}


@pytest.mark.parametrize(("seed", "parts", "place"), GOLDEN.values(), ids=GOLDEN)
def test_golden_vectors(seed: int, parts: tuple[bytes, ...], place: int) -> None:
    """A change here would send every client of a running cluster to a wrong partition."""
    assert HashRing(1, seed).partition(1 << 20, *parts) == place


def test_the_hash_is_xxh3_of_64_bits() -> None:
    """Its published value for no input."""
    assert xxhash.xxh3_64_intdigest(b"") == 0x2D06800538D394C2


def test_sessions_and_topics_are_keys_of_two_parts() -> None:
    ring = HashRing(1, 3)
    assert ring.session_partition(TENANT, ClientId(b"x"), 99) == ring.partition(99, b"acme", b"x")
    assert ring.topic_partition(TENANT, b"x", 99) == ring.partition(99, b"acme", b"x")


@given(st.binary(max_size=4), st.binary(max_size=4), st.binary(max_size=4), st.binary(max_size=4))
def test_parts_are_not_confused(a: bytes, b: bytes, c: bytes, d: bytes) -> None:
    ring, count = HashRing(), 1 << 31
    same = ring.partition(count, a, b) == ring.partition(count, c, d)
    assert same == ((a, b) == (c, d))


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(UnknownRing):
        HashRing(algorithm_version=2)
    with pytest.raises(RoutingMisuse):
        HashRing(seed=-1)
    with pytest.raises(RoutingMisuse):
        HashRing(seed=1 << 64)
    with pytest.raises(RoutingMisuse):
        HashRing().partition(0, b"a")
