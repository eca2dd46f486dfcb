"""Places for those without a first answer: one source's share, and who goes for whom."""

from __future__ import annotations

import random

import pytest

from quantum.edge.half_open import HalfOpen, source_of


@pytest.mark.parametrize(
    ("host", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("?", "?"),
    ],
)
def test_a_site_is_one_source(host: str, source: str) -> None:
    assert source_of(host) == source


def test_a_source_has_its_share_and_its_own_oldest_goes() -> None:
    places: HalfOpen[int] = HalfOpen(10, 3)
    assert [places.add(guest, "crowd") for guest in range(5)] == [None, None, None, 0, 1]
    assert places.add(100, "alone") is None
    assert len(places) == 4


def test_when_all_places_are_taken_the_heaviest_source_gives_one() -> None:
    places: HalfOpen[str] = HalfOpen(5, 5)
    for guest in ("a1", "b1", "b2", "b3", "c1"):
        assert places.add(guest, guest[0]) is None
    assert places.add("d1", "d") == "b1"
    assert places.add("d2", "d") == "b2"
    places.discard("b3")
    assert places.add("e1", "e") is None
    assert places.add("f1", "f") == "d1"


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_a_naive_twin(seed: int) -> None:
    rng = random.Random(seed)
    places: HalfOpen[int] = HalfOpen(12, 6)
    here: list[tuple[int, str]] = []
    for guest in range(400):
        if here and rng.random() < 0.4:
            gone = rng.choice(here)
            here.remove(gone)
            places.discard(gone[0])
            places.discard(gone[0])
        source = rng.choice("aaaabbcdefgh")
        here.append((guest, source))
        left = places.add(guest, source)
        counts = {each: sum(1 for _, of in here if of == each) for _, each in here}
        if counts[source] > 6:
            assert left == next(g for g, of in here if of == source)
        elif len(here) > 12:
            heaviest = {each for each, n in counts.items() if n == max(counts.values())}
            assert left in {next(g for g, of in here if of == each) for each in heaviest}
        else:
            assert left is None
        here = [each for each in here if each[0] != left]
        assert len(places) == len(here)
